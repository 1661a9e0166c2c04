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
    Rooms(Vec<RoomFigures>, Option<usize>),
}

/// A room or a topic of a server at one moment. [`Inspector::rooms`](crate::metrics::Inspector::rooms) has an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoomFigures {
    /// Its number while it has members.
    pub alias: u16,
    /// The name of the room, or the topic or pattern. A peer chose it.
    pub name: String,
    /// Whether it is a topic or pattern with subscribers, and not a room.
    pub is_topic: bool,
    /// Members or subscribers.
    pub members: usize,
    /// Messages on the lane that has had members for longest. The difference of two readings is a rate.
    pub messages: u64,
    /// Memory of the messages that wait for slow subscribers, and of spare room for the next ones.
    pub log_bytes: usize,
    /// Lanes with members.
    pub lanes: usize,
    /// Whether a subscriber with the policy `block` holds up the publishers.
    pub is_congested: bool,
}

impl RoomFigures {
    /// Adds the figures of the same room on another lane.
    pub(crate) fn add(&mut self, lane: &Self) {
        self.members += lane.members;
        self.messages = self.messages.max(lane.messages);
        self.log_bytes += lane.log_bytes;
        self.lanes += lane.lanes;
        self.is_congested |= lane.is_congested;
    }
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
