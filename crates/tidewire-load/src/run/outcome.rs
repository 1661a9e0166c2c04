//! What the lanes of a step found, added up and closed.

use crate::agents::LaneResult;
use crate::ledger::{ReceiverTotals, SentTotals, needs_checksums};
use crate::statistics::LatencyHistogram;

/// The closed accounts of a step.
pub(super) struct Outcome {
    pub(super) sent: u64,
    pub(super) send_errors: u64,
    pub(super) steady_sent: u64,
    pub(super) steady_received: u64,
    pub(super) totals: ReceiverTotals,
    pub(super) latency_send: LatencyHistogram,
    pub(super) send_lag: LatencyHistogram,
    pub(super) problems: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Outcome {
    pub(super) fn of(results: Vec<LaneResult>, members: usize) -> Self {
        let mut sent_by_sender = vec![0; members];
        for (index, _, sent) in results.iter().flat_map(|result| &result.agents) {
            sent_by_sender[*index] = *sent;
        }
        let sent = SentTotals::new(sent_by_sender, needs_checksums(members));
        let mut outcome = Self {
            sent: sent.sum(),
            send_errors: 0,
            steady_sent: 0,
            steady_received: 0,
            totals: ReceiverTotals::default(),
            latency_send: LatencyHistogram::new(),
            send_lag: LatencyHistogram::new(),
            problems: Vec::new(),
            notes: Vec::new(),
        };
        let (mut gaps, mut disconnects, mut causes) = (0, Vec::new(), Vec::new());
        for result in results {
            for (index, ledger, _) in &result.agents {
                if let Some(ledger) = ledger {
                    outcome.totals.merge(&ledger.finish(&sent, *index));
                }
            }
            outcome.send_errors += result.send_errors;
            outcome.steady_sent += result.steady_sent;
            outcome.steady_received += result.steady_received;
            outcome.latency_send.merge(&result.latency_send);
            outcome.send_lag.merge(&result.send_lag);
            gaps += result.gaps;
            disconnects.extend(result.disconnects);
            causes.extend(result.failures);
        }
        if let Some(reason) = disconnects.first() {
            let count = disconnects.len();
            outcome.problems.push(format!(
                "{count} agents lost their connection; the first: {reason}"
            ));
        }
        if gaps > 0 {
            outcome.notes.push(format!(
                "the server itself announced {gaps} dropped messages"
            ));
        }
        causes.sort();
        causes.dedup();
        outcome.notes.extend(
            causes
                .into_iter()
                .map(|cause| format!("login or send: {cause}")),
        );
        outcome
    }
}
