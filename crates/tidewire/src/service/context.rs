//! The lane as a handler sees it: its clock, its session, sending. Replies are in [`reply`](super::reply). Rooms,
//! topics, timers and connections have actions of their own, in [`room_actions`](super::room_actions) and beside it.

use super::answers::NO_MESSAGE;
use crate::engine::Origin;
use tidewire_io::clock::Moment;
use tidewire_proto::codec::{AnyCodec, Codec, RoomReply};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use crate::engine::Core;
use crate::limits::nanoseconds;
use crate::service::SessionSender;
use crate::session::{SendError, SessionId, SessionView, encode_within};

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
    pub(crate) id: SessionId,
    /// Largest frame that both sides accept.
    pub(crate) frame_bytes_max: usize,
    pub(crate) current: Current,
    /// Largest frame of a reply that only needs to be appended to the output; see [`Context::update_fast_reply_limit`].
    pub(crate) reply_bytes_max: usize,
    /// Replies of this session must wait for earlier ones that are deferred.
    pub(crate) keeps_order: bool,
    /// Rooms and topics may have messages for this session that must come before the next frame; see
    /// [`Context::follow_rooms`].
    pub(crate) follows_rooms: bool,
    /// Set when no further message of this session may be handled now.
    pub(crate) stopped: bool,
}

/// The facts about the message being handled that a reply needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    pub(crate) origin: Origin,
    pub(crate) id: u32,
    /// The message calls a method by its name, which the lane keeps.
    pub(crate) named: bool,
    /// A token answers the message.
    pub(crate) deferred: bool,
}

impl Current {
    /// Makes the value for a message whose name is not kept yet.
    #[inline(always)]
    pub(crate) fn of(message: &Message<'_>) -> Self {
        Self {
            origin: Origin::new(message.kind, message.channel),
            id: message.id,
            named: false,
            deferred: false,
        }
    }
}

impl Core {
    /// The context of a call about session `id`.
    pub(crate) fn context(&mut self, id: SessionId) -> Context<'_> {
        let (mut frame_bytes_max, mut keeps_order, mut follows_rooms) = (0, false, false);
        if let Some(session) = self.sessions.table.find(id) {
            frame_bytes_max = session.connection.handshake().frame_bytes_max();
            keeps_order = session.must_keep_order();
            follows_rooms = self.sessions.logs.have_deliveries_for(session);
            self.sessions.outputs.enter(id.slot());
        }
        let mut context = Context {
            core: self,
            id,
            frame_bytes_max,
            reply_bytes_max: 0,
            current: NO_MESSAGE,
            keeps_order,
            follows_rooms,
            stopped: false,
        };
        context.update_fast_reply_limit();
        context
    }

    pub(crate) fn context_without_session(&mut self) -> Context<'_> {
        Context {
            core: self,
            id: SessionId::NONE,
            frame_bytes_max: 0,
            reply_bytes_max: 0,
            current: NO_MESSAGE,
            keeps_order: false,
            follows_rooms: false,
            stopped: false,
        }
    }
}

