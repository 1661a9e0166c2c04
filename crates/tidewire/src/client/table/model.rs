//! The table under a model checker, which tries every interleaving of its threads and every value that a weak load may
//! see.
//!
//! The tests run the table itself with the primitives of `loom`. Each negative control breaks one of its rules and must
//! fail.

use std::fmt::Debug;
use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Wake, Waker};

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use loom::thread;

use super::*;
use crate::client::submissions::Nothing;
use crate::client::sync::Payload;
use crate::client::waiting::Waiting;

/// The checker's primitives. Without `RELEASE` all stores are relaxed. Without `FENCE` a wake has no fence.
#[derive(Debug)]
struct Modelled<const RELEASE: bool, const FENCE: bool>;

impl<const RELEASE: bool, const FENCE: bool> Primitives for Modelled<RELEASE, FENCE> {
    type Word = ModelledWord<RELEASE>;
    type Payload = ModelledPayload;
    type Lock<T: Debug + Default> = ModelledLock<T>;
    type Waker = ModelledWaker<FENCE>;

    /// A small number, so that slots are soon reused.
    const SLOTS_MIN: usize = 1;
}

type Sound = Modelled<true, true>;
type Table<P> = RequestTable<Nothing, P>;

#[derive(Debug)]
struct ModelledWord<const RELEASE: bool>(AtomicU32);

impl<const RELEASE: bool> Word for ModelledWord<RELEASE> {
    fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    fn load(&self, ordering: Ordering) -> u32 {
        self.0.load(ordering)
    }

    fn store(&self, value: u32, ordering: Ordering) {
        let ordering = if RELEASE { ordering } else { Ordering::Relaxed };
        self.0.store(value, ordering);
    }
}

/// Two words that are written and read one by one, so a torn reply is possible.
#[derive(Debug, Default)]
struct ModelledPayload([AtomicU64; 2]);

impl Payload for ModelledPayload {
    const BYTES_MAX: usize = 16;

    fn store(&self, bytes: &[u8]) {
        for (word, bytes) in self.0.iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
    }

    fn load(&self, count: usize, mut memory: Vec<u8>) -> Vec<u8> {
        memory.clear();
        for word in &self.0 {
            memory.extend(word.load(Ordering::Relaxed).to_le_bytes());
        }
        memory.truncate(count);
        memory
    }
}

#[derive(Debug, Default)]
struct ModelledLock<T>(Mutex<T>);

impl<T: Debug + Default> Lock<T> for ModelledLock<T> {
    fn lock(&self) -> impl DerefMut<Target = T> {
        self.0.lock().unwrap()
    }
}

/// The event that a thread waits for. Threads of the model do not block: a thread that would sleep ends, and the test
/// fails if its flag is never set.
#[derive(Debug, Default)]
struct WakeFlag(AtomicBool);

impl WakeFlag {
    fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.set();
    }
}

/// A lane's waker with the protocol of the real one.
#[derive(Debug, Default)]
struct ModelledWaker<const FENCE: bool> {
    is_sleeping: AtomicBool,
    flag: WakeFlag,
}

impl<const FENCE: bool> ModelledWaker<FENCE> {
    fn fence() {
        if FENCE {
            fence(Ordering::SeqCst);
        }
    }
}

impl<const FENCE: bool> WakeLane for ModelledWaker<FENCE> {
    fn wake(&self) {
        Self::fence();
        if self.is_sleeping.load(Ordering::Relaxed)
            && self.is_sleeping.swap(false, Ordering::AcqRel)
        {
            self.flag.set();
        }
    }

    fn wake_poller(&self) {
        self.wake();
    }

    fn note_waiting(&self, waker: &Waker) -> Waiting {
        Waiting::of_thread(waker)
    }

    fn wake_for_task(&self) {}
}

/// The order of completing and replying.
#[derive(Clone, Copy, PartialEq)]
enum Complete {
    AfterReplies,
    BeforeReplies,
}

/// Runs a turn of a lane that echoes its requests. Returns the number of requests.
fn run_turn<P: Primitives>(table: &Table<P>, complete: Complete) -> usize {
    let (mut list, mut completions) = (Submissions::default(), Completions::default());
    let mut replied = 0;
    table.refill(&mut list, &mut 0);
    if complete == Complete::BeforeReplies {
        table.complete(&mut completions);
    }
    while !list.is_empty() {
        if let Some((head, _, payload)) = list.request() {
            table.reply(&mut completions, head.slot, 7, payload);
            replied += 1;
        }
        list.pass();
    }
    if complete == Complete::AfterReplies {
        table.complete(&mut completions);
    }
    completions.wake();
    replied
}

