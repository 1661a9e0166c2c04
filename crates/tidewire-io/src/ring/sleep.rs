//! A level-triggered signal that wakes one end of a [`RingStream`](super::RingStream), and only when it sleeps.
//!
//! A poller watches an eventfd, which is readable while its counter is not zero. The contract of the pollers is
//! level-triggered, so the signal must be *set* whenever the owner is ready in a direction that it watches. Setting the
//! signal is a system call, which costs 5 to 10 µs when it wakes a thread, so it must not happen for every message.
//! Hence one invariant, except inside [`Watch::rearm`], and from [`Watch::answer`] to `rearm`:
//!
//! > Either the signal is set, or about to be, or the owner has announced every direction it watches and was not ready
//! > in any of them when it looked after the announcement.
//!
//! ```text
//!            ┌────────── rearm: drain, announce, look again: nothing ───────────┐
//!            │                                                                  ▼
//!     set: read and write freely,                              clear: announced, asleep in the poller
//!     the peer makes no system call                                             │
//!            ▲                                                                  │
//!            └── the peer, having committed or consumed, takes the announcement and signals ──┘
//! ```
//!
//! A lane that stops in the middle of its work leaves the signal set, and its poller reports it again. A lane that
//! reads until nothing is left rearms. Rearming costs a system call to drain the signal if it was set, and the peer's
//! next commit costs a system call to set it. An owner that always finds work causes neither.
//!
//! Announcing and committing are the two-flag protocol of [`crate::waker`]: each side writes its own flag, passes a
//! full fence, then reads the other's. This signal is another type, because every sleep drains a waker. The signal
//! stays set until the work is done, and has two directions on one eventfd.
//!
//! The peer takes the announcement first and writes to the eventfd after. The owner therefore counts the *undrained*
//! signals, as [`crate::signal`] says: a signal that comes late is drained by a later rearm.

use std::sync::atomic::{self, AtomicUsize, Ordering};

use super::index::CacheLine;
use crate::signal::{Counter, PendingSignals};

/// The announcement of one end and its signal, used by both ends.
#[derive(Debug)]
pub(super) struct ReadySignal<F, C> {
    /// The directions in which the owner sleeps. The peer reads it with every commit, so nothing that changes shares
    /// its cache line.
    announced: CacheLine<F>,
    counter: C,
}

impl<F: Flags, C: Counter> ReadySignal<F, C> {
    pub(super) fn new(counter: C) -> Self {
        Self {
            announced: CacheLine(F::new(0)),
            counter,
        }
    }

    /// Takes the announcement of an owner that sleeps on one of `directions`. The peer calls it after it made the owner
    /// ready in them. On true, the caller must [`send`](Self::send) the signal, unless [`Watch::answer`] returns true.
    /// While the owner does not sleep, the call costs a fence and a load.
    #[inline]
    pub(super) fn takes(&self, directions: usize) -> bool {
        F::fence();
        self.announced.0.load() & directions != 0 && self.take()
    }

    #[cold]
    fn take(&self) -> bool {
        // The owner may have changed its announcement since the load: one signal too many is allowed.
        self.announced.0.swap(0) != 0
    }

    pub(super) fn send(&self) {
        self.counter.increment();
    }

    pub(super) fn counter(&self) -> &C {
        &self.counter
    }
}

/// The owner's record of its signal.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// The last announcement, unless it was taken back since. The peer may have taken it.
    announced: usize,
    /// Signals made, or about to be made, that were not drained yet.
    undrained: PendingSignals,
}

impl Watch {
    /// Returns whether the signal is clear, the announcement of `wanted` still stands, and no signal is on its way. A
    /// call of `rearm` is then unnecessary.
    #[inline]
    pub(super) fn is_armed<F: Flags, C: Counter>(
        &self,
        signal: &ReadySignal<F, C>,
        wanted: usize,
    ) -> bool {
        self.undrained.is_none() && self.announced == wanted && signal.announced.0.load() == wanted
    }

