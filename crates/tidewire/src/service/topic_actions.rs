//! The actions of a handler on topics: subscribe, unsubscribe, publish.

use tidewire_proto::body::PlacementBody;
use tidewire_proto::message::SubscriptionId;
use tidewire_proto::room::Policy;

use super::Context;
use crate::room::{NotSubscribed, PublishError, SubscribeError};

/// The actions of a handler on topics. [`Context::topics`] returns it.
///
/// ```
/// use tidewire::{Context, HandlerResult, Message, Policy, SubscribeError};
///
/// /// Subscribes the session to the prices, and publishes that.
/// fn follow(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
///     match cx.topics().policy(Policy::Conflate).subscribe("price.>") {
///         Ok(_) | Err(SubscribeError::AlreadySubscribed) => {}
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
    /// Sets the policy of subscriptions by this value, for the case that the session is a slow subscriber. Default: that of
    /// [the server](crate::ServerBuilder::slow_subscribers).
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
    /// [`SubscribeError::Pattern`] if the text is not a pattern, [`SubscribeError::AlreadySubscribed`],
    /// [`SubscribeError::LimitReached`] if there are too many patterns, and others; see [`SubscribeError`].
    pub fn subscribe(&mut self, pattern: &str) -> Result<SubscriptionId, SubscribeError> {
        let subscription = self.cx.subscribe_as_asked(pattern, self.policy)?;
        let placement = PlacementBody::Subscribed { pattern };
        self.cx.tell_placement(subscription, &placement);
        Ok(SubscriptionId(subscription))
    }

    /// Ends a subscription. Messages that were not written yet are dropped and counted.
    ///
    /// # Errors
    /// [`NotSubscribed`] if the session has no such subscription.
    pub fn unsubscribe(&mut self, subscription: SubscriptionId) -> Result<(), NotSubscribed> {
        self.cx.unsubscribe_as_asked(subscription.0)?;
        self.cx.tell_placement(subscription.0, &PlacementBody::Out);
        Ok(())
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
    /// message, [`PublishError::OutOfMemory`] if the server is at its memory limit, [`PublishError::CutOff`] if the server
    /// refuses messages while it is cut off from its cluster, and [`PublishError::HistoryFull`] if too many messages wait to be
    /// stored.
    #[inline]
    pub fn publish(&mut self, topic: &str, payload: &[u8]) -> Result<(), PublishError> {
        self.cx.note_published();
        let mut rooms = self.cx.core.rooms();
        if rooms.topics().publish(self.cx.id, topic, payload)? {
            // A slow subscriber blocks the topic, so this publisher is not read until the subscriber has caught up.
            self.cx.stopped = true;
        }
        Ok(())
    }
}

impl Context<'_> {
    /// Subscribes because the peer asked for it. The reply tells it.
    pub(super) fn subscribe_as_asked(
        &mut self,
        pattern: &str,
        policy: Option<Policy>,
    ) -> Result<u16, SubscribeError> {
        let subscription = self
            .core
            .rooms()
            .topics()
            .subscribe(self.id, pattern, policy)?;
        self.number_membership(subscription);
        Ok(subscription)
    }

    /// Ends a subscription because the peer asked for it. The reply tells it.
    pub(super) fn unsubscribe_as_asked(&mut self, subscription: u16) -> Result<(), NotSubscribed> {
        self.core
            .rooms()
            .topics()
            .unsubscribe(self.id, subscription)
    }
}
