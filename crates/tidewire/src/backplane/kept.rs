//! Rooms that keep a history: their messages go through a stream of the engine, which decides the order for all nodes.
//!
//! ```text
//!   lanes ── messages ──▶ pending ── append ──▶ stream
//!   lanes ◀── frames ─── history ◀── in the order of sequences ── early ◀── new packets, and those that were read
//! ```
//!
//! A message is pending until the stream gives it back. So nothing is lost when the engine is gone for a while: the node reads
//! what it missed, and appends again what is still pending.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tidewire_proto::backplane::{Place, StreamKind, encode_stream};

use super::{Node, Wire};
use crate::broker::Position;
use crate::room::{Feed, History};
use crate::session::SessionId;

/// The stream of a room at one moment, as the engine tells it. Streams are those of [`NodeSettings`](super::NodeSettings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptState {
    /// Another number for each stream that was made for the room.
    pub epoch: u64,
    /// The sequence of the newest packet.
    pub last: u64,
}

/// A packet of the stream of a room, as the engine read it. Streams are those of [`NodeSettings`](super::NodeSettings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptMessage<'a> {
    /// Its sequence in the stream.
    pub sequence: u64,
    /// The packet as it was appended.
    pub packet: &'a [u8],
}

/// The rooms whose streams this node follows.
#[derive(Debug, Default)]
pub(super) struct KeptRooms {
    rooms: HashMap<Box<str>, KeptRoom>,
    /// The number of messages that this node has appended or will append.
    appended: u64,
    pending_bytes: usize,
    /// Rooms whose pending messages must be appended, or whose stream must be read or left.
    due: HashSet<Box<str>>,
    /// Whether lanes must look whether their joins can go on.
    has_answers: bool,
}

#[derive(Debug)]
struct KeptRoom {
    limits: History,
    /// The history, once the stream was read.
    feed: Option<Feed>,
    /// Lanes were told of the history since the last heartbeat, and may not have come to use it.
    is_offered: bool,
    /// Messages of this node that the stream has not given back.
    pending: VecDeque<Pending>,
    /// When the first of them was appended, or one was given back.
    waits_since: Option<Instant>,
    /// Packets that came before those that are read now.
    early: VecDeque<(u64, Box<[u8]>)>,
    early_bytes: usize,
    reading: Reading,
    /// All pending messages are appended again after the stream was read.
    appends_again: bool,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    packet: Box<[u8]>,
    is_appended: bool,
    was_counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    No,
    /// The engine must be asked in the next turn.
    Due,
    /// The engine failed, and is asked again at the next heartbeat.
    Failed,
    /// The engine reads.
    Asked,
}

impl KeptRooms {
    /// Lets the lanes look in the next turn whether joins can go on.
    pub(super) fn wakes_lanes(&mut self) {
        self.has_answers = true;
    }
}