    /// Sets the signal if the owner is ready in one of the wanted directions. Otherwise clears it and announces these
    /// directions. Returns the directions in which the owner is ready.
    ///
    /// `ready` must look at both rings at each call.
    pub(super) fn rearm<F: Flags, C: Counter>(
        &mut self,
        signal: &ReadySignal<F, C>,
        wanted: usize,
        ready: impl Fn() -> usize,
    ) -> usize {
        self.retract(signal);
        if !self.undrained.is_none() {
            let found = ready() & wanted;
            if found != 0 {
                // The signal is set already, or about to be, as it should be.
                return found;
            }
            self.undrained.drain(&signal.counter);
        }
        if wanted == 0 {
            return 0;
        }
        // Every change is a read-modify-write. This puts all changes in one order, which decides who took which
        // announcement.
        signal.announced.0.swap(wanted);
        F::fence();
        self.announced = wanted;
        let found = ready() & wanted;
        if found != 0 {
            self.set(signal);
        }
        found
    }

    /// Takes the announcement back and makes sure that the signal is set, or about to be.
    fn set<F: Flags, C: Counter>(&mut self, signal: &ReadySignal<F, C>) {
        let before = self.undrained;
        self.retract(signal);
        if self.undrained == before {
            signal.counter.increment();
            self.undrained.note();
        }
    }

    /// Ends a sleep whose announcement the peer has taken and whose signal is not sent. On true, the caller withdraws
    /// the signal. Else the caller sends it.
    pub(super) fn answer<F: Flags, C: Counter>(&mut self, signal: &ReadySignal<F, C>) -> bool {
        let is_asleep = self.undrained.is_none() && self.announced != 0;
        let is_summoned = is_asleep && signal.announced.0.load() == 0;
        if is_summoned {
            self.announced = 0;
        }
        is_summoned
    }

    fn retract<F: Flags, C: Counter>(&mut self, signal: &ReadySignal<F, C>) {
        if self.announced != 0 && signal.announced.0.swap(0) == 0 {
            self.undrained.note();
        }
        self.announced = 0;
    }
}

/// A set of directions, as bits.
pub(super) trait Flags {
    fn new(value: usize) -> Self;
    fn load(&self) -> usize;
    /// Stores the value and returns the previous one, in acquire and release order.
    fn swap(&self, value: usize) -> usize;
    /// A sequentially consistent fence.
    fn fence();
}

impl Flags for AtomicUsize {
    fn new(value: usize) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self) -> usize {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn swap(&self, value: usize) -> usize {
        self.swap(value, Ordering::AcqRel)
    }

    #[inline]
    fn fence() {
        atomic::fence(Ordering::SeqCst);
    }
}

