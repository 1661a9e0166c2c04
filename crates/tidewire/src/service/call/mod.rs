//! The state of one call of a service, and how frames are sent to the session of the call. Immediate replies are in
//! [`reply`], and answers that come later are in [`answers`].

mod answers;
mod deferred;
mod reply;

use tidewire_proto::body::PlacementBody;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::connection::Farewell;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, Message};

pub(super) use answers::is_flush;
pub use deferred::Deferred;

use crate::config::CodecNumber;
use crate::engine::{Core, Origin};
use crate::session::{CloseReason, LaneSessions, SendError, SessionId, encode_within};

/// The session of a call, the message being handled, and what sending and replying must know. The lane and its parts
/// are arguments.
#[derive(Debug)]
pub(crate) struct CallState {
    id: SessionId,
    /// The codec of the session.
    codec: CodecNumber,
    /// Largest frame that both sides accept.
    frame_bytes_max: usize,
    current: Current,
    /// Largest frame of a reply that only needs to be appended to the output; see [`Self::update_fast_reply_limit`].
    reply_bytes_max: usize,
    /// Replies of this session must wait for earlier ones that are deferred.
    keeps_order: bool,
    /// Rooms and topics may have messages for this session that must come before the next frame; see
    /// [`Self::follow_rooms`].
    follows_rooms: bool,
    /// Set when no further message of this session may be handled now.
    stopped: bool,
}

/// The facts about the message being handled that a reply needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Current {
    origin: Origin,
    id: u32,
    /// The message calls a method by its name, which the lane keeps.
    named: bool,
    /// A token answers the message.
    deferred: bool,
}

impl Current {
    /// Makes the value for a message whose name is not kept yet.
    #[inline(always)]
    fn of(message: &Message<'_>) -> Self {
        Self {
            origin: Origin::new(message.kind, message.channel),
            id: message.id,
            named: false,
            deferred: false,
        }
    }

    /// Returns the message that answers this one.
    #[inline(always)]
    pub(crate) fn answer<'a>(self, name: &'a str, payload: &'a [u8]) -> Message<'a> {
        let channel = self.origin.channel();
        if self.origin.asks() {
            Message::with_id(Kind::Reply, channel, self.id, payload).with_name(name)
        } else {
            Message::new(Kind::OneWay, channel, payload)
        }
    }

    /// Returns the message itself, without its payload.
    pub(crate) fn request(self, name: &str) -> Message<'_> {
        let (kind, channel) = (self.origin.kind(), self.origin.channel());
        Message::with_id(kind, channel, self.id, &[]).with_name(name)
    }

    /// Whether the sender waits for an answer, so that it must get a refusal. A refused `say` or `publish` has no id;
    /// its error carries id 0, and the room if there is one. If the codec has no ids, every message may be a request
    /// whose sender waits for an answer.
    pub(crate) fn wants_refusal(self, codec_has_ids: bool) -> bool {
        let kind = self.origin.kind();
        if kind == Kind::Subscribe && self.id == 0 {
            // A registration gets no answer.
            return false;
        }
        kind.has_id() || matches!(kind, Kind::Say | Kind::Publish) || !codec_has_ids
    }
}

impl CallState {
    /// The state of a call without a session.
    pub(super) const NONE: Self = Self {
        id: SessionId::NONE,
        codec: CodecNumber::MAIN,
        frame_bytes_max: 0,
        current: NO_MESSAGE,
        reply_bytes_max: 0,
        keeps_order: false,
        follows_rooms: false,
        stopped: false,
    };

    /// The state of a call about a session. The session's output is the current one until the call ends.
    pub(super) fn of(sessions: &mut LaneSessions, id: SessionId) -> Self {
        let mut call = Self { id, ..Self::NONE };
        if let Some(session) = sessions.table.find(id) {
            call.codec = session.codec_number();
            call.frame_bytes_max = session.connection.handshake().frame_bytes_max();
            call.keeps_order = session.must_keep_order();
            call.follows_rooms = sessions.logs.have_deliveries_for(session);
            sessions.outputs.enter(id.slot());
        }
        call.update_fast_reply_limit(sessions);
        call
    }

    #[inline(always)]
    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    /// The number of the codec of the session.
    #[inline(always)]
    pub(crate) fn codec_number(&self) -> CodecNumber {
        self.codec
    }

    /// Whether no further message of this session may be handled now.
    #[inline(always)]
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Handles no further message of this session now.
    #[inline(always)]
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Begins to handle a message, whose name is not kept yet.
    #[inline(always)]
    pub(crate) fn begin(&mut self, message: &Message<'_>) {
        self.current = Current::of(message);
    }

    /// Whether the message being handled is a request with an id other than 0.
    pub(crate) fn is_numbered_request(&self) -> bool {
        self.current.origin.kind() == Kind::Request && self.current.id != 0
    }