/// A request that a thread sleeps on: slot, expected payload, and the flag that wakes the thread.
type Asleep = Option<(SlotId, &'static [u8], Arc<WakeFlag>)>;

fn submit<P: Primitives>(table: &Table<P>, payload: &[u8]) -> SlotId {
    let head = RequestHead::due_at(u64::MAX);
    table.submit(head, "", payload).unwrap()
}

/// Polls the reply as a thread does that is about to sleep.
fn poll<P: Primitives>(table: &Table<P>, slot: SlotId, payload: &'static [u8]) -> Asleep {
    let flag = Arc::new(WakeFlag::default());
    match table.poll(slot, Some(&Waker::from(Arc::clone(&flag)))) {
        Some(outcome) => {
            assert_is(&outcome, payload);
            None
        }
        None => Some((slot, payload, flag)),
    }
}

fn assert_is(outcome: &Outcome, payload: &[u8]) {
    let reply = outcome.as_ref().unwrap();
    assert_eq!(reply.payload(), payload, "the reply is another one");
}

/// Runs these threads, which submit `requests` in all, beside two turns of a lane, and checks that all replies arrive.
fn check<const RELEASE: bool, const FENCE: bool>(
    requests: usize,
    complete: Complete,
    threads: &'static [fn(&Table<Modelled<RELEASE, FENCE>>) -> Asleep],
) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(3);
    checker.check(move || {
        let table = Arc::new(Table::<Modelled<RELEASE, FENCE>>::new(1 << 20, false));
        let running = threads.iter().map(|run| {
            let table = Arc::clone(&table);
            thread::spawn(move || run(&table))
        });
        let running: Vec<_> = running.collect();
        let mut replied = run_turn(&table, complete);
        let waker = table.waker();
        waker.is_sleeping.store(true, Ordering::Relaxed);
        ModelledWaker::<FENCE>::fence();
        let is_awake = table.is_occupied();
        let asleep: Vec<Asleep> = running.into_iter().map(|t| t.join().unwrap()).collect();
        let is_awake = is_awake || waker.flag.is_set();
        assert!(
            replied == requests || is_awake,
            "the lane sleeps on a request"
        );
        replied += run_turn(&table, complete);
        assert_eq!(replied, requests);
        for (slot, payload, flag) in asleep.into_iter().flatten() {
            assert!(flag.is_set(), "a thread sleeps for ever");
            assert_is(&table.poll(slot, None).unwrap(), payload);
        }
        assert_eq!(table.abandoned.load(Ordering::Relaxed), 0);
        assert_eq!(table.end(&RequestError::Shutdown), 0);
    });
}

fn one<P: Primitives>(table: &Table<P>) -> Asleep {
    let payload = b"of one thread";
    poll(table, submit(table, payload), payload)
}

fn other<P: Primitives>(table: &Table<P>) -> Asleep {
    let payload = b"of the other";
    poll(table, submit(table, payload), payload)
}

/// Sends a request whose reply does not fit the slot.
fn long<P: Primitives>(table: &Table<P>) -> Asleep {
    let payload = b"a payload that is too long";
    poll(table, submit(table, payload), payload)
}

/// Sends a second request, which may reuse the slot of the first before the lane has completed the block.
fn one_then_another<P: Primitives>(table: &Table<P>) -> Asleep {
    let first = submit(table, b"first request");
    let reply = table.fetch(first);
    let second = poll(table, submit(table, b"second"), b"second");
    match reply {
        Some(reply) => assert_is(&Ok(reply), b"first request"),
        // Abandons the first request, like a caller that waits only for the second.
        None => table.abandon(first),
    }
    second
}

/// Sends a request and abandons it at any time, then sends a request and waits for its reply.
fn abandon_one<P: Primitives>(table: &Table<P>) -> Asleep {
    let slot = submit(table, b"in vain");
    table.abandon(slot);
    poll(table, submit(table, b"wanted"), b"wanted")
}

#[test]
fn every_thread_gets_its_reply_and_no_thread_sleeps_for_ever() {
    check::<true, true>(1, Complete::AfterReplies, &[one]);
    check::<true, true>(1, Complete::AfterReplies, &[long]);
    check::<true, true>(2, Complete::AfterReplies, &[one_then_another]);
    check::<true, true>(2, Complete::AfterReplies, &[one, other]);
}

#[test]
fn an_abandoned_request_frees_its_slot_and_disturbs_no_other() {
    check::<true, true>(2, Complete::AfterReplies, &[abandon_one]);
}

#[test]
fn the_end_wakes_all_waiting_tasks() {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(3);
    checker.check(|| {
        let table = Arc::new(Table::<Sound>::new(1 << 20, false));
        let far = Arc::clone(&table);
        let running = thread::spawn(move || {
            let slot = far.submit(RequestHead::due_at(u64::MAX), "", b"").ok()?;
            let flag = Arc::new(WakeFlag::default());
            let outcome = far.poll(slot, Some(&Waker::from(Arc::clone(&flag))));
            Some((slot, flag, outcome))
        });
        table.end(&RequestError::Shutdown);
        let Some((slot, flag, outcome)) = running.join().unwrap() else {
            return;
        };
        assert!(
            outcome.is_some() || flag.is_set(),
            "a thread sleeps for ever"
        );
        let outcome = outcome.or_else(|| table.poll(slot, None));
        assert_eq!(outcome, Some(ended()));
    });
}

#[test]
#[should_panic(expected = "the reply is another one")]
fn negative_control_without_release_a_reply_is_read_before_it_is_written() {
    check::<false, true>(1, Complete::AfterReplies, &[one]);
}

#[test]
#[should_panic(expected = "the lane sleeps on a request")]
fn negative_control_without_the_fence_the_lane_sleeps_on_a_request() {
    check::<true, false>(1, Complete::AfterReplies, &[one]);
}

#[test]
#[should_panic(expected = "a thread sleeps for ever")]
fn negative_control_completed_before_the_reply_a_thread_sleeps_for_ever() {
    check::<true, true>(1, Complete::BeforeReplies, &[one]);
}
