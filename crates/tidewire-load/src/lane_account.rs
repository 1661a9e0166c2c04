//! The work of one side's lanes besides processor time: system calls and allocations.
//!
//! Lanes count both themselves ([`Metrics`]), which costs nothing worth mentioning; tracing a process from outside
//! costs a multiple of what is measured. So they are known of the instrument's own lanes, and of a server that can be
//! asked: one that this program has started. Of any other they are not known, and the report says so.

use serde::{Deserialize, Serialize};
use tidewire::metrics::Metrics;
use tidewire_io::allocation::is_counting;

/// The account of all lanes of a process up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneAccount {
    /// System calls to wait, read and write.
    pub system_calls: u64,
    /// Allocations; nothing where the program does not count them.
    pub allocations: Option<u64>,
    /// Bytes of those.
    pub allocated_bytes: Option<u64>,
}

impl LaneAccount {
    /// The account of lanes of this process.
    pub fn of(metrics: &Metrics) -> Self {
        let counted = |count: u64| is_counting().then_some(count);
        Self {
            system_calls: metrics.system_calls,
            allocations: counted(metrics.allocations),
            allocated_bytes: counted(metrics.allocated_bytes),
        }
    }

    /// This and what other lanes did.
    pub fn and(&self, other: &Self) -> Self {
        self.with(other, |one, other| one + other)
    }

    /// The difference between an earlier account of the same lanes and this one.
    pub fn since(&self, earlier: &Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    fn with(&self, other: &Self, count: fn(u64, u64) -> u64) -> Self {
        let known = |one: Option<u64>, other: Option<u64>| Some(count(one?, other?));
        Self {
            system_calls: count(self.system_calls, other.system_calls),
            allocations: known(self.allocations, other.allocations),
            allocated_bytes: known(self.allocated_bytes, other.allocated_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(system_calls: u64, allocations: Option<u64>) -> LaneAccount {
        LaneAccount {
            system_calls,
            allocations,
            allocated_bytes: allocations.map(|count| count * 10),
        }
    }

    #[test]
    fn what_one_side_does_not_know_is_not_known() {
        let (known, unknown) = (account(7, Some(3)), account(5, None));
        assert_eq!(known.since(&account(2, Some(1))), account(5, Some(2)));
        assert_eq!(known.and(&account(2, Some(1))), account(9, Some(4)));
        assert_eq!(known.and(&unknown), account(12, None));
        assert_eq!(known.since(&unknown), account(2, None));
    }

    #[test]
    fn it_travels_as_a_line() {
        for account in [account(7, Some(3)), account(5, None)] {
            let line = serde_json::to_string(&account).unwrap();
            assert_eq!(serde_json::from_str::<LaneAccount>(&line).unwrap(), account);
        }
    }
}
