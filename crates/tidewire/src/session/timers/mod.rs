//! The clock of a lane, and its timers.

mod clock;
mod service;

use std::time::SystemTime;

use tidewire_io::timer::{TimerId as WheelTimer, TimerWheel};

use self::clock::Clock;
pub(crate) use self::service::ServiceTimer;
use self::service::ServiceTimers;
pub use self::service::TimerId;
use super::{Session, SessionId};
use crate::config::Config;
use crate::limits::nanoseconds;

#[derive(Debug)]
pub(crate) struct Timers {
    wheel: TimerWheel<TimerKey>,
    service: ServiceTimers,
    clock: Clock,
    /// The time of the last clock reading: at the beginning of a turn, and after each read of a socket.
    now_ns: u64,
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

impl Timers {
    pub(super) fn new() -> Self {
        let clock = Clock::default();
        let now_ns = clock.now_ns();
        Self {
            wheel: TimerWheel::new(now_ns, TIMER_TICK_NS),
            service: ServiceTimers::default(),
            clock,
            now_ns,
        }
    }

    /// The time of the last reading.
    #[inline(always)]
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    #[inline]
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_ns = self.clock.now_ns();
        self.now_ns
    }

    /// The time at this moment, for a measurement. Work goes on with the time of the last reading.
    #[inline]
    pub(crate) fn measured_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Returns the time on the wall clock, by which credentials expire.
    pub(crate) fn wall(&self) -> SystemTime {
        self.clock.wall()
    }

    /// The moment on the monotonic clock of a time of the wall clock, or `None` if it is over.
    pub(crate) fn moment_of(&self, at: SystemTime) -> Option<u64> {
        let left = at.duration_since(self.wall()).ok()?;
        Some(self.now_ns().saturating_add(nanoseconds(left)))
    }

    /// The nanoseconds of the wall clock that the monotonic one does not have.
    pub(crate) fn wall_offset_ns(&self) -> i128 {
        let now_ns = i128::from(self.clock.now_ns());
        match self.wall().duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => since.as_nanos().cast_signed() - now_ns,
            Err(before) => -before.duration().as_nanos().cast_signed() - now_ns,
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, at_ns: u64, key: TimerKey) -> WheelTimer {
        self.wheel.insert(at_ns, key)
    }

    /// Sets a timer that fires after this time.
    pub(crate) fn set_after(&mut self, time_ns: u64, key: TimerKey) -> WheelTimer {
        self.set(self.now_ns.saturating_add(time_ns), key)
    }

    /// Cancels a timer. One that has fired stays harmless.
    #[inline]
    pub(crate) fn cancel(&mut self, timer: WheelTimer) {
        self.wheel.cancel(timer);
    }

    /// Sets a session's timer to the earliest time at which it can reach one of its limits.
    pub(super) fn arm(&mut self, session: &mut Session, config: &Config) {
        let is_unvalidated = session.is_unvalidated_and_idle();
        let rules = config.codecs.rules(session.codec_number());
        let deadline_ns = session
            .connection
            .poll_timeout(rules, self.now_ns, is_unvalidated);
        let timer = deadline_ns.map(|deadline_ns| {
            let age_ns = config.age.and_then(|age| session.age_deadline_ns(age));
            let at_ns = deadline_ns.min(age_ns.unwrap_or(u64::MAX));
            self.set(at_ns, TimerKey::Session(session.id))
        });
        if let Some(former) = std::mem::replace(&mut session.timer, timer) {
            self.cancel(former);
        }
    }

    /// Stops all timers of a session that is being removed.
    pub(super) fn disarm(&mut self, session: &mut Session) {
        for timer in [session.timer.take(), session.take_rate_timer()] {
            timer.into_iter().for_each(|timer| self.cancel(timer));
        }
        self.end_service(session.id);
    }

    /// Adds the keys of the timers that are due to `fired`.
    pub(crate) fn fire_due(&mut self, fired: &mut Vec<TimerKey>) {
        self.wheel.advance(self.now_ns, fired);
    }

    /// When the next timer may be due.
    #[inline]
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        self.wheel.next_deadline()
    }
}

#[cfg(test)]
impl Timers {
    /// Fixes the time.
    pub(crate) fn set_time(&mut self, now_ns: u64) {
        self.clock.set(now_ns);
        self.now_ns = now_ns;
    }

    /// Fixes the time of the wall clock.
    pub(crate) fn set_wall(&mut self, time: SystemTime) {
        self.clock.set_wall(time);
    }

    pub(crate) fn waiting(&self) -> usize {
        self.wheel.len()
    }
}

/// Resolution of timeouts. They last seconds, so 10 ms is exact enough and keeps the wheel small.
const TIMER_TICK_NS: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Output;

    /// Every idle session has a place in the slab and a timer, so a larger type would cost memory for each session.
    #[test]
    fn sessions_and_timer_keys_keep_their_size() {
        assert_eq!(size_of::<TimerKey>(), 16);
        // The feature `trace` makes sessions larger.
        if !cfg!(feature = "trace") {
            assert_eq!(size_of::<Session>(), 472);
            assert_eq!(size_of::<Output>(), 56);
        }
    }
}
