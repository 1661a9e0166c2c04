//! A question of another thread about a lane, answered piece by piece.
//!
//! The thread that asks gets a bounded piece, and asks for the next one by a new message. So a lane with 100,000
//! sessions does its other work between the pieces, and remembers nothing of the question.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use crate::session::{LaneFigures, SessionFigures};

/// The lanes that have a question in their mailbox, one bit each. A lane that hangs so gets one question and no more.
pub(crate) type LanesAsked = Arc<AtomicU64>;

/// The subject of a question, with the first slot or alias that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The lane's own figures, asked for at this time.
    Lane {
        asked_ns: u64,
    },
    Sessions {
        from: usize,
    },
    Rooms {
        from: usize,
    },
}

/// A question with the way back for its answer. Dropping it frees the place of the lane's question.
#[derive(Debug)]
pub(crate) struct Inspection {
    pub(crate) question: Question,
    lane: usize,
    asked: LanesAsked,
    reply: Sender<(usize, LaneAnswer)>,
}

/// The answer of a lane.
#[derive(Debug)]
pub(crate) enum LaneAnswer {
    Lane(LaneFigures),
    /// Sessions, and the slot to go on with.
    Sessions(Vec<SessionFigures>, Option<usize>),
    /// Rooms, and the alias to go on with.
    Rooms(Vec<LaneRoom>, Option<usize>),
}

/// A room, or the subscribers of a pattern, on one lane.
#[derive(Debug)]
pub(crate) struct LaneRoom {
    pub(crate) alias: u16,
    /// The pattern; `None` for a room.
    pub(crate) pattern: Option<Arc<str>>,
    pub(crate) members: usize,
    /// Messages since the lane has members.
    pub(crate) messages: u64,
    pub(crate) log_bytes: usize,
    pub(crate) is_congested: bool,
}

impl Inspection {
    /// Prepares a question to a lane. `None` if the lane has not answered an earlier one.
    pub(crate) fn new(
        question: Question,
        lane: usize,
        asked: &LanesAsked,
        reply: &Sender<(usize, LaneAnswer)>,
    ) -> Option<Self> {
        let bit = 1 << lane;
        let is_free = asked.fetch_or(bit, Ordering::AcqRel) & bit == 0;
        is_free.then(|| Self {
            question,
            lane,
            asked: Arc::clone(asked),
            reply: reply.clone(),
        })
    }

    pub(crate) fn answer(self, answered: LaneAnswer) {
        let (lane, reply) = (self.lane, self.reply.clone());
        // The next question may come as soon as the answer is read.
        drop(self);
        // The asker may have given up.
        let _ = reply.send((lane, answered));
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        self.asked.fetch_and(!(1 << self.lane), Ordering::AcqRel);
    }
}
