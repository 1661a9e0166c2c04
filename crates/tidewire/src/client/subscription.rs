//! Topics at a client: publishing, and subscriptions that survive a reconnect.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::{FusedStream, Stream};
use tidewire_io::clock::now_ns;
use tidewire_proto::body::{Since, SubscribeBody, validate_name};
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::room::Policy;
use tidewire_proto::topic::{Pattern, validate_topic};

use super::Client;
use super::error::RequestError;
use super::event_queue::{EventBounds, EventQueue, Queued, Waiter, WhenEventsFull};
use super::events::{ClientEvent, NextEvent, poll_stream};
use super::holdings::Opening;
use super::link::Control;
use super::operation::Operation;
use super::request::Request;
use super::submissions::WhenWindowFull;
use crate::broker::Position;
use crate::room::RoomError;
use crate::session::CloseReason;

/// A subscription of one client to one pattern. Dropping it unsubscribes. [`Client::subscribe`] has an example.
///
/// It keeps its client alive. When the client reconnects by itself, it subscribes again. Messages published between
/// [`TopicEvent::Interrupted`] and [`TopicEvent::Resumed`] are lost, unless the topic keeps a history: then
/// [`TopicEvent::Recovered`] follows, and the messages.
///
/// It is also a stream of its events. The stream ends instead of returning [`TopicEvent::Ended`]. A poll after the end
/// returns `None` again. An event is taken when a poll is ready with it, so dropping a pending `next()` of the stream
/// loses none.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    pattern: Arc<str>,
    queue: Arc<TopicQueue>,
    /// The registration of this stream.
    waiter: Waiter,
    has_ended: bool,
}

/// A subscription that is not requested yet, made by [`Client::subscribe`]. Await it, [`wait`](Self::wait) for it, or
/// [`send`](Self::send) it and take the outcome later.
#[derive(Debug)]
#[must_use = "nothing is sent before `send`, `wait` or `.await`"]
pub struct Subscribe<'a> {
    client: &'a Client,
    pattern: &'a str,
    group: Option<&'a str>,
    policy: Option<Policy>,
    since: Option<Since>,
    bounds: EventBounds,
}

/// Something that happened to a subscription. [`Client::subscribe`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TopicEvent {
    /// A message was published to a topic of the pattern.
    Message(TopicMessage),
    /// The server dropped messages before the next message, by the subscription's policy.
    Gap {
        /// Number of dropped messages.
        lost: u64,
    },
    /// Events were dropped at this position, because the application did not take them.
    Lost {
        /// Number of dropped events.
        count: u64,
    },
    /// The connection ended. Messages published from now on are lost until [`TopicEvent::Resumed`].
    Interrupted {
        /// The reason of the end.
        reason: CloseReason,
        /// The server's explanation, or empty. It is foreign text: pass it through
        /// [`visible`](tidewire_proto::text::visible) before you show it.
        text: Arc<str>,
    },
    /// The subscription was made again on a new connection.
    Resumed,
    /// The server keeps a history, and received a position: that of the last message before
    /// [`TopicEvent::Interrupted`], or [`Subscribe::since`]. The messages after it that the server still has follow.
    Recovered {
        /// The number of missing messages; `None` if the server does not know it. A pattern with a wildcard has no
        /// positions, so the number is not known.
        missing: Option<u64>,
    },
    /// The server refused to resume the subscription on a new connection. The subscription has ended.
    Refused(RequestError),
    /// The subscription has ended. No event follows.
    Ended,
}

/// A message published to a topic. [`Client::subscribe`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMessage {
    /// The topic.
    pub topic: Arc<str>,
    /// The payload.
    pub payload: Vec<u8>,
    /// The position, if the topic keeps a history and the pattern has no wildcard. [`Subscribe::since`] takes it.
    pub position: Option<Position>,
}

/// The queue of one subscription's events.
pub(super) type TopicQueue = EventQueue<TopicEvent>;

impl Client {
    /// Subscribes to a [pattern](tidewire_proto::topic). Methods of the returned value set options; the defaults are
    /// the settings of the server and of the client's builder. The operation is done when the server has agreed.
    ///
    /// With the codec of UVRPC over UDP the client registers for all published messages, repeats the registration every
    /// 15 seconds, and selects the messages that match. The server does not confirm registrations, so this call does
    /// not wait.
    ///
    /// If a subscription is given up or times out, and the server agrees to it later, the client unsubscribes. It can
    /// be made again at once, with the same policy.
    ///
    /// ```
    /// use tidewire::{Client, Policy, TopicEvent, WhenEventsFull};
    /// # let server = tidewire::Server::builder().listen("tcp://127.0.0.1:0")?.start_one(tidewire::PubSub::new())?;
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
    /// [`RequestError::Pattern`] if the text is no pattern, [`RequestError::Refused`] if this client is subscribed to
    /// it already or the server refuses the policy, and the other [`RequestError`]s if there is no reply.
    pub fn subscribe<'a>(&'a self, pattern: &'a str) -> Subscribe<'a> {
        Subscribe {
            client: self,
            pattern,
            group: None,
            policy: None,
            since: None,
            bounds: self.inner.link.event_bounds(),
        }
    }

