//! Requests of handlers to other servers.

pub use crate::service::{Upstream, UpstreamError};
