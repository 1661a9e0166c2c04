//! Limits how often one kind of event is logged, so that a peer or a lasting failure cannot fill the log.

/// Allows one line of a kind in ten seconds, and counts the lines between.
#[derive(Debug, Default)]
pub(crate) struct QuietLog {
    quiet_until_ns: u64,
    unlogged: u64,
}

impl QuietLog {
    /// Returns whether to log this event: `Some` with the number of events that were not logged before it, or `None`.
    pub(crate) fn may_log(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.quiet_until_ns {
            self.unlogged += 1;
            return None;
        }
        self.quiet_until_ns = now_ns.saturating_add(QUIET_NS);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// The time between two lines of a kind: an operator soon sees that the events continue, and a day has at most 8,640
/// lines.
pub(crate) const QUIET_NS: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_ten_seconds_is_logged_and_the_others_are_counted() {
        let mut log = QuietLog::default();
        assert_eq!(log.may_log(0), Some(0));
        assert_eq!(log.may_log(1), None);
        assert_eq!(log.may_log(QUIET_NS - 1), None);
        assert_eq!(log.may_log(QUIET_NS), Some(2));
        assert_eq!(log.may_log(QUIET_NS + 1), None);
        assert_eq!(log.may_log(u64::MAX - 1), Some(1));
        assert_eq!(log.may_log(u64::MAX), Some(0), "no later time is left");
    }
}
