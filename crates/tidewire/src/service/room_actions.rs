//! The actions of a handler on rooms: join, leave, say, announce, and those on members.

use std::sync::Arc;

use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::body::{ErrorCode, GoAwayCode, PlacementBody, RecoveryBody, Since};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{MemberId, Message, RoomId};
use tidewire_proto::room::Policy;

use super::{Context, HandlerError, HandlerResult};
use crate::broker::RoomOrTopic;
use crate::history::{History, PastMessage, Readiness};
use crate::room::{Joined, RoomError};

/// The actions of a handler on rooms. [`Context::rooms`] returns it.
///
/// ```
/// use tidewire::{Client, ErrorCode, HandlerError, RoomError};
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
///     let name = String::from_utf8_lossy(message.payload);
///     match cx.rooms().join("lobby", &name) {
///         Ok(joined) => cx.reply(joined.members.to_string().as_bytes()),
///         Err(RoomError::NameTaken) => Err(HandlerError::new(ErrorCode::NameTaken, "choose another name")),
///         Err(error) => Err(error.into()),
///     }
/// })?;
/// let [ada, eve] = [Client::connect(&server.to_string()).wait()?, Client::connect(&server.to_string()).wait()?];
/// assert_eq!(ada.request(b"ada").wait()?.payload(), b"1");
/// assert!(eve.request(b"ada").wait().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RoomActions<'c, 'a> {
    cx: &'c mut Context<'a>,
    policy: Option<Policy>,
}

impl<'a> Context<'a> {
    /// Returns the actions on rooms.
    #[inline(always)]
    #[must_use]
    pub fn rooms(&mut self) -> RoomActions<'_, 'a> {
        RoomActions {
            cx: self,
            policy: None,
        }
    }
}

impl RoomActions<'_, '_> {
    /// Sets the policy of joins by this value, for the case that the session is a slow subscriber. Default: that of
    /// [the server](crate::ServerBuilder::slow_subscribers).
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Joins `room` under `name`. The name is unique in the server, and the session keeps it until it ends. A session
    /// that already has a name may pass an empty one.
    ///
    /// The client learns of it: [`Event::Joined`](crate::Event::Joined), and the event `joined` in browsers. A client
    /// whose codec has no such frame gets the messages, and does not learn the name of the room.
    ///
    /// # Errors
    /// [`RoomError::Name`] and [`RoomError::NameTaken`] if the name is not available, [`RoomError::AlreadyJoined`] if
    /// the session is in the room, [`RoomError::TooManyRooms`] if there are too many rooms, and others; see
    /// [`RoomError`].
    pub fn join(&mut self, room: &str, name: &str) -> Result<Joined, RoomError> {
        let joined = self.join_as_asked(room, name, self.policy)?;
        let own = self.name();
        self.cx.call.tell_placement(
            self.cx.core,
            joined.room.0,
            &PlacementBody::Joined {
                member: joined.member,
                members: u32::try_from(joined.members).unwrap_or(u32::MAX),
                room,
                name: own.as_deref().unwrap_or(name),
            },
        );
        Ok(joined)
    }

    /// Leaves a room. This calls the hook of [`Chat::on_leave`](crate::Chat::on_leave).
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if the session is not in the room.
    pub fn leave(&mut self, room: RoomId) -> Result<(), RoomError> {
        self.cx
            .core
            .rooms()
            .leave_noted(self.cx.call.id(), room.0)?;
        let out = PlacementBody::Out;
        self.cx.call.tell_placement(self.cx.core, room.0, &out);
        Ok(())
    }

    /// Sends `payload` to all members of the room except this session. Replies come after it, as after
    /// [`TopicActions::publish`](crate::TopicActions::publish).
    ///
    /// ```
    /// use tidewire::{Context, HandlerResult, Message, RoomError};
    ///
    /// /// Says a message in the room that the message is for.
    /// fn relay(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    ///     match cx.rooms().say(message.room(), message.payload) {
    ///         Err(RoomError::NotJoined) => cx.reply(b"join first"),
    ///         said => Ok(said?),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if the session is not in the room, [`RoomError::Encode`] if the codec cannot express
    /// the message, [`RoomError::OutOfMemory`] if the server is at its memory limit, and [`RoomError::CutOff`] if the
    /// server refuses messages while it is cut off from its cluster.
    #[inline]
    pub fn say(&mut self, room: RoomId, payload: &[u8]) -> Result<(), RoomError> {
        self.cx.call.note_published();
        if self
            .cx
            .core
            .rooms()
            .say(self.cx.call.id(), room.0, payload)?
        {
            // The room blocks for a slow subscriber, so this publisher is not read until the subscriber has caught
            // up.
            self.cx.call.stop();
        }
        Ok(())
    }

