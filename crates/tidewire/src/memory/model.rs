//! The account under a model checker, which tries every interleaving of its lanes.

use super::*;

const SIXTEENTH: usize = 1 << 20;

/// The level is right after every order of the lanes' changes.
#[test]
fn the_level_is_right_when_all_lanes_have_settled() {
    loom::model(|| {
        let account = Arc::new(MemoryAccount::new(SIXTEENTHS * SIXTEENTH));
        let lane = |bytes: usize| {
            let mut lane = LaneMemory::new(Arc::clone(&account));
            loom::thread::spawn(move || {
                lane.resize(0, bytes * SIXTEENTH);
                lane
            })
        };
        let (one, other) = (lane(HIGH_AT), lane(FULL_AT - HIGH_AT));
        let one = one.join().unwrap();
        let mut other = other.join().unwrap();
        assert_eq!(account.bytes(), FULL_AT * SIXTEENTH);
        assert_eq!(
            account.pressure.load(Ordering::SeqCst),
            Pressure::Full as u8
        );

        // The pressure falls while another lane reads it.
        let looking = loom::thread::spawn({
            let account = Arc::clone(&account);
            move || _ = account.pressure()
        });
        drop(one);
        looking.join().unwrap();
        assert_eq!(
            account.pressure.load(Ordering::SeqCst),
            Pressure::Normal as u8
        );
        other.settle();
        drop(other);
        assert_eq!(account.bytes(), 0);
    });
}
