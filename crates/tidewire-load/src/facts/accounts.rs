//! The accounts of a step: the results of its lanes, added up and closed.

use super::causes::{Ending, ends_of, losses_of};
use crate::exchange::{AgentResult, Confirmation, Counts, LaneResult};
use crate::format::counted;
use crate::ledger::{Breaks, Losses, ReceiverTotals, SentTotals, needs_checksums};
use crate::report::{FanOutShare, ReceiverFigures, SlowReceivers};
use crate::scenario::{Pattern, Step, breaks, node_name};
use crate::segment::Segment;

/// The closed accounts of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accounts {
    pub(crate) sent: u64,
    pub(crate) counts: Counts,
    pub(crate) totals: ReceiverTotals,
    /// The causes of what is lost in `totals`, in a fan-out.
    pub(crate) losses: Losses,
    /// The receivers with most amiss, worst first.
    pub(crate) worst_receivers: Vec<ReceiverFigures>,
    /// The fate of messages at receivers that were slow on purpose; not in `totals`.
    pub(crate) slow: Option<SlowReceivers>,
    /// The share of a fan-out that the other parts have to know.
    pub(crate) fan_out_share: Option<FanOutShare>,
    pub(crate) problems: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl Accounts {
    pub(crate) fn of(
        results: Vec<LaneResult>,
        step: &Step,
        segment: Segment,
        ending: Ending,
    ) -> Self {
        let mut accounts = Self::default();
        let (mut agents, mut disconnects, mut causes) = (Vec::new(), Vec::new(), Vec::new());
        for result in results {
            accounts.counts.add(&result.counts);
            agents.extend(result.agents);
            disconnects.extend(result.disconnects);
            causes.extend(result.failures);
        }
        accounts.close(&agents, step, segment, ending);
        if let Some(reason) = disconnects.first() {
            let count = disconnects.len();
            let told = format!("{count} agents lost their connection; the first: {reason}");
            if step.faults.is_empty() {
                accounts.problems.push(told);
            } else {
                accounts.notes.push(told);
                accounts.judge_breaks(&agents, step);
            }
        }
        let told = |sum: u64, agent: &AgentResult| sum.saturating_add(agent.told);
        let gaps = agents.iter().fold(0, told);
        if gaps > 0 {
            accounts.notes.push(format!(
                "the server itself announced {gaps} dropped messages"
            ));
        }
        let unknown = agents.iter().map(|agent| agent.told_unknown).sum();
        let announced = accounts.counts.announced;
        accounts.notes.extend(counted(&[
            (
                unknown,
                "times an agent was told that messages may be missing, and not how many",
            ),
            (
                announced,
                "messages of the room itself arrived, which belong to no sender",
            ),
        ]));
        causes.sort();
        causes.dedup();
        let causes = causes.into_iter();
        let told = causes.map(|cause| format!("login or send: {cause}"));
        accounts.notes.extend(told);
        accounts
    }

    /// Tells of connections that ended without a fault of their node, and of those that are not back although it runs:
    /// their losses have causes, and the server is at fault all the same.
    fn judge_breaks(&mut self, agents: &[AgentResult], step: &Step) {
        let (mut ended, mut gone) = (0, 0);
        for agent in agents {
            let (breaks, runs) = breaks(&step.faults, &node_name(agent.node + 1));
            let absences = &agent.absences;
            ended += absences.len().saturating_sub(breaks) as u64;
            let is_gone = absences.last().is_some_and(|it| it.at_return.is_none());
            gone += u64::from(is_gone && runs);
        }
        self.problems.extend(counted(&[
            (
                ended,
                "connections ended that no fault of their node explains",
            ),
            (
                gone,
                "agents did not get their connection back, though no fault holds up their node",
            ),
        ]));
    }

    fn close(&mut self, agents: &[AgentResult], step: &Step, segment: Segment, ending: Ending) {
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
            let share = share_of(agents, &sent_by_sender, segment, ending);
            // Messages of other parts are accounted for as far as they were heard; merging adds the others.
            for (sender, heard) in &share.heard {
                sent_by_sender[*sender as usize] = *heard;
            }
            self.fan_out_share = Some(share);
        }
        let mut under_way = vec![0; members];
        if step.pattern.is_fan_out() {
            set_apart_under_way(&mut under_way, &mut sent_by_sender, agents, ending);
        }
        let checksums = step.pattern.is_fan_out() && needs_checksums(members);
        let sent = SentTotals::new(sent_by_sender, checksums);
        let breaks = Breaks {
            sent: sent.by_sender(),
            ends: &ends_of(agents, members, ending),
        };
        let under_way_sum: u64 = under_way.iter().sum();
        let mut slow = ReceiverTotals::default();
        let (mut worst, mut in_order) = (Vec::new(), 0);
        for agent in agents {
            let Some(mut totals) = totals_of(agent, step.pattern, &sent, ending) else {
                continue;
            };
            if step.pattern.is_fan_out() {
                let own = under_way.get(agent.index as usize).copied();
                let own = own.filter(|_| step.pattern == Pattern::Chat).unwrap_or(0);
                totals.unconfirmed += under_way_sum - own;
                totals.expected += under_way_sum - own;
            }
            in_order += u64::from(agent.confirmed == Some(Confirmation::InOrder));
            if agent.is_slow {
                slow.merge(&totals);
            } else {
                self.losses
                    .merge(&losses_of(agent, &totals, step.pattern, &breaks));
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
            unconfirmed: slow.unconfirmed,
            disconnected: 0,
        });
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.work.add(&other.work);
        // Lanes have their largest numbers at different times, so this is a bound from above.
        self.work.in_flight_max += other.work.in_flight_max;
        add_fields!(self, other;
            steady_overdue steady_on_time steady_held steady_late_replies steady_unanswered steady_unanswered_ns send_errors
            announced);
    }
}

