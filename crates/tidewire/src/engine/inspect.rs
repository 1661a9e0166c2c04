//! Answers to questions of other threads about the lane.

use std::time::Duration;

use tidewire_io::clock::{now_ns, thread_cpu_ns};

use super::Core;
use crate::mailbox::{Inspection, LaneAnswer, Question};
use crate::session::{LaneFigures, SessionFigures};

impl Core {
    /// Answers a question, or a piece of it.
    pub(crate) fn inspect(&self, inspection: Inspection) {
        let answered = match inspection.question {
            Question::Lane { asked_ns } => LaneAnswer::Lane(LaneFigures {
                answered_after: Duration::from_nanos(now_ns().saturating_sub(asked_ns)),
                cpu: Duration::from_nanos(thread_cpu_ns()),
                ..LaneFigures::of(&self.sessions)
            }),
            Question::Sessions { from } => {
                let mut figures = Vec::with_capacity(SESSIONS_PER_PIECE);
                let next =
                    SessionFigures::add_to(&mut figures, &self.sessions, from, SESSIONS_PER_PIECE);
                LaneAnswer::Sessions(figures, next)
            }
            Question::Rooms { from } => {
                let mut rooms = Vec::new();
                let logs = &self.sessions.logs;
                let open = self.rooms.open();
                let next = open.inspect(logs, from, ROOMS_PER_PIECE, &mut rooms);
                LaneAnswer::Rooms(rooms, next)
            }
        };
        inspection.answer(answered);
    }
}

/// Slots of sessions in one answer. An answer takes as long as a read of many messages.
const SESSIONS_PER_PIECE: usize = 256;

/// Aliases of rooms in one answer.
const ROOMS_PER_PIECE: usize = 512;
