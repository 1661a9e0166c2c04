//! The lane as a handler sees it: its clock, its session, sending. [`CallState`] has the state of the call. Rooms,
//! topics, timers and connections have actions of their own, in [`room_actions`](super::room_actions) and beside it.

use tidewire_io::clock::Moment;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::message::Message;

use super::{CallState, Deferred, HandlerResult, SessionSender};
use crate::engine::Core;
use crate::limits::nanoseconds;
use crate::session::{SendError, SessionId, SessionView};

/// The lane as one call of a [`Service`](crate::Service) sees it, and the session of that call.
///
/// ```
/// use tidewire::{Client, Context, HandlerResult, Message};
///
/// fn handle(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
///     if message.payload == b"bye" {
///         cx.close(); // after the reply
///     }
///     let text = format!("session {} on lane {}", cx.id(), cx.lane());
///     cx.reply(text.as_bytes())
/// }
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", handle)?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// assert!(client.request(b"bye").wait()?.payload().ends_with(b"on lane 0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Context<'a> {
    pub(crate) core: &'a mut Core,
    pub(crate) call: CallState,
}

impl Core {
    /// The context of a call about session `id`.
    pub(crate) fn context(&mut self, id: SessionId) -> Context<'_> {
        let call = CallState::of(&mut self.sessions, id);
        self.replies.speak(call.codec_number());
        Context { core: self, call }
    }

    /// The context of a call about no session. It frames no reply, so the templates of the last session stay.
    pub(crate) fn context_without_session(&mut self) -> Context<'_> {
        let call = CallState::NONE;
        Context { core: self, call }
    }
}

