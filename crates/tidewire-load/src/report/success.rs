//! The shares of success and attainment. Success has one definition. It counts each failure by the deliveries that it
//! costs in its pattern.
//! Success is the number of known deliveries divided by the number that should have arrived: the deliveries expected
//! of sent messages, and those that were prevented by a failure before the send. A failure counts as the deliveries
//! that it cost. If it counted as one, failures would be invisible beside the millions of deliveries of a room.
//!
//! | pattern | a message that could not be sent | an agent that could not log in |
//! |---|---|---|
//! | ingest, echo, request | 1 | what the others sent on average |
//! | chat | one to every other agent | all that was sent, which it would have heard |
//! | pubsub | one to every agent, the sender too | the same |
//! A receiver whose account does not match counts as one delivery in all patterns. Messages that were due and never
//! sent are not part of success: they were not tried, and have their own count.

use super::StepDetail;
use crate::scenario::Pattern;

/// Failures that never became expected deliveries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failures {
    pub(super) pattern: Pattern,
    /// Agents that should receive, logged in or not.
    pub(super) receivers: u64,
    /// Agents that logged in, of those that send.
    pub(super) logged_in: u64,
    pub(super) sent: u64,
    pub(super) logins: u64,
    pub(super) sends: u64,
    pub(super) receivers_unresolved: u64,
}

impl Failures {
    /// The deliveries that these failures cost.
    pub(super) fn deliveries(self) -> u64 {
        let by_message = self.pattern.receivers(self.receivers);
        let by_login = if self.pattern.is_fan_out() {
            self.sent
        } else {
            self.sent.div_ceil(self.logged_in.max(1))
        };
        let sends = self.sends.saturating_mul(by_message.max(1));
        let logins = self.logins.saturating_mul(by_login.max(1));
        logins
            .saturating_add(sends)
            .saturating_add(self.receivers_unresolved)
    }
}

/// Returns the share of success. It is below 1.0 if anything failed. If no delivery was expected, it is 1.0 if
/// messages were sent (to nobody), and 0.0 if none was sent.
pub(super) fn success_rate(sent: u64, delivered: u64, expected: u64, failures: u64) -> f64 {
    let attempted = expected.saturating_add(failures);
    if attempted == 0 {
        return if sent > 0 { 1.0 } else { 0.0 };
    }
    let share = delivered as f64 / attempted as f64;
    // From 2^53 on two neighbouring counts are the same floating-point number.
    if delivered < attempted {
        share.min(1.0_f64.next_down())
    } else {
        share
    }
}

/// Returns the share of the offered load that was sent in time. In an open step it is counted over the messages due
/// in the window; in others it is the ratio of the rates.
pub(super) fn attainment(detail: &StepDetail, send_tps: f64, theoretical_tps: f64) -> f64 {
    match detail.on_time_share() {
        Some(share) => share,
        None if theoretical_tps > 0.0 => send_tps / theoretical_tps,
        None => 0.0,
    }
}

impl StepDetail {
    /// Whether its times were fixed in advance.
    pub(super) fn is_open(&self) -> bool {
        self.workload.model == "open"
    }

    /// The share of the messages due in the steady window that were sent before it ended, at most 1. Only an open step
    /// has one.
    pub(super) fn on_time_share(&self) -> Option<f64> {
        let on_time = self.counts.steady_on_time.filter(|_| self.is_open())?;
        Some(on_time as f64 / self.counts.steady_offered.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty agents. The expected deliveries are those of the messages that were sent, to the agents that logged in.
    fn success(pattern: Pattern, sent: u64, sends: u64, logins: u64, expected: u64) -> f64 {
        let failures = Failures {
            pattern,
            receivers: 20,
            logged_in: 20 - logins,
            sent,
            logins,
            sends,
            receivers_unresolved: 0,
        };
        success_rate(sent, expected, expected, failures.deliveries())
    }

    #[test]
    fn success_has_one_definition_for_each_pattern() {
        use Pattern::{Chat, Echo, Ingest, PubSub, Request};
        let cases = [
            // One message in ten could not be sent: nine tenths, whoever they are owed to.
            (Ingest, 900, 100, 0, 900, 0.9),
            (Echo, 900, 100, 0, 900, 0.9),
            (Request, 900, 100, 0, 900, 0.9),
            (Chat, 900, 100, 0, 900 * 19, 0.9),
            (PubSub, 900, 100, 0, 900 * 20, 0.9),
            // One agent in twenty could not log in and sent nothing. In a fan-out it also heard nothing.
            (Ingest, 1_900, 0, 1, 1_900, 0.95),
            (Echo, 1_900, 0, 1, 1_900, 0.95),
            (Request, 1_900, 0, 1, 1_900, 0.95),
            (Chat, 1_900, 0, 1, 1_900 * 18, 18.0 / 19.0),
            (PubSub, 1_900, 0, 1, 1_900 * 19, 0.95),
            // No agent could log in, or no message could be sent.
            (Echo, 0, 0, 20, 0, 0.0),
            (Chat, 0, 7, 0, 0, 0.0),
            (Ingest, 5, 0, 0, 5, 1.0),
        ];
        for (pattern, sent, sends, logins, expected, success_rate) in cases {
            let found = success(pattern, sent, sends, logins, expected);
            assert!(
                (found - success_rate).abs() < 1e-12,
                "{pattern:?}, {sends} sends and {logins} logins failed: {found}"
            );
        }
    }

    #[test]
    fn a_room_of_one_still_has_failures() {
        let alone = Failures {
            pattern: Pattern::Chat,
            receivers: 1,
            logged_in: 1,
            sent: 5,
            logins: 0,
            sends: 1,
            receivers_unresolved: 0,
        };
        assert_eq!(alone.deliveries(), 1);
    }
}
