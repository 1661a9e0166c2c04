//! The actions of a handler on rooms: join, leave, say, announce, and those on members.

use std::sync::Arc;

use tidewire_proto::body::{GoAwayCode, PlacementBody};
use tidewire_proto::message::{Kind, MemberId, Message, RoomId};
use tidewire_proto::room::Policy;

use super::Context;
use crate::room::{JoinError, Joined, RoomError};

/// The actions of a handler on rooms. [`Context::rooms`] returns it.
///
/// ```
/// use tidewire::{Client, ErrorCode, HandlerError, JoinError};
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
///     let name = String::from_utf8_lossy(message.payload);
///     match cx.rooms().join("lobby", &name) {
///         Ok(joined) => cx.reply(joined.members.to_string().as_bytes()),
///         Err(JoinError::NameTaken) => Err(HandlerError::new(ErrorCode::NameTaken, "choose another name")),
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
    /// The client learns of it: [`Event::Joined`](crate::Event::Joined), and the event `joined` in browsers. A client whose
    /// codec has no such frame gets the messages, and does not learn the name of the room.
    ///
    /// # Errors
    /// [`JoinError::Name`] and [`JoinError::NameTaken`] if the name is not available, [`JoinError::AlreadyJoined`] if
    /// the session is in the room, [`JoinError::LimitReached`] if there are too many rooms, and others; see
    /// [`JoinError`].
    pub fn join(&mut self, room: &str, name: &str) -> Result<Joined, JoinError> {
        let joined = self.cx.join_as_asked(room, name, self.policy)?;
        let own = self.name();
        self.cx.tell_placement(
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
        self.cx.core.rooms().leave_noted(self.cx.id, room.0)?;
        self.cx.tell_placement(room.0, &PlacementBody::Out);
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
    /// [`RoomError::NotJoined`] if the session is not in the room, [`RoomError::Encode`] if the codec cannot express the message,
    /// [`RoomError::OutOfMemory`] if the server is at its memory limit, and [`RoomError::CutOff`] if the server refuses messages
    /// while it is cut off from its cluster.
    #[inline]
    pub fn say(&mut self, room: RoomId, payload: &[u8]) -> Result<(), RoomError> {
        self.cx.note_published();
        if self.cx.core.rooms().say(self.cx.id, room.0, payload)? {
            // The room blocks for a slow subscriber, so this publisher is not read until the subscriber has caught
            // up.
            self.cx.stopped = true;
        }
        Ok(())
    }

    /// Sends a chat message, as [`Self::say`] does. The room's [history](crate::Chat::history) keeps it, if the
    /// room has one.
    ///
    /// # Errors
    /// The errors of [`Self::say`], and [`RoomError::HistoryFull`] if too many messages wait to be stored.
    pub fn say_recorded(&mut self, room: RoomId, payload: &[u8]) -> Result<(), RoomError> {
        self.cx.note_published();
        let mut rooms = self.cx.core.rooms();
        if rooms.say_recorded(self.cx.id, room.0, payload)? {
            // As after [`Self::say`], the room blocks for a slow subscriber.
            self.cx.stopped = true;
        }
        Ok(())
    }

    /// Sends `payload` to the member `name` only, as a private message of the room.
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if this session is not in the room, [`RoomError::NoSuchMember`] if no member has that name, and
    /// [`RoomError::Send`] if the member's queue is full.
    pub fn whisper(&mut self, room: RoomId, name: &str, payload: &[u8]) -> Result<(), RoomError> {
        let mut rooms = self.cx.core.rooms();
        rooms.whisper(self.cx.id, room.0, name, payload)
    }

    /// Sends `payload` to all members of the room of this name, on all lanes, as the room itself. The call needs no
    /// session and no membership. The room's history keeps the message, if the room has one.
    ///
    /// Members get it as [`Kind::Deliver`] of member 0. Over `lines` it is a notice: `* closing soon`.
    ///
    /// # Errors
    /// [`RoomError::NoSuchRoom`] if the room has no members, and the errors of [`Self::say_recorded`] but `NotJoined`.
    pub fn announce(&mut self, room: &str, payload: &[u8]) -> Result<(), RoomError> {
        self.cx.note_published();
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
        let session = core.sessions.table.find(self.cx.id);
        let membership = session.and_then(|session| session.room_membership(room.0));
        membership.ok_or(RoomError::NotJoined)?;
        core.rooms.open().directory().roster(room.0, visit);
        Ok(())
    }

    /// Queues, for the session that just joined, a presence frame for every other member.
    pub fn push_members(&mut self, joined: &Joined) {
        let mut rooms = self.cx.core.rooms();
        rooms.deliveries().push_roster(self.cx.id, joined.room.0);
        self.cx.handle_appended();
    }

    /// Removes the member `name` from the room, on any lane. Its session stays open and may join again;
    /// [`Self::close_member`] closes it. The member gets the same presence frame as the others. Over `lines` it
    /// cannot come back. This calls the hook of [`Chat::on_leave`](crate::Chat::on_leave).
    ///
    /// # Errors
    /// [`RoomError::NoSuchMember`] if no member of that room has the name. If the member leaves by itself at this
    /// moment, the result is `Ok`.
    pub fn remove_member(&mut self, room: &str, name: &str) -> Result<(), RoomError> {
        self.cx.note_published();
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
        let id = self.cx.core.rooms().session_of(name);
        let id = id.ok_or(RoomError::NoSuchMember)?;
        if id.lane() == self.cx.lane() {
            self.cx.close_session_with(id, code, text);
            return Ok(());
        }
        let closed = self.cx.sessions().close_with(id, code, text);
        closed.map_err(|_| RoomError::NoSuchMember)
    }

    /// The name of this session as [`SessionView::name`](crate::SessionView::name) has it, for a caller that needs the context
    /// meanwhile.
    pub(super) fn name(&mut self) -> Option<Arc<str>> {
        self.cx.core.rooms().member_name(self.cx.id)
    }

    /// Returns the name of a room, if the room has members.
    #[must_use]
    pub fn name_of(&mut self, room: RoomId) -> Option<Box<str>> {
        self.cx.core.rooms().name_of(room.0)
    }
}

impl Context<'_> {
    /// Joins a room because the peer asked for it. The reply tells it.
    pub(super) fn join_as_asked(
        &mut self,
        room: &str,
        name: &str,
        policy: Option<Policy>,
    ) -> Result<Joined, JoinError> {
        let joined = self.core.rooms().join(self.id, room, name, policy)?;
        self.number_membership(joined.room.0);
        Ok(joined)
    }

    /// Tells the peer what a channel is from now on, because a handler decided so, if the peer knows placements.
    #[cold]
    pub(super) fn tell_placement(&mut self, channel: u16, placement: &PlacementBody<'_>) {
        let session = self.core.sessions.table.find(self.id);
        if !session.is_some_and(|session| session.connection.handshake().knows_placements()) {
            return;
        }
        let mut body = Vec::new();
        if placement.encode(&mut body).is_ok()
            && let Err(error) = self.send(Message::new(Kind::Placement, channel, &body))
        {
            tracing::debug!(session = %self.id, %error, "a placement was not sent");
        }
    }

    /// Stores the id of the message being handled: the peer refers to the membership by this id.
    pub(super) fn number_membership(&mut self, alias: u16) {
        let number = self.current.id;
        if let Some(session) = self.core.sessions.table.find_mut(self.id)
            && let Some(index) = session.membership(alias)
        {
            session.memberships[index].number = number;
        }
    }
}
