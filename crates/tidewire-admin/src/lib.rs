//! The admin server of a Tidewire server: a dashboard, the same as JSON, metrics for Prometheus, and health.
//!
//! It runs on a separate thread. It reads counters that the lanes keep anyway, and requests all other figures through
//! the lanes' mailboxes. So lanes do no work without a viewer, and little work with one.
//!
//! ```
//! use tidewire::{Context, Message, Server};
//! use tidewire_admin::{Admin, Settings};
//!
//! // Bound first, so that an address in use is an error before the server runs.
//! let admin = Admin::bind("127.0.0.1:0".parse()?, Settings::default())?;
//! let server = Server::builder()
//!     .listen("tcp://127.0.0.1:0")?
//!     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
//! let admin = admin.serve(&server)?;
//! println!("http://{}/", admin.address());
//! server.stopper().withdraw(); // the first step of a drain: load balancers look elsewhere
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | path | answer |
//! |---|---|
//! | `/` | the dashboard |
//! | `/metrics` | all counters, in OpenMetrics |
//! | `/healthz`, `/readyz` | 200 if every lane turns; if the server also wants new clients |
//! | `/api/…` | JSON, described by `/api/schema` |

mod access;
mod admin;
mod events;
mod http;
mod model;
mod openmetrics;
mod page;
mod query;
mod routes;
mod sampler;
mod settings;

pub use admin::{Admin, AdminError, BoundAdmin};
pub use http::{HttpServer, serve_text};
pub use openmetrics::CONTENT_TYPE;
pub use settings::{HostError, Settings};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
