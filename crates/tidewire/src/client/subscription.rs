//! Topics at a client: publishing, and subscriptions that outlive their connection.

use std::sync::Arc;
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::room::Policy;
use tidewire_proto::topic::{Pattern, validate_topic};

use super::Client;
use super::error::RequestError;
use super::event_queue::{EventQueue, Queued};
use super::link::{Control, Subscribe};
use super::request::Request;
use crate::limits::nanoseconds;
use crate::room::PublishError;
use crate::session::CloseReason;

/// What a client hears on one pattern. Dropping it unsubscribes.
///
/// It keeps its client alive. When the client reconnects by itself, the subscription is made again; what was
/// published in between is lost, which [`TopicEvent::Interrupted`] and [`TopicEvent::Resumed`] enclose.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    pattern: Arc<str>,
    queue: Arc<TopicQueue>,
}

/// Something that happened to a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopicEvent {
    /// A message was published to a topic of the pattern.
    Message(TopicMessage),
    /// The server dropped so many messages before the next one, as the subscription's policy says.
    Gap {
        /// How many.
        lost: u64,
    },
    /// The application did not take its events; this many were dropped here.
    Lost {
        /// How many.
        count: u64,
    },
    /// The connection ended. What is published from now on is lost until [`TopicEvent::Resumed`].
    Interrupted {
        /// Why.
        reason: CloseReason,
    },
    /// The subscription was made again on a new connection.
    Resumed,
    /// The server would not have the subscription again on a new connection; it has ended.
    Refused(RequestError),
    /// Nothing follows.
    Ended,
}

/// A message published to a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMessage {
    /// The topic.
    pub topic: Arc<str>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The events of one subscription on their way to the application.
pub(super) type TopicQueue = EventQueue<TopicEvent>;

impl Client {
    /// Subscribes to a [pattern](tidewire_proto::topic) and blocks until the server agreed. The server chooses what
    /// happens if this client does not keep up.
    ///
    /// With the codec of UVRPC over UDP the client registers for all that is published, repeats that every 15 seconds,
    /// and picks out what matches. Nobody confirms a registration, so this does not wait for one.
    ///
    /// # Errors
    /// It is no pattern, this client is subscribed to it already, or the request failed.
    pub fn subscribe(&self, pattern: &str) -> Result<Subscription, RequestError> {
        self.subscribe_as(pattern, None)
    }

    /// Subscribes like [`Client::subscribe`], choosing what happens if this client does not keep up.
    ///
    /// # Errors
    /// As [`Client::subscribe`], and the server may refuse the policy.
    pub fn subscribe_with(
        &self,
        pattern: &str,
        policy: Policy,
    ) -> Result<Subscription, RequestError> {
        self.subscribe_as(pattern, Some(policy))
    }

    /// Publishes a message to everyone who is subscribed to a pattern that matches `topic`, this client included. It is
    /// written at the end of the lane's turn, with its neighbours.
    ///
    /// # Errors
    /// It is no topic, or the message cannot be handed over; with `Ok` it is on its way to the socket. If the
    /// connection is down by then, an [`Event::Lost`](super::Event::Lost) says so.
    pub fn publish(&self, topic: &str, payload: &[u8]) -> Result<(), PublishError> {
        validate_topic(topic)?;
        self.send(&Message::new(Kind::Publish, 0, payload).with_name(topic))?;
        Ok(())
    }

    /// Asks a publish/subscribe server to answer once everything published before has been passed on to the
    /// subscriptions. A publisher that waits for this now and then never runs ahead of its server.
    pub fn flush(&self) -> Request {
        self.request(&[])
    }

    fn subscribe_as(
        &self,
        pattern: &str,
        policy: Option<Policy>,
    ) -> Result<Subscription, RequestError> {
        let pattern: Arc<str> = Pattern::parse(pattern)?.text().into();
        let link = &self.inner.link;
        let queue: Arc<TopicQueue> = Arc::new(link.new_queue());
        let deadline_ns = now_ns().saturating_add(nanoseconds(self.inner.request_timeout));
        let sent = link.table.submit_control(|slot| {
            Control::Subscribe(Box::new(Subscribe {
                pattern: Arc::clone(&pattern),
                policy,
                queue: Arc::clone(&queue),
                deadline_ns,
                slot,
            }))
        });
        Request::new(link, sent).wait()?;
        Ok(Subscription {
            client: self.clone(),
            pattern,
            queue,
        })
    }
}

impl Subscription {
    /// The pattern.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The next event, blocking until there is one.
    #[must_use]
    pub fn next(&self) -> TopicEvent {
        self.queue.next(None).unwrap_or(TopicEvent::Ended)
    }

    /// The next event, or `None` if none came within `timeout`.
    #[must_use]
    pub fn next_within(&self, timeout: Duration) -> Option<TopicEvent> {
        self.queue.next(Some(timeout))
    }

    /// The next event, for async tasks.
    pub async fn event(&self) -> TopicEvent {
        self.queue.next_async().await
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // First, so that a full queue no longer keeps the client from reading.
        self.queue.discard();
        // If the client has ended there is nothing to unsubscribe from.
        let unsubscribe = Control::Unsubscribe(Arc::clone(&self.queue));
        let _ = self.client.inner.link.table.control(unsubscribe);
    }
}

impl Queued for TopicEvent {
    fn lost(count: u64) -> Self {
        Self::Lost { count }
    }

    fn ended() -> Self {
        Self::Ended
    }

    fn missing(&self) -> u64 {
        match self {
            Self::Gap { lost } => *lost,
            Self::Lost { count } => *count,
            _ => 0,
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Message(TopicMessage { topic, payload }) => topic.len() + payload.len(),
            Self::Refused(RequestError::Refused { text, .. }) => text.len(),
            _ => 0,
        }
    }
}
