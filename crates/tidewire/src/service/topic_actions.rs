//! The actions of a handler on topics: subscribe, unsubscribe, publish.

use tidewire_proto::body::{PlacementBody, RecoveryBody, Since};
use tidewire_proto::message::SubscriptionId;
use tidewire_proto::room::Policy;

use super::Context;
use crate::room::{RoomError, Wanted};

/// The actions of a handler on topics. [`Context::topics`] returns it.
///
/// ```
/// use tidewire::{Context, HandlerResult, Message, Policy, RoomError};
///
/// /// Subscribes the session to the prices, and publishes that.
/// fn follow(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
///     match cx.topics().policy(Policy::Conflate).subscribe("price.>") {
///         Ok(_) | Err(RoomError::AlreadySubscribed) => {}
///         Err(error) => return Err(error.into()),
///     }
///     cx.topics().publish("followers.new", message.payload)?;
///     cx.reply(b"done")
/// }
/// ```
#[derive(Debug)]
pub struct TopicActions<'c, 'a> {
    cx: &'c mut Context<'a>,
    policy: Option<Policy>,
}

impl<'a> Context<'a> {
    /// Returns the actions on topics.
    #[inline(always)]
    #[must_use]
    pub fn topics(&mut self) -> TopicActions<'_, 'a> {
        TopicActions {
            cx: self,
            policy: None,
        }
    }
}

impl TopicActions<'_, '_> {
    /// Sets the policy of subscriptions by this value, for the case that the session is a slow subscriber. Default:
    /// that of [the server](crate::ServerBuilder::slow_subscribers).
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Subscribes this session to a [pattern](tidewire_proto::topic). From now on it gets each message that is
    /// published to a matching topic as [`Kind::Deliver`](crate::Kind::Deliver), including its own. The channel of
    /// these messages is the number of the subscription. The client learns of it:
    /// [`Event::Subscribed`](crate::Event::Subscribed), and the event `subscribed` in browsers.
    ///
    /// # Errors
    /// [`RoomError::Topic`] if the text is not a pattern, [`RoomError::AlreadySubscribed`],
    /// [`RoomError::TooManyPatterns`] if there are too many patterns, and others; see [`RoomError`].
    pub fn subscribe(&mut self, pattern: &str) -> Result<SubscriptionId, RoomError> {
        let subscription = self.subscribe_as_asked(pattern.into(), self.policy)?;
        let placement = PlacementBody::Subscribed { pattern };
        self.cx
            .call
            .tell_placement(self.cx.core, subscription, &placement);
        Ok(SubscriptionId(subscription))
    }

    /// Ends a subscription. Messages that were not written yet are dropped and counted.
    ///
    /// # Errors
    /// [`RoomError::NotSubscribed`] if the session has no such subscription.
    pub fn unsubscribe(&mut self, subscription: SubscriptionId) -> Result<(), RoomError> {
        self.unsubscribe_as_asked(subscription.0)?;
        let out = PlacementBody::Out;
        self.cx
            .call
            .tell_placement(self.cx.core, subscription.0, &out);
        Ok(())
    }

    /// Publishes `payload` once to every subscription whose pattern matches `topic`. The call needs no session and no
    /// subscription.
    ///
    /// A subscriber gets the messages of one topic in the order of the calls. A reply, or a message of
    /// [`Context::send`], that follows this call reaches a subscribed session after the message. Only a slow
    /// subscriber, whose messages wait for its socket and do not fit its output, may get the reply first. Between two
    /// topics there is no order.
    ///
    /// # Errors
    /// [`RoomError::Topic`] if the text is not a topic, [`RoomError::Encode`] if the codec cannot express the
    /// message, [`RoomError::OutOfMemory`] if the server is at its memory limit, [`RoomError::CutOff`] if the
    /// server refuses messages while it is cut off from its cluster, and [`RoomError::HistoryFull`] if too many
    /// messages wait to be stored.
    #[inline]
    pub fn publish(&mut self, topic: &str, payload: &[u8]) -> Result<(), RoomError> {
        self.cx.call.note_published();
        let mut rooms = self.cx.core.rooms();
        if rooms.topics().publish(self.cx.call.id(), topic, payload)? {
            // A slow subscriber blocks the topic, so this publisher is not read until the subscriber has caught up.
            self.cx.call.stop();
        }
        Ok(())
    }
}

/// Letting a session into a topic, for the service [`PubSub`](crate::PubSub).
impl TopicActions<'_, '_> {
    /// Subscribes because the peer asked for it. The reply tells it.
    pub(super) fn subscribe_as_asked(
        &mut self,
        wanted: Wanted<'_>,
        policy: Option<Policy>,
    ) -> Result<u16, RoomError> {
        let subscription =
            self.cx
                .core
                .rooms()
                .topics()
                .subscribe(self.cx.call.id(), wanted, policy)?;
        self.cx
            .call
            .number_membership(&mut self.cx.core.sessions, subscription);
        Ok(subscription)
    }

    /// Ends a subscription because the peer asked for it. The reply tells it.
    pub(super) fn unsubscribe_as_asked(&mut self, subscription: u16) -> Result<(), RoomError> {
        self.cx
            .core
            .rooms()
            .topics()
            .unsubscribe(self.cx.call.id(), subscription)
    }

    /// Frames the newest messages of each topic that the new subscription matches, if it has a wildcard and gets them.
    /// Call [`Self::push_newest`] after the reply.
    pub(super) fn newest_of_each(
        &mut self,
        subscription: u16,
        since: Option<Since>,
    ) -> Option<Vec<u8>> {
        let id = self.cx.call.id();
        let mut rooms = self.cx.core.rooms();
        rooms.histories().newest_of_each(id, subscription, since)
    }

    /// Queues the frames of the newest messages of each topic. The session's next message is handled in the next turn,
    /// because this one has cost a look at all histories.
    pub(super) fn push_newest(&mut self, frames: &[u8]) {
        let sessions = &mut self.cx.core.sessions;
        if !frames.is_empty() {
            sessions
                .outputs
                .append_frames(self.cx.call.id().slot(), frames);
        }
        self.cx.call.stop();
    }

    /// Plans what the new subscriber gets of the history of its topic. Call [`Self::push_history`] after the reply.
    pub(super) fn open_history(
        &mut self,
        subscription: u16,
        since: Option<Since>,
        gets_newest: bool,
    ) -> Option<RecoveryBody> {
        let mut rooms = self.cx.core.rooms();
        rooms
            .histories()
            .open_topic(self.cx.call.id(), subscription, since, gets_newest)
    }
}