/// Moves the last messages of each sender from `sent` to `under_way`: those after the last one that any receiver got.
/// They may be lost or still on their way.
fn set_apart_under_way(
    under_way: &mut [u64],
    sent: &mut [u64],
    agents: &[AgentResult],
    ending: Ending,
) {
    for agent in agents.iter().filter(|agent| ending.may_be_under_way(agent)) {
        let sender = agent.index as usize;
        let ledgers = agents.iter().filter_map(|agent| agent.ledger.as_ref());
        let heard = ledgers.map(|ledger| ledger.highest(sender)).max();
        if let (Some(sent), Some(under_way)) = (sent.get_mut(sender), under_way.get_mut(sender)) {
            *under_way = sent.saturating_sub(heard.unwrap_or(0));
            *sent -= *under_way;
        }
    }
}

/// The closed account of one agent; nothing if it was never logged in.
fn totals_of(
    agent: &AgentResult,
    pattern: Pattern,
    sent: &SentTotals,
    ending: Ending,
) -> Option<ReceiverTotals> {
    match pattern {
        Pattern::Chat => Some(agent.ledger.as_ref()?.finish(sent, agent.index as usize)),
        // A subscriber hears its own messages too.
        Pattern::PubSub => Some(agent.ledger.as_ref()?.finish(sent, usize::MAX)),
        Pattern::Echo | Pattern::Request => {
            let sent = SentTotals::new(vec![agent.sent], false);
            let mut totals = agent.ledger.as_ref()?.finish(&sent, usize::MAX);
            if ending.may_be_under_way(agent) {
                // Replies come in any order, so that a later one says nothing of those that are missing.
                totals.unconfirmed = std::mem::take(&mut totals.lost);
            }
            Some(totals)
        }
        Pattern::Ingest => (agent.sent > 0).then(|| confirmed_totals(agent, ending)),
    }
}

