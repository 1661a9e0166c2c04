//! A level-triggered signal: how an end of a [`RingStream`](super::RingStream) is told, and only when it
//! sleeps.
//!
//! A poller watches an eventfd, which is readable while its counter is not zero. The contract of the pollers
//! is level-triggered, so the signal must be *lit* whenever the owner could go on in a direction it watches;
//! but lighting it is a system call, and 5 to 10 µs when it wakes a thread, so it must not happen for every
//! message. Hence one invariant, which holds whenever the owner is not inside [`Watch::rearm`]:
//!
//! > Either the signal is lit, or about to be, or the owner has announced every direction it watches and was
//! > not ready in any of them when it looked after the announcement.
//!
//! ```text
//!            ┌────────── settle: drain, announce, look again: nothing ──────────┐
//!            │                                                                  ▼
//!     lit: read and write freely,                             dark: announced, asleep in the poller
//!     the peer makes no system call                                             │
//!            ▲                                                                  │
//!            └── the peer, having committed or consumed, takes the announcement and rings ──┘
//! ```
//!
//! A lane that stops in the middle, its turn used up, leaves the signal lit and is told again. One that
//! reads until there is nothing settles, which costs a system call to drain the signal, if it was lit; the
//! peer's next commit costs one to light it. As long as the owner does not run dry, neither happens.
//!
//! Announcing and committing are the two-flag protocol of [`crate::waker`]: each side writes its own,
//! passes a full fence, then reads the other's. It is not the same type because a waker is drained by
//! every sleep, while this one stays lit until the work is done, and has two directions on one eventfd.
//!
//! A ringer takes the announcement first and writes to the eventfd after. The owner therefore counts how
//! many rings it is *owed*, of which the drained counter tells how many have arrived, so that one that comes
//! late is drained by a later settle rather than keeping the signal lit for ever.

use std::os::fd::OwnedFd;
use std::sync::atomic::{self, AtomicUsize, Ordering};

use rustix::io::Errno;

use super::index::CacheLine;

/// One end's announcement and its signal, of which both ends have a hand.
#[derive(Debug)]
pub(super) struct ReadySignal<F, C> {
    /// The directions in which the owner sleeps. The peer looks at it with every commit, so nothing that
    /// changes shares its line.
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

    /// Called by the peer when it made the owner ready in `directions`: wakes it if it sleeps on one of
    /// them. Costs a fence and a load while it does not.
    #[inline]
    pub(super) fn wake(&self, directions: usize) {
        F::fence();
        if self.announced.0.load() & directions != 0 {
            self.signal_sleeper();
        }
    }

    #[cold]
    fn signal_sleeper(&self) {
        // The owner may have announced something else meanwhile, or nothing: a ring too many is allowed.
        if self.announced.0.swap(0) != 0 {
            self.counter.increment();
        }
    }

    pub(super) fn counter(&self) -> &C {
        &self.counter
    }
}

/// What the owner remembers of its signal.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// What was announced last, unless taken back since. The peer may have taken it.
    announced: usize,
    /// Rings made, or about to be made, that were not drained yet.
    undrained: u64,
}

impl Watch {
    /// Whether the signal is dark, the announcement of `wanted` still stands, and no ring is on its way.
    /// Then there is nothing to settle.
    #[inline]
    pub(super) fn is_armed<F: Flags, C: Counter>(
        &self,
        signal: &ReadySignal<F, C>,
        wanted: usize,
    ) -> bool {
        self.undrained == 0 && self.announced == wanted && signal.announced.0.load() == wanted
    }

    /// Makes the signal lit if the owner is ready in one of the directions it wants, and otherwise dark, with
    /// these directions announced. Returns the directions it is ready in.
    ///
    /// `ready` looks at both rings anew each time it is called.
    pub(super) fn rearm<F: Flags, C: Counter>(
        &mut self,
        signal: &ReadySignal<F, C>,
        wanted: usize,
        ready: impl Fn() -> usize,
    ) -> usize {
        self.retract(signal);
        if self.undrained > 0 {
            let found = ready() & wanted;
            if found != 0 {
                // Lit already, or about to be, and rightly so.
                return found;
            }
            self.undrained -= signal.counter.drain().min(self.undrained);
        }
        if wanted == 0 {
            return 0;
        }
        // Like every other change a read-modify-write, so that there is one order of them in which it is plain
        // who took which announcement.
        signal.announced.0.swap(wanted);
        F::fence();
        self.announced = wanted;
        let found = ready() & wanted;
        if found != 0 {
            self.set(signal);
        }
        found
    }

    /// Takes the announcement back and makes sure that the signal is lit, or about to be.
    fn set<F: Flags, C: Counter>(&mut self, signal: &ReadySignal<F, C>) {
        let before = self.undrained;
        self.retract(signal);
        if self.undrained == before {
            signal.counter.increment();
            self.undrained += 1;
        }
    }

