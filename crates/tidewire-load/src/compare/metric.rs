//! What is compared, in which unit, and which direction is good.

use serde::{Deserialize, Serialize};

use super::run_set::StepRun;
use crate::format::{mebibytes, milliseconds, per_second};
use crate::statistics::Quantile;

/// A figure that every run has for each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Median latency in milliseconds.
    P50Ms,
    /// 90th percentile of the latency in milliseconds.
    P90Ms,
    /// 99th percentile of the latency in milliseconds.
    P99Ms,
    /// Messages sent a second in the steady window.
    SendTps,
    /// Messages received a second in the steady window, over all receivers.
    ReceiveTps,
    /// Share of the expected messages that did not arrive, in percent.
    LossPct,
    /// Processor time of the server for a delivered message, in nanoseconds.
    ServerCpuNs,
    /// Processor time of the instrument for a delivered message, in nanoseconds.
    ClientCpuNs,
    /// Largest resident memory of the server, in bytes.
    ServerMemoryBytes,
}

impl Metric {
    /// All, in the order of a table.
    pub const ALL: [Self; 9] = [
        Self::P50Ms,
        Self::P90Ms,
        Self::P99Ms,
        Self::SendTps,
        Self::ReceiveTps,
        Self::LossPct,
        Self::ServerCpuNs,
        Self::ClientCpuNs,
        Self::ServerMemoryBytes,
    ];

    /// The name in a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P50Ms => "p50",
            Self::P90Ms => "p90",
            Self::P99Ms => "p99",
            Self::SendTps => "sent",
            Self::ReceiveTps => "received",
            Self::LossPct => "lost",
            Self::ServerCpuNs => "server CPU/message",
            Self::ClientCpuNs => "client CPU/message",
            Self::ServerMemoryBytes => "server memory",
        }
    }

    /// Whether a larger figure is better.
    #[must_use]
    pub const fn larger_is_better(self) -> bool {
        matches!(self, Self::SendTps | Self::ReceiveTps)
    }

    /// A figure with its unit.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        if value.is_infinite() {
            return "inf".to_owned();
        }
        match self {
            Self::P50Ms | Self::P90Ms | Self::P99Ms => format!("{} ms", milliseconds(value)),
            Self::SendTps | Self::ReceiveTps => per_second(value),
            Self::LossPct => format!("{value:.4} %"),
            Self::ServerCpuNs | Self::ClientCpuNs => format!("{value:.0} ns"),
            Self::ServerMemoryBytes => mebibytes(value as u64),
        }
    }

    /// The figure of one run.
    pub(super) fn of(self, step: &StepRun) -> Result<f64, Missing> {
        let (arrived, lost) = (step.total_received, step.lost);
        let each = |secs: Option<f64>| match secs {
            Some(secs) if arrived > 0 => Ok(secs * 1e9 / arrived as f64),
            _ => Err(Missing::NotMeasured),
        };
        match self {
            Self::P50Ms => percentile(step, Quantile::P50, step.latency.p50_ms),
            Self::P90Ms => percentile(step, Quantile::P90, step.latency.p90_ms),
            Self::P99Ms => percentile(step, Quantile::P99, step.latency.p99_ms),
            Self::SendTps => Ok(step.steady.send_tps),
            Self::ReceiveTps => Ok(step.steady.receive_tps),
            Self::LossPct if arrived + lost == 0 => Err(Missing::NotMeasured),
            Self::LossPct => Ok(lost as f64 / (arrived + lost) as f64 * 100.0),
            Self::ServerCpuNs => each(step.server.cpu_secs),
            Self::ClientCpuNs => each(Some(step.client.cpu_secs)),
            Self::ServerMemoryBytes => step
                .server
                .rss_bytes_max
                .map(|bytes| bytes as f64)
                .ok_or(Missing::NotMeasured),
        }
    }
}

/// Why a run has no such figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// Nobody looked, as at the memory of a server on another machine.
    NotMeasured,
    /// A percentile of fewer messages than it needs.
    TooFewSamples,
}

/// The reported percentile under the rules of the instrument: with enough samples, and infinite when as much as
/// lies above it was lost. A smaller loss is not in a report's percentile; the loss itself is compared beside it.
fn percentile(step: &StepRun, quantile: Quantile, value_ms: f64) -> Result<f64, Missing> {
    let samples = step.total_received + step.lost;
    if samples < quantile.samples_needed() {
        return Err(Missing::TooFewSamples);
    }
    Ok(if quantile.is_beyond(step.lost, samples) {
        f64::INFINITY
    } else {
        value_ms
    })
}
