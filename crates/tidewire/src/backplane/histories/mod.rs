//! Histories of rooms and topics whose messages the carrier numbers, and so decides their order for all nodes.
//!
//! ```text
//!   lanes ── messages ──▶ pending ── append ──▶ history of the carrier
//!   lanes ◀── frames ─── messages here ◀── in the order of offsets ── early ◀── new packets, and those that were read
//! ```
//!
//! A message is pending until the carrier gives it back. So nothing is lost when the engine is gone for a while: the
//! node reads what it missed, and appends again what is still pending. A node appends some messages of a history, and
//! the next ones when these came back. Else a client of the engine that connects again could send a later message
//! first.
//!
//! A node follows the history of a room while it has members, and that of a topic while it has subscribers. One that
//! only publishes follows the history until that has given its messages back, from its end on, and keeps nothing of it.

mod confirmations;
mod early;
mod followed;
mod pending;
mod recording;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use tidewire_proto::backplane::{NodeLife, SequenceKind, SequencePoint, encode_sequence};

use super::Wire;
use super::to_engine::ToEngine;
use crate::broker::{BackplaneLink, News, RoomOrTopic, StoreQuestion};
use crate::config::Config;
use crate::history::History;
use crate::observe::LaneCounters;
use crate::room::Directory;
use crate::session::SessionId;
use confirmations::{Confirmations, SpanId};
use followed::{FollowedHistory, PacketPlace, Tended};
use pending::PendingMessage;
pub(super) use recording::Audience;

/// A history of the engine at one moment, as the engine tells it; see [`NodeSettings`](super::NodeSettings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryState {
    /// Another number for each history that was made for the room or topic.
    pub epoch: u64,
    /// The offset from which the engine was asked to read.
    pub from: u64,
    /// The offset of the newest packet.
    pub last: u64,
}

/// A packet of a history, as the engine read it; see [`NodeSettings`](super::NodeSettings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryMessage<'a> {
    /// Its offset in the history.
    pub offset: u64,
    /// The packet as it was appended.
    pub packet: &'a [u8],
}

/// The beginning of what was read of a history.
#[derive(Debug)]
struct ReadStart {
    /// Lanes have waited for the history.
    is_new: bool,
    /// Packets are missing between what the node knew and what was read.
    has_hole: bool,
    /// The history was lost, and begins again after this offset.
    begins_after: Option<u64>,
}

/// The histories that this node follows. See the module.
#[derive(Debug)]
pub(super) struct Histories {
    me: NodeLife<Arc<str>>,
    link: Arc<BackplaneLink>,
    directory: Arc<Directory>,
    config: Arc<Config>,
    counters: Arc<CachePadded<LaneCounters>>,
    followed: HashMap<RoomOrTopic, FollowedHistory>,
    confirmations: Confirmations,
    /// The number of messages that this node has appended or will append.
    appended: u64,
    pending_bytes: usize,
    /// Histories whose pending messages must be appended, or which must be read or left.
    due: HashSet<RoomOrTopic>,
    /// Whether lanes must look whether their joins and subscriptions can go on.
    has_answers: bool,
}

impl Histories {
    pub(super) fn new(
        link: Arc<BackplaneLink>,
        directory: Arc<Directory>,
        config: Arc<Config>,
        counters: Arc<CachePadded<LaneCounters>>,
    ) -> Self {
        Self {
            me: link.life().clone(),
            link,
            directory,
            config,
            counters,
            followed: HashMap::new(),
            confirmations: Confirmations::default(),
            appended: 0,
            pending_bytes: 0,
            due: HashSet::new(),
            has_answers: false,
        }
    }

    /// Whether lanes must look whether their joins and subscriptions can go on.
    pub(super) fn take_answers(&mut self) -> bool {
        std::mem::take(&mut self.has_answers)
    }

    /// Takes the questions of the batches that the node reads next.
    pub(super) fn take_questions(&mut self, questions: VecDeque<StoreQuestion>) {
        self.confirmations.take_questions(questions);
    }

    /// Takes news of a session, in the order of its messages.
    pub(super) fn note(&mut self, news: News, session: SessionId) {
        self.confirmations.note(news, session);
    }