impl Context<'_> {
    /// Returns the number of the session of this call, or [`SessionId::NONE`].
    #[inline]
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the facts about the session of this call.
    #[inline]
    #[must_use]
    pub fn session(&self) -> SessionView<'_> {
        SessionView::of(self.core.sessions.table.find(self.id))
    }

    /// Returns the time of the lane: the clock as it was when the lane last read a socket.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment::from_ns(self.now_ns())
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.core.sessions.timers.now_ns()
    }

    /// The time of the wall clock.
    pub(crate) fn wall_time(&self) -> std::time::SystemTime {
        self.core.sessions.timers.wall()
    }

    /// Returns the index of this lane.
    #[must_use]
    pub fn lane(&self) -> usize {
        self.core.exchange.lane
    }

    /// Returns the codec of this lane's sessions.
    #[must_use]
    pub fn codec(&self) -> &AnyCodec {
        &self.core.config.codec
    }

    /// Whether the peer of a session of this lane has announced that it closes.
    pub(crate) fn is_peer_going(&self, id: SessionId) -> bool {
        self.core
            .sessions
            .table
            .find(id)
            .is_some_and(|session| session.connection.output().is_peer_going())
    }

    pub(crate) fn count_unmatched_reply(&self) {
        self.core.counters.replies_unmatched.add(1);
    }

    /// Sends a message to the session of this call: a payload as a one-way message, or any [`Message`].
    ///
    /// # Errors
    /// [`SendError::Encode`] if the codec cannot express the message, or its frame is larger than both sides agreed
    /// to accept; [`SendError::NotOpen`] if this call has no session.
    #[inline(always)]
    pub fn send<'m>(&mut self, message: impl Into<Message<'m>>) -> Result<(), SendError> {
        self.send_message(&message.into())
    }

    #[inline(never)]
    pub(crate) fn send_message(&mut self, message: &Message<'_>) -> Result<(), SendError> {
        match message.name {
            "" => self.send_at_once(message),
            _ => self.send_named(message),
        }
    }

    /// Sends a message with a name. Its name is often that of the previous message.
    fn send_named(&mut self, message: &Message<'_>) -> Result<(), SendError> {
        if self.id == SessionId::NONE {
            return Err(SendError::NotOpen);
        }
        if self.follows_rooms {
            self.follow_rooms();
        }
        let limit = self.frame_bytes_max;
        let Core {
            sessions, replies, ..
        } = &mut *self.core;
        let appended = sessions.outputs.append(|codec, out| {
            encode_within(limit, out, |out| {
                replies.repeated.encode(codec, message, out)
            })
        });
        self.handle_appended();
        Ok(appended?)
    }

    #[inline(always)]
    pub(crate) fn send_at_once(&mut self, message: &Message<'_>) -> Result<(), SendError> {
        let limit = self.frame_bytes_max;
        self.send_framed(
            #[inline(always)]
            |codec, out| {
                encode_within(
                    limit,
                    out,
                    #[inline(always)]
                    |out| codec.encode(message, out),
                )
            },
        )
    }

    /// Answers a request about a room.
    pub(crate) fn send_room_reply(
        &mut self,
        room: u16,
        id: u32,
        reply: &RoomReply<'_>,
    ) -> Result<(), SendError> {
        let limit = self.frame_bytes_max;
        self.send_framed(|codec, out| {
            encode_within(limit, out, |out| {
                codec.encode_room_reply(room, id, reply, out)
            })
        })
    }

    /// Appends the frames that `encode` writes to the session's output.
    #[inline(always)]
    pub(super) fn send_framed(
        &mut self,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        if self.id == SessionId::NONE {
            return Err(SendError::NotOpen);
        }
        if self.follows_rooms {
            self.follow_rooms();
        }
        let appended = self.core.sessions.outputs.append(encode);
        self.handle_appended();
        Ok(appended?)
    }

    /// Sends a message to any session of the server, on any lane.
    ///
    /// # Errors
    /// [`SendError::NotOpen`] if the session has ended, [`SendError::QueueFull`] if its queue is full, and
    /// [`SendError::Encode`] if the codec cannot express the message. For a session on another lane this call reports
    /// `Encode` only; that lane counts the other failures in `sends_refused`.
    pub fn send_to(&mut self, id: SessionId, message: &Message<'_>) -> Result<(), SendError> {
        if id == self.id {
            return self.send_message(message);
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
        self.handle_appended();
        Ok(result)
    }

    /// Appends whole frames to the output of a session of this lane.
    pub(crate) fn send_frames(&mut self, id: SessionId, frames: &[u8]) -> Result<(), SendError> {
        self.core.sessions.append_to(id, |_, _, out| {
            out.extend_from_slice(frames);
            Ok(())
        })
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

    /// Notes that something was published or said, so that the next frame of this session comes after that.
    #[inline(always)]
    pub(super) fn note_published(&mut self) {
        self.follows_rooms = true;
        // No reply takes the fast path now.
        self.reply_bytes_max = 0;
    }

    /// Moves to the session's output what its rooms and topics have for it, before the next frame.
    #[cold]
    #[inline(never)]
    pub(super) fn follow_rooms(&mut self) {
        self.follows_rooms = false;
        if self.core.sessions.table.find(self.id).is_some() {
            self.core.sessions.bring_forward(self.id.slot());
        }
        self.update_fast_reply_limit();
        self.handle_appended();
    }

    /// Updates the state after an append to the session's output. No further message is handled when the output is
    /// full.
    #[inline(always)]
    pub(super) fn handle_appended(&mut self) {
        if self.core.sessions.outputs.is_current_full() {
            self.stopped = true;
        }
    }

    /// Sets whether this service waits for the peer to log in, for example after a prompt for a name. From the first
    /// call with `true` until a call with `false`, the session has
    /// [`login_timeout`](crate::HandshakeLimits::login_timeout). After that it is closed with
    /// [`CloseReason::HandshakeTimeout`](crate::CloseReason::HandshakeTimeout). Without this call, a silent peer keeps
    /// its session until the idle timeout.
    pub fn await_login(&mut self, awaits: bool) {
        let Some(slot) = self.core.sessions.table.slot_of(self.id) else {
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

    /// Publishes how many events of a client were dropped because its application did not take them.
    pub(crate) fn set_events_dropped(&self, events: u64) {
        self.core.counters.events_dropped.set(events);
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
