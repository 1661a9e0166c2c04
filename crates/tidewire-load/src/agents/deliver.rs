//! Messages that reach an agent from others: the hot path of a fan-out, tens of millions of times a second.

use tidewire::Message;
use tidewire_proto::message::FLAG_POSITION;

use super::Agents;
use super::position::take_kept;
use crate::body;
use crate::ledger::Fate;
use crate::scenario::Pattern;
use crate::stamp::Stamp;

impl Agents {
    pub(super) fn handle_delivery(&mut self, slot: usize, now_ns: u64, message: &Message<'_>) {
        let payload = match message.flags & FLAG_POSITION {
            0 => message.payload,
            _ => self.note_offset(slot, message),
        };
        let agent = &mut self.agents[slot];
        let Some(ledger) = agent.ledger.as_mut() else {
            return;
        };
        let Some(stamp) = Stamp::decode(payload) else {
            // A message without an author is one of the room itself, such as that its server is cut off from other
            // nodes.
            match self.plan.step.pattern {
                Pattern::Chat if message.id == 0 => self.result.counts.announced += 1,
                _ => ledger.tally().record_corrupt(),
            }
            return;
        };
        if stamp.run != self.plan.run || stamp.step != self.plan.number {
            ledger.tally().record_foreign();
            return;
        }
        if !body::is_whole(&stamp, payload, self.payload.len()) {
            ledger.tally().record_corrupt();
            return;
        }
        // A message of another part was due by the clock of another machine, which is not comparable with this one.
        let is_timed = self.plan.segment.has(stamp.sender);
        let delay_ns = if is_timed {
            now_ns.saturating_sub(stamp.intended_ns)
        } else {
            0
        };
        let is_own = stamp.sender == agent.own;
        if is_own && agent.position.is_some() && take_kept(&mut agent.absences, stamp.sequence) {
            return;
        }
        let fate = ledger.record(stamp.sender, stamp.sequence, delay_ns);
        let is_across = !agent.neighbours.contains(&stamp.sender);
        if is_own || !matches!(fate, Fate::New | Fate::Reordered) {
            return;
        }
        self.received += 1;
        // Rates count the deliveries within the window, and not those planned for it, so that a slow server or
        // instrument is seen.
        self.result.counts.work.steady_received += u64::from(self.is_steady(now_ns));
        if !is_timed {
            return;
        }
        if self.plan.is_windowed {
            self.record_delivery(&stamp, is_across, now_ns);
        } else {
            self.times.delivered(is_across).record(delay_ns);
        }
    }

    /// A message belongs to the window of its intended time, however late it comes.
    ///
    /// Apart from its caller, which would else keep a tenth more in registers for every delivery of version 1.
    #[inline(never)]
    fn record_delivery(&mut self, stamp: &Stamp, is_across: bool, now_ns: u64) {
        if self.is_slow {
            // Slow on purpose: their times say nothing about the server.
            return;
        }
        let delay_ns = now_ns.saturating_sub(stamp.intended_ns);
        if !self.is_steady(stamp.intended_ns) {
            self.times.outside.record(delay_ns);
            return;
        }
        self.times.delivered(is_across).record(delay_ns);
        if let Some(sent_times) = &self.link.sent_times {
            match sent_times.sent_ns(stamp.sender, stamp.sequence) {
                Some(sent_ns) => self.times.service.record(now_ns.saturating_sub(sent_ns)),
                None => self.result.counts.work.sent_unknown += 1,
            }
        }
    }

    /// Whether a message that was due then belongs to the steady window.
    #[inline]
    pub(super) fn is_steady(&self, intended_ns: u64) -> bool {
        let (from_ns, to_ns) = self.link.steady_window();
        intended_ns >= from_ns && intended_ns < to_ns
    }
}