impl Context<'_> {
    /// Returns the number of the session of this call, or [`SessionId::NONE`].
    #[inline]
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.call.id()
    }

    /// Returns the facts about the session of this call.
    #[inline]
    #[must_use]
    pub fn session(&self) -> SessionView<'_> {
        SessionView::of(self.core.sessions.table.find(self.call.id()))
    }

    /// Returns the time of the lane: the clock as it was when the lane last read a socket.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment::from_ns(self.core.sessions.timers.now_ns())
    }

    /// Returns the index of this lane.
    #[must_use]
    pub fn lane(&self) -> usize {
        self.core.exchange.lane()
    }

    /// Returns the codec of the session of this call. A call without a session has the server's
    /// [own codec](crate::ServerBuilder::codec).
    #[inline]
    #[must_use]
    pub fn codec(&self) -> &AnyCodec {
        self.core.config.codecs.get(self.call.codec_number())
    }

    /// Sends a message to the session of this call: a payload as a one-way message, or any [`Message`].
    ///
    /// # Errors
    /// [`SendError::Encode`] if the codec cannot express the message, or its frame is larger than both sides agreed
    /// to accept; [`SendError::NotOpen`] if this call has no session.
    #[inline(always)]
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), SendError> {
        self.call.send(self.core, &message.into())
    }

    /// Answers the message being handled: a request with a reply of the same id, any other message with a one-way
    /// message on the same channel. If replies are matched by their order, the reply waits for earlier deferred ones.
    /// It comes after what this handler has [published](crate::TopicActions::publish) and said to the same session
    /// before.
    ///
    /// # Errors
    /// The payload does not fit a frame of the codec.
    #[inline(always)]
    pub fn reply(&mut self, payload: &[u8]) -> HandlerResult {
        self.call.reply(self.core, payload)
    }

    /// Defers the answer to the message being handled. The returned token may go to another thread and answer later.
    /// From now on only the token answers, whatever the handler returns.
    ///
    /// A session is not read while it has
    /// [`ConnectionLimits::deferred_max`](crate::limits::ConnectionLimits::deferred_max) unanswered requests.
    pub fn defer(&mut self) -> Deferred {
        self.call.defer(self.core)
    }

    /// Sends a message to any session of the server, on any lane.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session has ended, [`SendError::QueueFull`] if its queue is full, and
    /// [`SendError::Encode`] if the codec cannot express the message. For a session on another lane this call reports
    /// `Encode` only; that lane counts the other failures in `sends_refused`.
    pub fn send_to(&mut self, id: SessionId, message: &Message<'_>) -> Result<(), SendError> {
        if id == self.call.id() {
            return self.call.send(self.core, message);
        }
        let Core {
            exchange, sessions, ..
        } = &mut *self.core;
        exchange.send_to(sessions, id, |codec, out| codec.encode(message, out))
    }

    /// Looks a session up once for many messages. Each message then costs a fraction of a [`Context::send_to`].
    ///
    /// ```
    /// use tidewire::{Context, Kind, Message, SendError, SessionId};
    ///
    /// fn push(cx: &mut Context<'_>, id: SessionId, samples: &[[u8; 16]]) -> Result<(), SendError> {
    ///     cx.with_sender(id, |sender| {
    ///         for sample in samples {
    ///             sender.send(&Message::new(Kind::OneWay, 0, sample))?;
    ///         }
    ///         Ok(())
    ///     })?
    /// }
    /// ```
    ///
    /// # Errors
    /// The session has ended, or is not open yet. For a session on another lane this call reports no error; that lane
    /// counts each message that it cannot accept in `sends_refused`.
    #[inline(always)]
    pub fn with_sender<T>(
        &mut self,
        id: SessionId,
        work: impl FnOnce(&mut SessionSender<'_>) -> T,
    ) -> Result<T, SendError> {
        let mut sender = SessionSender::open(self, id)?;
        let result = work(&mut sender);
        drop(sender);
        self.call.note_appended(&self.core.sessions);
        Ok(result)
    }

    /// Returns the bytes in the output of a session of this lane that wait for its peer. Messages of rooms and topics
    /// are not counted, and neither are messages of other threads that have not arrived yet. Returns 0 for a session
    /// that is not on this lane.
    ///
    /// A handler that sends to many sessions can use it to bound the sum of their outputs. An output allocates whole
    /// blocks: a few bytes that are left in a block keep the memory of that block.
    #[must_use]
    pub fn queued_bytes(&self, id: SessionId) -> usize {
        match self.core.sessions.table.find(id) {
            Some(_) => self.core.sessions.outputs.of(id.slot()).len(),
            None => 0,
        }
    }

    /// Whether a session's output is so full that sends to it are refused until the peer has read some of it.
    #[must_use]
    pub fn is_full(&self, id: SessionId) -> bool {
        let sessions = &self.core.sessions;
        sessions.table.find(id).is_some() && sessions.outputs.is_full(id.slot())
    }

    /// Writes a session's output now instead of at the end of the turn.
    pub fn flush(&mut self, id: SessionId) {
        let Some(slot) = self.core.sessions.table.slot_of(id) else {
            return;
        };
        self.core.sessions.flush(slot);
    }

    /// Sets whether this service waits for the peer to log in, for example after a prompt for a name. From the first
    /// call with `true` until a call with `false`, the session has
    /// [`login_timeout`](crate::limits::HandshakeLimits::login_timeout). After that it is closed with
    /// [`CloseReason::HandshakeTimeout`](crate::CloseReason::HandshakeTimeout). Without this call, a silent peer keeps
    /// its session until the idle timeout.
    pub fn await_login(&mut self, awaits: bool) {
        let Some(slot) = self.core.sessions.table.slot_of(self.call.id()) else {
            return;
        };
        let time_ns = nanoseconds(self.core.config.limits.handshakes.login_timeout());
        let deadline_ns =
            awaits.then(|| self.core.sessions.timers.now_ns().saturating_add(time_ns));
        let connection = &mut self.core.sessions[slot].connection;
        if connection.timing_mut().await_login(deadline_ns) {
            self.core.sessions.arm_timer(slot);
        }
    }

    /// Ends the lane's thread after this turn and closes its sessions.
    pub fn stop_lane(&mut self) {
        self.core.ending.stop();
    }

    /// Returns the largest frame this server accepts and sends, in bytes.
    #[must_use]
    pub fn frame_bytes_max(&self) -> usize {
        self.core.config.limits.connections.frame_bytes_max()
    }
}

impl Drop for Context<'_> {
    #[inline]
    fn drop(&mut self) {
        self.core.sessions.outputs.leave();
    }
}