    fn retract<F: Flags, C: Counter>(&mut self, signal: &ReadySignal<F, C>) {
        if self.announced != 0 && signal.announced.0.swap(0) == 0 {
            self.undrained += 1;
        }
        self.announced = 0;
    }
}

/// A set of directions, as bits.
pub(super) trait Flags {
    fn new(value: usize) -> Self;
    fn load(&self) -> usize;
    /// Acquires what the other side released with it, and the reverse.
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

/// What a poller watches: lit while it is not zero.
pub(super) trait Counter {
    fn increment(&self);
    /// Sets it to zero and returns what it was.
    fn drain(&self) -> u64;
}

impl Counter for OwnedFd {
    #[cold]
    fn increment(&self) {
        let one = 1_u64.to_ne_bytes();
        while rustix::io::write(self, &one) == Err(Errno::INTR) {}
        // Nothing else can fail: the counter would have to overflow, and then the signal is lit already.
    }

    #[cold]
    fn drain(&self) -> u64 {
        let mut count = [0; 8];
        loop {
            match rustix::io::read(self, &mut count) {
                Ok(_) => return u64::from_ne_bytes(count),
                Err(Errno::INTR) => {}
                // Zero already: the ring that is owed is still on its way.
                Err(_) => return 0,
            }
        }
    }
}

/// The owner can read: bytes, or the end.
pub(super) const READ: usize = 1;
/// The owner can write: room, or nobody to read it.
pub(super) const WRITE: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU64 as ModelledU64, AtomicUsize as ModelledUsize};

    /// Flags of the model checker, with the fence or, as a negative control, without.
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

    /// The kernel's counter. Every system call that touches it is a full barrier to the thread that makes
    /// it; the model is kinder to errors and assumes none.
    impl Counter for ModelledU64 {
        fn increment(&self) {
            self.fetch_add(1, Ordering::Relaxed);
        }

        fn drain(&self) -> u64 {
            self.swap(0, Ordering::Relaxed)
        }
    }

    /// Both rings, as far as readiness goes: bytes that came in, and room that was freed.
    struct Rings {
        incoming: ModelledUsize,
        room: ModelledUsize,
    }

    /// An owner that works off what it finds and settles `rounds` times, against a peer that commits and
    /// consumes as often as `work` says. At the end, the signal is lit exactly when there is work left that
    /// the owner watches for, and the peer did not ring more often than the owner announced.
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
                    far_signal.wake(direction);
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
                // One unit of each kind, as a lane whose turn is then used up.
                done[0] += usize::from(found & READ != 0);
                done[1] += usize::from(found & WRITE != 0);
            }
            peer.join().unwrap();
            let is_set = signal.counter.load(Ordering::Relaxed) > 0;
            assert!(
                is_set || ready(done) == 0,
                "the owner sleeps on work that is there"
            );
            // And what is lit for nothing goes dark with the next look, for otherwise the lane would spin.
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

    /// A counter that can be looked at.
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

    fn new_signal() -> ReadySignal<AtomicUsize, Counted> {
        ReadySignal::new(Counted::default())
    }

    #[test]
    fn only_a_sleeper_is_rung_and_only_for_what_it_announced() {
        let (signal, mut watch) = (new_signal(), Watch::default());
        signal.wake(READ | WRITE);
        assert_eq!(signal.counter.0.get(), 0, "awake");
        assert_eq!(watch.rearm(&signal, READ, || 0), 0);
        assert!(watch.is_armed(&signal, READ));
        signal.wake(WRITE);
        assert_eq!(signal.counter.0.get(), 0, "not what it waits for");
        signal.wake(READ);
        signal.wake(READ);
        assert_eq!(signal.counter.0.get(), 1, "once is enough");
        assert!(!watch.is_armed(&signal, READ));
    }

    #[test]
    fn the_signal_stays_set_until_the_work_is_done() {
        let (signal, mut watch) = (new_signal(), Watch::default());
        assert_eq!(watch.rearm(&signal, READ | WRITE, || 0), 0);
        signal.wake(WRITE);
        assert_eq!(watch.rearm(&signal, READ | WRITE, || WRITE), WRITE);
        assert_eq!(signal.counter.0.get(), 1);
        assert_eq!(watch.rearm(&signal, READ | WRITE, || 0), 0);
        assert_eq!(signal.counter.0.get(), 0);
        assert!(watch.is_armed(&signal, READ | WRITE));
        // Not interested any more: dark even though there is work, and nobody rings.
        assert_eq!(watch.rearm(&signal, 0, || WRITE), 0);
        signal.wake(WRITE);
        assert_eq!(signal.counter.0.get(), 0);
        // Interested again: told of what is there already.
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
        assert!(!watch.is_armed(&signal, READ), "a ring is owed");
        signal.counter.increment();
        assert_eq!(watch.rearm(&signal, READ, || 0), 0);
        assert_eq!(signal.counter.0.get(), 0);
        assert!(watch.is_armed(&signal, READ));
    }
}
