//! Closing sessions, with and without words for their peers.
//!
//! A close comes after everything that the session was sent before it, and after every answer that was given before it, also
//! those that wait in line for an earlier request whose answer is deferred, and so after that one's. Requests that nobody has
//! answered are given up otherwise: a peer that is closed should not stay for as long as a slow backend takes. Nothing more
//! is read from the peer meanwhile. Where replies are matched by their order, a reply behind a request that was given up
//! would be taken for its answer, so it is not sent: reply first, then close. The words go last: in the native protocol as a go-away, in
//! `lines` as a line. No other codec has words for it, and there a close with words is a plain close.
//!
//! | code | what the clients of this project do |
//! |---|---|
//! | [`GoAwayCode::Removed`], 4500 to 4999 | stay away, also those that reconnect otherwise |
//! | any other | connect again if they were told to reconnect |

use tidewire_proto::body::GoAwayCode;
use tidewire_proto::connection::Farewell;

use super::{Context, NotOpen, SessionHandle, Sessions};
use crate::session::SessionId;

impl Context<'_> {
    /// Closes the session this call is about, after what was sent to it and the answers that were given before. An answer that
    /// waits for an earlier one, where replies are matched by their order, is waited for; other requests whose answers are
    /// deferred are [given up](crate::Deferred::is_cancelled), and a reply that follows in the same handler is not sent if it
    /// would be taken for one of theirs: reply first, then close. Within [`Service::on_close`](crate::Service::on_close) it does nothing, because that session
    /// has ended already.
    pub fn close(&mut self) {
        self.close_session(self.id);
    }

    /// Closes any session of this lane, as [`Context::close`] does. One that has ended, or is on another lane, is left as it
    /// is; see [`Sessions::close`] for those.
    pub fn close_session(&mut self, id: SessionId) {
        self.end_session(id, None);
    }

    /// As [`Context::close`], and tells the peer why: a code for programs, and a text for people of at most 255 bytes, which is
    /// cut if it is longer. The first close of a session counts.
    ///
    /// A client gets both with [`Event::Closed`](crate::Event::Closed), and in the errors of its requests that are still
    /// waiting. After a code that [is final](GoAwayCode::is_final) it does not reconnect. A codec without words for it
    /// (all but `tw1` and `lines`) closes without them, and its clients reconnect.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidewire::{Backoff, Client, Context, Event, GoAwayCode, Message, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| {
    ///     |cx: &mut Context<'_>, message: Message<'_>| {
    ///         cx.reply(message.payload)?;
    ///         cx.close_with(GoAwayCode::Removed, "one request is enough");
    ///         Ok(())
    ///     }
    /// })?;
    /// let client = Client::builder().reconnect(Backoff::default()).connect(&server.to_string()).wait()?;
    /// assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
    /// let (reason, text) = loop {
    ///     if let Event::Closed { reason, text } = client.next_event().wait() { break (reason, text) };
    /// };
    /// assert!(reason.is_final());
    /// assert_eq!(&*text, "one request is enough");
    /// assert_eq!(client.next_event().wait(), Event::Ended, "it does not connect again");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close_with(&mut self, code: GoAwayCode, text: &str) {
        self.close_session_with(self.id, code, text);
    }

    /// Closes any session of this lane, as [`Context::close_with`] does; see [`Sessions::close_with`] for those of other lanes.
    pub fn close_session_with(&mut self, id: SessionId, code: GoAwayCode, text: &str) {
        self.end_session(id, Some(Box::new(Farewell::new(code, text))));
    }

    /// The words with which the peer of this session closes or has closed it, if it had some. It is foreign text: see
    /// [`Farewell::text`].
    #[must_use]
    pub fn peer_farewell(&self) -> Option<&Farewell> {
        let session = self.core.sessions.find(self.id)?;
        session.connection.peer_farewell()
    }

    pub(crate) fn end_session(&mut self, id: SessionId, farewell: Option<Box<Farewell>>) {
        if id == self.id {
            self.stopped = true;
        }
        if let Some(slot) = self.core.sessions.slot_of(id) {
            self.core.sessions.end_by_service(slot, farewell);
        }
    }
}

impl SessionHandle {
    /// As [`SessionHandle::close`], and tells the peer why, as [`Context::close_with`] does. The first close of a session
    /// counts.
    ///
    /// # Errors
    /// [`NotOpen`] if the session is not open.
    pub fn close_with(&self, code: GoAwayCode, text: &str) -> Result<(), NotOpen> {
        self.end(Some(Box::new(Farewell::new(code, text))))
    }
}

impl Sessions {
    /// Closes the session with this number, as [`SessionHandle::close_with`] does.
    ///
    /// # Errors
    /// [`NotOpen`] if the session is not open.
    pub fn close_with(&self, id: SessionId, code: GoAwayCode, text: &str) -> Result<(), NotOpen> {
        self.find(id).ok_or(NotOpen)?.close_with(code, text)
    }
}
