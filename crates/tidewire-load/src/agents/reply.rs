//! Replies at their sender: matching, checking, giving up.

use tidewire::{Context, Kind, Message};
use tidewire_proto::body::ErrorBody;

use super::flight::ReplyMatch;
use super::{Agents, JOIN_ID, Pace};
use crate::body;
use crate::exchange::Confirmation;
use crate::ledger::Fate;
use crate::stamp::Stamp;

impl Agents {
    pub(super) fn handle_reply(&mut self, slot: usize, now_ns: u64, message: &Message<'_>) {
        // The request that the answer's id, or its turn, says it is to. Its content must say the same.
        let agent = &mut self.agents[slot];
        let asked = agent
            .correlator
            .as_mut()
            .and_then(|correlator| correlator.answer(message.id));
        if message.kind == Kind::Error {
            self.result.counts.work.refused += 1;
            self.note_failure(|| {
                let body = ErrorBody::decode(message.payload);
                let text = body.map_or("no reason given", |body| body.text);
                format!("a request was refused: {text}")
            });
            return self.resolve(slot, asked, now_ns);
        }
        let Some(ledger) = agent.ledger.as_mut() else {
            return;
        };
        let Some(stamp) = Stamp::decode(message.payload) else {
            ledger.tally().record_corrupt();
            return self.resolve(slot, asked, now_ns);
        };
        let is_ours = stamp.run == self.plan.run
            && stamp.step == self.plan.number
            && stamp.sender == agent.index;
        if !is_ours || asked.is_some_and(|sequence| sequence != stamp.sequence) {
            ledger.tally().record_foreign();
            return self.resolve(slot, asked, now_ns);
        }
        if !body::is_whole(&stamp, message.payload, self.payload.len()) {
            ledger.tally().record_corrupt();
            return self.resolve(slot, asked, now_ns);
        }
        let delay_ns = now_ns.saturating_sub(stamp.intended_ns);
        let fate = ledger.record(0, stamp.sequence, delay_ns);
        if !matches!(fate, Fate::New | Fate::Reordered) {
            return self.resolve(slot, asked, now_ns);
        }
        self.received += 1;
        self.result.counts.work.steady_received += u64::from(self.is_steady(now_ns));
        let answered = self.agents[slot].flight.answer(stamp.sequence);
        let steady = self.is_steady(stamp.intended_ns);
        if steady {
            self.times.scheduled.record(delay_ns);
        } else {
            self.times.outside.record(delay_ns);
        }
        match answered {
            ReplyMatch::InTime { sent_ns } => {
                self.record_service(steady, now_ns, sent_ns);
                self.free(slot, now_ns);
            }
            ReplyMatch::Late { sent_ns } => {
                self.record_service(steady, now_ns, sent_ns);
                self.result.counts.work.late_replies += 1;
                self.result.counts.steady_late_replies += u64::from(self.is_steady(now_ns));
            }
            // Until the accounts are closed, the ledger takes a message that was never sent for a new one.
            ReplyMatch::Unknown => self.result.counts.work.sent_unknown += 1,
        }
    }

    fn record_service(&mut self, steady: bool, now_ns: u64, sent_ns: u64) {
        if steady {
            self.times.service.record(now_ns.saturating_sub(sent_ns));
        }
    }

    /// Handles an answer that is no reply: the request has ended, and its message will be missing.
    fn resolve(&mut self, slot: usize, asked: Option<u64>, now_ns: u64) {
        if let Some(sequence) = asked
            && let ReplyMatch::InTime { sent_ns } = self.agents[slot].flight.answer(sequence)
        {
            self.note_unanswered(now_ns, sent_ns);
            self.free(slot, now_ns);
        }
    }

    /// Notes that a message ended without a reply that counts.
    fn note_unanswered(&mut self, now_ns: u64, sent_ns: u64) {
        let (from_ns, to_ns) = self.link.steady_window();
        let waited_ns = now_ns.min(to_ns).saturating_sub(sent_ns.max(from_ns));
        let counts = &mut self.result.counts;
        counts.steady_unanswered_ns = counts.steady_unanswered_ns.saturating_add(waited_ns);
        counts.steady_unanswered += u64::from(now_ns >= from_ns && now_ns < to_ns);
    }

