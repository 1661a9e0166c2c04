//! The names that nearly every server and client needs.
//!
//! ```
//! use tidewire::prelude::*;
//!
//! struct Echo;
//!
//! impl Service for Echo {
//!     fn on_request(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
//!         cx.reply(message.payload)
//!     }
//! }
//!
//! let server = Server::builder().listen("tcp://127.0.0.1:0")?.start(|_lane| Echo)?;
//! let client = Client::connect(&server.to_string()).wait()?;
//! assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use crate::client::{Client, Event, Room, Subscription, TopicEvent};
pub use crate::server::Server;
pub use crate::service::{
    Chat, Context, HandlerError, HandlerResult, PubSub, Router, Service, handler,
};
pub use tidewire_proto::body::ErrorCode;
pub use tidewire_proto::message::{Kind, Message};