impl Node {
    /// Opens histories that lanes wait for.
    pub(super) fn open_histories<'r>(&mut self, rooms: impl Iterator<Item = &'r Box<str>>) {
        for room in rooms {
            if let Some(known) = self.kept.rooms.get_mut(room)
                && let Some(feed) = &known.feed
            {
                known.is_offered = true;
                self.directory.open_feed(room, feed);
                self.kept.has_answers = true;
                continue;
            }
            let Some(limits) = self.directory.wanted_history(room) else {
                continue;
            };
            if self.is_cut_off() || self.kept.rooms.len() >= limits.rooms_max {
                let text = match self.is_cut_off() {
                    true => CUT_OFF,
                    false => TOO_MANY,
                };
                self.directory.fail_feed(room, text);
                self.kept.has_answers = true;
                continue;
            }
            self.kept.rooms.insert(room.clone(), KeptRoom::new(limits));
            self.kept.due.insert(room.clone());
        }
    }

    /// Takes a message for the stream of a room.
    pub(super) fn append(&mut self, room: &str, entry: &[u8]) {
        let Some(kept) = self.kept.rooms.get_mut(room) else {
            // Its last member has left, and nobody else uses the history.
            return self.counters.backplane_unsent.add_shared(1);
        };
        self.kept.appended += 1;
        let number = self.kept.appended;
        let place = Place {
            message: number,
            ..Place::default()
        };
        let mut packet = Vec::new();
        let me = (&*self.id, self.epoch);
        encode_stream(me, (StreamKind::Room, room), place, &mut packet);
        packet.extend_from_slice(entry);
        self.kept.pending_bytes += packet.len();
        kept.pending.push_back(Pending {
            number,
            packet: packet.into(),
            is_appended: false,
            was_counted: false,
        });
        if !self.kept.due.contains(room) {
            self.kept.due.insert(room.into());
        }
    }

    /// Gives the engine what is due. Returns whether it did not take all.
    pub(super) fn serve_streams(&mut self, now: Instant, wire: &mut dyn Wire) -> bool {
        let mut is_waiting = false;
        if !self.is_cut_off() {
            for room in std::mem::take(&mut self.kept.due) {
                if !self.serve_stream(&room, now, wire) {
                    is_waiting = true;
                    self.kept.due.insert(room);
                }
            }
        }
        self.link
            .set_full(self.kept.pending_bytes > PENDING_BYTES_MAX);
        if std::mem::take(&mut self.kept.has_answers) {
            self.to_lanes.wake();
        }
        is_waiting
    }

    fn serve_stream(&mut self, room: &str, now: Instant, wire: &mut dyn Wire) -> bool {
        let Some(kept) = self.kept.rooms.get_mut(room) else {
            // It could not be opened.
            wire.unfollow(room);
            return true;
        };
        if kept.reading == Reading::Due {
            kept.reading = Reading::Asked;
            // The engine reads all that came until now.
            kept.forget_early();
            let from = kept.feed.as_ref().map_or(0, |it| it.last().offset + 1);
            wire.follow(room, &kept.limits, from);
        }
        if kept.appends_again || kept.feed.is_none() {
            return true;
        }
        for pending in kept.pending.iter_mut().filter(|it| !it.is_appended) {
            let id = format!("{}-{:x}-{}", self.id, self.epoch, pending.number);
            if !wire.append(room, &id, &pending.packet) {
                return false;
            }
            pending.is_appended = true;
            kept.waits_since.get_or_insert(now);
            if !std::mem::replace(&mut pending.was_counted, true) {
                self.counters.backplane_sent.add_shared(1);
            }
        }
        true
    }

    /// Drops pending messages that are too long for the engine. It would never give them back.
    pub(super) fn drop_long_pending(&mut self) {
        let bytes_max = self.packet_bytes_max;
        for kept in self.kept.rooms.values_mut() {
            kept.pending.retain(|pending| {
                let fits = pending.packet.len() + ID_BYTES_MAX <= bytes_max;
                if !fits {
                    self.kept.pending_bytes -= pending.packet.len();
                    let unsent = u64::from(!pending.was_counted);
                    self.counters.backplane_unsent.add_shared(unsent);
                }
                fits
            });
        }
    }

    /// Reads all streams again, because packets may be missing. Pending messages may be among them.
    pub(super) fn read_streams(&mut self, appends_again: bool) {
        for (room, kept) in &mut self.kept.rooms {
            kept.reading = Reading::Due;
            kept.appends_again |= appends_again;
            self.kept.due.insert(room.clone());
        }
    }

    /// Reads streams that have not given back a message for long, and closes histories that nobody uses.
    pub(super) fn tend_streams(&mut self, now: Instant, wire: &mut dyn Wire) {
        let directory = &self.directory;
        let due = &mut self.kept.due;
        self.kept.rooms.retain(|room, kept| {
            let waits = kept.waits_since;
            let is_late = waits.is_some_and(|at| now.saturating_duration_since(at) > PATIENCE);
            if kept.reading == Reading::Failed || is_late && kept.reading == Reading::No {
                kept.reading = Reading::Due;
                kept.appends_again |= is_late;
                kept.waits_since = waits.map(|_| now);
                due.insert(room.clone());
            }
            let is_busy = !kept.pending.is_empty() || kept.reading != Reading::No;
            let is_busy = std::mem::take(&mut kept.is_offered) || is_busy;
            let feed = kept.feed.as_ref().filter(|_| !is_busy);
            let is_closed = feed.is_some_and(|feed| directory.close_feed(room, feed));
            if is_closed {
                wire.unfollow(room);
            }
            !is_closed
        });
    }

    /// Handles a new packet of the stream of a room.
    pub fn handle_appended(&mut self, room: &str, message: KeptMessage<'_>, now: Instant) {
        let Some(kept) = self.kept.rooms.get_mut(room) else {
            return;
        };
        let KeptMessage { sequence, packet } = message;
        let next = kept.feed.as_ref().map(|feed| feed.last().offset + 1);
        if kept.reading == Reading::No && next == Some(sequence) {
            return self.record(room, packet, now);
        }
        if next.is_some_and(|next| sequence < next) {
            return;
        }
        kept.keep_early(sequence, packet);
        if kept.reading == Reading::No {
            kept.reading = Reading::Due;
            self.kept.due.insert(room.into());
        }
    }

    /// Handles what the engine has read of the stream of a room.
    pub fn handle_history(
        &mut self,
        room: &str,
        state: KeptState,
        messages: &[KeptMessage<'_>],
        now: Instant,
    ) {
        let Some(kept) = self.kept.rooms.get_mut(room) else {
            return;
        };
        kept.reading = Reading::No;
        let epoch = state.epoch & (u64::MAX >> 1);
        let first = messages.first();
        let offset = first.map_or(state.last, |first| first.sequence.saturating_sub(1));
        let last = Position { epoch, offset };
        let (feed, is_new) = match &kept.feed {
            Some(feed) => (feed.clone(), false),
            None => (self.directory.begin_feed(kept.limits, last), true),
        };
        kept.feed = Some(feed.clone());
        kept.is_offered |= is_new;
        if feed.last().epoch != epoch {
            tracing::warn!(room, "the history of a room was lost, and begins again");
            feed.continue_behind(last);
            self.tell_position(room, last);
        }
        for message in messages {
            self.record_at(room, &feed, *message, now);
        }
        self.skip_to(room, &feed, state.last);
        if is_new {
            self.directory.open_feed(room, &feed);
            self.kept.has_answers = true;
        }
        self.take_early(room, &feed, now);
        if let Some(kept) = self.kept.rooms.get_mut(room) {
            if std::mem::take(&mut kept.appends_again) {
                for pending in &mut kept.pending {
                    pending.is_appended = false;
                }
            }
            self.kept.due.insert(room.into());
        }
    }

    /// Handles that the engine cannot make or read the stream of a room.
    pub fn handle_history_failure(&mut self, room: &str, text: &str) {
        let Some(kept) = self.kept.rooms.get_mut(room) else {
            return;
        };
        tracing::warn!(
            room,
            text,
            "the backplane does not give the history of a room"
        );
        if kept.feed.is_some() {
            kept.reading = Reading::Failed;
            return;
        }
        self.kept.rooms.remove(room);
        self.kept.due.insert(room.into());
        self.directory.fail_feed(room, text);
        self.kept.has_answers = true;
    }

    /// Records the packets that came early, up to the next one that is missing.
    fn take_early(&mut self, room: &str, feed: &Feed, now: Instant) {
        while let Some(kept) = self.kept.rooms.get_mut(room)
            && let Some((sequence, _)) = kept.early.front()
        {
            let next = feed.last().offset + 1;
            if *sequence > next {
                kept.reading = Reading::Due;
                return;
            }
            let is_next = *sequence == next;
            if let Some((_, packet)) = kept.early.pop_front() {
                kept.early_bytes -= packet.len();
                if is_next {
                    self.record(room, &packet, now);
                }
            }
        }
    }

    /// Records a packet that was read. Those between the last one and this one are lost.
    fn record_at(&mut self, room: &str, feed: &Feed, message: KeptMessage<'_>, now: Instant) {
        if message.sequence <= feed.last().offset {
            return;
        }
        self.skip_to(room, feed, message.sequence - 1);
        self.record(room, message.packet, now);
    }

    /// Passes over packets that the stream does not have any more.
    fn skip_to(&mut self, room: &str, feed: &Feed, offset: u64) {
        let last = feed.last();
        if offset <= last.offset {
            return;
        }
        self.counters
            .backplane_lost
            .add_shared(offset - last.offset);
        feed.continue_behind(Position { offset, ..last });
        if let Some(shared) = self.directory.room(room) {
            // A lane that finds them missing tells its members how many.
            self.to_lanes.send_recorded(
                shared.lanes(),
                shared.alias,
                (offset, SessionId::NONE),
                &[],
            );
        }
    }

    /// The history of a room whose stream this node follows.
    pub(super) fn feed_of(&self, room: &str) -> Option<Feed> {
        self.kept.rooms.get(room)?.feed.clone()
    }

    /// Forgets a pending message that the stream has given back.
    pub(super) fn confirm(&mut self, room: &str, number: u64, now: Instant) {
        let Some(kept) = self.kept.rooms.get_mut(room) else {
            return;
        };
        let index = kept.pending.iter().position(|it| it.number == number);
        if let Some(confirmed) = index.and_then(|index| kept.pending.remove(index)) {
            self.kept.pending_bytes -= confirmed.packet.len();
            kept.waits_since = (!kept.pending.is_empty()).then_some(now);
        }
    }

    /// Counts the messages that wait when the node ends.
    pub(super) fn count_unappended(&self) {
        let rooms = self.kept.rooms.values();
        let unsent = rooms.flat_map(|kept| &kept.pending);
        let unsent = unsent.filter(|pending| !pending.was_counted).count();
        self.counters.backplane_unsent.add_shared(unsent as u64);
    }
}