    /// Sends a chat message, as [`Self::say`] does. The room's [history](crate::Chat::history) keeps it, if the
    /// room has one.
    ///
    /// # Errors
    /// The errors of [`Self::say`], and [`RoomError::HistoryFull`] if too many messages wait to be stored.
    pub fn say_recorded(&mut self, room: RoomId, payload: &[u8]) -> Result<(), RoomError> {
        self.cx.call.note_published();
        let mut rooms = self.cx.core.rooms();
        if rooms.say_recorded(self.cx.call.id(), room.0, payload)? {
            // As after [`Self::say`], the room blocks for a slow subscriber.
            self.cx.call.stop();
        }
        Ok(())
    }

    /// Sends `payload` to the member `name` only, as a private message of the room.
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if this session is not in the room, [`RoomError::NoSuchMember`] if no member has that
    /// name, and [`RoomError::Send`] if the member's queue is full.
    pub fn whisper(&mut self, room: RoomId, name: &str, payload: &[u8]) -> Result<(), RoomError> {
        let mut rooms = self.cx.core.rooms();
        rooms.whisper(self.cx.call.id(), room.0, name, payload)
    }

    /// Sends `payload` to all members of the room of this name, on all lanes, as the room itself. The call needs no
    /// session and no membership. The room's history keeps the message, if the room has one.
    ///
    /// Members get it as [`Kind::Deliver`](crate::Kind::Deliver) of member 0. Over `lines` it is a notice:
    /// `* closing soon`.
    ///
    /// # Errors
    /// [`RoomError::NoSuchRoom`] if the room has no members, and the errors of [`Self::say_recorded`] but `NotJoined`.
    pub fn announce(&mut self, room: &str, payload: &[u8]) -> Result<(), RoomError> {
        self.cx.call.note_published();
        self.cx.core.rooms().announce(room, payload)
    }

    /// Calls `visit` for every member of a room, in the order of their numbers.
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if this session is not in the room.
    pub fn members(
        &self,
        room: RoomId,
        visit: impl FnMut(MemberId, &str),
    ) -> Result<(), RoomError> {
        let core = &self.cx.core;
        let session = core.sessions.table.find(self.cx.call.id());
        let membership = session.and_then(|session| session.room_membership(room.0));
        membership.ok_or(RoomError::NotJoined)?;
        core.rooms.open().directory().roster(room.0, visit);
        Ok(())
    }

    /// Queues, for the session that just joined, a presence frame for every other member.
    pub fn push_members(&mut self, joined: &Joined) {
        let mut rooms = self.cx.core.rooms();
        rooms
            .deliveries()
            .push_roster(self.cx.call.id(), joined.room.0);
        self.cx.call.note_appended(&self.cx.core.sessions);
    }

    /// Removes the member `name` from the room, on any lane. Its session stays open and may join again;
    /// [`Self::close_member`] closes it. The member gets the same presence frame as the others. Over `lines` it
    /// cannot come back. This calls the hook of [`Chat::on_leave`](crate::Chat::on_leave).
    ///
    /// # Errors
    /// [`RoomError::NoSuchMember`] if no member of that room has the name. If the member leaves by itself at this
    /// moment, the result is `Ok`.
    pub fn remove_member(&mut self, room: &str, name: &str) -> Result<(), RoomError> {
        self.cx.call.note_published();
        self.cx.core.rooms().remove_member(room, name)
    }

    /// Closes the session of the member `name`, on any lane, and sends it the reason, as [`Context::close_with`]
    /// does. After a code that [is final](GoAwayCode::is_final) its client does not reconnect. The name is then free
    /// for any session; a chat that must control its members checks them in [`Chat::on_join`](crate::Chat::on_join).
    ///
    /// # Errors
    /// [`RoomError::NoSuchMember`] if no member has that name.
    pub fn close_member(
        &mut self,
        name: &str,
        code: GoAwayCode,
        text: &str,
    ) -> Result<(), RoomError> {
        let directory = self.cx.core.rooms.open().directory();
        let id = directory.names().find(name);
        let id = id.ok_or(RoomError::NoSuchMember)?;
        if id.lane() == self.cx.lane() {
            self.cx.close_session_with(id, code, text);
            return Ok(());
        }
        let closed = self.cx.sessions().close_with(id, code, text);
        closed.map_err(|_| RoomError::NoSuchMember)
    }