    /// Opens histories that lanes wait for.
    pub(super) fn open(&mut self, names: &HashSet<RoomOrTopic>, is_cut_off: bool) {
        let open_of = |kind| {
            let open = self.followed.iter();
            let open = open.filter(|(name, it)| it.is_wanted() && name.kind() == kind);
            (kind, open.count())
        };
        let mut open = [SequenceKind::Room, SequenceKind::Topic].map(open_of);
        for name in names {
            let known = self.followed.get_mut(name);
            if let Some(known) = known.filter(|known| known.is_wanted()) {
                known.offer();
                if let Some(history) = known.messages() {
                    self.directory.histories().open(name, history);
                    self.has_answers = true;
                }
                continue;
            }
            let Some(limits) = self.directory.histories().wanted_limits(name) else {
                continue;
            };
            let open = open.iter_mut().find(|(kind, _)| *kind == name.kind());
            let is_full = open
                .as_ref()
                .is_none_or(|(_, open)| *open >= limits.names_max);
            if is_cut_off || is_full {
                let text = if is_cut_off { CUT_OFF } else { TOO_MANY };
                self.directory.histories().fail(name, text);
                self.has_answers = true;
                continue;
            }
            open.into_iter().for_each(|(_, open)| *open += 1);
            self.follow(name, limits).want();
        }
    }

    /// Returns a history, which is read if it was not known.
    fn follow(&mut self, name: &RoomOrTopic, limits: History) -> &mut FollowedHistory {
        self.due.insert(name.clone());
        let new = || FollowedHistory::new(limits);
        self.followed.entry(name.clone()).or_insert_with(new)
    }

    /// Takes a message of a session for the history of a room or topic.
    pub(super) fn append(
        &mut self,
        name: &RoomOrTopic,
        session: SessionId,
        entry: &[u8],
        packet_bytes_max: usize,
    ) {
        let span = self.confirmations.begin(session);
        if !self.keep_pending(name, span, entry, packet_bytes_max) {
            self.counters.backplane_unsent.add_shared(1);
            self.confirmations.end(span, false);
        }
    }

    /// Puts a message after those that wait for a history. Returns false if it must be given up.
    fn keep_pending(
        &mut self,
        name: &RoomOrTopic,
        span: SpanId,
        entry: &[u8],
        packet_bytes_max: usize,
    ) -> bool {
        if !self.followed.contains_key(name) {
            let limits = match name {
                RoomOrTopic::Topic(topic) => self.directory.histories().topic_limits(topic),
                RoomOrTopic::Room(_) => None,
            };
            let Some(limits) = limits else {
                // The last member of the room has left, and nobody else uses the history.
                return false;
            };
            self.follow(name, limits);
        }
        self.appended += 1;
        let number = self.appended;
        let point = SequencePoint {
            message: number,
            ..SequencePoint::default()
        };
        let mut packet = Vec::new();
        let of = (name.kind(), name.text());
        encode_sequence(self.me.borrow(), of, point, &mut packet);
        packet.extend_from_slice(entry);
        if !PendingMessage::fits(&packet, packet_bytes_max) {
            // The engine carries shorter packets since the message was accepted.
            return false;
        }
        let Some(followed) = self.followed.get_mut(name) else {
            return false;
        };
        self.pending_bytes += packet.len();
        let message = PendingMessage::new(number, span, packet);
        followed.pending().push(message);
        self.due.insert(name.clone());
        true
    }

    /// Gives the engine what is due; in the last turn of the node, all that waits. Returns whether it did not take all.
    pub(super) fn serve(
        &mut self,
        now: Instant,
        is_last: bool,
        engine: &ToEngine,
        wire: &mut dyn Wire,
    ) -> bool {
        let mut is_waiting = false;
        if is_last {
            let waiting = self.followed.iter();
            let waiting = waiting.filter(|(_, followed)| followed.has_pending());
            self.due.extend(waiting.map(|(name, _)| name.clone()));
        }
        if !engine.is_cut_off() {
            for name in std::mem::take(&mut self.due) {
                let Some(followed) = self.followed.get_mut(&name) else {
                    // It could not be opened.
                    wire.unfollow(&name);
                    continue;
                };
                let counters = &self.counters;
                if !followed.serve(&name, engine.me(), is_last, now, counters, wire) {
                    is_waiting = true;
                    self.due.insert(name);
                }
            }
        }
        self.link.set_full(self.pending_bytes > PENDING_BYTES_MAX);
        is_waiting
    }

    /// Drops pending messages that are too long for the engine.
    pub(super) fn drop_long_pending(&mut self, packet_bytes_max: usize) {
        for followed in self.followed.values_mut() {
            let pending = followed.pending();
            pending.drop_long(packet_bytes_max, |message, is_unsent| {
                self.pending_bytes -= message.bytes();
                self.counters
                    .backplane_unsent
                    .add_shared(u64::from(is_unsent));
                self.confirmations.end(message.span(), false);
            });
        }
    }

    /// Reads all histories again, because packets may be missing. Pending messages may be among them if the engine was
    /// gone.
    pub(super) fn read_again(&mut self, was_gone: bool) {
        for (name, followed) in &mut self.followed {
            followed.read_again(was_gone);
            self.due.insert(name.clone());
        }
    }

