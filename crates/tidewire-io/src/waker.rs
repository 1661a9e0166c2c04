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
//! Rejected: a read-modify-write in place of load and fence. It is correct too, but every caller then writes the lane's
//! cache line even while the lane is awake. That is the case that must be cheap. Rejected: a condition variable,
//! because the lane sleeps in its poller.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
#[cfg(not(tidewire_model))]
use std::sync::atomic::{self, AtomicBool, AtomicU64, Ordering};

// The models of what lanes share run the real waker, too: see `.ci/run models`.
#[cfg(tidewire_model)]
use loom::sync::atomic::{self, AtomicBool, AtomicU64, Ordering};
use rustix::event::{EventfdFlags, eventfd};

use crate::signal::{Counter, PendingSignals};

/// Wakes one sleeping lane. Clones are handles to the same waker.
///
/// Any thread may call [`wake`](Self::wake). Only the lane itself calls [`before_sleep`](Self::before_sleep) and
/// [`after_sleep`](Self::after_sleep), and it registers the waker with its poller for reading.
#[derive(Clone, Debug)]
pub struct LaneWaker {
    shared: Arc<WakerShared>,
}

#[derive(Debug)]
struct WakerShared {
    sleep: SleepFlag<AtomicBool>,
    eventfd: OwnedFd,
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
                undrained: AtomicU64::new(0),
            }),
        })
    }

    /// Wakes the lane if it sleeps or is about to. Call it after the work for the lane is in place.
    ///
    /// While the lane is awake this costs a fence and a load. When several threads call it at once, one of them makes
    /// the system call.
    #[inline]
    pub fn wake(&self) {
        if self.shared.sleep.must_wake() {
            self.shared.eventfd.increment();
        }
    }

    /// Announces that the lane will sleep. The lane then looks at all its queues once more, and blocks
    /// only if they are empty.
    #[inline]
    pub fn before_sleep(&self) {
        self.shared.sleep.announce();
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
    is_sleeping: F,
}

impl<F: Flag> SleepFlag<F> {
    fn new() -> Self {
        Self {
            is_sleeping: F::new(false),
        }
    }

    fn announce(&self) {
        self.is_sleeping.store(true, Ordering::Relaxed);
        F::fence();
    }

    /// Takes the announcement back and drains the wakes that have arrived. Returns the wakes that are still on their
    /// way.
    fn retract(&self, mut undrained: PendingSignals, counter: &impl Counter) -> PendingSignals {
        if !self.is_sleeping.swap(false, Ordering::AcqRel) {
            undrained.note();
        }
        // A lane that another event woke makes no system call here.
        if !undrained.is_none() {
            undrained.drain(counter);
        }
        undrained
    }

    /// Returns whether the caller is the one that must wake the lane.
    fn must_wake(&self) -> bool {
        F::fence();
        self.is_sleeping.load(Ordering::Relaxed) && self.is_sleeping.swap(false, Ordering::AcqRel)
    }
}

/// The atomic operations that the protocol needs.
trait Flag {
    fn new(value: bool) -> Self;
    fn load(&self, ordering: Ordering) -> bool;
    fn store(&self, value: bool, ordering: Ordering);
    fn swap(&self, value: bool, ordering: Ordering) -> bool;
    /// A sequentially consistent fence.
    fn fence();
}

impl Flag for AtomicBool {
    #[inline]
    fn new(value: bool) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, ordering: Ordering) -> bool {
        Self::load(self, ordering)
    }

    #[inline]
    fn store(&self, value: bool, ordering: Ordering) {
        Self::store(self, value, ordering);
    }

    #[inline]
    fn swap(&self, value: bool, ordering: Ordering) -> bool {
        Self::swap(self, value, ordering)
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
    struct Modelled<const FENCED: bool>(loom::sync::atomic::AtomicBool);

    impl<const FENCED: bool> Flag for Modelled<FENCED> {
        fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        fn load(&self, ordering: Ordering) -> bool {
            self.0.load(ordering)
        }

        fn store(&self, value: bool, ordering: Ordering) {
            self.0.store(value, ordering);
        }

        fn swap(&self, value: bool, ordering: Ordering) -> bool {
            self.0.swap(value, ordering)
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
                        if sleep.must_wake() {
                            rings.increment();
                        }
                    })
                })
                .collect();
            sleep.announce();
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
                    if sleep.must_wake() {
                        rings.increment();
                    }
                })
            });
            let mut undrained = PendingSignals::default();
            for _ in 0..2 {
                sleep.announce();
                undrained = remember(sleep.retract(undrained, &*rings));
            }
            for thread in threads {
                thread.join().unwrap();
            }
            sleep.announce();
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
                    if !is_known && sleep.must_wake() {
                        rings.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            let mut waiting = queue.lock().unwrap();
            let taken = std::mem::take(&mut *waiting);
            news.store(false, Ordering::Relaxed);
            drop(waiting);
            sleep.announce();
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
        assert!(waker.shared.sleep.must_wake());
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
        assert!(
            waker.shared.sleep.must_wake(),
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
