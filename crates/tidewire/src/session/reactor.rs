//! The poller, the timers and the clock of a lane.

use tidewire_io::poller::Poller;
use tidewire_io::timer::TimerWheel;

use super::clock::Clock;
use super::{ServiceTimer, ServiceTimers, SessionId};

#[derive(Debug)]
pub(crate) struct Reactor {
    pub(crate) poller: Box<dyn Poller>,
    pub(crate) timers: TimerWheel<TimerKey>,
    pub(crate) service_timers: ServiceTimers,
    pub(crate) clock: Clock,
    /// The time of the last clock reading: at the beginning of a turn, and after each read of a socket.
    pub(crate) now_ns: u64,
}

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerKey {
    /// Checks how long this session has been silent.
    Session(SessionId),
    /// Accepts again.
    Listener(usize),
    /// Ends the connection with this index, whose PROXY header did not come.
    Proxied(usize),
    /// Checks the request deadlines of the upstream with this number.
    Upstream(u64),
    /// Ends the waiting time for slow subscribers of this room.
    BlockedRoom(u16),
    /// Removes expired messages of histories.
    Histories,
    /// Frees the logs that are quiet and that everybody has read.
    QuietLogs,
    /// Resumes reading of this session, whose rate allows it again.
    Rate(SessionId),
    /// Compares the wall clock with the monotonic one.
    WallClock,
    /// Ends the wait of this session for a place among those of its identity.
    Place(SessionId),
    /// Ends this session if its peer did not answer the ping that asked whether it is still there.
    GiveWay(SessionId),
    /// Looks whether taken names that joins wait for are free.
    Names,
    Service(ServiceTimer),
}

impl Reactor {
    pub(crate) fn new(poller: Box<dyn Poller>) -> Self {
        let clock = Clock::default();
        let now_ns = clock.now_ns();
        Self {
            poller,
            timers: TimerWheel::new(now_ns, TIMER_TICK_NS),
            service_timers: ServiceTimers::default(),
            clock,
            now_ns,
        }
    }

    #[inline]
    pub(crate) fn read_clock(&mut self) {
        self.now_ns = self.clock.now_ns();
    }

    /// Fixes the time.
    #[cfg(test)]
    pub(crate) fn set_time(&mut self, now_ns: u64) {
        self.clock.set(now_ns);
        self.now_ns = now_ns;
    }
}

/// Resolution of timeouts. They last seconds, so 10 ms is exact enough and keeps the wheel small.
const TIMER_TICK_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Output, Session};

    /// Every idle session has a place in the slab and a timer, so a larger type would cost memory for each session.
    #[test]
    fn what_services_keep_makes_no_session_and_no_timer_larger() {
        assert_eq!(size_of::<TimerKey>(), 16);
        // The feature `trace` makes sessions larger.
        if !cfg!(feature = "trace") {
            assert_eq!(size_of::<Session>(), 480);
            assert_eq!(size_of::<Output>(), 56);
        }
    }
}