    /// Publishes a message to all subscribers with a pattern that matches `topic`, also to this client. It is written
    /// at the end of the lane's turn, together with other messages.
    ///
    /// # Errors
    /// [`RoomError::Topic`] if the text is no topic, and [`RoomError::Send`] if the message cannot be queued.
    /// With `Ok` the message is on its way to the socket. If the connection ends first, an
    /// [`Event::Lost`](super::Event::Lost) reports the loss. [`Client::flush`] confirms that the server has it.
    pub fn publish(&self, topic: &str, payload: &[u8]) -> Result<(), RoomError> {
        validate_topic(topic).map_err(RoomError::Topic)?;
        self.send(Message::new(Kind::Publish, 0, payload).with_name(topic))?;
        Ok(())
    }

    /// Asks a publish/subscribe server to reply after it has passed on all earlier messages to the subscriptions. A
    /// publisher that waits for this reply from time to time never runs ahead of its server. `Ok` confirms all earlier
    /// messages of this client that no earlier flush confirmed: publications, one-way messages and messages to rooms.
    ///
    /// # Errors
    /// [`RequestError::MayBeLost`], once, if the connection has ended since the last confirmation, even if the client
    /// has another connection. [`RequestError::Refused`], once, if the server has refused messages before this flush;
    /// the text has the first reason. The other [`RequestError`]s if there is no reply. After an error send again the
    /// messages that is not confirmed. Some of it may then come twice.
    ///
    /// If the server is a node whose [backplane keeps histories](crate::backplane::NodeSettings::keeps_histories), the
    /// reply comes when the histories have stored all earlier messages of this connection to topics and rooms with a
    /// history. It may take as long as the backplane is gone; [`RequestError::TimedOut`] says that the fate of the
    /// messages is not known. [`RequestError::Refused`] says that some may not be stored.
    pub fn flush(&self) -> Request {
        self.request(&[]).flushing().send()
    }
}

