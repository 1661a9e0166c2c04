//! Timers of sessions and of lanes, set by handlers.

use std::time::Duration;

use super::Context;
use crate::limits::nanoseconds;
use crate::session::{SessionId, TimerError, TimerId};

impl Context<'_> {
    /// Has [`Service::on_timer`](crate::Service::on_timer) called once, with `token`, when `delay` has passed since
    /// [`Self::now_ns`]. The timer belongs to the session this call is about and ends with it: `on_timer` is not called after
    /// the session has ended. In a call without a session, as [`Service::on_turn`](crate::Service::on_turn), it belongs to the
    /// lane.
    ///
    /// A timer never fires early, and up to 10 ms late, plus what the lane is busy with. Timers of the same 10 ms fire in any
    /// order. The token tells the timers of a session apart and need not be unique.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidewire::{Client, Context, Event, HandlerResult, Kind, Message, Server, Service};
    ///
    /// struct Reminder;
    ///
    /// impl Service for Reminder {
    ///     fn on_request(&mut self, cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    ///         cx.set_timer(Duration::from_millis(20), 7)?;
    ///         cx.reply(b"I will")
    ///     }
    ///
    ///     fn on_timer(&mut self, cx: &mut Context<'_>, token: u64) {
    ///         let news = format!("timer {token}");
    ///         let _ = cx.send(&Message::new(Kind::OneWay, 0, news.as_bytes()));
    ///     }
    /// }
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| Reminder)?;
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
    /// [`TimerError::NotOpen`] if the session has ended, as in `on_close`; [`TimerError::TooMany`] if it has
    /// [`Limits::timers_per_session_max`](crate::Limits::timers_per_session_max) timers already.
    pub fn set_timer(&mut self, delay: Duration, token: u64) -> Result<TimerId, TimerError> {
        self.set_timer_at(self.at_ns(delay), token)
    }

    /// As [`Self::set_timer`], for a time on the clock of [`Self::now_ns`]. One in the past fires in the next turn.
    ///
    /// # Errors
    /// As those of [`Self::set_timer`].
    pub fn set_timer_at(&mut self, at_ns: u64, token: u64) -> Result<TimerId, TimerError> {
        self.insert_timer(self.id, at_ns, token)
    }

    /// As [`Self::set_timer`], but the timer belongs to the lane, also in a call about a session:
    /// [`Service::on_timer`](crate::Service::on_timer) is called without a session, until the lane ends.
    ///
    /// # Errors
    /// [`TimerError::TooMany`] if the lane has [`Limits::timers_per_lane_max`](crate::Limits::timers_per_lane_max) such timers
    /// already.
    pub fn set_lane_timer(&mut self, delay: Duration, token: u64) -> Result<TimerId, TimerError> {
        self.insert_timer(SessionId::NONE, self.at_ns(delay), token)
    }

    /// Stops a timer. Returns whether it was still waiting: with `true`, `on_timer` will not be called for it. With `false` it
    /// has fired, its session has ended, it was cancelled before, or another lane set it.
    pub fn cancel_timer(&mut self, timer: TimerId) -> bool {
        timer.lane == self.lane() && self.core.sessions.cancel_service_timer(timer.key)
    }

    fn at_ns(&self, delay: Duration) -> u64 {
        self.now_ns().saturating_add(nanoseconds(delay))
    }

    fn insert_timer(
        &mut self,
        session: SessionId,
        at_ns: u64,
        token: u64,
    ) -> Result<TimerId, TimerError> {
        let sessions = &mut self.core.sessions;
        let key = sessions.set_service_timer(session, at_ns, token)?;
        Ok(TimerId {
            lane: self.lane(),
            key,
        })
    }
}
