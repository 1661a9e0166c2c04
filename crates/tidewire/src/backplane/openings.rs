//! Subscriptions that are made before a room or pattern has members; [`room`](crate::room) says why joins wait for
//! them.
//!
//! An engine tells that it has a subscription by its answer to a question that comes after the subscription: the node
//! asks a service that no node has, and the engine says so. An engine that does not know keeps a join waiting for two
//! to three heartbeats.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tidewire_proto::backplane::{SequenceKind, ServiceRequest, encode_asked};

use super::to_engine::ToEngine;
use super::{Subject, Wire};
use crate::broker::RoomOrTopic;
use crate::room::Directory;

/// The subscriptions of rooms and patterns without members. See the module.
#[derive(Debug)]
pub(super) struct Openings {
    directory: Arc<Directory>,
    all: HashMap<RoomOrTopic, Opening>,
    /// Questions so far.
    asked: u64,
    /// Whether lanes must look whether their joins and subscriptions can go on.
    has_answers: bool,
}

#[derive(Debug)]
struct Opening {
    /// The question after the subscription; `None` once the subscription stands.
    question: Option<u64>,
    /// Heartbeats since the last join that asked for it.
    beats: u32,
}

impl Openings {
    pub(super) fn new(directory: Arc<Directory>) -> Self {
        Self {
            directory,
            all: HashMap::new(),
            asked: 0,
            has_answers: false,
        }
    }

    /// Subscribes to what joins wait for, and asks the engine whether it has the subscriptions. `is_needless` tells
    /// whether the joins of a room or pattern need not wait.
    pub(super) fn begin(
        &mut self,
        wanted: HashSet<RoomOrTopic>,
        is_needless: impl Fn(&RoomOrTopic) -> bool,
        engine: &ToEngine,
        wire: &mut dyn Wire,
    ) {
        let mut asks = false;
        for name in wanted {
            if is_needless(&name) {
                // The join looks again, and finds members, or that it need not wait.
                self.forget(&name);
                continue;
            }
            let question = Some(self.asked + 1);
            let opening = self.all.entry(name.clone()).or_insert_with(|| {
                wire.subscribe(subject(&name));
                asks = true;
                Opening { question, beats: 0 }
            });
            opening.beats = 0;
            if opening.question.is_none() {
                self.end(&name);
            }
        }
        if asks {
            self.asked += 1;
            self.ask_engine(engine, wire);
        }
    }

    /// Whether a packet of this room belongs to a subscription without members.
    pub(super) fn has_room(&self, room: &str) -> bool {
        !self.all.is_empty() && self.all.contains_key(&RoomOrTopic::Room(room.into()))
    }

    /// Takes a subscription that was made before the first member, if there is one.
    pub(super) fn take(&mut self, kind: SequenceKind, name: &str) -> bool {
        let name = RoomOrTopic::new(kind, name);
        let is_known = self.all.remove(&name).is_some();
        if is_known {
            self.forget(&name);
        }
        is_known
    }

    /// Whether lanes must look whether their joins and subscriptions can go on.
    pub(super) fn take_answers(&mut self) -> bool {
        std::mem::take(&mut self.has_answers)
    }

    /// Notes that the engine has all subscriptions that were made before this question.
    pub(super) fn handle_answer(&mut self, question: u64) {
        let stands = |opening: &mut Opening| {
            let stands = opening.question.is_some_and(|asked| asked <= question);
            opening.question.take_if(|_| stands).is_some()
        };
        let all = self.all.iter_mut();
        let ended = all.filter_map(|(name, opening)| stands(opening).then(|| name.clone()));
        for name in ended.collect::<Vec<RoomOrTopic>>() {
            self.end(&name);
        }
    }

    /// Lets no join wait for an engine that is gone.
    pub(super) fn end_all(&mut self) {
        self.handle_answer(u64::MAX);
    }

    /// Asks again what was not answered, and ends subscriptions for which no member has come. Called at a heartbeat.
    pub(super) fn tend(&mut self, engine: &ToEngine, wire: &mut dyn Wire) {
        if self.all.is_empty() {
            return;
        }
        let (mut silent, mut idle, mut asks) = (Vec::new(), Vec::new(), false);
        for (name, opening) in &mut self.all {
            opening.beats += 1;
            match opening.question {
                Some(_) if opening.beats > BEATS_MAX => {
                    (opening.question, opening.beats) = (None, 0);
                    silent.push(name.clone());
                }
                Some(_) => asks = true,
                None if opening.beats > BEATS_MAX => idle.push(name.clone()),
                None => {}
            }
        }
        for name in silent {
            tracing::debug!(%name, "the engine does not answer; a join goes on");
            self.end(&name);
        }
        for name in idle {
            // Joins ask anew from now on. A join that did not ask may have come in between.
            self.directory.forget_opening(&name);
            if !self.directory.has_members(&name) {
                self.all.remove(&name);
                wire.unsubscribe(subject(&name));
            }
        }
        if asks {
            self.ask_engine(engine, wire);
        }
    }

    fn end(&mut self, name: &RoomOrTopic) {
        self.directory.end_opening(name);
        self.has_answers = true;
    }

    fn forget(&mut self, name: &RoomOrTopic) {
        self.directory.forget_opening(name);
        self.has_answers = true;
    }

    fn ask_engine(&self, engine: &ToEngine, wire: &mut dyn Wire) {
        let request = self.asked | QUESTION;
        let asked = ServiceRequest {
            request,
            left_ms: 0,
            service: NO_SERVICE,
            payload: &[],
        };
        let mut packet = Vec::new();
        encode_asked(engine.me(), &asked, &mut packet);
        // A question that does not go out is asked again at the next heartbeat.
        let _ = wire.ask(NO_SERVICE, request, &packet);
    }
}

/// Returns the question that an unserved request is, if it is one.
pub(super) fn question_of(request: u64) -> Option<u64> {
    (request & QUESTION != 0).then_some(request & !QUESTION)
}

fn subject(name: &RoomOrTopic) -> Subject<'_> {
    match name {
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
