//! Positions of agents in a room that keeps a history. An agent that comes back asks for what comes after its position.

use tidewire::Message;
use tidewire_proto::body::{PositionBody, Recovery, RecoveryBody, split_delivery};

use super::Agents;
use crate::ledger::Absence;

impl Agents {
    /// Notes the offset of a delivery, and returns the payload after it.
    ///
    /// Apart from its caller, which has no use for it in rooms without a history.
    #[inline(never)]
    pub(super) fn note_offset<'m>(&mut self, slot: usize, message: &Message<'m>) -> &'m [u8] {
        let Ok((offset, payload)) = split_delivery(message) else {
            // It is no payload of an agent, and counts as corrupt.
            return &[];
        };
        if let (Some(position), Some(offset)) = (&mut self.agents[slot].position, offset) {
            position.offset = offset;
        }
        payload
    }

    /// Notes the position of an agent that has joined, and the number of messages that the server says it missed.
    pub(super) fn handle_recovery(&mut self, slot: usize, message: &Message<'_>) {
        let agent = &mut self.agents[slot];
        let recovery = RecoveryBody::split(message).ok().and_then(|(_, body)| body);
        let former = std::mem::replace(&mut agent.position, recovery.map(|body| body.position));
        match recovery.map(|body| body.recovery) {
            Some(Recovery::Missing(Some(count))) => agent.told = agent.told.saturating_add(count),
            Some(Recovery::Missing(None)) => agent.told_unknown += 1,
            Some(Recovery::Recovered) => {}
            // A server that ignores the position says nothing of what is missing.
            Some(Recovery::NotAsked) | None => agent.told_unknown += u64::from(former.is_some()),
        }
    }

    /// Notes which position the next message follows.
    pub(super) fn handle_position(&mut self, slot: usize, message: &Message<'_>) {
        let Ok(PositionBody { position }) = PositionBody::decode(message.payload) else {
            return;
        };
        let agent = &mut self.agents[slot];
        let former = agent.position.replace(position);
        let is_new_epoch = former.is_some_and(|former| former.epoch != position.epoch);
        agent.told_unknown += u64::from(is_new_epoch);
    }
}

/// Takes a message of an agent itself that a history gives back to it: one that it sent before it lost its connection,
/// in order. Returns whether it is one.
#[cold]
pub(super) fn take_kept(absences: &mut [Absence], sequence: u64) -> bool {
    let kept = absences.iter().map(|absence| absence.own_kept).max();
    let sent = absences.last().map(|absence| absence.own_sent);
    let (Some(kept), Some(sent)) = (kept, sent) else {
        return false;
    };
    let is_kept = kept < sequence && sequence <= sent;
    for absence in absences {
        // The history kept it before the earlier absences, too, if it was sent before them.
        if is_kept && sequence <= absence.own_sent {
            absence.own_kept = sequence;
        }
    }
    is_kept
}