    /// Notes that there is room in the agent's window again.
    fn free(&mut self, slot: usize, now_ns: u64) {
        self.in_flight -= 1;
        let agent = &mut self.agents[slot];
        match &mut agent.pace {
            Pace::Replies(schedule) => {
                let next_ns = schedule.next_after(now_ns);
                self.due.push(std::cmp::Reverse((next_ns, slot)));
            }
            Pace::Open(_) if agent.queued.is_some() => {
                agent.ready_ns = now_ns;
                self.resume(slot);
            }
            Pace::Max => self.resume(slot),
            Pace::Idle | Pace::Think(_) | Pace::Open(_) => {}
        }
    }

    pub(super) fn resume(&mut self, slot: usize) {
        if !std::mem::replace(&mut self.agents[slot].is_listed, true) {
            self.resumed.push(slot);
        }
    }

    /// Gives up replies that are overdue. Looks a few times per timeout, not in every turn.
    pub(super) fn expire_replies(&mut self, now_ns: u64) {
        if now_ns < self.next_expiry_ns {
            return;
        }
        let timeout_ns = self.plan.step.timeout_ms.saturating_mul(1_000_000);
        self.next_expiry_ns = now_ns + (timeout_ns / EXPIRY_LOOKS).max(1_000_000);
        for slot in 0..self.agents.len() {
            let agent = &mut self.agents[slot];
            if agent
                .flight
                .next_expiry_ns(timeout_ns)
                .is_none_or(|expiry| expiry > now_ns)
            {
                continue;
            }
            let correlator = &mut agent.correlator;
            let mut sent = std::mem::take(&mut self.expired);
            agent.flight.expire(now_ns, timeout_ns, |id, sent_ns| {
                if let Some(correlator) = correlator {
                    correlator.give_up(id);
                }
                sent.push(sent_ns);
            });
            self.result.counts.work.timeouts += sent.len() as u64;
            for sent_ns in sent.drain(..) {
                self.note_unanswered(now_ns, sent_ns);
                self.free(slot, now_ns);
            }
            self.expired = sent;
        }
    }

    /// Handles the end of an agent's connection: no more replies will come.
    pub(super) fn give_up_flight(&mut self, slot: usize) {
        self.end_flight(slot);
        let agent = &self.agents[slot];
        if agent.queued.is_some() || matches!(agent.pace, Pace::Max) {
            self.resume(slot);
        }
    }

    /// Handles the end of the step for the messages that still wait.
    pub(super) fn give_up_all(&mut self) {
        for slot in 0..self.agents.len() {
            self.end_flight(slot);
        }
    }

    /// Ends the wait for every reply to an agent.
    fn end_flight(&mut self, slot: usize) {
        let now_ns = self.plan.clock.now_ns();
        let mut sent = std::mem::take(&mut self.expired);
        let flight = &mut self.agents[slot].flight;
        self.in_flight -= flight.expire(u64::MAX, 0, |_, sent_ns| sent.push(sent_ns));
        for sent_ns in sent.drain(..) {
            self.note_unanswered(now_ns, sent_ns);
        }
        self.expired = sent;
    }

    /// Asks the server for its count, after the last message, once everything is sent.
    pub(super) fn ask_for_counts(&mut self, cx: &mut Context<'_>) {
        let mut waiting = std::mem::take(&mut self.to_confirm);
        waiting.retain(|slot| {
            let agent = &self.agents[*slot];
            let question = Message::with_id(Kind::Request, 0, JOIN_ID, &[]);
            let is_full = agent.alive && cx.is_full(agent.session);
            if agent.alive && !is_full {
                // A session that ended in this moment confirms nothing, and this is reported.
                let _ = cx.send_to(agent.session, &question);
            }
            is_full
        });
        self.to_confirm = waiting;
    }

    pub(super) fn handle_confirmation(&mut self, slot: usize, message: &Message<'_>) {
        let agent = &mut self.agents[slot];
        if message.id != JOIN_ID {
            self.result.counts.work.refused += 1;
            return;
        }
        if agent.confirmed.is_some() || !self.sending_ended {
            return;
        }
        let count = (message.kind == Kind::Reply)
            .then(|| message.payload.first_chunk::<8>())
            .flatten()
            .map(|bytes| u64::from_le_bytes(*bytes));
        agent.confirmed = Some(count.map_or(Confirmation::InOrder, Confirmation::Count));
        self.received += count.unwrap_or(agent.sent).min(agent.sent);
    }
}

/// How often replies are looked through in the length of a timeout.
const EXPIRY_LOOKS: u64 = 50;