    /// Largest frame that both sides accept.
    pub(crate) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Sets the largest frame, once both sides have agreed on it.
    pub(crate) fn set_frame_bytes_max(&mut self, sessions: &LaneSessions, bytes: usize) {
        self.frame_bytes_max = bytes;
        self.update_fast_reply_limit(sessions);
    }

    /// Precomputes the largest reply that can take the fast path. Call it again when codec, order or frame limit
    /// change.
    fn update_fast_reply_limit(&mut self, sessions: &LaneSessions) {
        // The end of each datagram must be recorded, so no reply takes the fast path.
        let is_apart =
            self.keeps_order || self.follows_rooms || sessions.outputs.current().has_datagrams();
        self.reply_bytes_max = if is_apart { 0 } else { self.frame_bytes_max };
    }

    #[inline(never)]
    pub(super) fn send(&mut self, core: &mut Core, message: &Message<'_>) -> Result<(), SendError> {
        match message.name {
            "" => self.send_at_once(&mut core.sessions, message),
            _ => self.send_named(core, message),
        }
    }

    /// Sends a message with a name. Its name is often that of the previous message.
    fn send_named(&mut self, core: &mut Core, message: &Message<'_>) -> Result<(), SendError> {
        let Core {
            sessions, replies, ..
        } = core;
        let limit = self.frame_bytes_max;
        self.send_framed(sessions, |codec, out| {
            encode_within(limit, out, |out| {
                replies.repeated.encode(codec, message, out)
            })
        })
    }

    #[inline(always)]
    fn send_at_once(
        &mut self,
        sessions: &mut LaneSessions,
        message: &Message<'_>,
    ) -> Result<(), SendError> {
        let limit = self.frame_bytes_max;
        self.send_framed(
            sessions,
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

    /// Answers a request about a room, which is of this kind.
    pub(super) fn send_room_reply(
        &mut self,
        sessions: &mut LaneSessions,
        request: Kind,
        reply: &Message<'_>,
    ) -> Result<(), SendError> {
        let limit = self.frame_bytes_max;
        let reply = Message {
            id: self.current.id,
            ..*reply
        };
        self.send_framed(sessions, |codec, out| {
            encode_within(limit, out, |out| {
                codec.encode_room_reply(request, &reply, out)
            })
        })
    }

    /// Appends the frames that `encode` writes to the session's output.
    #[inline(always)]
    fn send_framed(
        &mut self,
        sessions: &mut LaneSessions,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        if self.id == SessionId::NONE {
            return Err(SendError::NotOpen);
        }
        if self.follows_rooms {
            self.follow_rooms(sessions);
        }
        let appended = sessions.outputs.append(encode);
        self.note_appended(sessions);
        Ok(appended?)
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
    fn follow_rooms(&mut self, sessions: &mut LaneSessions) {
        self.follows_rooms = false;
        if sessions.table.find(self.id).is_some() {
            sessions.bring_forward(self.id.slot());
        }
        self.update_fast_reply_limit(sessions);
        self.note_appended(sessions);
    }

    /// Updates the state after an append to the session's output. No further message is handled when the output is
    /// full.
    #[inline(always)]
    pub(super) fn note_appended(&mut self, sessions: &LaneSessions) {
        if sessions.outputs.is_current_full() {
            self.stopped = true;
        }
    }

    /// Tells the peer that a handler has changed in which rooms and topics the peer is.
    #[cold]
    pub(super) fn tell_placement(
        &mut self,
        core: &mut Core,
        channel: u16,
        placement: &PlacementBody<'_>,
    ) {
        let session = core.sessions.table.find(self.id);
        if !session.is_some_and(|session| session.connection.handshake().knows_placements()) {
            return;
        }
        let mut body = Vec::new();
        if placement.encode(&mut body).is_ok()
            && let Err(error) = self.send(core, &Message::new(Kind::Placement, channel, &body))
        {
            tracing::debug!(session = %self.id, %error, "a placement was not sent");
        }
    }

    /// Keeps the id of the message being handled as the number of a new membership: some codecs repeat the number in
    /// every delivery.
    pub(super) fn number_membership(&self, sessions: &mut LaneSessions, alias: u16) {
        if let Some(session) = sessions.table.find_mut(self.id) {
            session.number_membership(alias, self.current.id);
        }
    }

    /// Closes a session of the lane, after everything that was sent to it.
    pub(super) fn end_session(
        &mut self,
        sessions: &mut LaneSessions,
        id: SessionId,
        farewell: Option<Box<Farewell>>,
    ) {
        if id == self.id {
            self.stopped = true;
        }
        if let Some(slot) = sessions.table.slot_of(id) {
            sessions.finish(slot, CloseReason::Service, farewell);
        }
    }
}

/// The value before any message.
const NO_MESSAGE: Current = Current {
    origin: Origin::new(Kind::OneWay, 0),
    id: 0,
    named: false,
    deferred: false,
};
