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
//! let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(Echo)?;
//! let client = Client::connect(&server.to_string()).wait()?;
//! assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[doc(no_inline)]
pub use crate::client::{Client, Event, Room, Subscription, TopicEvent};
#[doc(no_inline)]
pub use crate::server::Server;
#[doc(no_inline)]
pub use crate::service::{
    Chat, Context, HandlerError, HandlerResult, PubSub, Router, Service, handler,
};
#[doc(no_inline)]
pub use tidewire_proto::body::ErrorCode;
#[doc(no_inline)]
pub use tidewire_proto::message::{Kind, Message};
