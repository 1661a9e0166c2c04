//! Topics at a client: publishing, and subscriptions that outlive their connection.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::{FusedStream, Stream};
use tidewire_io::clock::now_ns;
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::room::Policy;
use tidewire_proto::topic::{Pattern, validate_topic};

use super::Client;
use super::error::RequestError;
use super::event_queue::{EventBounds, EventQueue, Queued, Waiter, WhenEventsFull};
use super::events::{ClientEvent, NextEvent, poll_stream};
use super::link::{self, Control};
use super::operation::Operation;
use super::request::Request;
use crate::limits::nanoseconds;
use crate::room::PublishError;
use crate::session::CloseReason;

/// The messages of one pattern, for one client. Dropping it unsubscribes. [`Client::subscribe`] has an example.
///
/// It keeps its client alive. When the client reconnects by itself, the subscription is made again; what was
/// published in between is lost, which [`TopicEvent::Interrupted`] and [`TopicEvent::Resumed`] enclose.
///
/// It is a stream of its events, too, which ends in place of [`TopicEvent::Ended`]: polled after the end it says again that it
/// has ended. An event is taken when a poll is ready with it, so a `next()` of the stream that is dropped earlier loses none.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    pattern: Arc<str>,
    queue: Arc<TopicQueue>,
    /// As a stream.
    waiter: Waiter,
    has_ended: bool,
}

/// A subscription to be made, with choices of its own: see [`Client::subscribe`]. Await it, [`wait`](Self::wait) for it, or
/// [`send`](Self::send) it and look for the outcome later.
#[derive(Debug)]
#[must_use = "nothing is sent before `send`, `wait` or `.await`"]
pub struct Subscribe<'a> {
    client: &'a Client,
    pattern: &'a str,
    policy: Option<Policy>,
    bounds: EventBounds,
}

/// Something that happened to a subscription. [`Client::subscribe`] has an example.
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

/// A message published to a topic. [`Client::subscribe`] has an example.
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
    /// Subscribes to a [pattern](tidewire_proto::topic). Methods of the returned value set options; without them the settings of
    /// the server and of the client's builder hold. The operation ends when the server has agreed.
    ///
    /// With the codec of UVRPC over UDP the client registers for all that is published, repeats that every 15 seconds,
    /// and picks out what matches. Nobody confirms a registration, so this does not wait for one.
    ///
    /// A subscription that is given up, or that times out, is unsubscribed from if the server agrees later. It can be made again
    /// at once, with the same policy.
    ///
    /// ```
    /// use tidewire::{Client, Policy, TopicEvent, WhenEventsFull};
    /// # let server = tidewire::Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| tidewire::PubSub::new())?;
    /// # let client = Client::connect(&server.to_string()).wait()?;
    /// let prices = client
    ///     .subscribe("price.>")
    ///     .policy(Policy::Conflate) // at the server, if the connection is slow
    ///     .when_events_full(WhenEventsFull::ConflateByTopic) // here, if this program is
    ///     .wait()?;
    /// client.publish("price.oil", b"71")?;
    /// let TopicEvent::Message(message) = prices.next_event().wait() else { panic!() };
    /// assert_eq!((&*message.topic, &message.payload[..]), ("price.oil", &b"71"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`RequestError::Pattern`] if the text is no pattern, [`RequestError::Refused`] if this client is subscribed to it already
    /// or the server refuses the policy, and the other [`RequestError`]s if there is no reply.
    pub fn subscribe<'a>(&'a self, pattern: &'a str) -> Subscribe<'a> {
        Subscribe {
            client: self,
            pattern,
            policy: None,
            bounds: self.inner.link.event_bounds(),
        }
    }

    /// Publishes a message to everyone who is subscribed to a pattern that matches `topic`, this client included. It is
    /// written at the end of the lane's turn, with its neighbours.
    ///
    /// # Errors
    /// [`PublishError::Topic`] if the text is no topic, and [`PublishError::Enqueue`] if the message cannot be queued. With `Ok`
    /// it is on its way to the socket. If the connection is down by then, an [`Event::Lost`](super::Event::Lost) says so.
    pub fn publish(&self, topic: &str, payload: &[u8]) -> Result<(), PublishError> {
        validate_topic(topic)?;
        self.send(&Message::new(Kind::Publish, 0, payload).with_name(topic))?;
        Ok(())
    }

    /// Asks a publish/subscribe server to answer once everything published before has been passed on to the
    /// subscriptions. A publisher that waits for this now and then never runs ahead of its server.
    pub fn flush(&self) -> Request {
        self.request(&[]).send()
    }
}

