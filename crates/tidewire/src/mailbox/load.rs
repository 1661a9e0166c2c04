//! How much a lane has to do, for the lane that places new connections.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidewire_io::clock::ThreadClock;

/// The load of a lane. Any thread may read it.
#[derive(Debug, Default)]
pub(crate) struct LaneLoad {
    /// The sessions of the lane, and the connections on their way to it.
    sessions: AtomicUsize,
    clock: OnceLock<ThreadClock>,
}

impl LaneLoad {
    /// Notes that the calling thread is that of the lane.
    pub(crate) fn begin(&self) {
        self.clock.get_or_init(ThreadClock::of_this_thread);
    }

    /// Counts a session, or a connection that was posted to the lane.
    pub(crate) fn add(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a session, or a connection that the lane has taken from its mailbox.
    pub(crate) fn remove(&self) {
        self.sessions.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Relaxed)
    }

    /// The processor time that the lane has used. 0 before it runs and after it has ended.
    fn used_ns(&self) -> u64 {
        let clock = self.clock.get();
        clock.and_then(|it| it.used_ns().ok()).unwrap_or_default()
    }
}

/// The processor time of a lane of late.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyTime {
    /// All that the lane had used at the last look.
    used_ns: u64,
    /// The sum of the times between two looks, each half as much as the next.
    recent_ns: u64,
}

impl BusyTime {
    pub(crate) fn look(&mut self, load: &LaneLoad) {
        let used_ns = load.used_ns();
        self.recent_ns = self.recent_ns / 2 + used_ns.saturating_sub(self.used_ns);
        self.used_ns = used_ns;
    }

    /// The busy time in steps that say something. The smaller ones of an idle server would only add chance.
    pub(crate) fn steps(self) -> u64 {
        self.recent_ns / STEP_NS
    }
}

/// A step of busy time: a hundredth of the half second that counts most.
const STEP_NS: u64 = 5_000_000;
