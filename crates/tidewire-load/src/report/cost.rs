//! The cost of a message on each side: processor time, system calls, allocations.

use serde::{Deserialize, Serialize};

use super::{MergeKind, StepDetail};
use crate::lane_account::LaneAccount;

/// The cost of a step in its steady window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Processor time of the instrument, in percent of the cores of its lanes.
    pub client_cpu_pct: Option<f64>,
    /// Processor time of the server, in percent of the cores of its lanes, if this program can observe it.
    pub server_cpu_pct: Option<f64>,
    /// Processor time of the instrument by messages sent and received, in nanoseconds.
    pub client_ns_per_message: Option<f64>,
    /// Processor time of the server by messages sent and received, in nanoseconds.
    pub server_ns_per_message: Option<f64>,
    /// Time that the host took from this virtual machine, in percent.
    pub steal_pct: Option<f64>,
    /// The work of the instrument's lanes for each message.
    #[serde(default)]
    pub client_lanes: Option<LaneCost>,
    /// The work of the server's lanes for each message, if this program has started the server and so can ask it.
    #[serde(default)]
    pub server_lanes: Option<LaneCost>,
}

impl Cost {
    /// Shares of time are weighted by time, and costs of a message by messages.
    pub(super) fn merge(details: &[&StepDetail], kind: MergeKind) -> Self {
        let secs = |detail: &StepDetail| detail.window.steady_secs;
        // All parts share one server, and it cannot say which work it did for which part.
        let servers = match kind {
            MergeKind::Runs => details,
            MergeKind::Parts => &[],
        };
        Self {
            client_cpu_pct: mean(details, |detail| detail.cost.client_cpu_pct, secs),
            server_cpu_pct: mean(servers, |detail| detail.cost.server_cpu_pct, secs),
            client_ns_per_message: mean(details, |one| one.cost.client_ns_per_message, messages),
            server_ns_per_message: mean(servers, |one| one.cost.server_ns_per_message, messages),
            steal_pct: mean(details, |detail| detail.cost.steal_pct, secs),
            client_lanes: merge_lanes(details, |cost| cost.client_lanes),
            server_lanes: merge_lanes(servers, |cost| cost.server_lanes),
        }
    }
}

/// The work of lanes for a message, sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneCost {
    /// System calls to wait, read and write.
    pub system_calls_per_message: f64,
    /// Allocations, if the program counts them.
    pub allocations_per_message: Option<f64>,
    /// Bytes of those allocations.
    pub allocated_bytes_per_message: Option<f64>,
}

impl LaneCost {
    /// The share of each of `messages`; nothing without any.
    pub(crate) fn of(account: &LaneAccount, messages: u64) -> Option<Self> {
        let share = |count: u64| count as f64 / messages as f64;
        (messages > 0).then(|| Self {
            system_calls_per_message: share(account.system_calls),
            allocations_per_message: account.allocations.map(share),
            allocated_bytes_per_message: account.allocated_bytes.map(share),
        })
    }
}

fn merge_lanes(details: &[&StepDetail], side: fn(&Cost) -> Option<LaneCost>) -> Option<LaneCost> {
    let mean_of = |figure: fn(&LaneCost) -> Option<f64>| {
        mean(details, |detail| figure(&side(&detail.cost)?), messages)
    };
    Some(LaneCost {
        system_calls_per_message: mean_of(|lanes| Some(lanes.system_calls_per_message))?,
        allocations_per_message: mean_of(|lanes| lanes.allocations_per_message),
        allocated_bytes_per_message: mean_of(|lanes| lanes.allocated_bytes_per_message),
    })
}

fn mean(
    details: &[&StepDetail],
    value: impl Fn(&StepDetail) -> Option<f64>,
    weight: impl Fn(&StepDetail) -> f64,
) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for detail in details {
        sum += value(detail)? * weight(detail);
        weights += weight(detail);
    }
    (weights > 0.0).then(|| sum / weights)
}

fn messages(detail: &StepDetail) -> f64 {
    (detail.counts.steady_sent + detail.counts.steady_received) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(system_calls: u64, allocations: Option<u64>) -> LaneAccount {
        LaneAccount {
            system_calls,
            allocations,
            allocated_bytes: allocations.map(|count| count * 64),
        }
    }

    #[test]
    fn an_account_is_shared_among_messages_if_there_are_any() {
        assert_eq!(LaneCost::of(&account(3, Some(1)), 0), None);
        let cost = LaneCost::of(&account(3, Some(1)), 4).unwrap();
        assert_eq!(cost.system_calls_per_message, 0.75);
        assert_eq!(cost.allocations_per_message, Some(0.25));
        assert_eq!(cost.allocated_bytes_per_message, Some(16.0));
        let unknown = LaneCost::of(&account(3, None), 4).unwrap();
        assert_eq!(unknown.allocations_per_message, None);
    }
}
