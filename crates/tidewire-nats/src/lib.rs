//! Rooms and topics of Tidewire over several servers: a backplane on [NATS](https://nats.io).
//!
//! Servers with the same NATS and the same prefix are one cluster. A message crosses NATS once for each node that has
//! members or subscribers for it. `tidewire::backplane` has the contract, and does everything that is not about NATS:
//! gaps, presence, heartbeats.
//!
//! ```no_run
//! use tidewire::backplane::NodeSettings;
//! use tidewire::{Chat, Server};
//! use tidewire_nats::Nats;
//!
//! let server = Server::builder()
//!     .listen("tcp://127.0.0.1:8080")?
//!     .backplane(Nats::new("nats://127.0.0.1:4222")?, NodeSettings::new("a")?)
//!     .start_one(Chat::new())?;
//! # drop(server);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The client of NATS runs on the thread of the node. Its queues are bounded. A full queue drops messages. The
//! receiving side detects and counts them, and reports a gap.

#![deny(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod carrier;
mod credentials;
mod error;
mod retry;
mod settings;
mod streams;
mod subject;
mod tls;
mod wire;

pub use error::NatsError;
pub use settings::Nats;
