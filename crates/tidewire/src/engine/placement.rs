//! The choice of a lane for a new connection: the lane with the fewest sessions, and of lanes with as many the one that
//! was less busy of late.
//!
//! A session never moves, so the choice matters. Rejected: the lanes in turn. With two lanes, and a health check after
//! each connection that stays, all that stay are on one lane. Rejected: the busy time alone. A herd comes within
//! milliseconds, before any lane has been busy with it.

use std::sync::Arc;

use crate::mailbox::{BusyTime, Mailbox};

/// The places that connections got, and how busy the lanes were.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// The lane of the last connection.
    last: usize,
    /// The recent busy time of each lane.
    busy: Vec<BusyTime>,
    /// When `busy` was read.
    looked_ns: u64,
}

impl Placement {
    /// Chooses the lane for a connection: of the running ones with the fewest sessions one that was least busy of late,
    /// and of these the next one in turn.
    pub(super) fn choose(&mut self, lanes: &[Arc<Mailbox>], now_ns: u64) -> Option<usize> {
        let running = |number: &usize| !lanes[*number].is_retired();
        let sessions = |number: &usize| lanes[*number].load.sessions();
        let fewest = (0..lanes.len())
            .filter(running)
            .map(|it| sessions(&it))
            .min()?;
        let first = self.last + 1;
        let in_turn = (first..first + lanes.len()).map(|it| it % lanes.len());
        let mut equal = in_turn.filter(running).filter(|it| sessions(it) <= fewest);
        let one = equal.next();
        let chosen = match equal.next() {
            None => one,
            Some(other) => {
                self.look_at(lanes, now_ns);
                let candidates = one.into_iter().chain([other]).chain(equal);
                candidates.min_by_key(|number| self.busy[*number].steps())
            }
        }?;
        self.last = chosen;
        Some(chosen)
    }

    /// Reads how busy the lanes were, unless that was done just now.
    fn look_at(&mut self, lanes: &[Arc<Mailbox>], now_ns: u64) {
        if self.busy.len() == lanes.len() && now_ns < self.looked_ns + BUSY_LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        self.busy.resize_with(lanes.len(), BusyTime::default);
        for (busy, lane) in self.busy.iter_mut().zip(lanes) {
            busy.look(&lane.load);
        }
    }
}

/// The least time between two looks at the busy times of the lanes, so that they cost nothing beside the connections.
const BUSY_LOOK_NS: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn mailboxes(count: usize) -> Vec<Arc<Mailbox>> {
        let new = |_| Mailbox::new(Arc::default()).unwrap();
        (0..count).map(new).collect()
    }

    /// Regression: the lanes got connections in turn. With two lanes, and a connection that ends at once after each one
    /// that stays, all that stay were on one lane.
    #[test]
    fn connections_that_end_at_once_do_not_send_all_others_to_one_lane() {
        for (count, transient) in [(2, 1), (4, 3), (3, 2), (4, 1)] {
            let lanes = mailboxes(count);
            let mut placement = Placement::default();
            let place = |placement: &mut Placement| {
                let lane = placement.choose(&lanes, 0).unwrap();
                lanes[lane].load.add();
                lane
            };
            for _ in 0..50 * count {
                place(&mut placement);
                for _ in 0..transient {
                    let lane = place(&mut placement);
                    lanes[lane].load.remove();
                }
            }
            for lane in &lanes {
                assert_eq!(lane.load.sessions(), 50);
            }
        }
    }

    #[test]
    fn a_lane_that_has_ended_gets_no_connection() {
        let lanes = mailboxes(3);
        lanes[1].retire();
        let mut placement = Placement::default();
        for _ in 0..10 {
            assert_ne!(placement.choose(&lanes, 0), Some(1));
        }
        lanes[0].retire();
        lanes[2].retire();
        assert_eq!(placement.choose(&lanes, 0), None);
    }

    #[test]
    fn of_lanes_with_as_many_sessions_the_one_that_was_less_busy_gets_the_connection() {
        let lanes = mailboxes(2);
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = std::sync::Mutex::new(ended);
        std::thread::scope(|scope| {
            let (lanes, ended) = (&lanes, &ended);
            for (number, busy_ns) in [(0, 0), (1, 30_000_000)] {
                let tell = tell.clone();
                scope.spawn(move || {
                    lanes[number].load.begin();
                    while tidewire_io::clock::thread_cpu_ns() < busy_ns {}
                    tell.send(()).unwrap();
                    // The thread lives until the test has read its clock.
                    let _ = ended.lock().unwrap().recv();
                });
            }
            told.recv().unwrap();
            told.recv().unwrap();
            let mut placement = Placement::default();
            let chosen = [(); 3].map(|()| placement.choose(lanes, 0));
            drop(end);
            assert_eq!(chosen, [Some(0); 3]);
        });
    }
}