/// The share that this part reports to the others.
fn share_of(
    agents: &[AgentResult],
    sent_by_sender: &[u64],
    segment: Segment,
    ending: Ending,
) -> FanOutShare {
    let under_way = agents.iter().filter(|agent| ending.may_be_under_way(agent));
    let mut share = FanOutShare {
        is_cut_off: ending.is_cut_off,
        under_way: under_way.map(|agent| agent.index).collect(),
        ..FanOutShare::default()
    };
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
fn confirmed_totals(agent: &AgentResult, ending: Ending) -> ReceiverTotals {
    // A server that did not answer may have received everything, so its messages are unconfirmed. An answer to a later
    // request confirms the earlier messages only where the transport cannot lose them.
    let (arrived, unconfirmed) = match agent.confirmed {
        Some(Confirmation::InOrder) if !ending.is_lossy => (agent.sent, 0),
        Some(Confirmation::Count(count)) => (count, 0),
        Some(Confirmation::InOrder) | None => (0, agent.sent),
    };
    let delivered = arrived.min(agent.sent);
    ReceiverTotals {
        receivers: 1,
        receivers_tracked: 1,
        expected: agent.sent,
        delivered,
        lost: agent.sent - delivered - unconfirmed,
        unconfirmed,
        invented: arrived - delivered,
        arrived,
        ..ReceiverTotals::default()
    }
}

/// The last message of a sender that is believed to be one: a number that a server made up must not make sums overflow.
const HEARD_MAX: u64 = 1 << 40;

/// Receivers that the report names.
const WORST_MAX: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Absence, Ledger};
    use crate::scenario::ThinkTime;

    /// Two agents that sent ten messages each, of which seven arrived wherever they were to arrive.
    fn results(pattern: Pattern) -> Vec<LaneResult> {
        let agent = |index: u32| {
            let own = usize::try_from(index).unwrap();
            let mut ledger = match pattern {
                Pattern::Chat | Pattern::PubSub => Ledger::for_member(own, 2, 1_000),
                _ => Ledger::for_member(0, 1, 1_000),
            };
            let senders = match pattern {
                Pattern::Chat => vec![1 - index],
                Pattern::PubSub => vec![0, 1],
                _ => vec![0],
            };
            for sender in senders {
                // The third is missing between others, and two at the end.
                for sequence in [1, 2, 4, 5, 6, 7, 8] {
                    ledger.record(sender, sequence, 0);
                }
            }
            AgentResult {
                index,
                node: 0,
                is_slow: false,
                sent: 10,
                ledger: (pattern != Pattern::Ingest).then_some(ledger),
                confirmed: None,
                absences: Vec::new(),
                told: 0,
                told_unknown: 0,
                is_backed_up: index == 0,
            }
        };
        vec![LaneResult {
            agents: vec![agent(0), agent(1)],
            ..LaneResult::default()
        }]
    }

    fn fates(pattern: Pattern, ending: Ending) -> [u64; 4] {
        let think_time = ThinkTime {
            min_ms: 1.0,
            max_ms: 1.0,
        };
        let mut step = Step::chat("two", 2, 1.0, think_time);
        step.pattern = pattern;
        let totals = Accounts::of(results(pattern), &step, Segment::WHOLE, ending).totals;
        assert!(totals.is_conserved(), "{totals:?}");
        [
            totals.expected,
            totals.delivered,
            totals.lost,
            totals.unconfirmed,
        ]
    }

    #[test]
    fn what_may_still_be_on_its_way_is_unconfirmed_in_every_pattern() {
        let complete = Ending::default();
        let cut_off = Ending {
            is_cut_off: true,
            ..complete
        };
        // The first agent's messages were not all written. A message that is missing between received ones is lost
        // nevertheless, because one connection carries them in order.
        let cases = [
            (Pattern::Chat, complete, [20, 14, 4, 2]),
            (Pattern::Chat, cut_off, [20, 14, 2, 4]),
            (Pattern::PubSub, complete, [40, 28, 8, 4]),
            (Pattern::PubSub, cut_off, [40, 28, 4, 8]),
            (Pattern::Echo, complete, [20, 14, 3, 3]),
            (Pattern::Echo, cut_off, [20, 14, 0, 6]),
            (Pattern::Request, complete, [20, 14, 3, 3]),
            (Pattern::Request, cut_off, [20, 14, 0, 6]),
            (Pattern::Ingest, complete, [20, 0, 0, 20]),
        ];
        for (pattern, ending, expected) in cases {
            assert_eq!(fates(pattern, ending), expected, "{pattern:?} {ending:?}");
        }
    }

    #[test]
    fn where_a_history_is_kept_what_one_receiver_got_is_owed_to_all() {
        let agent = |index: u32, got: u64| {
            let mut ledger = Ledger::for_member(index as usize, 3, 1_000);
            for sequence in 1..=got {
                ledger.record(0, sequence, 0);
            }
            let absence = |own_sent| Absence {
                own_sent,
                own_kept: 0,
                at_end: [0; 3].into(),
                at_return: Some([0; 3].into()),
            };
            AgentResult {
                index,
                node: 0,
                is_slow: false,
                sent: if index == 0 { 10 } else { 0 },
                ledger: Some(ledger),
                confirmed: None,
                absences: (index == 0).then(|| absence(10)).into_iter().collect(),
                told: 0,
                told_unknown: 0,
                is_backed_up: false,
            }
        };
        let think_time = ThinkTime {
            min_ms: 1.0,
            max_ms: 1.0,
        };
        let step = Step::chat("three", 3, 1.0, think_time);
        let losses = |keeps_history, own_kept| {
            let mut agents = vec![agent(0, 0), agent(1, 7), agent(2, 8)];
            agents[0].absences[0].own_kept = own_kept;
            let ending = Ending {
                keeps_history,
                ..Ending::default()
            };
            let results = vec![LaneResult {
                agents,
                ..LaneResult::default()
            }];
            let losses = Accounts::of(results, &step, Segment::WHOLE, ending).losses;
            (losses.sender_cut, losses.unexplained)
        };
        assert_eq!(losses(false, 0), (5, 0));
        assert_eq!(losses(true, 0), (4, 1));
        assert_eq!(losses(true, 9), (2, 3), "it came back to its author");
    }

    #[test]
    fn an_answer_behind_the_messages_proves_them_only_where_none_can_be_lost_before_it() {
        let agent = |confirmed| AgentResult {
            index: 0,
            node: 0,
            is_slow: false,
            sent: 10,
            ledger: None,
            confirmed: Some(confirmed),
            absences: Vec::new(),
            told: 0,
            told_unknown: 0,
            is_backed_up: false,
        };
        let fates = |confirmed, is_lossy| {
            let ending = Ending {
                is_lossy,
                ..Ending::default()
            };
            let totals = confirmed_totals(&agent(confirmed), ending);
            (totals.delivered, totals.lost, totals.unconfirmed)
        };
        assert_eq!(fates(Confirmation::InOrder, false), (10, 0, 0));
        assert_eq!(fates(Confirmation::InOrder, true), (0, 0, 10));
        assert_eq!(fates(Confirmation::Count(7), true), (7, 3, 0));
    }
}