impl<'a> Subscribe<'a> {
    /// Sets the server's policy for the case that this client does not read fast enough. Default: the server chooses.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Subscribes as a member of a queue group. Of the subscriptions with this pattern and group, one gets each
    /// message: the one with the fewest unsent messages at the server, and among equals each in turn. What the server
    /// has not written to a member when its subscription ends goes to another member. The members get no history.
    ///
    /// The name of a group follows the rules for names of rooms. A group is within one server; a node of a cluster
    /// refuses it.
    ///
    /// ```
    /// use tidewire::{Client, PubSub, Server, TopicEvent};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(PubSub::new())?;
    /// let client = || Client::connect(&server.to_string()).wait();
    /// let (one, two) = (client()?, client()?);
    /// let first = one.subscribe("job.*").group("workers").wait()?;
    /// let second = two.subscribe("job.*").group("workers").wait()?;
    ///
    /// client()?.publish("job.resize", b"cat.png")?;
    ///
    /// // One of both gets it.
    /// let TopicEvent::Message(job) = first.next_event().wait() else { panic!() };
    /// assert_eq!(job.payload, b"cat.png");
    /// # drop(second);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(mut self, name: &'a str) -> Self {
        self.group = Some(name);
        self
    }

    /// Requests the messages of the topic's history after this position: the position of the application's last
    /// message, for example from an earlier run. [`TopicEvent::Recovered`] says whether some are missing. A server
    /// without a history ignores it.
    ///
    /// Without it a new subscription receives all kept messages. A reconnect needs no such call: the client knows the
    /// position of the last message.
    pub fn since(mut self, position: Position) -> Self {
        self.since = Some(Since::Position(position));
        self
    }

    /// Asks for the newest messages of the topic's history, at most `count`. With a wildcard these are the newest
    /// messages of each topic that matches and has a history. They come before later ones, in the order of the topics,
    /// and again after a reconnect. Messages that are on their way between lanes of the server at this moment come
    /// after them, although they are as old or older. So `client.subscribe("price.>").last(1)` begins with the last
    /// value of each price. If they exceed what the server [queues](crate::limits::ConnectionLimits::queue_bytes_max)
    /// for a connection, only live messages come, after [`TopicEvent::Recovered`] with an unknown number.
    ///
    /// Servers of a cluster give a subscriber of a wildcard live messages only.
    pub fn last(mut self, count: u64) -> Self {
        self.since = Some(Since::Last(count));
        self
    }

    /// Sets the client's policy for the case that the application does not take this subscription's events fast enough.
    /// Default: [`ClientBuilder::when_events_full`](super::ClientBuilder::when_events_full).
    pub fn when_events_full(mut self, choice: WhenEventsFull) -> Self {
        self.bounds.when_full = choice;
        self
    }

    /// Sets how many events its queue holds. Default: [`ClientBuilder::events_max`](super::ClientBuilder::events_max).
    pub fn events_max(mut self, events: usize) -> Self {
        self.bounds.events_max = events;
        self
    }

    /// Sets how many bytes its queue holds. [`ClientBuilder::event_bytes_max`](super::ClientBuilder::event_bytes_max)
    /// is the default and says how events count.
    pub fn event_bytes_max(mut self, bytes: usize) -> Self {
        self.bounds.bytes_max = bytes;
        self
    }

    /// Sends the request and returns a future of the subscription.
    pub fn send(self) -> Operation<Subscription> {
        let Self {
            client,
            pattern,
            group,
            policy,
            since,
            bounds,
        } = self;
        let pattern: Arc<str> = match Pattern::parse(pattern) {
            Ok(pattern) => pattern.text().into(),
            Err(error) => return Operation::failed(error),
        };
        if let Some(Err(error)) = group.map(validate_name) {
            return Operation::failed(error);
        }
        let mut body = Vec::new();
        let subscribe = SubscribeBody {
            policy,
            pattern: &pattern,
            group,
        };
        subscribe.encode(&mut body);
        let link = &client.inner.link;
        let queue: Arc<TopicQueue> = Arc::new(link.new_queue(bounds));
        let deadline_ns = now_ns().saturating_add(client.inner.request_timeout_ns);
        let sent = link.table.submit_control(|slot| {
            Control::Open(Box::new(Opening {
                kind: Kind::Subscribe,
                name: Arc::clone(&pattern),
                body,
                queue: Some(Arc::clone(&queue)),
                since,
                deadline_ns,
                when_full: WhenWindowFull::Refuse,
                slot,
            }))
        });
        if let Err(error) = sent {
            return Operation::failed(error);
        }
        // From here on, dropping `subscription` unsubscribes, after any reply.
        let subscription = Subscription {
            client: client.clone(),
            pattern,
            queue,
            waiter: Waiter::default(),
            has_ended: false,
        };
        Operation::new(Request::new(link, sent), move |_| Ok(subscription))
    }

    /// Sends the request and blocks until the server has agreed. On a lane it fails at once, with
    /// [`RequestError::OnLane`].
    ///
    /// # Errors
    /// The errors of [`Client::subscribe`].
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

    /// Returns the messages alone, for a program that blocks: an iterator that waits for each message and ends with the
    /// subscription. Gaps and other events are passed over; a program that counts what it misses takes
    /// [`next_event`](Self::next_event).
    ///
    /// ```
    /// # let server = tidewire::Server::builder().listen("tcp://127.0.0.1:0")?.start_one(tidewire::PubSub::new())?;
    /// # let client = tidewire::Client::connect(&server.to_string()).wait()?;
    /// let prices = client.subscribe("price.>").wait()?;
    /// client.publish("price.oil", b"71")?;
    /// for message in prices.messages().take(1) {
    ///     assert_eq!((&*message.topic, &message.payload[..]), ("price.oil", &b"71"[..]));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// On a lane, because it would stop all sessions of the lane.
    pub fn messages(&self) -> impl Iterator<Item = TopicMessage> + '_ {
        std::iter::from_fn(|| {
            loop {
                match self.next_event().wait() {
                    TopicEvent::Message(message) => return Some(message),
                    TopicEvent::Ended => return None,
                    _ => {}
                }
            }
        })
    }

    /// Returns the next event: await it, or wait for it.
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
        // Discard first, so that a full queue no longer stops the client from reading.
        self.queue.discard();
        self.queue.forget(&mut self.waiter);
        // A client that has ended has no subscriptions.
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
            Self::Recovered { missing } => missing.unwrap_or(0),
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
            Self::Message(TopicMessage { topic, payload, .. }) => topic.len() + payload.len(),
            Self::Refused(RequestError::Refused { text, .. }) => text.len(),
            Self::Interrupted { text, .. } => text.len(),
            _ => 0,
        }
    }
}
