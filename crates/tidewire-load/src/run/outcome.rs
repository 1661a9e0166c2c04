//! What the lanes of a step found, added up and closed.

use crate::agents::{AgentResult, Confirmed, Counts, LaneResult};
use crate::ledger::{ReceiverTotals, SentTotals, needs_checksums};
use crate::report::{FanOutShare, ReceiverFigures, SlowReceivers};
use crate::scenario::{Pattern, Step};
use crate::segment::Segment;

/// The closed accounts of a step.
pub(super) struct Outcome {
    pub(super) sent: u64,
    pub(super) counts: Counts,
    pub(super) totals: ReceiverTotals,
    /// The receivers with most amiss, worst first.
    pub(super) worst_receivers: Vec<ReceiverFigures>,
    /// What became of the receivers that were slow on purpose; not in `totals`.
    pub(super) slow: Option<SlowReceivers>,
    /// What the other parts of a fan-out have to know.
    pub(super) fan_out_share: Option<FanOutShare>,
    pub(super) problems: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Outcome {
    pub(super) fn of(results: Vec<LaneResult>, step: &Step, segment: Segment) -> Self {
        let mut outcome = Self {
            sent: 0,
            counts: Counts::default(),
            totals: ReceiverTotals::default(),
            worst_receivers: Vec::new(),
            slow: None,
            fan_out_share: None,
            problems: Vec::new(),
            notes: Vec::new(),
        };
        let (mut agents, mut disconnects, mut causes) = (Vec::new(), Vec::new(), Vec::new());
        for result in results {
            outcome.counts.add(&result.counts);
            agents.extend(result.agents);
            disconnects.extend(result.disconnects);
            causes.extend(result.failures);
        }
        outcome.close(&agents, step, segment);
        if let Some(reason) = disconnects.first() {
            let count = disconnects.len();
            outcome.problems.push(format!(
                "{count} agents lost their connection; the first: {reason}"
            ));
        }
        let gaps = outcome.counts.gaps;
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

    fn close(&mut self, agents: &[AgentResult], step: &Step, segment: Segment) {
        let members = step.concurrency as usize;
        let mut sent_by_sender = vec![0; members];
        for agent in agents {
            if let Some(sent) = sent_by_sender.get_mut(agent.index as usize) {
                *sent = agent.sent;
            }
        }
        self.sent = sent_by_sender.iter().sum();
        let is_share = step.pattern.is_fan_out() && !segment.is_whole();
        if is_share {
            let share = share_of(agents, &sent_by_sender, segment);
            // What came from other parts is accounted for as far as it was heard; merging adds what was not.
            for (sender, heard) in &share.heard {
                sent_by_sender[*sender as usize] = *heard;
            }
            self.fan_out_share = Some(share);
        }
        let checksums = step.pattern.is_fan_out() && needs_checksums(members);
        let sent = SentTotals::new(sent_by_sender, checksums);
        let mut slow = ReceiverTotals::default();
        let mut worst = Vec::new();
        let mut in_order = 0;
        for agent in agents {
            let Some(totals) = totals_of(agent, step.pattern, &sent) else {
                continue;
            };
            in_order += u64::from(agent.confirmed == Some(Confirmed::InOrder));
            if agent.is_slow {
                slow.merge(&totals);
            } else {
                self.totals.merge(&totals);
                worst.push(ReceiverFigures::of(agent.index, &totals));
            }
        }
        if in_order > 0 {
            self.notes.push(
                "the server does not count what it gets; that it has everything follows from its answer to a \
                 request behind the last message"
                    .to_owned(),
            );
        }
        worst.retain(ReceiverFigures::is_amiss);
        worst.sort_by_key(|figures| {
            std::cmp::Reverse((figures.amiss(), u32::MAX - figures.receiver))
        });
        worst.truncate(WORST_MAX);
        self.worst_receivers = worst;
        self.slow = (step.slow_receivers > 0).then(|| SlowReceivers {
            receivers: u64::from(step.slow_receivers),
            expected: slow.expected,
            delivered: slow.delivered,
            lost: slow.lost,
            disconnected: 0,
        });
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.skipped += other.skipped;
        self.unsent += other.unsent;
        self.send_errors += other.send_errors;
        self.timeouts += other.timeouts;
        self.late_replies += other.late_replies;
        self.refused += other.refused;
        self.sent_unknown += other.sent_unknown;
        // Lanes have their largest numbers at different times, so this is a bound from above.
        self.in_flight_max += other.in_flight_max;
        self.steady_offered += other.steady_offered;
        self.steady_sent += other.steady_sent;
        self.steady_received += other.steady_received;
        self.gaps += other.gaps;
    }
}

/// The closed account of one agent; nothing if it was never logged in.
fn totals_of(agent: &AgentResult, pattern: Pattern, sent: &SentTotals) -> Option<ReceiverTotals> {
    match pattern {
        Pattern::Chat => Some(agent.ledger.as_ref()?.finish(sent, agent.index as usize)),
        // A subscriber hears its own messages too.
        Pattern::PubSub => Some(agent.ledger.as_ref()?.finish(sent, usize::MAX)),
        Pattern::Echo | Pattern::Request => {
            let sent = SentTotals::new(vec![agent.sent], false);
            Some(agent.ledger.as_ref()?.finish(&sent, usize::MAX))
        }
        Pattern::Ingest => (agent.sent > 0).then(|| confirmed_totals(agent)),
    }
}

/// What this part has to tell the others.
fn share_of(agents: &[AgentResult], sent_by_sender: &[u64], segment: Segment) -> FanOutShare {
    let mut share = FanOutShare::default();
    let ledgers = || agents.iter().filter_map(|agent| agent.ledger.as_ref());
    share.receivers = ledgers().count() as u64;
    for (sender, sent) in (0..).zip(sent_by_sender) {
        if segment.has(sender) {
            share.sent.push((sender, *sent));
        } else {
            let heard = ledgers().map(|ledger| ledger.highest(sender as usize));
            let heard = heard.max().unwrap_or(0).min(HEARD_MAX);
            share.heard.push((sender, heard));
        }
    }
    share
}

/// A server's own count in the form of a receiver's account.
fn confirmed_totals(agent: &AgentResult) -> ReceiverTotals {
    let arrived = match agent.confirmed {
        Some(Confirmed::InOrder) => agent.sent,
        Some(Confirmed::Count(count)) => count,
        None => 0,
    };
    let delivered = arrived.min(agent.sent);
    ReceiverTotals {
        receivers: 1,
        receivers_tracked: 1,
        expected: agent.sent,
        delivered,
        lost: agent.sent - delivered,
        invented: arrived - delivered,
        arrived,
        ..ReceiverTotals::default()
    }
}

/// The last message of a sender that is believed to be one: a number that a server made up must not make sums overflow.
const HEARD_MAX: u64 = 1 << 40;

/// Receivers that the report names.
const WORST_MAX: usize = 10;
