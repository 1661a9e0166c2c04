//! Counters, log lines and spans of a lane. Every other module may use these; they use none of the others.

#[cfg(feature = "log")]
pub mod log;
#[cfg(test)]
mod logged;
mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
mod quiet;
pub(crate) mod trace;

#[cfg(all(test, feature = "log"))]
pub(crate) use logged::LogBuffer;
#[cfg(test)]
pub(crate) use logged::logged;
pub(crate) use metrics::LaneCounters;
pub use metrics::Metrics;
pub(crate) use metrics::MetricsReader;
pub(crate) use metrics::{DatagramDrop, DropReason};
#[cfg(test)]
pub(crate) use quiet::QUIET_NS;
pub(crate) use quiet::QuietLog;
