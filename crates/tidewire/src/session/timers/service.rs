//! The timers that services set, on the wheel of their lane.
//!
//! The wheel identifies a timer by an index in this table, so that its entries stay as small as those of idle timeouts.
//! A reused index gets another serial number. A timer may fire in the same moment in which it is cancelled or its
//! session ends. Then the serial number no longer matches, and the service does not see it.

use std::collections::HashMap;

use slab::Slab;
use tidewire_io::timer::TimerId as WheelTimer;

use super::{SessionId, TimerKey, Timers};
use crate::limits::Limits;

/// One timer of a service. The id stays harmless after the timer has fired or was cancelled. It is valid only on the
/// lane that set the timer. [`TimerActions::set`](crate::TimerActions::set) returns it and has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    lane: usize,
    key: ServiceTimer,
}

impl TimerId {
    pub(crate) fn new(lane: usize, key: ServiceTimer) -> Self {
        Self { lane, key }
    }

    /// The key of the timer in the table of `lane`. `None` if another lane set the timer.
    pub(crate) fn key_on(self, lane: usize) -> Option<ServiceTimer> {
        (self.lane == lane).then_some(self.key)
    }
}

/// The key of a timer in the table of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServiceTimer {
    index: u32,
    serial: u32,
}

/// The timers of a lane's service.
#[derive(Debug, Default)]
pub(super) struct ServiceTimers {
    waiting: Slab<TimerEntry>,
    serial: u32,
    by_session: HashMap<SessionId, Vec<u32>>,
    /// Number of timers without a session.
    without_session: usize,
}

#[derive(Debug)]
struct TimerEntry {
    serial: u32,
    session: SessionId,
    token: u64,
    wheel: WheelTimer,
}

impl ServiceTimers {
    fn take(&mut self, timer: ServiceTimer) -> Option<TimerEntry> {
        let index = timer.index as usize;
        let waiting = self.waiting.get(index)?;
        if waiting.serial != timer.serial {
            return None;
        }
        let waiting = self.waiting.remove(index);
        match self.by_session.get_mut(&waiting.session) {
            Some(own) => own.retain(|index| *index != timer.index),
            None => self.without_session -= 1,
        }
        Some(waiting)
    }
}

impl Timers {
    /// Starts a timer of this session, which is open, or of the lane if the session is [`SessionId::NONE`].
    ///
    /// # Errors
    /// The number of timers that wait already, which is the limit.
    pub(crate) fn set_service(
        &mut self,
        session: SessionId,
        at_ns: u64,
        token: u64,
        limits: &Limits,
    ) -> Result<ServiceTimer, usize> {
        let Self { wheel, service, .. } = self;
        let (count, limit) = match session {
            SessionId::NONE => (
                service.without_session,
                limits.sessions.timers_per_lane_max(),
            ),
            _ => {
                let own = service.by_session.get(&session);
                (own.map_or(0, Vec::len), limits.sessions.timers_max())
            }
        };
        let vacant = service.waiting.vacant_entry();
        let index = u32::try_from(vacant.key()).unwrap_or(u32::MAX);
        if count >= limit || index == u32::MAX {
            return Err(count);
        }
        service.serial = service.serial.wrapping_add(1);
        let serial = service.serial;
        let timer = ServiceTimer { index, serial };
        vacant.insert(TimerEntry {
            serial,
            session,
            token,
            wheel: wheel.insert(at_ns, TimerKey::Service(timer)),
        });
        match session {
            SessionId::NONE => service.without_session += 1,
            _ => service.by_session.entry(session).or_default().push(index),
        }
        Ok(timer)
    }

    /// Cancels a timer. Returns whether it was still waiting.
    pub(crate) fn cancel_service(&mut self, timer: ServiceTimer) -> bool {
        let waiting = self.service.take(timer);
        if let Some(waiting) = &waiting {
            self.wheel.cancel(waiting.wheel);
        }
        waiting.is_some()
    }

    /// Handles a timer that has fired. Returns its session and token, unless it was cancelled. The session may be
    /// closed.
    pub(crate) fn fire_service(&mut self, timer: ServiceTimer) -> Option<(SessionId, u64)> {
        let waiting = self.service.take(timer)?;
        Some((waiting.session, waiting.token))
    }

    /// Stops all timers of a session that is being removed.
    pub(super) fn end_service(&mut self, session: SessionId) {
        let Self { wheel, service, .. } = self;
        // Most services set no timers.
        if service.by_session.is_empty() {
            return;
        }
        for index in service.by_session.remove(&session).unwrap_or_default() {
            wheel.cancel(service.waiting.remove(index as usize).wheel);
        }
    }
}
