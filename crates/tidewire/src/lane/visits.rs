//! What a lane needs so that other lanes may run it while it sleeps.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidewire_io::poller::Poller;

use super::seat::Offer;
use crate::engine::earlier;

/// The sleeps of a lane outside of its seat.
#[derive(Debug)]
pub(super) struct Visits {
    /// The descriptor that is readable when the lane has events. `None` if other lanes may not run this one.
    readiness: Option<Arc<OwnedFd>>,
    /// The time until which the lane's own thread sleeps.
    until_ns: Option<u64>,
    /// The frames that had come before the last wait.
    frames_seen: u64,
}

impl Visits {
    /// The lane of a client has no visits. The threads that wait for it run it.
    pub(super) fn new(poller: &dyn Poller, is_clients: bool) -> Self {
        Self {
            readiness: poller.readiness().filter(|_| !is_clients),
            until_ns: None,
            frames_seen: 0,
        }
    }

    #[inline]
    pub(super) fn are_allowed(&self) -> bool {
        self.readiness.is_some()
    }

    /// Notes a sleep.
    pub(super) fn begin(&mut self, until_ns: Option<u64>) -> Option<Offer> {
        self.until_ns = until_ns;
        let readiness = self.readiness.clone()?;
        Some(Offer::new(readiness, until_ns))
    }

    /// Whether this time comes before the end of the sleep.
    pub(super) fn end_too_late(&self, wake_ns: Option<u64>) -> bool {
        earlier(wake_ns, self.until_ns) != self.until_ns
    }

    /// Whether the work since the last look was so much that the next is better done beside the peer than on the peer's
    /// thread. `frames` is the number of frames that have come.
    #[inline(never)]
    pub(super) fn were_long(&mut self, frames: u64) -> bool {
        let last = frames - std::mem::replace(&mut self.frames_seen, frames);
        !self.are_allowed() || last >= SPIN_FRAMES_MIN
    }
}

/// The work of a turn after which a lane spins, if other lanes may run it. Two lanes that exchange fewer messages are
/// faster on one thread: the lines of memory stay in one cache, and nobody is woken.
const SPIN_FRAMES_MIN: u64 = 32;
