//! The actions of a handler on rooms and topics: join, leave, say, whisper, subscribe, publish.

use tidewire_proto::body::{PlacementBody, RecoveryBody, Since};
use tidewire_proto::message::{Kind, MemberId, Message};
use tidewire_proto::room::Policy;

use super::Context;
use crate::room::{JoinError, Joined, NotSubscribed, PublishError, RoomError, SubscribeError};

impl Context<'_> {
    /// Joins `room` under `name`. The name is unique in the server, and the session keeps it until it ends. A session
    /// that already has a name may pass an empty one.
    ///
    /// The client learns of it: [`Event::Joined`](crate::Event::Joined), and the event `joined` in browsers. A client whose
    /// codec has no such frame gets the messages, and does not learn the name of the room.
    ///
    /// ```
    /// use tidewire::{Client, Context, ErrorCode, HandlerError, JoinError, Message};
    ///
    /// let server = tidewire::serve("tcp://127.0.0.1:0", |cx: &mut Context<'_>, message: Message<'_>| {
    ///     let name = String::from_utf8_lossy(message.payload);
    ///     match cx.join("lobby", &name, None) {
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
    ///
    /// # Errors
    /// [`JoinError::Name`] and [`JoinError::NameTaken`] if the name is not available, [`JoinError::AlreadyJoined`] if
    /// the session is in the room, [`JoinError::LimitReached`] if there are too many rooms, and others; see
    /// [`JoinError`].
    pub fn join(
        &mut self,
        room: &str,
        name: &str,
        policy: Option<Policy>,
    ) -> Result<Joined, JoinError> {
        let joined = self.join_as_asked(room, name, policy)?;
        let own = self.member_name();
        self.tell_placement(
            joined.room,
            &PlacementBody::Joined {
                member: joined.member,
                members: u32::try_from(joined.members).unwrap_or(u32::MAX),
                room,
                name: own.as_deref().unwrap_or(name),
            },
        );
        Ok(joined)
    }

    /// Joins a room because the peer asked for it. The reply tells it.
    pub(super) fn join_as_asked(
        &mut self,
        room: &str,
        name: &str,
        policy: Option<Policy>,
    ) -> Result<Joined, JoinError> {
        let joined = self.core.rooms().join(self.id, room, name, policy)?;
        self.number_membership(joined.room);
        Ok(joined)
    }

    /// Tells the peer what a channel is from now on, because a handler decided so, if the peer knows placements.
    #[cold]
    fn tell_placement(&mut self, channel: u16, placement: &PlacementBody<'_>) {
        let session = self.core.sessions.find(self.id);
        if !session.is_some_and(|session| session.connection.handshake().knows_placements()) {
            return;
        }
        let mut body = Vec::new();
        if placement.encode(&mut body).is_ok()
            && let Err(error) = self.send(&Message::new(Kind::Placement, channel, &body))
        {
            tracing::debug!(session = %self.id, %error, "a placement was not sent");
        }
    }

    /// Leaves a room. This calls the hook of [`Chat::on_leave`](crate::Chat::on_leave).
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if the session is not in the room.
    pub fn leave(&mut self, room: u16) -> Result<(), RoomError> {
        self.core.rooms().leave_noted(self.id, room)?;
        self.tell_placement(room, &PlacementBody::Out);
        Ok(())
    }

    /// Sends `payload` to all members of the room except this session. Replies come after it, as after
    /// [`Context::publish`].
    ///
    /// ```
    /// use tidewire::{Context, HandlerResult, Message, RoomError};
    ///
    /// /// Says a message in the room that is the message's channel.
    /// fn relay(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    ///     match cx.say(message.channel, message.payload) {
    ///         Err(RoomError::NotJoined) => cx.reply(b"join first"),
    ///         said => Ok(said?),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if the session is not in the room, [`RoomError::Encode`] if the codec cannot express the message,
    /// and [`RoomError::OutOfMemory`] if the server is at its memory limit.
    #[inline]
    pub fn say(&mut self, room: u16, payload: &[u8]) -> Result<(), RoomError> {
        self.note_published();
        if self.core.rooms().say(self.id, room, payload)? {
            // The room blocks for a slow subscriber, so this publisher is not read until the subscriber has caught
            // up.
            self.stopped = true;
        }
        Ok(())
    }

    /// Sends `payload` to the member `name` only, as a private message of the room.
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if this session is not in the room, [`RoomError::NoSuchMember`] if no member has that name, and
    /// [`RoomError::Send`] if the member's queue is full.
    pub fn whisper(&mut self, room: u16, name: &str, payload: &[u8]) -> Result<(), RoomError> {
        self.core.rooms().whisper(self.id, room, name, payload)
    }

    /// Calls `visit` for every member of a room, in the order of their numbers.
    ///
    /// # Errors
    /// [`RoomError::NotJoined`] if this session is not in the room.
    pub fn roster(&self, room: u16, visit: impl FnMut(MemberId, &str)) -> Result<(), RoomError> {
        let session = self.core.sessions.find(self.id);
        self.core.rooms.roster(session, room, visit)
    }

    /// Queues, for the session that just joined, a presence frame for every other member.
    pub fn push_roster(&mut self, joined: &Joined) {
        self.core.rooms().push_roster(self.id, joined.room);
        self.handle_appended();
    }

    /// Subscribes this session to a [pattern](tidewire_proto::topic). From now on it gets each message that is
    /// published to a matching topic as [`Kind::Deliver`](crate::Kind::Deliver), including its own. The channel of
    /// these messages is the returned alias. Without a policy the server's policy applies. The client learns of it:
    /// [`Event::Subscribed`](crate::Event::Subscribed), and the event `subscribed` in browsers.
    ///
    /// ```
    /// use tidewire::{Context, HandlerResult, Message, Policy, SubscribeError};
    ///
    /// /// Subscribes the session to the prices, and publishes that.
    /// fn follow(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    ///     match cx.subscribe("price.>", Some(Policy::Conflate)) {
    ///         Ok(_) | Err(SubscribeError::AlreadySubscribed) => {}
    ///         Err(error) => return Err(error.into()),
    ///     }
    ///     cx.publish("followers.new", message.payload)?;
    ///     cx.reply(b"done")
    /// }
    /// ```
    ///
    /// # Errors
    /// [`SubscribeError::Pattern`] if the text is not a pattern, [`SubscribeError::AlreadySubscribed`],
    /// [`SubscribeError::LimitReached`] if there are too many patterns, and others; see [`SubscribeError`].
    pub fn subscribe(
        &mut self,
        pattern: &str,
        policy: Option<Policy>,
    ) -> Result<u16, SubscribeError> {
        let subscription = self.subscribe_as_asked(pattern, policy)?;
        self.tell_placement(subscription, &PlacementBody::Subscribed { pattern });
        Ok(subscription)
    }

    /// Subscribes because the peer asked for it. The reply tells it.
    pub(super) fn subscribe_as_asked(
        &mut self,
        pattern: &str,
        policy: Option<Policy>,
    ) -> Result<u16, SubscribeError> {
        let subscription = self.core.rooms().subscribe(self.id, pattern, policy)?;
        self.number_membership(subscription);
        Ok(subscription)
    }

    /// Plans what the new subscriber gets of the history of its topic. Call `push_history` behind the reply.
    pub(super) fn open_topic_history(
        &mut self,
        subscription: u16,
        since: Option<Since>,
    ) -> Option<RecoveryBody> {
        let mut rooms = self.core.rooms();
        rooms.open_topic_history(self.id, subscription, since)
    }

    /// Stores the id of the message being handled: the peer refers to the membership by this id.
    fn number_membership(&mut self, alias: u16) {
        let number = self.current.id;
        if let Some(session) = self.core.sessions.find_mut(self.id)
            && let Some(index) = session.membership(alias)
        {
            session.memberships[index].number = number;
        }
    }

    /// Ends a subscription. Messages that were not written yet are dropped and counted.
    ///
    /// # Errors
    /// [`NotSubscribed`] if the session has no such subscription.
    pub fn unsubscribe(&mut self, subscription: u16) -> Result<(), NotSubscribed> {
        self.unsubscribe_as_asked(subscription)?;
        self.tell_placement(subscription, &PlacementBody::Out);
        Ok(())
    }

    /// Ends a subscription because the peer asked for it. The reply tells it.
    pub(super) fn unsubscribe_as_asked(&mut self, subscription: u16) -> Result<(), NotSubscribed> {
        self.core.rooms().unsubscribe(self.id, subscription)
    }

    /// Publishes `payload` once to every subscription whose pattern matches `topic`. The call needs no session and no
    /// subscription.
    ///
    /// A subscriber gets the messages of one topic in the order of the calls. A reply, or a message of [`Context::send`], that
    /// follows this call reaches a subscribed session after the message. Only a slow subscriber, whose messages wait for its
    /// socket and do not fit its output, may get the reply first. Between two topics there is no order.
    ///
    /// # Errors
    /// [`PublishError::Topic`] if the text is not a topic, [`PublishError::Encode`] if the codec cannot express the
    /// message, and [`PublishError::OutOfMemory`] if the server is at its memory limit.
    #[inline]
    pub fn publish(&mut self, topic: &str, payload: &[u8]) -> Result<(), PublishError> {
        self.note_published();
        if self.core.rooms().publish(self.id, topic, payload)? {
            // A slow subscriber blocks the topic, so this publisher is not read until the subscriber has caught up.
            self.stopped = true;
        }
        Ok(())
    }
}