impl Subscribe<'_> {
    /// The server's policy if this client does not read fast enough. Default: the server chooses.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// The client's policy if the application does not take the events of this subscription fast enough. Default:
    /// [`ClientBuilder::when_events_full`](super::ClientBuilder::when_events_full).
    pub fn when_events_full(mut self, choice: WhenEventsFull) -> Self {
        self.bounds.when_full = choice;
        self
    }

    /// How many events its queue holds. Default: [`ClientBuilder::events_max`](super::ClientBuilder::events_max).
    pub fn events_max(mut self, events: usize) -> Self {
        self.bounds.events_max = events;
        self
    }

    /// Bytes that its queue holds. Default: [`ClientBuilder::event_bytes_max`](super::ClientBuilder::event_bytes_max), which
    /// says how they count.
    pub fn event_bytes_max(mut self, bytes: usize) -> Self {
        self.bounds.bytes_max = bytes;
        self
    }

    /// Sends it; the subscription is awaited or waited for.
    pub fn send(self) -> Operation<Subscription> {
        let Self {
            client,
            pattern,
            policy,
            bounds,
        } = self;
        let pattern: Arc<str> = match Pattern::parse(pattern) {
            Ok(pattern) => pattern.text().into(),
            Err(error) => return Operation::failed(error),
        };
        let link = &client.inner.link;
        let queue: Arc<TopicQueue> = Arc::new(link.new_queue(bounds));
        let deadline_ns = now_ns().saturating_add(nanoseconds(client.inner.request_timeout));
        let sent = link.table.submit_control(|slot| {
            Control::Subscribe(Box::new(link::Subscribe {
                pattern: Arc::clone(&pattern),
                policy,
                queue: Arc::clone(&queue),
                deadline_ns,
                slot,
            }))
        });
        if let Err(error) = sent {
            return Operation::failed(error);
        }
        // From now on it is unsubscribed from when it is dropped, whatever became of it.
        let subscription = Subscription {
            client: client.clone(),
            pattern,
            queue,
            waiter: Waiter::default(),
            has_ended: false,
        };
        Operation::new(Request::new(link, sent), move |_| Ok(subscription))
    }

    /// Sends it and blocks until the server agreed. Never call it on a lane.
    ///
    /// # Errors
    /// As [`Client::subscribe`].
    pub fn wait(self) -> Result<Subscription, RequestError> {
        self.send().wait()
    }
}

impl IntoFuture for Subscribe<'_> {
    type Output = Result<Subscription, RequestError>;
    type IntoFuture = Operation<Subscription>;

    fn into_future(self) -> Self::IntoFuture {
        self.send()
    }
}

impl Subscription {
    /// The pattern.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The next event: await it, or wait for it.
    pub fn next_event(&self) -> NextEvent<'_, TopicEvent> {
        NextEvent::new(&self.queue)
    }
}

impl Stream for Subscription {
    type Item = TopicEvent;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<TopicEvent>> {
        let Self {
            queue,
            waiter,
            has_ended,
            ..
        } = self.get_mut();
        poll_stream(queue, waiter, has_ended, cx)
    }
}

impl FusedStream for Subscription {
    fn is_terminated(&self) -> bool {
        self.has_ended
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // First, so that a full queue no longer keeps the client from reading.
        self.queue.discard();
        self.queue.forget(&mut self.waiter);
        // If the client has ended there is nothing to unsubscribe from.
        let unsubscribe = Control::Unsubscribe(Arc::clone(&self.queue));
        let _ = self.client.inner.link.table.control(unsubscribe);
    }
}

impl ClientEvent for TopicEvent {}

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

    fn topic(&self) -> Option<&Arc<str>> {
        match self {
            Self::Message(message) => Some(&message.topic),
            _ => None,
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
