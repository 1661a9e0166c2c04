//! The hand-over between real threads, with a lane that needs no socket.

#![cfg(not(tidewire_model))]

use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

use tidewire_io::waker::LaneWaker;

use super::*;

/// A lane whose turns count, and whose waits end when they are woken.
struct CountingLane {
    turns: Arc<AtomicU32>,
    /// How often the lane has looked at its sockets.
    looks: Arc<AtomicU32>,
    /// The threads that ran a turn, each after the one before it.
    threads: Arc<Mutex<Vec<thread::ThreadId>>>,
    stops: Arc<AtomicBool>,
    /// Panics in the turn after this many.
    panics_after: u32,
}

struct Rig {
    turns: Arc<AtomicU32>,
    looks: Arc<AtomicU32>,
    threads: Arc<Mutex<Vec<thread::ThreadId>>>,
    waker: Arc<LaneWaker>,
    stops: Arc<AtomicBool>,
    seat: Arc<dyn Lead>,
    own: thread::JoinHandle<Result<(), LaneError>>,
}

impl Turns for CountingLane {
    fn take_over(&mut self) {
        let turns = self.turns.fetch_add(1, Ordering::SeqCst);
        let mut threads = self.threads.lock().unwrap();
        let here = thread::current().id();
        if threads.last() != Some(&here) {
            threads.push(here);
        }
        drop(threads);
        assert!(turns < self.panics_after, "a turn panics");
    }

    fn step(&mut self, _: Option<u64>) -> Result<(), LaneError> {
        thread::yield_now();
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.take_over();
        Ok(())
    }

    fn stops(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }

    fn has_work(&self) -> bool {
        self.stops()
    }

    fn end(self, outcome: Result<(), LaneError>) -> Result<(), LaneError> {
        outcome
    }
}

/// A lane at rest, and the number of its turns. It has no thread of its own.
fn at_rest() -> (Arc<dyn Lead>, Arc<AtomicU32>) {
    let waker = Arc::new(LaneWaker::new().unwrap());
    waker.before_rest();
    let turns = Arc::<AtomicU32>::default();
    let lane = CountingLane {
        turns: Arc::clone(&turns),
        looks: Arc::default(),
        threads: Arc::default(),
        stops: Arc::default(),
        panics_after: u32::MAX,
    };
    (Seat::new(lane, Crew::new(&waker, Arc::default())), turns)
}

impl Rig {
    fn start(panics_after: u32) -> Self {
        let waker = Arc::new(LaneWaker::new().unwrap());
        let turns = Arc::<AtomicU32>::default();
        let looks = Arc::<AtomicU32>::default();
        let stops = Arc::<AtomicBool>::default();
        let threads = Arc::<Mutex<Vec<thread::ThreadId>>>::default();
        let lane = CountingLane {
            turns: Arc::clone(&turns),
            looks: Arc::clone(&looks),
            threads: Arc::clone(&threads),
            stops: Arc::clone(&stops),
            panics_after,
        };
        let seat = Seat::new(lane, Crew::new(&waker, Arc::default()));
        let own = thread::spawn({
            let seat = Arc::clone(&seat);
            move || seat.run()
        });
        Self {
            turns,
            looks,
            threads,
            waker,
            stops,
            seat,
            own,
        }
    }

    fn end(self) -> Result<(), LaneError> {
        self.stops.store(true, Ordering::SeqCst);
        self.waker.wake();
        self.own.join().unwrap()
    }
}

/// Leads until the lane has had so many turns.
fn lead_to(rig: &Rig, turns: u32) -> bool {
    let is_there = |_: Option<&Waker>| rig.turns.load(Ordering::SeqCst) >= turns;
    rig.seat.wait(None, &mut { is_there })
}

#[test]
fn a_thread_that_waits_runs_the_turns() {
    let rig = Rig::start(u32::MAX);
    let here = thread::current().id();
    let own = rig.own.thread().id();
    // The lane's own thread hands on the lead, if it had it first.
    while rig.threads.lock().unwrap().last() != Some(&here) {
        assert!(lead_to(&rig, rig.turns.load(Ordering::SeqCst) + 2));
    }
    assert!(!on_lane::is_lane(), "the thread is no lane afterwards");
    // After the last lead the own thread runs the lane again.
    while rig.threads.lock().unwrap().last() != Some(&own) {
        thread::yield_now();
    }
    rig.end().unwrap();
}

