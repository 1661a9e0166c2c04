//! When to log that handlers fail: a peer that makes them fail must not fill the log.

use crate::limits::REFUSAL_QUIET_NS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    quiet_until_ns: u64,
    unlogged: u64,
}

impl FailureLog {
    /// Whether this failure is logged; then also how many before it were not.
    pub(crate) fn may_log(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.quiet_until_ns {
            self.unlogged += 1;
            return None;
        }
        self.quiet_until_ns = now_ns.saturating_add(REFUSAL_QUIET_NS);
        Some(std::mem::take(&mut self.unlogged))
    }
}
