//! Waking a lane from another thread, and only when it sleeps.
//!
//! A wake by eventfd costs the waking thread a system call and the sleeper 5 to 10 µs. The waking thread must therefore
//! know whether the lane sleeps. The module uses the two-flag protocol: each side writes its own flag, then reads the
//! other's. A full fence between the two steps keeps both sides from reading the old value at once.
//!
//! ```text
//!  other thread                       lane
//!  push to the queue                  before_sleep: sleeping = true
//!  wake: fence                                      fence
//!        sleeping? ─▶ write eventfd   look at the queue again; if it is empty, wait on the poller
//!                                     after_sleep:  sleeping = false, drain the eventfd if it was written
//! ```
//!
//! A write may come after the lane has drained, because its thread was stopped between flag and write. The lane counts
//! such writes and drains them later, as `signal.rs` says.
//!
//! Without the fence both may read the old values: the message sits in the queue and the lane sleeps. The tests show
//! this with a model checker, for the protocol with its fence and without.
//!
//! A lane may also rest: no thread runs it, and its own thread is parked outside of the poller. A wake then unparks
//! that thread. One flag has both states, so that a wake is one read and always finds the right sleeper.
//!
//! Rejected: a read-modify-write in place of load and fence. It is correct too, but every caller then writes the lane's
//! cache line even while the lane is awake. That is the case that must be cheap. Rejected: a condition variable,
//! because the lane sleeps in its poller.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(not(tidewire_model))]
use std::sync::atomic::{self, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

// The models of what lanes share run the real waker, too: see `.ci/run models`.
#[cfg(tidewire_model)]
use loom::sync::atomic::{self, AtomicU8, AtomicU64, Ordering};
use rustix::event::{EventfdFlags, eventfd};

use crate::signal::{Counter, PendingSignals};

/// Wakes one sleeping lane. Clones are handles to the same waker.
///
/// Any thread may call [`wake`](Self::wake). Only the thread that runs the lane calls
/// [`before_sleep`](Self::before_sleep), [`after_sleep`](Self::after_sleep), [`before_rest`](Self::before_rest) and
/// [`after_rest`](Self::after_rest). The lane registers the waker with its poller for reading.
#[derive(Clone, Debug)]
pub struct LaneWaker {
    shared: Arc<WakerShared>,
}

#[derive(Debug)]
struct WakerShared {
    sleep: SleepFlag<AtomicU8>,
    eventfd: OwnedFd,
    /// Unparks the lane's own thread, which is parked while the lane rests.
    thread: OnceLock<Waker>,
    #[cfg(tidewire_model)]
    signalled: loom::sync::Notify,
    /// Wakes with writes that had not arrived when the lane drained the eventfd. Only the lane touches this number.
    undrained: AtomicU64,
}

impl LaneWaker {
    /// Creates the waker of a lane that is awake.
    ///
    /// # Errors
    ///
    /// The kernel refuses to create an eventfd, usually because no descriptor is left: raise the limit with
    /// `ulimit -n`.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            shared: Arc::new(WakerShared {
                sleep: SleepFlag::new(),
                eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
                thread: OnceLock::new(),
                #[cfg(tidewire_model)]
                signalled: loom::sync::Notify::new(),
                undrained: AtomicU64::new(0),
            }),
        })
    }

    /// Wakes the lane if it sleeps or rests, or is about to. Call it after the work for the lane is in place.
    ///
    /// While the lane is awake this costs a fence and a load. When several threads call it at once, one of them makes
    /// the system call.
    #[inline]
    pub fn wake(&self) {
        match self.shared.sleep.take_sleep() {
            AWAKE => {}
            SLEEPING => self.signal(),
            _ => self.unpark(),
        }
    }

    /// Wakes the lane if it sleeps or is about to. A lane at rest is not called: the work waits for the thread that
    /// runs the lane next. Returns whether the lane rests.
    #[inline]
    pub fn wake_poller(&self) -> bool {
        if self.shared.sleep.take(SLEEPING) {
            self.signal();
        }
        self.is_resting()
    }

    fn signal(&self) {
        self.shared.eventfd.increment();
        #[cfg(tidewire_model)]
        self.shared.signalled.notify();
    }

    /// Sleeps as a lane does in its poller. The threads of a model cannot wait for a descriptor.
    #[cfg(tidewire_model)]
    pub fn sleep_in_model(&self) {
        self.shared.signalled.wait();
    }

    /// Unparks the lane's own thread if the lane rests. Call it after the calling task has registered for an outcome,
    /// because a lane at rest brings none.
    #[inline]
    pub fn wake_resting(&self) {
        if self.shared.sleep.take(RESTING) {
            self.unpark();
        }
    }

    /// Unparks the lane's own thread.
    #[cold]
    pub fn unpark(&self) {
        if let Some(thread) = self.shared.thread.get() {
            thread.wake_by_ref();
        }
    }

    /// Sets the waker that unparks the lane's own thread. Only the first call has an effect.
    pub fn set_thread(&self, thread: Waker) {
        let _ = self.shared.thread.set(thread);
    }

    /// Announces that no thread runs the lane from now on. The caller then looks at all the lane's queues once more. If
    /// they are not empty, it calls [`after_rest`](Self::after_rest) and [`unpark`](Self::unpark).
    #[inline]
    pub fn before_rest(&self) {
        self.shared.sleep.announce(RESTING);
    }

    /// Announces that the calling thread runs the lane from now on, or that it calls the lane's own thread. Call it
    /// before looking at the queues.
    #[inline]
    pub fn after_rest(&self) {
        self.shared.sleep.take(RESTING);
    }

    /// Whether no thread runs the lane, and none was asked to.
    #[inline]
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.shared.sleep.is(RESTING)
    }

    /// Announces that the lane will sleep. The lane then looks at all its queues once more, and blocks
    /// only if they are empty.
    #[inline]
    pub fn before_sleep(&self) {
        self.shared.sleep.announce(SLEEPING);
    }

    /// Takes the announcement back and drains the eventfd. Call it after every [`before_sleep`](Self::before_sleep),
    /// even if the lane found work, and before looking at the queues.
    #[inline]
    pub fn after_sleep(&self) {
        let undrained = &self.shared.undrained;
        let before = PendingSignals(undrained.load(Ordering::Relaxed));
        let after = self.shared.sleep.retract(before, &self.shared.eventfd);
        if after != before {
            undrained.store(after.0, Ordering::Relaxed);
        }
    }
}

