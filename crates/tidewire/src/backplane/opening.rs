//! Subscriptions that are made before a room or pattern has members; [`room`](crate::room) says why joins wait for them.
//!
//! An engine tells that it has a subscription by its answer to a question that comes behind it: the node asks a service that no
//! node has, and the engine says so. An engine that does not know keeps a join waiting for two to three heartbeats.

use std::collections::{HashMap, HashSet};

use tidewire_proto::backplane::{Asked, SequenceKind, encode_asked};

use super::{Node, Subject, Wire};
use crate::broker::RoomOrTopic;

/// The subscriptions of rooms and patterns without members. See the module.
#[derive(Debug, Default)]
pub(super) struct Openings {
    all: HashMap<RoomOrTopic, Opening>,
    /// Questions so far.
    asked: u64,
}

#[derive(Debug)]
struct Opening {
    /// The question behind the subscription; `None` once the subscription stands.
    question: Option<u64>,
    /// Heartbeats since the last join that asked for it.
    beats: u32,
}

impl Node {
    /// Subscribes to what joins wait for, and asks the engine whether it has the subscriptions.
    pub(super) fn begin_openings(&mut self, wanted: HashSet<RoomOrTopic>, wire: &mut dyn Wire) {
        let mut asks = false;
        for followed in wanted {
            if self.link.is_cut_off() || self.is_subscribed(&followed) {
                // The join looks again, and finds members, or that it need not wait.
                self.directory.forget_opening(&followed);
                self.kept.has_answers = true;
                continue;
            }
            let question = Some(self.openings.asked + 1);
            let opening = self.openings.all.entry(followed.clone());
            let opening = opening.or_insert_with(|| {
                wire.subscribe(subject(&followed));
                asks = true;
                Opening { question, beats: 0 }
            });
            opening.beats = 0;
            if opening.question.is_none() {
                self.end_opening(&followed);
            }
        }
        if asks {
            self.openings.asked += 1;
            self.ask_engine(wire);
        }
    }

    /// Whether a packet of this room belongs to a subscription without members.
    pub(super) fn is_opening(&self, room: &str) -> bool {
        !self.openings.all.is_empty()
            && self
                .openings
                .all
                .contains_key(&RoomOrTopic::Room(room.into()))
    }

    /// Takes a subscription that was made before the first member, if there is one.
    pub(super) fn take_opening(&mut self, kind: SequenceKind, name: &str) -> bool {
        let followed = RoomOrTopic::new(kind, name);
        let is_known = self.openings.all.remove(&followed).is_some();
        if is_known {
            self.directory.forget_opening(&followed);
            self.kept.has_answers = true;
        }
        is_known
    }

    /// Notes that the engine has all subscriptions that were made before this question.
    pub(super) fn handle_answered_question(&mut self, question: u64) {
        let stands = |opening: &mut Opening| {
            let stands = opening.question.is_some_and(|asked| asked <= question);
            opening.question.take_if(|_| stands).is_some()
        };
        let all = self.openings.all.iter_mut();
        let ended: Vec<RoomOrTopic> = all
            .filter_map(|(followed, opening)| stands(opening).then(|| followed.clone()))
            .collect();
        for followed in ended {
            self.end_opening(&followed);
        }
    }

    /// Lets no join wait for an engine that is gone.
    pub(super) fn end_all_openings(&mut self) {
        self.handle_answered_question(u64::MAX);
    }

    /// Asks again what was not answered, and ends subscriptions for which nobody has come.
    pub(super) fn tend_openings(&mut self, wire: &mut dyn Wire) {
        if self.openings.all.is_empty() {
            return;
        }
        let (mut silent, mut idle, mut asks) = (Vec::new(), Vec::new(), false);
        for (followed, opening) in &mut self.openings.all {
            opening.beats += 1;
            match opening.question {
                Some(_) if opening.beats > BEATS_MAX => {
                    (opening.question, opening.beats) = (None, 0);
                    silent.push(followed.clone());
                }
                Some(_) => asks = true,
                None if opening.beats > BEATS_MAX => idle.push(followed.clone()),
                None => {}
            }
        }
        for followed in silent {
            tracing::debug!(
                %followed,
                "the engine does not answer; a join goes on"
            );
            self.end_opening(&followed);
        }
        for followed in idle {
            // Joins ask anew from now on. One that did not may have come in between.
            self.directory.forget_opening(&followed);
            if !self.directory.has_members(&followed) {
                self.openings.all.remove(&followed);
                wire.unsubscribe(subject(&followed));
            }
        }
        if asks {
            self.ask_engine(wire);
        }
    }

    fn end_opening(&mut self, followed: &RoomOrTopic) {
        self.directory.end_opening(followed);
        self.kept.has_answers = true;
    }

    fn is_subscribed(&self, followed: &RoomOrTopic) -> bool {
        match followed {
            RoomOrTopic::Room(room) => self.rooms.contains_key(&**room),
            RoomOrTopic::Topic(pattern) => self.patterns.contains(&**pattern),
        }
    }

    fn ask_engine(&self, wire: &mut dyn Wire) {
        let request = self.openings.asked | QUESTION;
        let asked = Asked {
            request,
            left_ms: 0,
            service: NO_SERVICE,
            payload: &[],
        };
        let mut packet = Vec::new();
        encode_asked(self.me.borrow(), &asked, &mut packet);
        // A question that does not go out is asked again at the next heartbeat.
        let _ = wire.ask(NO_SERVICE, request, &packet);
    }
}

/// Returns the question that an unserved request is, if it is one.
pub(super) fn question_of(request: u64) -> Option<u64> {
    (request & QUESTION != 0).then_some(request & !QUESTION)
}

fn subject(followed: &RoomOrTopic) -> Subject<'_> {
    match followed {
        RoomOrTopic::Room(room) => Subject::Room(room),
        RoomOrTopic::Topic(pattern) => Subject::Pattern(pattern),
    }
}

/// A bit that no number of a request has.
const QUESTION: u64 = 1 << 63;

/// The name of a service that no node has.
const NO_SERVICE: &str = "\0";

/// Whole heartbeats that a subscription waits for the answer of the engine, and then for a member.
const BEATS_MAX: u32 = 2;