/// The owner can read: there are bytes, or the stream has ended.
pub(super) const READ: usize = 1;
/// The owner can write: there is room, or the reader is gone.
pub(super) const WRITE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64 as ModelledU64, AtomicUsize as ModelledUsize};

    /// Flags of the model checker, with the fence or, as a negative control, without it.
    struct Modelled<const FENCED: bool>(ModelledUsize);

    impl<const FENCED: bool> Flags for Modelled<FENCED> {
        fn new(value: usize) -> Self {
            Self(ModelledUsize::new(value))
        }

        fn load(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn swap(&self, value: usize) -> usize {
            self.0.swap(value, Ordering::AcqRel)
        }

        fn fence() {
            if FENCED {
                loom::sync::atomic::fence(Ordering::SeqCst);
            }
        }
    }

    /// The state of both rings that decides readiness: bytes that came in, and room that was freed.
    struct Rings {
        incoming: ModelledUsize,
        room: ModelledUsize,
    }

    /// An owner handles the work that it finds and rearms `rounds` times. The peer commits and consumes `work` times.
    /// At the end, the signal is set exactly when watched work is left. The peer never signals more often than the
    /// owner announced.
    fn the_signal_reports_all_work<F: Flags + Send + Sync + 'static>(
        work: &'static [usize],
        rounds: usize,
    ) {
        let mut checker = loom::model::Builder::new();
        checker.preemption_bound = Some(4);
        checker.check(move || {
            let signal = Arc::new(ReadySignal::<F, _>::new(ModelledU64::new(0)));
            let rings = Arc::new(Rings {
                incoming: ModelledUsize::new(0),
                room: ModelledUsize::new(0),
            });
            let (far_signal, far_rings) = (signal.clone(), rings.clone());
            let peer = loom::thread::spawn(move || {
                for &direction in work {
                    let made = match direction {
                        READ => &far_rings.incoming,
                        _ => &far_rings.room,
                    };
                    made.fetch_add(1, Ordering::Release);
                    if far_signal.takes(direction) {
                        far_signal.send();
                    }
                }
            });
            let mut watch = Watch::default();
            let mut done = [0; 2];
            let ready = |done: [usize; 2]| {
                let readable = rings.incoming.load(Ordering::Acquire) > done[0];
                let writable = rings.room.load(Ordering::Acquire) > done[1];
                usize::from(readable) * READ + usize::from(writable) * WRITE
            };
            let wanted = READ | WRITE;
            for _ in 0..rounds {
                let found = watch.rearm(&signal, wanted, || ready(done));
                // The owner handles one unit of each kind, like a lane that then yields.
                done[0] += usize::from(found & READ != 0);
                done[1] += usize::from(found & WRITE != 0);
            }
            peer.join().unwrap();
            let is_set = signal.counter.load(Ordering::Relaxed) > 0;
            assert!(
                is_set || ready(done) == 0,
                "the owner sleeps on work that is there"
            );
            // The next rearm clears a signal that is set without work; otherwise the lane would spin.
            let left = watch.rearm(&signal, wanted, || ready(done));
            assert_eq!(left, ready(done));
            let is_set = signal.counter.load(Ordering::Relaxed) > 0;
            assert_eq!(
                is_set,
                left != 0,
                "the signal is lit exactly when there is work"
            );
        });
    }

    #[test]
    fn no_interleaving_leaves_the_owner_asleep_on_work() {
        the_signal_reports_all_work::<Modelled<true>>(&[READ], 1);
        the_signal_reports_all_work::<Modelled<true>>(&[READ, WRITE], 1);
        the_signal_reports_all_work::<Modelled<true>>(&[READ], 2);
        the_signal_reports_all_work::<Modelled<true>>(&[WRITE, READ], 2);
        the_signal_reports_all_work::<Modelled<true>>(&[READ, READ], 3);
    }

    #[test]
    #[should_panic(expected = "the owner sleeps on work that is there")]
    fn negative_control_without_the_fences_the_owner_sleeps_on_work() {
        the_signal_reports_all_work::<Modelled<false>>(&[READ], 1);
    }

    /// An owner that sleeps, and a peer that does the owner's work itself if it finds the announcement. The owner may
    /// wake meanwhile for another reason. At the end no work is left without a signal.
    fn the_peer_answers_for_the_owner(owner_wakes: bool) {
        let mut checker = loom::model::Builder::new();
        checker.preemption_bound = Some(4);
        checker.check(move || {
            let signal = Arc::new(ReadySignal::<Modelled<true>, _>::new(ModelledU64::new(0)));
            let incoming = Arc::new(ModelledUsize::new(0));
            // The owner's state, and the work that was done. The thread that leads the owner's lane has the lock.
            let owner = Arc::new(loom::sync::Mutex::new((Watch::default(), 0)));
            let ready = |incoming: &ModelledUsize, done: usize| {
                usize::from(incoming.load(Ordering::Acquire) > done) * READ
            };
            let look = move |owner: &mut (Watch, usize),
                             signal: &ReadySignal<_, _>,
                             incoming: &ModelledUsize| {
                let (watch, done) = owner;
                while watch.rearm(signal, READ, || ready(incoming, *done)) != 0 {
                    *done += 1;
                }
            };
            look(&mut owner.lock().unwrap(), &signal, &incoming);
            let peer = {
                let (signal, incoming, owner) = (signal.clone(), incoming.clone(), owner.clone());
                loom::thread::spawn(move || {
                    for _ in 0..2 {
                        incoming.fetch_add(1, Ordering::Release);
                        if !signal.takes(READ) {
                            continue;
                        }
                        let mut owner = owner.lock().unwrap();
                        if owner.0.answer(&signal) {
                            look(&mut owner, &signal, &incoming);
                        } else {
                            drop(owner);
                            signal.send();
                        }
                    }
                })
            };
            if owner_wakes {
                look(&mut owner.lock().unwrap(), &signal, &incoming);
            }
            peer.join().unwrap();
            let mut owner = owner.lock().unwrap();
            let is_set = signal.counter.load(Ordering::Relaxed) > 0;
            let left = ready(&incoming, owner.1);
            assert!(
                is_set || left == 0,
                "the owner sleeps on work that is there"
            );
            look(&mut owner, &signal, &incoming);
            assert_eq!(owner.1, 2);
            let is_set = signal.counter.load(Ordering::Relaxed) > 0;
            assert!(!is_set, "the signal is clear when the work is done");
            assert!(
                owner.0.is_armed(&signal, READ),
                "no signal is expected for ever"
            );
        });
    }

    #[test]
    fn a_peer_that_does_the_owners_work_takes_the_signal_back() {
        the_peer_answers_for_the_owner(false);
        the_peer_answers_for_the_owner(true);
    }

    /// A counter that the test can read.
    #[derive(Debug, Default)]
    struct Counted(std::cell::Cell<u64>);

    impl Counter for Counted {
        fn increment(&self) {
            self.0.set(self.0.get() + 1);
        }

        fn drain(&self) -> u64 {
            self.0.take()
        }
    }

    fn wake(signal: &ReadySignal<AtomicUsize, Counted>, directions: usize) {
        if signal.takes(directions) {
            signal.send();
        }
    }

    fn new_signal() -> ReadySignal<AtomicUsize, Counted> {
        ReadySignal::new(Counted::default())
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_for_announced_directions() {
        let (signal, mut watch) = (new_signal(), Watch::default());
        wake(&signal, READ | WRITE);
        assert_eq!(signal.counter.0.get(), 0, "awake");
        assert_eq!(watch.rearm(&signal, READ, || 0), 0);
        assert!(watch.is_armed(&signal, READ));
        wake(&signal, WRITE);
        assert_eq!(signal.counter.0.get(), 0, "not what it waits for");
        wake(&signal, READ);
        wake(&signal, READ);
        assert_eq!(signal.counter.0.get(), 1, "once is enough");
        assert!(!watch.is_armed(&signal, READ));
    }

    #[test]
    fn the_signal_stays_set_until_the_work_is_done() {
        let (signal, mut watch) = (new_signal(), Watch::default());
        assert_eq!(watch.rearm(&signal, READ | WRITE, || 0), 0);
        wake(&signal, WRITE);
        assert_eq!(watch.rearm(&signal, READ | WRITE, || WRITE), WRITE);
        assert_eq!(signal.counter.0.get(), 1);
        assert_eq!(watch.rearm(&signal, READ | WRITE, || 0), 0);
        assert_eq!(signal.counter.0.get(), 0);
        assert!(watch.is_armed(&signal, READ | WRITE));
        // Without interest the signal is clear even though there is work, and the peer does not signal.
        assert_eq!(watch.rearm(&signal, 0, || WRITE), 0);
        wake(&signal, WRITE);
        assert_eq!(signal.counter.0.get(), 0);
        // With interest again, the owner learns about the waiting work.
        assert_eq!(watch.rearm(&signal, WRITE, || WRITE), WRITE);
        assert_eq!(signal.counter.0.get(), 1);
    }

    #[test]
    fn a_signal_that_comes_late_is_drained_by_a_later_rearm() {
        let (signal, mut watch) = (new_signal(), Watch::default());
        watch.rearm(&signal, READ, || 0);
        // The peer is stopped between taking the announcement and its system call.
        assert_eq!(signal.announced.0.swap(0, Ordering::AcqRel), READ);
        assert_eq!(watch.rearm(&signal, READ, || 0), 0);
        assert!(!watch.is_armed(&signal, READ), "a signal is undrained");
        signal.counter.increment();
        assert_eq!(watch.rearm(&signal, READ, || 0), 0);
        assert_eq!(signal.counter.0.get(), 0);
        assert!(watch.is_armed(&signal, READ));
    }
}