    /// Reads histories that have not given back a message for long, and closes those that nobody uses. Called at a
    /// heartbeat.
    pub(super) fn tend(&mut self, now: Instant, wire: &mut dyn Wire) {
        self.confirmations.end_doubts(now);
        let (directory, due) = (&self.directory, &mut self.due);
        directory.histories().forget_failures();
        // With many histories the silence may last longer before each is read.
        let silence_max = SILENCE_BEATS.max(self.followed.len() / CHECKS_PER_BEAT);
        self.followed.retain(|name, followed| {
            let tended = followed.tend(name, silence_max, directory, now);
            match tended {
                Tended::Stays => {}
                Tended::Due => drop(due.insert(name.clone())),
                Tended::Closed => wire.unfollow(name),
            }
            tended != Tended::Closed
        });
    }

    pub(super) fn handle_appended(
        &mut self,
        name: &RoomOrTopic,
        message: HistoryMessage<'_>,
        now: Instant,
        audience: &mut Audience<'_>,
    ) {
        let Some(followed) = self.followed.get_mut(name) else {
            return;
        };
        let place = followed.hear(message);
        if followed.must_be_read() {
            self.due.insert(name.clone());
        }
        match place {
            PacketPlace::Next => self.record(name, message.packet, now, audience),
            PacketPlace::Known => self.confirm_own(name, message.packet, now),
            // If the history has lost its end, the message is appended again.
            PacketPlace::Early => {}
        }
    }

    /// Handles what the engine has read of a history.
    pub(super) fn handle_read(
        &mut self,
        name: &RoomOrTopic,
        state: HistoryState,
        messages: &[HistoryMessage<'_>],
        now: Instant,
        audience: &mut Audience<'_>,
    ) {
        let Some(followed) = self.followed.get_mut(name) else {
            return;
        };
        let Some(start) = followed.begin_read(name, &state, messages, &self.directory) else {
            if followed.must_be_read() {
                self.due.insert(name.clone());
            }
            return;
        };
        if let Some(offset) = start.begins_after {
            self.send_hole(name, offset, audience);
        }
        for message in messages {
            self.record_at(name, *message, now, audience);
        }
        self.skip_to(name, state.last, audience);
        let followed = self.followed.get(name);
        if start.is_new
            && let Some(history) = followed.and_then(FollowedHistory::messages)
        {
            self.directory.histories().open(name, history);
            self.has_answers = true;
        }
        self.record_early(name, now, audience);
        self.judge_pending(name, start.has_hole, now);
    }

    /// Decides about pending messages after the history was read.
    fn judge_pending(&mut self, name: &RoomOrTopic, has_hole: bool, now: Instant) {
        let Some(followed) = self.followed.get_mut(name) else {
            return;
        };
        self.due.insert(name.clone());
        followed.pending().judge(has_hole, |message| {
            self.pending_bytes -= message.bytes();
            // It may still be on its way, or lost there.
            let (number, span) = (message.number(), message.span());
            self.confirmations.doubt(number, span, now);
        });
    }

    /// Handles that the engine cannot make or read a history. Messages that wait for it go on waiting.
    pub(super) fn handle_failure(&mut self, name: &RoomOrTopic, text: &str) {
        let Some(followed) = self.followed.get_mut(name) else {
            return;
        };
        if !followed.fail(name, text) {
            return;
        }
        if !followed.has_pending() {
            self.followed.remove(name);
            self.due.insert(name.clone());
        }
        self.directory.histories().fail(name, text);
        self.has_answers = true;
    }

    /// Whether messages wait for their histories that the engine does not have.
    pub(super) fn has_unappended(&self) -> bool {
        let mut followed = self.followed.values();
        followed.any(FollowedHistory::has_unappended)
    }

    /// Counts the messages that wait when the node ends.
    pub(super) fn count_unappended(&self) {
        let unsent = self.followed.values().map(FollowedHistory::uncounted).sum();
        self.counters.backplane_unsent.add_shared(unsent);
    }
}

/// Bytes of messages that wait for their histories, beyond which publishers are refused.
const PENDING_BYTES_MAX: usize = 4 << 20;

/// The time for the engine to give a message back, before the node reads the history and appends the message again.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// Heartbeats without a message after which a history is read, in case that its last one was lost on the way.
const SILENCE_BEATS: usize = 10;

/// Silent histories that are read at each heartbeat, about.
const CHECKS_PER_BEAT: usize = 4;

const CUT_OFF: &str = "the server is cut off from this history; try again later, or another server";

const TOO_MANY: &str = "the server keeps as many histories as it may (names of the history); try again later, or \
    another server";