impl AsFd for LaneWaker {
    /// The descriptor is readable from the first wake until [`LaneWaker::after_sleep`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.eventfd.as_fd()
    }
}

/// The protocol alone, over the atomics of the standard library or of the model checker.
#[derive(Debug)]
struct SleepFlag<F> {
    /// [`AWAKE`], [`SLEEPING`] or [`RESTING`].
    state: F,
}

impl<F: Flag> SleepFlag<F> {
    fn new() -> Self {
        Self {
            state: F::new(AWAKE),
        }
    }

    fn announce(&self, state: u8) {
        self.state.store(state, Ordering::Relaxed);
        F::fence();
    }

    /// Takes the announcement back and drains the wakes that have arrived. Returns the wakes that are still on their
    /// way.
    fn retract(&self, mut undrained: PendingSignals, counter: &impl Counter) -> PendingSignals {
        if self.state.swap(AWAKE, Ordering::AcqRel) == AWAKE {
            undrained.note();
        }
        // A lane that another event woke makes no system call here.
        if !undrained.is_none() {
            undrained.drain(counter);
        }
        undrained
    }

    /// Ends the lane's sleep or rest. Returns the state before: unless it is [`AWAKE`], the caller is the one that must
    /// wake the lane.
    #[inline]
    fn take_sleep(&self) -> u8 {
        F::fence();
        loop {
            let state = self.state.load(Ordering::Relaxed);
            if state == AWAKE || self.state.exchange(state, AWAKE, Ordering::AcqRel) {
                return state;
            }
        }
    }

    /// Ends a state other than [`AWAKE`]. Returns whether the caller is the one that ended it.
    #[inline]
    fn take(&self, state: u8) -> bool {
        F::fence();
        self.is(state) && self.state.exchange(state, AWAKE, Ordering::AcqRel)
    }

    #[inline]
    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Relaxed) == state
    }
}

/// A thread runs the lane and will look at its queues, or its own thread was called.
const AWAKE: u8 = 0;

/// The thread that runs the lane waits on the poller.
const SLEEPING: u8 = 1;

/// No thread runs the lane.
const RESTING: u8 = 2;

