//! The applications: their requirements on a codec, and the services that are a line or two.

use clap::ValueEnum;
use tidewire::{
    AnyCodec, Chat, Context, HandlerError, HandlerResult, Kind, Message, Policy, PubSub, Server,
    ServerBuilder,
};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;

use super::rpc::Methods;
use super::sink::Sink;
use crate::connection::Need;
use crate::failure::Failure;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum App {
    /// Rooms with names, presence and private messages; speaks tw1 and lines
    Chat,
    /// Topics to publish and subscribe to; speaks tw1, and uvrpc over udp
    #[value(name = "pubsub")]
    PubSub,
    /// Methods to call by name: add, echo, methods, sleep, time; speaks tw1, srmp-rpc and uvrpc
    Rpc,
    /// Sends every message and request back; speaks every codec
    Echo,
    /// Takes every message; answers a request with how many it took from this connection; speaks every codec
    Sink,
}

impl App {
    /// Refuses a codec that cannot express the messages of the app.
    pub(super) fn check(self, codec: &AnyCodec) -> Result<(), Failure> {
        match self {
            Self::PubSub => Need::Topics.check(codec, "a pubsub server"),
            Self::Rpc => Need::Methods.check(codec, "an rpc server"),
            // The service converts rooms to lines for people.
            Self::Chat if codec.has_room_frames() || codec.is_typed() => Ok(()),
            Self::Chat => {
                let name = codec.name();
                let what = format!("codec {name} has no rooms, so a chat server cannot use it");
                Err(Failure::configuration(what, "use --codec tw1, or lines"))
            }
            Self::Echo | Self::Sink => Ok(()),
        }
    }

    /// Whether it may send a peer more than the peer sent. An unvalidated UDP address must not get more.
    pub(super) fn says_more_than_it_hears(self) -> bool {
        match self {
            Self::Chat | Self::PubSub | Self::Rpc => true,
            Self::Echo | Self::Sink => false,
        }
    }

    /// Whether clients subscribe to the messages of others.
    pub(super) fn has_subscribers(self) -> bool {
        matches!(self, Self::PubSub)
    }

    /// Starts the server with the service of the app.
    pub(super) fn start(self, builder: ServerBuilder, policy: Policy) -> anyhow::Result<Server> {
        Ok(match self {
            // These two do so little for a message that an indirect call would count.
            Self::Echo => builder.start(|_| echo)?,
            Self::Sink => builder.start(|_| Sink::default())?,
            Self::Rpc => {
                let methods = Methods::start()?;
                builder.start_boxed(|_| Box::new(methods.router()))?
            }
            Self::PubSub => {
                // If the server's own policy holds publishers, a subscriber may request that policy too.
                let blocking = policy == Policy::Block;
                builder.start_boxed(|_| Box::new(PubSub::new().allow_blocking(blocking)))?
            }
            Self::Chat => {
                let chat = Chat::new().policy(policy);
                builder.start_boxed(|_| Box::new(chat.clone()))?
            }
        })
    }
}

/// Answers with the payload of the request.
fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    match message.kind {
        Kind::Request | Kind::OneWay => cx.reply(message.payload),
        _ => Err(HandlerError::new(
            ErrorCode::Unsupported,
            "an echo server has no such request",
        )),
    }
}
