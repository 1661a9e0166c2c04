//! A signal by eventfd with a write that may come late.
//!
//! A thread first decides to signal, in an atomic exchange that the sleeper sees, and makes the system call after it.
//! The thread may be stopped between the two. The sleeper then drains an eventfd that is not written yet, and the late
//! write makes the eventfd readable without work. Approach: the sleeper counts the decisions that it has seen,
//! subtracts the signals that a drain returned, and drains again while signals are missing.
//!
//! Rejected: a flag in place of the count. A flag forgets a late signal when a second signal arrives first. The eventfd
//! then stays readable, every wait returns at once, and the lane takes a whole core. A test shows this with the model
//! checker.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// The eventfd that a poller watches: readable while its value is not zero.
pub(crate) trait Counter {
    fn increment(&self);
    /// Sets the value to zero and returns the previous value.
    fn drain(&self) -> u64;
}

impl Counter for OwnedFd {
    #[cold]
    fn increment(&self) {
        let one = 1_u64.to_ne_bytes();
        while rustix::io::write(self, &one) == Err(Errno::INTR) {}
        // No other error is possible: only an overflow of the counter could fail, and then the eventfd is readable
        // already.
    }

    #[cold]
    fn drain(&self) -> u64 {
        let mut count = [0; 8];
        loop {
            match rustix::io::read(self, &mut count) {
                Ok(_) => return u64::from_ne_bytes(count),
                Err(Errno::INTR) => {}
                // The value is zero already: the undrained signal is still on its way.
                Err(_) => return 0,
            }
        }
    }
}

/// Signals that were decided and not drained yet. Only the sleeper has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingSignals(pub(crate) u64);

impl PendingSignals {
    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Notes one more signal: another thread has decided to make it, or the owner has made it.
    #[inline]
    pub(crate) fn note(&mut self) {
        self.0 += 1;
    }

    /// Drains the arrived signals. Signals that are still on their way stay noted.
    pub(crate) fn drain(&mut self, counter: &impl Counter) {
        self.0 -= counter.drain().min(self.0);
    }
}

#[cfg(test)]
pub(crate) mod modelled {
    use std::sync::atomic::Ordering;

    use super::Counter;

    /// The kernel's counter. Every real system call that touches it is a full barrier for the calling thread. The model
    /// assumes no barrier, which shows more errors.
    impl Counter for loom::sync::atomic::AtomicU64 {
        fn increment(&self) {
            self.fetch_add(1, Ordering::Relaxed);
        }

        fn drain(&self) -> u64 {
            self.swap(0, Ordering::Relaxed)
        }
    }
}