/// Regression: such leads, one after another, kept the lane from its peer for ever.
#[test]
fn a_lead_that_ends_after_its_first_turn_has_looked_at_the_sockets() {
    let rig = Rig::start(u32::MAX);
    let mut leads = 0;
    while leads < 20 {
        let (turns, looks) = (&rig.turns, &rig.looks);
        let before = [turns, looks].map(|it| it.load(Ordering::SeqCst));
        // Ready after the turn of the first half of the leads, and never in the second half, whose time is over.
        let mut is_ready = || leads < 10 && turns.load(Ordering::SeqCst) > before[0];
        let led = rig.seat.lead(Some(0), &mut is_ready);
        if led == Led::Busy {
            // The own thread leads, and hands on the lead to a thread that follows.
            lead_to(&rig, before[0] + 2);
            continue;
        }
        leads += 1;
        assert!(looks.load(Ordering::SeqCst) > before[1], "{led:?}");
    }
    rig.end().unwrap();
}

#[test]
fn a_wait_ends_at_its_time() {
    let rig = Rig::start(u32::MAX);
    let began = Instant::now();
    let until_ns = now_ns() + 2_000_000;
    assert!(!rig.seat.wait(Some(until_ns), &mut |_| false));
    assert!(began.elapsed() >= Duration::from_millis(2));
    rig.end().unwrap();
}

#[test]
fn the_own_thread_takes_a_lane_that_rests_after_the_lease() {
    let rig = Rig::start(u32::MAX);
    while rig.seat.lead(None, &mut || true) != Led::Ready {
        // The own thread leads. It hands on the lead to a thread that follows, and only a thread that has to wait does.
        lead_to(&rig, rig.turns.load(Ordering::SeqCst) + 2);
    }
    let turns = rig.turns.load(Ordering::SeqCst);
    while rig.turns.load(Ordering::SeqCst) == turns {
        thread::yield_now();
    }
    rig.end().unwrap();
}

#[test]
fn a_panic_of_a_turn_becomes_the_end_of_the_lane() {
    let rig = Rig::start(100);
    let panicked = loop {
        match rig.seat.lead(None, &mut || false) {
            Led::Busy => thread::yield_now(),
            led => break led,
        }
    };
    assert_eq!(panicked, Led::Ended);
    let outcome = rig.own.join().unwrap();
    assert!(matches!(outcome, Err(LaneError::ServicePanicked(text)) if text == "a turn panics"));
    assert_eq!(rig.seat.lead(None, &mut || true), Led::Ended);
}

#[test]
fn a_thread_that_waits_first_runs_the_lanes_at_rest_that_have_its_requests() {
    let (waited_for, turns) = at_rest();
    let others = [at_rest(), at_rest()];
    for (seat, _) in &others {
        unsent::note(&Arc::downgrade(seat));
    }
    unsent::note(&Arc::downgrade(&waited_for));
    let have_run = || {
        let ran = |turns: &AtomicU32| turns.load(Ordering::SeqCst) > 0;
        others.iter().all(|(_, turns)| ran(turns))
    };
    // A lead that only looks makes two turns. The outcome comes with the next lead.
    let mut ran_at = Vec::new();
    assert!(waited_for.wait(None, &mut |_| {
        let turns = turns.load(Ordering::SeqCst);
        ran_at.push((turns, have_run()));
        turns > 2
    }));
    assert_eq!(ran_at.first(), Some(&(0, false)), "it looks first");
    assert!(ran_at.iter().all(|(turns, ran)| *ran || *turns <= 2));

    let before = others[0].1.load(Ordering::SeqCst);
    assert!(waited_for.wait(None, &mut |_| true));
    assert_eq!(
        others[0].1.load(Ordering::SeqCst),
        before,
        "it has nothing to send"
    );
}

#[test]
fn a_thread_that_never_waits_notes_each_living_lane_a_few_times_at_most() {
    let (lasting, _) = at_rest();
    for _ in 0..1_000 {
        let (dropped, _) = at_rest();
        unsent::note(&Arc::downgrade(&dropped));
        unsent::note(&Arc::downgrade(&lasting));
    }
    assert!(unsent::noted() <= 8, "{}", unsent::noted());
}
