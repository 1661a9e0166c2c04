//! The timers that services set, on the wheel of their lane.
//!
//! The wheel identifies a timer by an index in this table, so that its entries stay as small as those of idle timeouts. A
//! reused index gets another serial number. A timer may fire in the same moment in which it is cancelled or its session
//! ends. Then the serial number no longer matches, and the service does not see it.

use slab::Slab;
use thiserror::Error;
use tidewire_io::timer::TimerId as WheelTimer;

use super::reactor::TimerKey;
use super::{LaneSessions, SessionId};

/// One timer of a service. The id stays harmless after the timer has fired or was cancelled. It is valid only on the lane
/// that set the timer. [`TimerActions::set`](crate::TimerActions::set) returns it and has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    pub(crate) lane: usize,
    pub(crate) key: ServiceTimer,
}

/// A timer could not be set. An error of [`TimerActions::set`](crate::TimerActions::set), which has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TimerError {
    /// The session has ended, and its timers with it. Use [`TimerActions::set_for_lane`](crate::TimerActions::set_for_lane) for a
    /// timer that needs no session.
    #[error("the session of the timer has ended; set a timer of the lane, which needs no session")]
    NotOpen,
    /// The session has this many timers already, or the lane has, for timers without a session. Cancel timers that are not
    /// needed, or raise [`Limits::timers_per_session_max`](crate::Limits::timers_per_session_max) or
    /// [`Limits::timers_per_lane_max`](crate::Limits::timers_per_lane_max).
    #[error(
        "{0} timers wait already, which is the limit; cancel those that are not needed, or raise the limit"
    )]
    TooMany(usize),
}

/// The key of a timer in the table of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServiceTimer {
    index: u32,
    serial: u32,
}

/// The timers of a lane's service.
#[derive(Debug, Default)]
pub(crate) struct ServiceTimers {
    waiting: Slab<Waiting>,
    serial: u32,
    /// Number of timers without a session.
    without_session: usize,
}

#[derive(Debug)]
struct Waiting {
    serial: u32,
    session: SessionId,
    token: u64,
    wheel: WheelTimer,
}

impl ServiceTimers {
    fn take(&mut self, timer: ServiceTimer) -> Option<Waiting> {
        let index = timer.index as usize;
        let waiting = self.waiting.get(index)?;
        if waiting.serial != timer.serial {
            return None;
        }
        let waiting = self.waiting.remove(index);
        self.without_session -= usize::from(waiting.session == SessionId::NONE);
        Some(waiting)
    }
}

impl LaneSessions {
    /// Starts a timer of this session, or of the lane if the session is [`SessionId::NONE`].
    pub(crate) fn set_service_timer(
        &mut self,
        session: SessionId,
        at_ns: u64,
        token: u64,
    ) -> Result<ServiceTimer, TimerError> {
        let limits = &self.config.limits;
        let (count, limit) = if session == SessionId::NONE {
            let count = self.reactor.service_timers.without_session;
            (count, limits.timers_per_lane_max)
        } else {
            let slot = self.slot_of(session).ok_or(TimerError::NotOpen)?;
            let attached = self.slab[slot].profile.attached.as_ref();
            let count = attached.map_or(0, |attached| attached.timers.len());
            (count, limits.timers_per_session_max)
        };
        let timers = &mut self.reactor.service_timers;
        let vacant = timers.waiting.vacant_entry();
        let index = u32::try_from(vacant.key()).unwrap_or(u32::MAX);
        if count >= limit || index == u32::MAX {
            return Err(TimerError::TooMany(count));
        }
        timers.serial = timers.serial.wrapping_add(1);
        let timer = ServiceTimer {
            index,
            serial: timers.serial,
        };
        let key = TimerKey::Service(timer);
        vacant.insert(Waiting {
            serial: timer.serial,
            session,
            token,
            wheel: self.reactor.timers.insert(at_ns, key),
        });
        match self.find_mut(session) {
            Some(session) => session.profile.attach().timers.push(index),
            None => self.reactor.service_timers.without_session += 1,
        }
        Ok(timer)
    }

    /// Cancels a timer. Returns whether it was still waiting.
    pub(crate) fn cancel_service_timer(&mut self, timer: ServiceTimer) -> bool {
        let Some(waiting) = self.reactor.service_timers.take(timer) else {
            return false;
        };
        self.reactor.timers.cancel(waiting.wheel);
        self.forget_service_timer(waiting.session, timer);
        true
    }

    /// Handles a timer that has fired. Returns its session and token, unless it was cancelled or its session has ended.
    pub(crate) fn fire_service_timer(&mut self, timer: ServiceTimer) -> Option<(SessionId, u64)> {
        let waiting = self.reactor.service_timers.take(timer)?;
        self.forget_service_timer(waiting.session, timer);
        let is_wanted =
            waiting.session == SessionId::NONE || self.slot_of(waiting.session).is_some();
        is_wanted.then_some((waiting.session, waiting.token))
    }

    /// Stops all timers of a session that is being removed.
    pub(crate) fn end_service_timers(&mut self, slot: usize) {
        let Some(attached) = &mut self.slab[slot].profile.attached else {
            return;
        };
        for index in std::mem::take(&mut attached.timers) {
            let waiting = self.reactor.service_timers.waiting.remove(index as usize);
            self.reactor.timers.cancel(waiting.wheel);
        }
    }

    fn forget_service_timer(&mut self, session: SessionId, timer: ServiceTimer) {
        if let Some(session) = self.find_mut(session)
            && let Some(attached) = &mut session.profile.attached
        {
            attached.timers.retain(|index| *index != timer.index);
        }
    }
}
