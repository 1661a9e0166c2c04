//! The metrics that are compared, with their units and the direction that is good.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::format::{few, mebibytes, milliseconds, per_second};

worded! {
    /// A figure that every run has for each step: the first eleven of load tests, the others of the benchmark.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Metric {
        /// Median latency in milliseconds.
        P50Ms = "p50",
        /// 90th percentile of the latency in milliseconds.
        P90Ms = "p90",
        /// 99th percentile of the latency in milliseconds.
        P99Ms = "p99",
        /// 99.9th percentile of the latency in milliseconds.
        P999Ms = "p99.9",
        /// Messages sent a second in the steady window.
        SendTps = "sent",
        /// Messages received a second in the steady window, over all receivers.
        ReceiveTps = "received",
        /// Share of the expected messages that did not arrive, in percent.
        LossPct = "lost",
        /// Share of the expected messages that may or may not have arrived, in percent.
        UnconfirmedPct = "unconfirmed",
        /// Processor time of the server for a message sent or received, in nanoseconds.
        ServerCpuNs = "server CPU/message",
        /// Processor time of the instrument for a message sent or received, in nanoseconds.
        ClientCpuNs = "client CPU/message",
        /// Largest resident memory of the server, in bytes.
        ServerMemoryBytes = "server memory",
        /// The figure of a row, in its unit, where more is better.
        MoreIsBetter = "more is better",
        /// The same where less is better.
        LessIsBetter = "less is better",
        /// Tidewire's share of the limit in the same round, in percent.
        LimitPct = "of the limit",
    }
}

impl Metric {
    /// Whether a larger figure is better.
    pub const fn larger_is_better(self) -> bool {
        matches!(
            self,
            Self::SendTps | Self::ReceiveTps | Self::MoreIsBetter | Self::LimitPct
        )
    }

    /// A figure with its unit.
    pub fn show(self, value: f64) -> String {
        if value.is_infinite() {
            return "inf".to_owned();
        }
        match self {
            Self::P50Ms | Self::P90Ms | Self::P99Ms | Self::P999Ms => {
                format!("{} ms", milliseconds(value))
            }
            Self::SendTps | Self::ReceiveTps => per_second(value),
            Self::LossPct | Self::UnconfirmedPct => format!("{value:.4} %"),
            Self::ServerCpuNs | Self::ClientCpuNs => format!("{value:.0} ns"),
            Self::ServerMemoryBytes => mebibytes(value as u64),
            Self::MoreIsBetter | Self::LessIsBetter => few(value),
            Self::LimitPct => format!("{value:.1} %"),
        }
    }
}

/// The figures of one step of one run. One that is not there was not measured.
pub(super) type Figures = BTreeMap<Metric, Result<f64, NoFigure>>;

/// Why a run has no such figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoFigure {
    /// The figure was not measured, as the memory of a server on another machine.
    NotMeasured,
    /// A percentile of fewer messages than it needs.
    TooFewSamples,
}