impl KeptRoom {
    fn new(limits: History) -> Self {
        Self {
            limits,
            feed: None,
            is_offered: false,
            pending: VecDeque::new(),
            waits_since: None,
            early: VecDeque::new(),
            early_bytes: 0,
            reading: Reading::Due,
            appends_again: false,
        }
    }

    /// Keeps a packet until those before it were read. If too many wait, they are read later, too.
    fn keep_early(&mut self, sequence: u64, packet: &[u8]) {
        let is_full = self.early_bytes + packet.len() > EARLY_BYTES_MAX;
        let follows = |(last, _): &(u64, Box<[u8]>)| last.checked_add(1) == Some(sequence);
        if is_full || !self.early.back().is_none_or(follows) {
            self.forget_early();
        }
        self.early_bytes += packet.len();
        self.early.push_back((sequence, packet.into()));
    }

    fn forget_early(&mut self) {
        self.early.clear();
        self.early_bytes = 0;
    }
}

/// Bytes of messages that wait for their streams, beyond which publishers are refused.
const PENDING_BYTES_MAX: usize = 4 << 20;

/// Bytes of packets of a room that wait until those before them were read.
const EARLY_BYTES_MAX: usize = 1 << 20;

/// Bytes that the id of a message adds to its packet.
const ID_BYTES_MAX: usize = 128;

/// The time for the stream to give a message back, before the node reads it and appends the message again.
const PATIENCE: Duration = Duration::from_secs(2);

const CUT_OFF: &str =
    "the server is cut off from the history of this room; try again later, or another server";

const TOO_MANY: &str =
    "the server keeps as many histories as it may (names of the history); join a room that exists";
