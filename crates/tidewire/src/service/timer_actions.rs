//! Timers of sessions and lanes that handlers set.

use std::time::{Duration, SystemTime};

use tidewire_io::clock::Moment;

use tidewire_proto::body::ErrorCode;

use super::{Context, HandlerError};
use crate::session::{SessionId, TimerId};

/// The actions of a handler on timers. [`Context::timers`] returns it; [`Self::set`] has an example.
#[derive(Debug)]
pub struct TimerActions<'c, 'a> {
    cx: &'c mut Context<'a>,
}

impl<'a> Context<'a> {
    /// Returns the actions on timers.
    #[must_use]
    pub fn timers(&mut self) -> TimerActions<'_, 'a> {
        TimerActions { cx: self }
    }
}

impl TimerActions<'_, '_> {
    /// Sets a timer: [`Service::on_timer`](crate::Service::on_timer) is called once, with `token`, when `delay` has
    /// passed since [`Context::now`]. The timer belongs to the session of this call and ends with it: `on_timer` is
    /// not called after the session has ended. In a call without a session, such as
    /// [`Service::on_turn`](crate::Service::on_turn), it belongs to the lane.
    ///
    /// A timer never fires early. It fires up to 10 ms late, plus the time for which the lane is busy. Timers of the
    /// same 10 ms fire in any order. The token identifies a timer of its session and need not be unique.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use tidewire::{Client, Context, Event, HandlerResult, Kind, Message, Server, Service};
    ///
    /// struct Reminder;
    ///
    /// impl Service for Reminder {
    ///     fn on_request(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    ///         cx.timers().set(Duration::from_millis(20), 7)?;
    ///         cx.reply(b"I will")
    ///     }
    ///
    ///     fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
    ///         let news = format!("timer {token}");
    ///         let _ = cx.send(&Message::new(Kind::OneWay, 0, news.as_bytes()));
    ///     }
    /// }
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(Reminder)?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// client.request(b"remind me").wait()?;
    /// let news = loop {
    ///     if let Event::Message(message) = client.next_event().wait() { break message };
    /// };
    /// assert_eq!(news.payload, b"timer 7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] if the session has ended, as in `on_close`; [`ErrorCode::LimitReached`] if it already
    /// has [`SessionLimits::timers_max`](crate::limits::SessionLimits::timers_max) timers.
    pub fn set(&mut self, delay: Duration, token: u64) -> Result<TimerId, HandlerError> {
        self.set_at(self.cx.now() + delay, token)
    }

    /// Sets a timer, as [`Self::set`] does, for a time on the clock of [`Context::now`]. A time in the past
    /// fires in the next turn.
    ///
    /// # Errors
    /// The errors of [`Self::set`].
    pub fn set_at(&mut self, at: Moment, token: u64) -> Result<TimerId, HandlerError> {
        self.insert(self.cx.call.id(), at, token)
    }

    /// Sets a timer, as [`Self::set`] does, but for the lane, even in a call about a session.
    /// [`Service::on_timer`](crate::Service::on_timer) is called without a session, and the timer lasts until the
    /// lane ends.
    ///
    /// # Errors
    /// [`ErrorCode::LimitReached`] if the lane already has
    /// [`SessionLimits::timers_per_lane_max`](crate::limits::SessionLimits::timers_per_lane_max) such timers.
    pub fn set_for_lane(&mut self, delay: Duration, token: u64) -> Result<TimerId, HandlerError> {
        self.insert(SessionId::NONE, self.cx.now() + delay, token)
    }

    /// Cancels a timer. Returns true if the timer was pending: `on_timer` is then not called for it. Returns false if
    /// it has fired, its session has ended, it was cancelled before, or another lane set it.
    pub fn cancel(&mut self, timer: TimerId) -> bool {
        let key = timer.key_on(self.cx.lane());
        key.is_some_and(|key| self.cx.core.sessions.timers.cancel_service(key))
    }

    pub(crate) fn wall_time(&self) -> SystemTime {
        self.cx.core.sessions.timers.wall()
    }

    fn insert(
        &mut self,
        session: SessionId,
        at: Moment,
        token: u64,
    ) -> Result<TimerId, HandlerError> {
        let sessions = &mut self.cx.core.sessions;
        if session != SessionId::NONE && sessions.table.slot_of(session).is_none() {
            return Err(HandlerError::new(
                ErrorCode::NotFound,
                "the session of the timer has ended; set a timer of the lane, which needs no session",
            ));
        }
        let limits = &self.cx.core.config.limits;
        let timers = &mut sessions.timers;
        let key = timers.set_service(session, at.as_ns(), token, limits);
        let key = key.map_err(|count| {
            let text = format!(
                "{count} timers wait already, which is the limit; cancel those that are not needed, or raise the limit"
            );
            HandlerError::new(ErrorCode::LimitReached, text)
        })?;
        Ok(TimerId::new(self.cx.lane(), key))
    }
}
