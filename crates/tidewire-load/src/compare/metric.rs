//! The metrics that are compared, with their units and the direction that is good.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::format::{few, mebibytes, milliseconds, per_second};

/// A figure that every run has for each step: the first eleven of load tests, the others of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Median latency in milliseconds.
    P50Ms,
    /// 90th percentile of the latency in milliseconds.
    P90Ms,
    /// 99th percentile of the latency in milliseconds.
    P99Ms,
    /// 99.9th percentile of the latency in milliseconds; reports of older builds have none.
    P999Ms,
    /// Messages sent a second in the steady window.
    SendTps,
    /// Messages received a second in the steady window, over all receivers.
    ReceiveTps,
    /// Share of the expected messages that did not arrive, in percent.
    LossPct,
    /// Share of the expected messages of which nobody can know whether they arrived, in percent.
    UnconfirmedPct,
    /// Processor time of the server for a message sent or received, in nanoseconds.
    ServerCpuNs,
    /// Processor time of the instrument for a message sent or received, in nanoseconds.
    ClientCpuNs,
    /// Largest resident memory of the server, in bytes.
    ServerMemoryBytes,
    /// The figure of a row, in its unit, where more is better.
    MoreIsBetter,
    /// The same where less is better.
    LessIsBetter,
    /// Tidewire's share of the limit in the same round, in percent.
    LimitPct,
}

impl Metric {
    /// All, in the order of a table.
    pub const ALL: [Self; 14] = [
        Self::P50Ms,
        Self::P90Ms,
        Self::P99Ms,
        Self::P999Ms,
        Self::SendTps,
        Self::ReceiveTps,
        Self::LossPct,
        Self::UnconfirmedPct,
        Self::ServerCpuNs,
        Self::ClientCpuNs,
        Self::ServerMemoryBytes,
        Self::MoreIsBetter,
        Self::LessIsBetter,
        Self::LimitPct,
    ];

    /// The name in a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P50Ms => "p50",
            Self::P90Ms => "p90",
            Self::P99Ms => "p99",
            Self::P999Ms => "p99.9",
            Self::SendTps => "sent",
            Self::ReceiveTps => "received",
            Self::LossPct => "lost",
            Self::UnconfirmedPct => "unconfirmed",
            Self::ServerCpuNs => "server CPU/message",
            Self::ClientCpuNs => "client CPU/message",
            Self::ServerMemoryBytes => "server memory",
            Self::MoreIsBetter => "more is better",
            Self::LessIsBetter => "less is better",
            Self::LimitPct => "of the limit",
        }
    }

    /// Whether a larger figure is better.
    #[must_use]
    pub const fn larger_is_better(self) -> bool {
        matches!(
            self,
            Self::SendTps | Self::ReceiveTps | Self::MoreIsBetter | Self::LimitPct
        )
    }

    /// Whether it is processor time, which older builds took over the whole step and newer ones in the window.
    pub(super) const fn is_cost(self) -> bool {
        matches!(self, Self::ServerCpuNs | Self::ClientCpuNs)
    }

    /// A figure with its unit.
    #[must_use]
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
pub(super) type Figures = BTreeMap<Metric, Result<f64, Missing>>;

/// Why a run has no such figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// The figure was not measured, as the memory of a server on another machine.
    NotMeasured,
    /// A percentile of fewer messages than it needs.
    TooFewSamples,
}
