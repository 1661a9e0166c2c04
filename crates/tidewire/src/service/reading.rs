//! A service that takes no more of a session for a while, from a handler or from another thread.

use tidewire_proto::connection::PauseReason;

use super::{Context, NotOpen, SessionHandle};
use crate::engine::Core;
use crate::mailbox::LaneMessage;
use crate::session::SessionId;

impl Context<'_> {
    /// Handles no further message of the session this call is about, and reads no more from it, until
    /// [`Self::resume_reading`] or [`SessionHandle::resume_reading`]. Calls do not add up: one of these is enough.
    ///
    /// The transport holds the peer back. Over UDP it cannot: datagrams that come meanwhile are dropped, and counted as
    /// [`DatagramDrop::Paused`](crate::DatagramDrop::Paused). Pings go on, and a paused session is not idle: no silence ends
    /// it. So nothing of the peer is noticed while it is paused, its end neither.
    ///
    /// ```
    /// use tidewire::{Client, Context, Message, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| {
    ///     |cx: &mut Context<'_>, message: Message<'_>| {
    ///         // Whoever has taken this message lets the session go on.
    ///         cx.pause_reading();
    ///         cx.reply(message.payload)
    ///     }
    /// })?;
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
        if let Some(slot) = self.core.sessions.slot_of(self.id) {
            self.stopped = true;
            let sessions = &mut self.core.sessions;
            sessions.pause_reading(slot, PauseReason::Service);
        }
    }

    /// Lets a session of this lane go on that [`Self::pause_reading`] or [`SessionHandle::pause_reading`] paused. Messages that
    /// were read before come first, in this turn of the lane or the next. A session that is not paused, has ended or is of
    /// another lane is left alone; a [`SessionHandle`] reaches those of other lanes.
    pub fn resume_reading(&mut self, id: SessionId) {
        if let Some(slot) = self.core.sessions.slot_of(id) {
            let sessions = &mut self.core.sessions;
            sessions.resume_reading(slot, PauseReason::Service);
        }
    }
}

impl SessionHandle {
    /// As [`Context::pause_reading`], from any thread. The lane may handle messages until it learns of it. Of several calls of
    /// this and [`Self::resume_reading`] the last one counts.
    ///
    /// # Errors
    /// [`NotOpen`] if the session is not open.
    pub fn pause_reading(&self) -> Result<(), NotOpen> {
        self.set_reading(false)
    }

    /// As [`Context::resume_reading`], from any thread.
    ///
    /// # Errors
    /// [`NotOpen`] if the session is not open.
    pub fn resume_reading(&self) -> Result<(), NotOpen> {
        self.set_reading(true)
    }

    fn set_reading(&self, reads: bool) -> Result<(), NotOpen> {
        if !self.session.is_open() {
            return Err(NotOpen);
        }
        if !self.session.wish_reading(reads) {
            // The message that the lane has not taken yet will tell this wish.
            return Ok(());
        }
        self.post(LaneMessage::Reading {
            id: self.session.id,
        })
    }
}

impl Core {
    /// Another thread wishes that a session is read, or is not.
    pub(crate) fn deliver_reading(&mut self, id: SessionId) {
        let Some(slot) = self.sessions.slot_of(id) else {
            return;
        };
        let Some(session) = &self.sessions[slot].profile.shared else {
            return;
        };
        if session.take_reading_wish() {
            self.sessions.resume_reading(slot, PauseReason::Service);
        } else {
            self.sessions.pause_reading(slot, PauseReason::Service);
        }
    }
}