/// The atomic operations that the protocol needs.
trait Flag {
    fn new(value: u8) -> Self;
    fn load(&self, ordering: Ordering) -> u8;
    fn store(&self, value: u8, ordering: Ordering);
    fn swap(&self, value: u8, ordering: Ordering) -> u8;
    /// Replaces `old` by `new`. Returns whether the value was `old`.
    fn exchange(&self, old: u8, new: u8, ordering: Ordering) -> bool;
    /// A sequentially consistent fence.
    fn fence();
}

impl Flag for AtomicU8 {
    #[inline]
    fn new(value: u8) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, ordering: Ordering) -> u8 {
        Self::load(self, ordering)
    }

    #[inline]
    fn store(&self, value: u8, ordering: Ordering) {
        Self::store(self, value, ordering);
    }

    #[inline]
    fn swap(&self, value: u8, ordering: Ordering) -> u8 {
        Self::swap(self, value, ordering)
    }

    #[inline]
    fn exchange(&self, old: u8, new: u8, ordering: Ordering) -> bool {
        Self::compare_exchange(self, old, new, ordering, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn fence() {
        atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// A flag of the model checker, with the fence or, as a negative control, without it.
    struct Modelled<const FENCED: bool>(loom::sync::atomic::AtomicU8);

    impl<const FENCED: bool> Flag for Modelled<FENCED> {
        fn new(value: u8) -> Self {
            Self(loom::sync::atomic::AtomicU8::new(value))
        }

        fn load(&self, ordering: Ordering) -> u8 {
            self.0.load(ordering)
        }

        fn store(&self, value: u8, ordering: Ordering) {
            self.0.store(value, ordering);
        }

        fn swap(&self, value: u8, ordering: Ordering) -> u8 {
            self.0.swap(value, ordering)
        }

        fn exchange(&self, old: u8, new: u8, ordering: Ordering) -> bool {
            self.0
                .compare_exchange(old, new, ordering, Ordering::Relaxed)
                .is_ok()
        }

        fn fence() {
            if FENCED {
                loom::sync::atomic::fence(Ordering::SeqCst);
            }
        }
    }

    /// Runs every interleaving of `callers` threads that push and wake while the lane goes to sleep. A wake is lost
    /// when the lane sleeps, there is work, and the eventfd was not written.
    fn no_wake_is_lost<F: Flag + Send + Sync + 'static>(callers: usize) {
        let mut checker = loom::model::Builder::new();
        // Two threads run all interleavings. Three threads run interleavings with at most three preemptions. These show
        // the errors of such protocols, and take seconds instead of minutes.
        checker.preemption_bound = (callers > 1).then_some(3);
        checker.check(move || {
            let sleep = loom::sync::Arc::new(SleepFlag::<F>::new());
            let queue = loom::sync::Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let rings = loom::sync::Arc::new(loom::sync::atomic::AtomicU64::new(0));
            let threads: Vec<_> = (0..callers)
                .map(|_| {
                    let (sleep, queue, rings) = (sleep.clone(), queue.clone(), rings.clone());
                    loom::thread::spawn(move || {
                        queue.fetch_add(1, Ordering::Release);
                        if sleep.take_sleep() != AWAKE {
                            rings.increment();
                        }
                    })
                })
                .collect();
            sleep.announce(SLEEPING);
            let found = queue.load(Ordering::Acquire);
            for thread in threads {
                thread.join().unwrap();
            }
            let rung = rings.load(Ordering::Relaxed);
            assert!(
                found == callers || rung > 0,
                "the lane sleeps on {} messages",
                callers - found
            );
            assert!(rung <= 1, "one caller makes the system call");
            assert!(
                sleep.retract(PendingSignals::default(), &*rings).is_none(),
                "the lane drains what was written"
            );
            assert_eq!(rings.load(Ordering::Relaxed), 0, "the eventfd is clear");
        });
    }

    /// Runs every interleaving of two threads that wake while the lane goes to sleep again and again. `remember` is the
    /// lane's memory of late writes. After all writes have arrived, one more sleep leaves the eventfd clear.
    fn a_late_write_is_drained(remember: fn(PendingSignals) -> PendingSignals) {
        let mut checker = loom::model::Builder::new();
        checker.preemption_bound = Some(3);
        checker.check(move || {
            let sleep = loom::sync::Arc::new(SleepFlag::<Modelled<true>>::new());
            let rings = loom::sync::Arc::new(loom::sync::atomic::AtomicU64::new(0));
            let threads = [(); 2].map(|()| {
                let (sleep, rings) = (sleep.clone(), rings.clone());
                loom::thread::spawn(move || {
                    if sleep.take_sleep() != AWAKE {
                        rings.increment();
                    }
                })
            });
            let mut undrained = PendingSignals::default();
            for _ in 0..2 {
                sleep.announce(SLEEPING);
                undrained = remember(sleep.retract(undrained, &*rings));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            sleep.announce(SLEEPING);
            sleep.retract(undrained, &*rings);
            assert_eq!(
                rings.load(Ordering::Relaxed),
                0,
                "the eventfd stays readable, and the lane spins"
            );
        });
    }

    #[test]
    fn no_interleaving_leaves_the_eventfd_readable() {
        a_late_write_is_drained(|undrained| undrained);
    }

    #[test]
    #[should_panic(expected = "the eventfd stays readable, and the lane spins")]
    fn negative_control_a_lane_that_forgets_late_writes_spins() {
        a_late_write_is_drained(|_| PendingSignals::default());
    }

    #[test]
    fn no_interleaving_loses_a_wake() {
        no_wake_is_lost::<Modelled<true>>(1);
        no_wake_is_lost::<Modelled<true>>(2);
    }

    #[test]
    #[should_panic(expected = "the lane sleeps on 1 messages")]
    fn negative_control_without_the_fence_a_wake_is_lost() {
        no_wake_is_lost::<Modelled<false>>(1);
    }

    /// Runs the same protocol with a batch. A thread that finds the news flag set leaves the wake to the thread that
    /// set the flag. The lane takes the whole queue once before it sleeps. The flag changes only under the queue's
    /// lock.
    fn one_wake_serves_a_batch<F: Flag + Send + Sync + 'static>() {
        let mut checker = loom::model::Builder::new();
        checker.preemption_bound = Some(3);
        checker.check(|| {
            let sleep = loom::sync::Arc::new(SleepFlag::<F>::new());
            let queue = loom::sync::Arc::new(loom::sync::Mutex::new(0));
            let news = loom::sync::Arc::new(loom::sync::atomic::AtomicBool::new(false));
            let rings = loom::sync::Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let threads = [(); 2].map(|()| {
                let (sleep, rings) = (sleep.clone(), rings.clone());
                let (queue, news) = (queue.clone(), news.clone());
                loom::thread::spawn(move || {
                    let mut waiting = queue.lock().unwrap();
                    *waiting += 1;
                    let is_known = news.load(Ordering::Relaxed);
                    news.store(true, Ordering::Relaxed);
                    drop(waiting);
                    if !is_known && sleep.take_sleep() != AWAKE {
                        rings.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            let mut waiting = queue.lock().unwrap();
            let taken = std::mem::take(&mut *waiting);
            news.store(false, Ordering::Relaxed);
            drop(waiting);
            sleep.announce(SLEEPING);
            let found = news.load(Ordering::Acquire);
            for thread in threads {
                thread.join().unwrap();
            }
            let rung = rings.load(Ordering::Relaxed) > 0;
            assert!(
                taken == 2 || found || rung,
                "the lane sleeps on what came last"
            );
        });
    }

    #[test]
    fn the_first_message_of_a_batch_wakes_the_lane_for_all() {
        one_wake_serves_a_batch::<Modelled<true>>();
    }

    #[test]
    #[should_panic(expected = "the lane sleeps on what came last")]
    fn negative_control_without_the_fence_no_thread_wakes_the_lane() {
        one_wake_serves_a_batch::<Modelled<false>>();
    }

    /// Runs every interleaving of two threads that bring work while the lane goes to rest. No work waits without a
    /// thread that was unparked, and one of the two unparks it.
    fn a_lane_at_rest_is_called<F: Flag + Send + Sync + 'static>() {
        let mut checker = loom::model::Builder::new();
        checker.preemption_bound = Some(3);
        checker.check(|| {
            let sleep = loom::sync::Arc::new(SleepFlag::<F>::new());
            let queue = loom::sync::Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let threads = [(); 2].map(|()| {
                let (sleep, queue) = (sleep.clone(), queue.clone());
                loom::thread::spawn(move || {
                    queue.fetch_add(1, Ordering::Release);
                    sleep.take_sleep() == RESTING
                })
            });
            sleep.announce(RESTING);
            let is_called = queue.load(Ordering::Acquire) > 0 && sleep.take(RESTING);
            let calls = threads.map(|thread| thread.join().unwrap());
            let calls = calls.into_iter().filter(|it| *it).count() + usize::from(is_called);
            assert_eq!(calls, 1, "the lane rests, and there is work");
        });
    }

    #[test]
    fn no_interleaving_leaves_work_with_a_lane_at_rest() {
        a_lane_at_rest_is_called::<Modelled<true>>();
    }

    #[test]
    #[should_panic(expected = "the lane rests, and there is work")]
    fn negative_control_without_the_fence_a_lane_rests_on_work() {
        a_lane_at_rest_is_called::<Modelled<false>>();
    }

    struct ThisThread(std::thread::Thread);

    impl std::task::Wake for ThisThread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    #[test]
    fn a_lane_at_rest_is_called_by_its_thread_and_not_by_its_poller() {
        let waker = LaneWaker::new().unwrap();
        waker.set_thread(Waker::from(Arc::new(ThisThread(std::thread::current()))));
        waker.wake_resting();
        waker.before_rest();
        assert!(waker.is_resting());
        waker.wake();
        // Without the wake this blocks.
        std::thread::park();
        assert!(!waker.is_resting() && !is_readable(&waker));

        waker.before_sleep();
        waker.wake_resting();
        assert!(!is_readable(&waker), "a lane in its poller does not rest");
        waker.wake();
        assert!(is_readable(&waker));
        waker.after_sleep();
    }

    fn is_readable(waker: &LaneWaker) -> bool {
        let mut asked = [PollFd::new(waker, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut asked, Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn a_lane_that_is_awake_is_not_woken() {
        let waker = LaneWaker::new().unwrap();
        waker.wake();
        assert!(!is_readable(&waker));
    }

    #[test]
    fn a_sleeping_lane_is_woken_once_and_can_sleep_again() {
        let waker = LaneWaker::new().unwrap();
        for _ in 0..3 {
            waker.before_sleep();
            assert!(!is_readable(&waker));
            let other = waker.clone();
            other.wake();
            other.wake();
            assert!(is_readable(&waker));
            waker.after_sleep();
            assert!(!is_readable(&waker));
        }
    }

    #[test]
    fn a_wake_that_is_written_late_is_drained_by_the_next_sleep() {
        let waker = LaneWaker::new().unwrap();
        waker.before_sleep();
        // The waking thread is stopped between its decision and its system call.
        assert_eq!(waker.shared.sleep.take_sleep(), SLEEPING);
        waker.after_sleep();
        waker.shared.eventfd.increment();

        waker.before_sleep();
        assert!(is_readable(&waker), "a wake too many is allowed");
        waker.after_sleep();
        assert!(!is_readable(&waker), "a bell that rings for ever is not");
    }

    /// A flag in place of a count forgot the first late write, because the second wake had arrived.
    #[test]
    fn a_late_write_is_not_forgotten_when_another_wake_comes_between() {
        let waker = LaneWaker::new().unwrap();
        waker.before_sleep();
        assert_eq!(
            waker.shared.sleep.take_sleep(),
            SLEEPING,
            "the first thread stops here"
        );
        waker.after_sleep();
        waker.before_sleep();
        waker.wake();
        waker.after_sleep();
        waker.shared.eventfd.increment();

        waker.before_sleep();
        waker.after_sleep();
        assert!(!is_readable(&waker));
    }

    #[test]
    fn no_wake_is_lost_between_real_threads() {
        use std::sync::atomic::AtomicU64;
        const MESSAGES: u64 = 20_000;
        let waker = LaneWaker::new().unwrap();
        let sent = Arc::new(AtomicU64::new(0));
        let other = {
            let (waker, sent) = (waker.clone(), Arc::clone(&sent));
            std::thread::spawn(move || {
                for _ in 0..MESSAGES {
                    sent.fetch_add(1, Ordering::Release);
                    waker.wake();
                }
            })
        };
        // A lost wake blocks here.
        let mut seen = 0;
        while seen < MESSAGES {
            waker.before_sleep();
            if sent.load(Ordering::Acquire) == seen {
                let mut asked = [PollFd::new(&waker, PollFlags::IN)];
                poll(&mut asked, None).unwrap();
            }
            waker.after_sleep();
            seen = sent.load(Ordering::Acquire);
        }
        other.join().unwrap();
        assert_eq!(seen, MESSAGES);
    }
}
