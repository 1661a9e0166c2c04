//! The ready publish/subscribe service: topics over the native protocol.
//!
//! A client subscribes to patterns and publishes to topics, in any order and without being known by a name. Every
//! refusal is a typed error. `docs/protocol.md` has the frames, [`tidewire_proto::topic`] the patterns.

use tidewire_proto::body::{ErrorCode, SubscribeBody};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::room::Policy;

use crate::room::SubscribeError;
use crate::service::Context;
use crate::service::{HandlerError, HandlerResult, Service};

/// A publish/subscribe server's service. Give every lane a clone.
///
/// Over UDP with the codec of UVRPC, subscribers register for everything. The format has no message to publish through a
/// server, so a call of a method publishes its parameters under the method's name.
///
/// ```
/// use tidewire::{Client, PubSub, Server, TopicEvent};
///
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_| PubSub::new())?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// let readings = client.subscribe("sensor.>").wait()?;
///
/// client.publish("sensor.7.temperature", b"21")?;
///
/// let TopicEvent::Message(message) = readings.next_event().wait() else { panic!("no message") };
/// assert_eq!((&*message.topic, &message.payload[..]), ("sensor.7.temperature", &b"21"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PubSub {
    blocking_allowed: bool,
}

impl PubSub {
    /// A service whose subscribers may choose any policy but [`Policy::Block`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether subscribers may choose [`Policy::Block`] and so hold publishers, each for as long as
    /// [`Limits::block_deadline`](crate::Limits::block_deadline). Default no: a stranger could slow everybody down.
    #[must_use]
    pub fn allow_blocking(mut self, allowed: bool) -> Self {
        self.blocking_allowed = allowed;
        self
    }

    fn subscribe(&self, cx: &mut Context<'_>, message: &Message<'_>) -> HandlerResult {
        let body = SubscribeBody::decode(message.payload)?;
        if body.policy == Some(Policy::Block) && !self.blocking_allowed {
            let text = "subscribers may not hold publishers here; choose another policy";
            return Err(HandlerError::new(ErrorCode::Unsupported, text));
        }
        if message.id == 0 {
            // A registration, which comes again and again and is never answered.
            return match cx.subscribe(body.pattern, body.policy) {
                Ok(_) | Err(SubscribeError::AlreadySubscribed) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        let channel = cx.subscribe(body.pattern, body.policy)?;
        Ok(cx.send(&Message::with_id(Kind::Reply, channel, message.id, &[]))?)
    }
}

impl Service for PubSub {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.kind {
            Kind::Publish => Ok(cx.publish(message.name, message.payload)?),
            Kind::Subscribe => self.subscribe(cx, &message),
            Kind::Unsubscribe => {
                cx.unsubscribe(message.channel)?;
                cx.reply(&[])
            }
            Kind::Request | Kind::OneWay
                if !message.name.is_empty() && cx.codec().registers_subscribers() =>
            {
                cx.publish(message.name, message.payload)?;
                cx.reply(&[])
            }
            // Frames of one session are handled in order, so this answer says that all before it were.
            Kind::Request if message.name.is_empty() && message.payload.is_empty() => cx.reply(&[]),
            // Every answer here is immediate, so there is nothing to cancel.
            Kind::Cancel => Ok(()),
            _ => Err(HandlerError::new(
                ErrorCode::Unsupported,
                "a publish/subscribe server has no such request",
            )),
        }
    }
}