    /// The name of this session as [`SessionView::name`](crate::SessionView::name) has it, for a caller that needs the
    /// context meanwhile.
    pub(super) fn name(&mut self) -> Option<Arc<str>> {
        self.cx.core.rooms().member_name(self.cx.call.id())
    }

    /// Returns the name of a room, if the room has members.
    #[must_use]
    pub fn name_of(&mut self, room: RoomId) -> Option<Box<str>> {
        self.cx.core.rooms().name_of(room.0)
    }
}

/// Letting a session into a room or topic, for the services [`Chat`](crate::Chat) and [`PubSub`](crate::PubSub): its
/// history, what must be awaited before, and the rooms that it is in.
impl RoomActions<'_, '_> {
    /// Joins a room because the peer asked for it. The reply tells it.
    pub(super) fn join_as_asked(
        &mut self,
        room: &str,
        name: &str,
        policy: Option<Policy>,
    ) -> Result<Joined, RoomError> {
        let joined = self
            .cx
            .core
            .rooms()
            .join(self.cx.call.id(), room, name, policy)?;
        self.cx
            .call
            .number_membership(&mut self.cx.core.sessions, joined.room.0);
        Ok(joined)
    }

    /// Takes the session of this call out of a room. The chat has already called its hook.
    pub(super) fn leave_as_asked(&mut self, room: u16) -> Result<(), RoomError> {
        self.cx.core.rooms().leave(self.cx.call.id(), room)
    }

    /// Returns a room that this session is in.
    pub(super) fn first_room(&mut self) -> Option<u16> {
        let id = self.cx.call.id();
        self.cx.core.rooms().rooms_of(id).next()
    }

    /// Returns the aliases of the rooms that this session is in.
    pub(super) fn all(&mut self) -> Vec<u16> {
        let id = self.cx.call.id();
        self.cx.core.rooms().rooms_of(id).collect()
    }

    /// Opens the history of the room that the session has just joined, and says what the session gets of it. The room
    /// keeps a history from now on. Call [`Self::push_history`] after the reply.
    pub(super) fn open_history(
        &mut self,
        joined: &Joined,
        history: History,
        since: Option<Since>,
        past: impl FnOnce(&str) -> Vec<PastMessage>,
    ) -> Option<RecoveryBody> {
        let mut rooms = self.cx.core.rooms();
        rooms
            .histories()
            .open_room(self.cx.call.id(), joined, history, since, past)
    }

    /// Waits until the room or topic can be entered, which needs its history, or the node's subscription. `None` if the
    /// service gets the message again later.
    pub(super) fn await_entrance(
        &mut self,
        (kind, name): (SequenceKind, &str),
        limits: Option<History>,
        message: &Message<'_>,
    ) -> Result<Option<Readiness>, HandlerError> {
        let of = RoomOrTopic::new(kind, name);
        let mut rooms = self.cx.core.rooms();
        match rooms
            .joins()
            .readiness(self.cx.call.id(), &of, limits, message)
        {
            Readiness::Waits => {
                self.cx.call.stop();
                Ok(None)
            }
            Readiness::Failed(text) => {
                Err(HandlerError::new(ErrorCode::LimitReached, text.to_string()))
            }
            ready => Ok(Some(ready)),
        }
    }

    /// Queues the history of the room or topic that the session has just entered, and the roster of a room.
    pub(super) fn push_history(&mut self, alias: u16) {
        self.cx
            .core
            .rooms()
            .histories()
            .begin_replay(self.cx.call.id(), alias);
        self.cx.call.note_appended(&self.cx.core.sessions);
    }

    /// Refuses to let a session that does not know positions into a room or topic that keeps a history.
    pub(super) fn check_positions(&mut self) -> HandlerResult {
        let session = self.cx.core.sessions.table.find(self.cx.call.id());
        let knows = session.is_some_and(|it| it.connection.handshake().knows_positions());
        match knows || !self.cx.codec().format().has_positions {
            true => Ok(()),
            false => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "a history is kept here; connect with a client that has the feature positions",
            )),
        }
    }
}
