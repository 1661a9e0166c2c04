//! Pausing and resuming the input of a session, from a handler or from another thread.

use tidewire_proto::connection::PauseReason;

use super::{Context, SessionHandle};
use crate::engine::Core;
use crate::mailbox::LaneMessage;
use crate::session::{SendError, SessionId};

impl Context<'_> {
    /// Stops reading from the session of this call, and handles no further message of it, until
    /// [`Self::resume_reading`] or [`SessionHandle::resume_reading`] is called. Pauses do not add up: a single resume
    /// ends them.
    ///
    /// The transport applies back pressure to the peer. Over UDP it cannot: datagrams that arrive meanwhile are
    /// dropped and counted as `paused`; see
    /// [`Metrics::datagrams_dropped_by`](crate::metrics::Metrics::datagrams_dropped_by). Pings go on, and the idle
    /// timeout does not apply to a paused session. So while a session is paused, the lane does not notice the peer's
    /// end.
    ///
    /// ```
    /// use tidewire::{Client, Context, Message, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
    ///     |cx: &mut Context<'_>, message: Message<'_>| {
    ///         // Another thread resumes the session.
    ///         cx.pause_reading();
    ///         cx.reply(message.payload)
    ///     }
    /// )?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// assert_eq!(client.request(b"one").wait()?.payload(), b"one");
    /// let mut waiting = client.request(b"two").send();
    /// assert!(waiting.try_wait().is_none());
    /// for session in server.sessions().list() {
    ///     session.resume_reading()?;
    /// }
    /// assert_eq!(waiting.wait()?.payload(), b"two");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pause_reading(&mut self) {
        if let Some(slot) = self.core.sessions.table.slot_of(self.call.id()) {
            self.call.stop();
            let sessions = &mut self.core.sessions;
            sessions.pause_reading(slot, PauseReason::Service);
        }
    }

    /// Resumes a session of this lane that [`Self::pause_reading`] or [`SessionHandle::pause_reading`] paused.
    /// Messages that were already read are handled first, in this turn of the lane or the next. The call does nothing
    /// if the session is not paused, has ended, or is on another lane; a [`SessionHandle`] reaches other lanes.
    pub fn resume_reading(&mut self, id: SessionId) {
        if let Some(slot) = self.core.sessions.table.slot_of(id) {
            let sessions = &mut self.core.sessions;
            sessions.resume_reading(slot, PauseReason::Service);
        }
    }
}

impl SessionHandle {
    /// Pauses the session, as [`Context::pause_reading`] does, from any thread. The lane may handle further messages
    /// until it sees the request. If this and [`Self::resume_reading`] are called several times, the last call
    /// counts.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session is not open.
    pub fn pause_reading(&self) -> Result<(), SendError> {
        self.set_reading(false)
    }

    /// Resumes the session, as [`Context::resume_reading`] does, from any thread.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session is not open.
    pub fn resume_reading(&self) -> Result<(), SendError> {
        self.set_reading(true)
    }

    fn set_reading(&self, reads: bool) -> Result<(), SendError> {
        if !self.session.is_open() {
            return Err(SendError::NotOpen);
        }
        if !self.session.wish_reading(reads) {
            // A message to the lane is already on its way, and the lane will read the latest request.
            return Ok(());
        }
        self.post(LaneMessage::Reading {
            id: self.session.id,
        })
    }
}

impl Core {
    /// Applies the latest request of other threads to pause or resume a session.
    pub(crate) fn deliver_reading(&mut self, id: SessionId) {
        let Some(slot) = self.sessions.table.slot_of(id) else {
            return;
        };
        let Some(shared) = &self.sessions[slot].profile.shared else {
            return;
        };
        if shared.take_reading_wish() {
            self.sessions.resume_reading(slot, PauseReason::Service);
        } else {
            self.sessions.pause_reading(slot, PauseReason::Service);
        }
    }
}
