//! The cost of a message on each side: processor time, system calls, allocations.

use serde::{Deserialize, Serialize};

use crate::lane_account::LaneAccount;

/// The cost of a step in its steady window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// The work of lanes for a message, sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
