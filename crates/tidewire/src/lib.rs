//! Tidewire moves small messages fast over TCP, UDP, Unix sockets and within a process, with one API.
//!
//! A server consists of lanes: threads that each own a poller and their sessions. A handler sees a borrowed message and
//! replies into the session's output. On that path nothing allocates, locks or makes a system call per message.
//!
//! ```
//! use tidewire::Client;
//!
//! let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
//!     cx.reply(message.payload)
//! })?;
//!
//! let client = Client::connect(&server.to_string()).wait()?;
//! assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The address picks the transport: `tcp://HOST:PORT`, `ws://HOST:PORT/PATH`, `udp://HOST:PORT`, `ipc://PATH`, or
//! `inproc://NAME` for a server of the same process. `tls://` and `wss://` are `tcp://` and `ws://` with [`tls`]. A
//! send that returns `Ok` makes a promise: the message reaches the peer's service in order, unless the connection fails
//! or the receiver's policy drops it. Over UDP it is smaller: the system gets the message once. A lost request then
//! fails at its deadline, and counters ([`metrics::Metrics`]) report missing messages.
//!
//! A closure is the smallest service. Implement [`Service`] for more. Use a [`Router`] for methods by name, and the
//! attribute `#[tidewire::service]` on a trait for typed methods (feature `typed`, on by default). Use
//! [`Context::rooms`] and [`Context::topics`] for rooms and topics.
//! [`Chat`] and [`PubSub`] are ready-made services for both.
//!
//! Any other thread reaches sessions through [`Server::sessions`]. It finds sessions by number, sends to them, closes
//! them, and sends to all that a predicate selects.
//!
//! A handler must not block. Give long work to a [`workers::WorkerPool`] or any other thread or task, together with the
//! duty to answer:
//!
//! ```
//! use tidewire::workers::{WhenPoolFull, WorkerPool};
//! use tidewire::{Client, Context, Deferred, ErrorCode, Message, Server};
//!
//! let pool = WorkerPool::new(2, 1024, WhenPoolFull::Refuse, |(deferred, text): (Deferred, Vec<u8>)| {
//!     // An error here means that the answer fits no frame; the caller has been told.
//!     let _ = deferred.reply(&text.to_ascii_uppercase());
//! })?;
//! let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(
//!     move |cx: &mut Context<'_>, message: Message<'_>| {
//!         if let Err((deferred, _)) = pool.submit((cx.defer(), message.payload.to_vec())) {
//!             deferred.refuse(ErrorCode::LimitReached, "too busy");
//!         }
//!         Ok(())
//!     },
//! )?;
//!
//! let client = Client::connect(&server.to_string()).wait()?;
//! assert_eq!(client.request(b"hello").wait()?.payload(), b"HELLO");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! `trace`: spans of every session through [`tracing`], with the target `tidewire::span`. `connect` and `close` are at
//! level debug; `receive`, `handle` and `send` are at level trace, with one `handle` per message within its `receive`.
//! They carry the session's number, its peer and codec, and bytes, the kind of message or the reason. Without the
//! feature they are not compiled in.
//!
//! `otlp`: exports these spans to a collector of OpenTelemetry, with the module `otlp`. It brings `trace`, `log` and
//! some twenty crates.

#![deny(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

/// Lets `Debug` show the name of a type alone, because the content is secret, or cannot be shown.
macro_rules! opaque {
    ($name:ident) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(concat!(stringify!($name), "(..)"))
            }
        }
    };
}

pub mod address;
pub mod auth;
pub mod backplane;
mod broker;
mod client;
pub mod codec;
mod config;
mod describe;
mod dial;
mod engine;
mod history;
mod lane;
pub mod layer;
pub mod limits;
mod mailbox;
mod memory;
pub mod metrics;
mod observe;
mod on_lane;
pub mod prelude;
mod room;
mod server;
mod service;
mod session;
pub mod socket;
mod sync;
pub mod system;
pub mod text;
pub mod tls;
mod transport;
#[cfg(feature = "typed")]
pub mod typed;
pub mod upstream;
pub mod websocket;
pub mod workers;

pub use address::Endpoint;
pub use broker::Position;
pub use client::{
    Backoff, Call, Client, ClientBuilder, ClientEvent, Closing, Connecting, Disconnected, Event,
    Events, Join, NextEvent, Operation, OwnedMessage, Reply, Request, RequestError, Room,
    Subscribe, Subscription, TopicEvent, TopicMessage, WhenEventsFull, WhenWindowFull,
};
pub use describe::describe;
pub use history::History;
pub use limits::Limits;
#[cfg(feature = "log")]
pub use observe::log;
#[cfg(feature = "otlp")]
pub use observe::otlp;
pub use room::{Joined, ReachedLimit, RoomError};
pub use server::{ServeError, Server, ServerBuilder, Stopped, Stopper, serve};
pub use service::{
    ActionKind, AsyncRequest, AsyncService, Chat, ChatMessage, ConnectionActions, Context,
    Deferred, HandlerError, HandlerResult, Methods, Part, PubSub, RoomActions, Router, Service,
    SessionAddress, SessionHandle, SessionSender, Sessions, TimerActions, TopicActions, handler,
};
pub use session::{Broadcast, BroadcastReport, SendError, SessionId, SessionView, TimerId};
pub use transport::{ConnectError, TransportKind};

pub use tidewire_io::clock::Moment;
#[cfg(feature = "typed")]
pub use tidewire_macros::service;
pub use tidewire_proto::body::{ErrorCode, GoAwayCode, NameError};
pub use tidewire_proto::codec::AnyCodec;
pub use tidewire_proto::connection::{CloseReason, Farewell};
pub use tidewire_proto::message::{Kind, MemberId, Message, PresenceEvent, RoomId, SubscriptionId};
pub use tidewire_proto::room::Policy;
pub use tidewire_proto::setting::SettingError;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
