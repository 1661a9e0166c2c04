//! The ready publish/subscribe service: topics over the native protocol.
//!
//! A client subscribes to patterns and publishes to topics, in any order and without a name. Every refusal is a typed
//! error. `docs/protocol.md` describes the frames, and [`tidewire_proto::topic`] the patterns.

use std::fmt;
use std::sync::Arc;

use tidewire_io::clock::Moment;
use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::body::{ErrorCode, Since, SubscribeBody};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{FLAG_POSITION, Kind, Message};
use tidewire_proto::room::Policy;

use super::call::is_flush;
use crate::history::{History, HistoryPattern};
use crate::room::{RoomError, Wanted};
use crate::service::Context;
use crate::service::{ActionKind, HandlerError, HandlerResult, Part, Service};

/// The service of a publish/subscribe server. Give every lane a clone.
///
/// Over UDP with the UVRPC codec, subscribers register for all topics. The format has no message for publishing
/// through a server, so a call of a method publishes its parameters under the method's name.
///
/// ```
/// use tidewire::{Client, PubSub, Server, TopicEvent};
///
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(PubSub::new())?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// let readings = client.subscribe("sensor.>").wait()?;
///
/// client.publish("sensor.7.temperature", b"21")?;
///
/// let TopicEvent::Message(message) = readings.next_event().wait() else { panic!("no message") };
/// assert_eq!((&*message.topic, &message.payload[..]), ("sensor.7.temperature", &b"21"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct PubSub {
    blocking_allowed: bool,
    before_subscribe: Option<SubscribeHook>,
    before_publish: Option<PublishHook>,
    /// The topics that keep a history. The lane learns them in its first turn.
    history_patterns: Vec<HistoryPattern>,
}

