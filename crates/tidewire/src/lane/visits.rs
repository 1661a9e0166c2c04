//! Visits: turns of a lane that other lanes run while it sleeps.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use tidewire_io::poller::Poller;

use super::seat::Offer;
use crate::engine::earlier;

/// The state of a lane for its visits.
#[derive(Debug)]
pub(super) struct Visits {
    /// The descriptor that is readable when the lane has events. `None` if other lanes may not run this one.
    readiness: Option<Arc<OwnedFd>>,
    /// The time until which the lane's own thread sleeps.
    until_ns: Option<u64>,
    /// The frames that had come before the last turn.
    frames_seen: u64,
    /// The turns until the lane lets itself be visited.
    alone_for: u32,
}

impl Visits {
    /// The lane of a client has no visits. The threads that wait for it run it.
    pub(super) fn new(poller: &dyn Poller, is_clients: bool) -> Self {
        Self {
            readiness: poller.readiness().filter(|_| !is_clients),
            until_ns: None,
            frames_seen: 0,
            alone_for: 0,
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

    /// Notes the end of a turn or a visit. `frames` is the number of frames that have come so far.
    #[inline(never)]
    pub(super) fn note_turn(&mut self, frames: u64) {
        let last = frames - std::mem::replace(&mut self.frames_seen, frames);
        self.alone_for = match last >= LONG_FRAMES {
            true => ALONE_FOR,
            false => self.alone_for.saturating_sub(1),
        };
    }

    /// Whether only its own thread runs the lane: the lane has much work, or takes no visits. The latter is so for
    /// clients, and without epoll.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.alone_for > 0 || !self.are_allowed()
    }
}

/// The frames of a turn after which a lane works alone. With fewer, two lanes are faster on one thread: no cache
/// line changes its core, and no thread is woken. With more, two threads are faster: from 3 publishers to 2 subscribers
/// 0.4 of the bare loop in place of 0.2.
const LONG_FRAMES: u64 = 32;

/// The turns with fewer frames after which a lane lets itself be visited again. A peer with much work has a short turn
/// now and then.
const ALONE_FOR: u32 = 8;
