//! The applications: their requirements on a codec, and the services that are a line or two.

use clap::ValueEnum;
use tidewire::{
    AnyCodec, Chat, Context, HandlerError, HandlerResult, Kind, Message, Policy, PubSub, Server,
    ServerBuilder,
};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;

use super::history::HistoryRule;
use super::rpc::Methods;
use super::sink::Sink;
use crate::connection::Need;
use crate::failure::Failure;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum App {
    /// Rooms with names, presence and private messages; speaks tw1, json and lines
    Chat,
    /// Topics to publish and subscribe to; speaks tw1 and json, and uvrpc over udp
    #[value(name = "pubsub")]
    PubSub,
    /// Methods to call by name: add, echo, methods, sleep, time; speaks tw1, json, srmp-rpc and uvrpc
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
            Self::Chat if codec.format().has_room_frames || codec.format().is_typed() => Ok(()),
            Self::Chat => {
                let name = codec.name();
                let what = format!("codec {name} has no rooms, so a chat server cannot use it");
                Err(Failure::configuration(
                    what,
                    "use --codec tw1, json or lines",
                ))
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

    /// Refuses histories for an app without rooms and topics.
    pub(super) fn check_history(self, kept: &[HistoryRule]) -> Result<(), Failure> {
        match self {
            Self::Chat | Self::PubSub => Ok(()),
            _ if kept.is_empty() => Ok(()),
            _ => Err(Failure::configuration(
                "--history is for rooms and topics, which this app does not have",
                "use --app chat or --app pubsub, or leave --history out",
            )),
        }
    }

    /// The methods that other nodes may call.
    #[cfg(feature = "nats")]
    pub(super) fn services(self, chosen: &[String]) -> Vec<String> {
        match self {
            Self::Rpc => Methods::names(chosen).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }

    /// Refuses methods that the app does not have.
    pub(super) fn check_methods(self, chosen: &[String]) -> Result<(), Failure> {
        let known: Vec<&str> = match self {
            Self::Rpc => Methods::names(&[]).collect(),
            _ => Vec::new(),
        };
        match chosen.iter().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(Failure::configuration(
                format!("the app has no method {name:?}"),
                "correct --methods; --app rpc has add, echo, methods, sleep and time",
            )),
        }
    }

    /// Starts the server with the service of the app.
    pub(super) fn start(
        self,
        builder: ServerBuilder,
        policy: Policy,
        kept: &[HistoryRule],
        methods: &[String],
        is_node: bool,
    ) -> anyhow::Result<Server> {
        Ok(match self {
            // These two do so little for a message that an indirect call would count.
            Self::Echo => builder.start(|_| echo)?,
            Self::Sink => builder.start(|_| Sink::default())?,
            Self::Rpc => {
                let methods = Methods::start(methods, is_node)?;
                builder.start_boxed(|_| Box::new(methods.router()))?
            }
            Self::PubSub => {
                // If the server's own policy holds publishers, a subscriber may request that policy too.
                let blocking = policy == Policy::Block;
                let topics = HistoryRule::of_topics(kept, PubSub::new().allow_blocking(blocking));
                builder.start_boxed(|_| Box::new(topics.clone()))?
            }
            Self::Chat => {
                let chat = HistoryRule::of_rooms(kept, Chat::new().policy(policy));
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