type SubscribeHook = Arc<dyn Fn(&mut Context<'_>, &str) -> HandlerResult + Send + Sync>;

type PublishHook = Arc<dyn Fn(&mut Context<'_>, &str, &[u8]) -> HandlerResult + Send + Sync>;

impl PubSub {
    /// Creates a service whose subscribers may choose any policy except [`Policy::Block`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether subscribers may choose [`Policy::Block`]. Such a subscriber can block publishers, each time for up
    /// to [`RoomLimits::block_deadline`](crate::limits::RoomLimits::block_deadline). Default no, because any client
    /// could then slow all publishers down.
    #[must_use]
    pub fn allow_blocking(mut self, allowed: bool) -> Self {
        self.blocking_allowed = allowed;
        self
    }

    /// Keeps the newest messages of each topic that matches the pattern, within the limits of `history`. A new
    /// subscriber of the topic gets them before all later ones, also if it is the first. A subscriber whose connection
    /// ends gets what it missed when it comes back. With [`History::last(1)`](History::last) a topic keeps its latest
    /// value.
    ///
    /// Call it several times for several patterns; the first that matches a topic counts. [`History::names_max`] limits
    /// the number of topics that are kept for all patterns. A subscription with a wildcard gets live messages, and
    /// before them the newest of each topic if it [asks](crate::Subscribe::last) for them. A client of `tw1` that does
    /// not know positions is refused.
    ///
    /// ```
    /// use tidewire::{Client, History, PubSub, Server, TopicEvent};
    ///
    /// let server = Server::builder()
    ///     .listen("tcp://127.0.0.1:0")?
    ///     .start_one(PubSub::new().history("state.>", History::last(1)))?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// client.publish("state.door", b"open")?;
    /// client.flush().wait()?;
    ///
    /// let door = client.subscribe("state.door").wait()?;
    /// let TopicEvent::Message(message) = door.next_event().wait() else { panic!("no message") };
    /// assert_eq!(message.payload, b"open");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn history(mut self, pattern: &str, history: History) -> Self {
        self.history_patterns
            .push(HistoryPattern::new(pattern, history));
        self
    }

    /// Sets a hook that is called with each pattern before a session subscribes to it. An error refuses the
    /// subscription; its code and text go to the subscriber. The hook runs on the lane's thread and must not block.
    /// Patterns and limits are checked after it, so it may see an invalid pattern.
    ///
    /// A pattern with a wildcard covers every topic that it matches, including topics that are first published later.
    /// A hook that protects topics must refuse the wildcards that cover them, as this one does. Who may subscribe to a
    /// pattern may also join its [queue groups](crate::Subscribe::group), and so takes messages from their members.
    ///
    /// ```
    /// use tidewire::{Client, ErrorCode, HandlerError, PubSub, RequestError, Server};
    ///
    /// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
    ///     PubSub::new().on_subscribe(|_, pattern| match pattern.split('.').next() {
    ///         Some("public") => Ok(()),
    ///         _ => Err(HandlerError::new(ErrorCode::Unsupported, "only public topics here")),
    ///     })
    /// )?;
    /// let client = Client::connect(&server.to_string()).wait()?;
    /// assert!(client.subscribe("public.>").wait().is_ok());
    /// assert!(matches!(client.subscribe(">").wait(), Err(RequestError::Refused { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_subscribe(
        mut self,
        hook: impl Fn(&mut Context<'_>, &str) -> HandlerResult + Send + Sync + 'static,
    ) -> Self {
        self.before_subscribe = Some(Arc::new(hook));
        self
    }

    /// Sets a hook that is called with the topic and the payload of each message before it is delivered. An error
    /// refuses the message; its code and text go to the publisher. The hook runs on the lane's thread and must not
    /// block. It sees only messages that would be published without it: the topic is valid, the message is not too
    /// large, and the server has memory for it.
    #[must_use]
    pub fn on_publish(
        mut self,
        hook: impl Fn(&mut Context<'_>, &str, &[u8]) -> HandlerResult + Send + Sync + 'static,
    ) -> Self {
        self.before_publish = Some(Arc::new(hook));
        self
    }

    #[inline]
    fn publish(&self, cx: &mut Context<'_>, topic: &str, payload: &[u8]) -> HandlerResult {
        if let Some(hook) = &self.before_publish {
            // The hook is not called for messages that are refused anyway.
            cx.core
                .rooms()
                .topics()
                .check_publish(topic, payload.len())?;
            hook(cx, topic, payload)?;
        }
        Ok(cx.topics().publish(topic, payload)?)
    }

    /// Handles every message other than a publication. These are rare, so this code is kept out of the hot path.
    #[cold]
    fn handle_rare(&self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        match message.kind {
            Kind::Subscribe => self.subscribe(cx, message),
            Kind::Unsubscribe => {
                cx.topics().unsubscribe_as_asked(message.channel)?;
                cx.reply(&[])
            }
            Kind::Request | Kind::OneWay
                if !message.name.is_empty() && cx.codec().format().registers_subscribers =>
            {
                self.publish(cx, message.name, message.payload)?;
                cx.reply(&[])
            }
            // Frames of one session are handled in order, so this answer confirms all frames before it.
            Kind::Request if is_flush(message) => cx.call.reply_when_stored(cx.core),
            // The lane cancels the answers that come later. The others are immediate.
            Kind::Cancel => Ok(()),
            _ => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "a publish/subscribe server has no such request",
            )),
        }
    }

    fn subscribe(&self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        let (since, payload) = Since::split(message)?;
        let body = SubscribeBody::decode(payload)?;
        if body.policy == Some(Policy::Block) && !self.blocking_allowed {
            let text = "subscribers may not hold publishers here; choose another policy";
            return Err(HandlerError::new(ErrorCode::Unsupported, text));
        }
        if let Some(hook) = &self.before_subscribe
            && !cx.core.rooms.is_repeating()
        {
            hook(cx, body.pattern)?;
        }
        let wanted = Wanted::in_group(body.pattern, body.group);
        if message.id == 0 {
            // A registration is repeated periodically and gets no answer.
            return match cx.topics().subscribe_as_asked(wanted, body.policy) {
                Ok(_) | Err(RoomError::AlreadySubscribed) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        let mut rooms = cx.core.rooms();
        let history = match body.group {
            None => rooms.histories().limits_of(cx.call.id(), body.pattern),
            Some(_) => None,
        };
        if history.is_some() {
            cx.rooms().check_positions()?;
        }
        let (pattern, policy) = (body.pattern, body.policy);
        let mut rooms = cx.core.rooms();
        let checked = rooms.topics().check_subscribe(cx.call.id(), wanted, policy);
        // A history stays open until the session is a subscriber. One that is refused below opens none.
        let _open = match checked {
            Err(_) => None,
            Ok(_) => {
                match cx
                    .rooms()
                    .await_entrance((SequenceKind::Topic, pattern), history, message)?
                {
                    None => return Ok(()),
                    open => open,
                }
            }
        };
        let channel = cx.topics().subscribe_as_asked(wanted, policy)?;
        let newest = cx.topics().newest_of_each(channel, since);
        let recovery = cx.topics().open_history(channel, since, newest.is_some());
        let (mut tail, mut flags) = (Vec::new(), 0);
        if let Some(recovery) = recovery.filter(|_| cx.codec().format().has_positions) {
            recovery.encode(&mut tail);
            flags = FLAG_POSITION;
        }
        let reply = Message::with_id(Kind::Reply, channel, message.id, &tail);
        cx.send(Message { flags, ..reply })?;
        if recovery.is_some() {
            cx.rooms().push_history(channel);
        }
        if let Some(newest) = newest {
            cx.topics().push_newest(&newest);
        }
        Ok(())
    }
}

impl Service for PubSub {
    fn action(&self, cx: &Context<'_>, message: &Message<'_>) -> ActionKind {
        match message.kind {
            Kind::Request | Kind::OneWay if !message.name.is_empty() => {
                match cx.codec().format().registers_subscribers {
                    true => ActionKind::Publish,
                    false => ActionKind::Call,
                }
            }
            Kind::Request => ActionKind::Free,
            kind => ActionKind::of(kind),
        }
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if !self.history_patterns.is_empty() {
            let rules = std::mem::take(&mut self.history_patterns);
            cx.core.rooms().histories().keep_topics(rules);
        }
        None
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.kind {
            Kind::Publish => self.publish(cx, message.name, message.payload),
            _ => self.handle_rare(cx, &message),
        }
    }
}

impl Part for PubSub {
    fn takes(&self, cx: &Context<'_>, message: &Message<'_>) -> bool {
        match message.kind {
            Kind::Publish | Kind::Subscribe | Kind::Unsubscribe => true,
            Kind::Request | Kind::OneWay if !message.name.is_empty() => {
                cx.codec().format().registers_subscribers
            }
            Kind::Request => is_flush(message),
            _ => false,
        }
    }
}

impl fmt::Debug for PubSub {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("PubSub")
            .field("blocking_allowed", &self.blocking_allowed)
            .finish_non_exhaustive()
    }
}
