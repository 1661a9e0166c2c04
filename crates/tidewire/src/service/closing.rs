//! Closing sessions, with and without a farewell to the peer.
//!
//! A close comes after everything that was sent to the session before, and after every answer that was given before.
//! Some of these answers wait for an earlier request whose answer is deferred; the close then waits for that one, too.
//! All other unanswered requests are given up, because a peer that is closed should not stay for as long as a slow
//! backend takes. Nothing more is read from the peer meanwhile. Where the peer matches replies by their order, it would
//! take a reply after a request that was given up for the reply to that request. So that reply is not sent: reply
//! first, then close. The farewell goes last: in the native protocol as a go-away, in `lines` as a line. No other codec
//! has a farewell, so there a close with a farewell is a plain close.
//!
//! | code | reaction of this project's clients |
//! |---|---|
//! | [`GoAwayCode::Removed`], 4500 to 4999 | they do not reconnect |
//! | any other | they reconnect if they were configured to |

use tidewire_proto::body::GoAwayCode;
use tidewire_proto::connection::Farewell;

use super::{Context, SessionHandle, Sessions};
use crate::session::{SendError, SessionId};

impl Context<'_> {
    /// Closes the session of this call, after everything that was sent to it and every answer that was given before.
    /// If replies are matched by their order and an answer waits for an earlier one, the close waits for it. All
    /// other deferred requests are [given up](crate::Deferred::is_cancelled). A reply that follows in the same
    /// handler is not sent if it would be matched to one of these: reply first, then close. Within
    /// [`Service::on_close`](crate::Service::on_close) this does nothing, because that session has already ended.
    pub fn close(&mut self) {
        self.close_session(self.call.id());
    }

    /// Closes a session of this lane, as [`Context::close`] does, in this turn and even if it drains already. It does
    /// nothing if the session has ended or is on another lane; [`Sessions::close`] reaches other lanes.
    pub fn close_session(&mut self, id: SessionId) {
        self.call.end_session(&mut self.core.sessions, id, None);
    }

    /// Closes the session of this call, as [`Context::close`] does, and sends the peer the reason: a code for
    /// programs, and a text for people. The text is cut at 255 bytes. If a session is closed twice, the first close
    /// counts.
    ///
    /// A client gets both with [`Event::Closed`](crate::Event::Closed), and in the errors of its pending requests.
    /// After a code that [is final](GoAwayCode::is_final) it does not reconnect. A codec without a farewell (all but
    /// `tw1` and `lines`) closes without it, and its clients reconnect.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidewire::{Backoff, Client, Context, Event, GoAwayCode, Message, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
    ///     |cx: &mut Context<'_>, message: Message<'_>| {
    ///         cx.reply(message.payload)?;
    ///         cx.close_with(GoAwayCode::Removed, "one request is enough");
    ///         Ok(())
    ///     }
    /// )?;
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
        self.close_session_with(self.call.id(), code, text);
    }

    /// Closes a session of this lane, as [`Context::close_session`] does, and sends its peer the reason, as
    /// [`Context::close_with`] does.
    pub fn close_session_with(&mut self, id: SessionId, code: GoAwayCode, text: &str) {
        self.call.end_session(
            &mut self.core.sessions,
            id,
            Some(Box::new(Farewell::new(code, text))),
        );
    }
}

impl SessionHandle {
    /// Closes the session, as [`SessionHandle::close`] does, and sends the peer the reason, as
    /// [`Context::close_with`] does. If a session is closed twice, the first close counts.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session is not open.
    pub fn close_with(&self, code: GoAwayCode, text: &str) -> Result<(), SendError> {
        self.end(Some(Box::new(Farewell::new(code, text))))
    }
}

impl Sessions {
    /// Closes the session with this id, as [`SessionHandle::close_with`] does.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session is not open.
    pub fn close_with(&self, id: SessionId, code: GoAwayCode, text: &str) -> Result<(), SendError> {
        self.find(id)
            .ok_or(SendError::NotOpen)?
            .close_with(code, text)
    }
}
