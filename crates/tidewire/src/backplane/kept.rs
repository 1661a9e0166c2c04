//! Rooms and topics that keep a history: their messages go through streams of the engine, which decide the order for all nodes.
//!
//! ```text
//!   lanes ── messages ──▶ pending ── append ──▶ stream
//!   lanes ◀── frames ─── history ◀── in the order of sequences ── early ◀── new packets, and those that were read
//! ```
//!
//! A message is pending until the stream gives it back. So nothing is lost when the engine is gone for a while: the node reads
//! what it missed, and appends again what is still pending. A node appends some messages of a stream, and the next ones when
//! these came back. Else a client of the engine that connects again could send a later message first.
//!
//! A node follows the stream of a room while it has members, and that of a topic while it has subscribers. One that only publishes
//! follows the stream until that has given its messages back, from its end on, and keeps nothing of it.

use std::time::{Duration, Instant};

use tidewire_proto::backplane::{Content, Packet, SequenceKind, SequencePoint, encode_sequence};

use super::kept_stream::{EPOCH_MAX, Heard, Pending, Reading};
use super::stored::Origin;
use super::{Node, Wire};
use crate::broker::{Position, RoomOrTopic};
use crate::room::Feed;
use crate::session::SessionId;

/// A stream at one moment, as the engine tells it. Streams are those of [`NodeSettings`](super::NodeSettings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryState {
    /// Another number for each stream that was made for the room or topic.
    pub epoch: u64,
    /// The sequence from which the engine was asked to read.
    pub from: u64,
    /// The sequence of the newest packet.
    pub last: u64,
}

/// A packet of a stream, as the engine read it. Streams are those of [`NodeSettings`](super::NodeSettings).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryMessage<'a> {
    /// Its sequence in the stream.
    pub sequence: u64,
    /// The packet as it was appended.
    pub packet: &'a [u8],
}

impl Node {
    /// Opens histories that lanes wait for.
    pub(super) fn open_histories<'n>(&mut self, names: impl Iterator<Item = &'n RoomOrTopic>) {
        let open_of = |kind| {
            let streams = self.kept.streams.iter();
            let open = streams.filter(|(name, it)| it.is_wanted && name.kind() == kind);
            (kind, open.count())
        };
        let mut open = [SequenceKind::Room, SequenceKind::Topic].map(open_of);
        for name in names {
            let known = self.kept.streams.get_mut(name);
            if let Some(known) = known.filter(|known| known.is_wanted) {
                if let Some(feed) = &known.feed {
                    known.is_offered = true;
                    self.directory.open_feed(name, feed);
                    self.kept.has_answers = true;
                }
                continue;
            }
            let Some(limits) = self.directory.wanted_history(name) else {
                continue;
            };
            let open = open.iter_mut().find(|(kind, _)| *kind == name.kind());
            let is_full = open
                .as_ref()
                .is_none_or(|(_, open)| *open >= limits.rooms_max);
            if self.is_cut_off() || is_full {
                let text = match self.is_cut_off() {
                    true => CUT_OFF,
                    false => TOO_MANY,
                };
                self.directory.fail_feed(name, text);
                self.kept.has_answers = true;
                continue;
            }
            let stream = self.kept.stream(name, limits);
            open.into_iter().for_each(|(_, open)| *open += 1);
            // A stream that this node only appended to is read from its beginning.
            stream.is_wanted = true;
            stream.known = stream.feed.take().map(|feed| feed.last());
            stream.reading = Reading::Due;
        }
    }

    /// Puts a message behind those that wait for a stream. Returns false if it must be given up.
    pub(super) fn keep_pending(
        &mut self,
        name: &RoomOrTopic,
        origin: Origin,
        entry: &[u8],
    ) -> bool {
        if !self.kept.streams.contains_key(name) {
            let limits = match name {
                RoomOrTopic::Topic(topic) => self.directory.kept_limits(topic),
                RoomOrTopic::Room(_) => None,
            };
            let Some(limits) = limits else {
                // The last member of the room has left, and nobody else uses the history.
                return false;
            };
            self.kept.stream(name, limits);
        }
        let me = self.me.borrow();
        self.kept.appended += 1;
        let number = self.kept.appended;
        let position = SequencePoint {
            message: number,
            ..SequencePoint::default()
        };
        let mut packet = Vec::new();
        encode_sequence(me, (name.kind(), name.text()), position, &mut packet);
        packet.extend_from_slice(entry);
        if packet.len() + ID_BYTES_MAX > self.packet_bytes_max {
            // The engine carries shorter packets since the message was accepted.
            return false;
        }
        let Some(stream) = self.kept.streams.get_mut(name) else {
            return false;
        };
        self.kept.pending_bytes += packet.len();
        stream.pending.push_back(Pending {
            number,
            origin,
            packet: packet.into(),
            is_appended: false,
            may_be_stored: false,
            was_counted: false,
        });
        self.kept.due.insert(name.clone());
        true
    }

    /// Gives the engine what is due; in the last turn of the node, all that waits. Returns whether it did not take all.
    pub(super) fn serve_streams(
        &mut self,
        now: Instant,
        wire: &mut dyn Wire,
        is_last: bool,
    ) -> bool {
        let mut is_waiting = false;
        if is_last {
            let waiting = self.kept.streams.iter();
            let waiting = waiting.filter(|(_, kept)| !kept.pending.is_empty());
            self.kept.due.extend(waiting.map(|(name, _)| name.clone()));
        }
        if !self.is_cut_off() {
            for name in std::mem::take(&mut self.kept.due) {
                if !self.serve_stream(&name, now, wire, is_last) {
                    is_waiting = true;
                    self.kept.due.insert(name);
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

    fn serve_stream(
        &mut self,
        name: &RoomOrTopic,
        now: Instant,
        wire: &mut dyn Wire,
        is_last: bool,
    ) -> bool {
        let Some(kept) = self.kept.streams.get_mut(name) else {
            // It could not be opened.
            wire.unfollow(name);
            return true;
        };
        if kept.reading == Reading::Due {
            (kept.reading, kept.silent_beats) = (Reading::Asked, 0);
            // The engine reads all that came until now.
            kept.forget_early();
            match kept.lost.take() {
                Some(lost) => wire.replace(name, &kept.limits, lost),
                None => wire.follow(name, &kept.limits, kept.from()),
            }
        }
        let is_outstanding = kept.pending.front().is_some_and(|it| it.is_appended);
        if kept.appends_again || kept.feed.is_none() || is_outstanding && !is_last {
            return true;
        }
        let mut bytes = 0;
        for pending in kept.pending.iter_mut().filter(|it| !it.is_appended) {
            let is_first = bytes == 0;
            bytes += pending.packet.len() + ID_BYTES_MAX;
            if bytes > APPENDED_BYTES_MAX && !is_first && !is_last {
                break;
            }
            let id = format!("{}-{:x}-{}", self.me.node, self.me.epoch, pending.number);
            if !wire.append(name, &id, &pending.packet) {
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
        for kept in self.kept.streams.values_mut() {
            kept.pending.retain(|pending| {
                let fits = pending.packet.len() + ID_BYTES_MAX <= bytes_max;
                if !fits {
                    self.kept.pending_bytes -= pending.packet.len();
                    let unsent = u64::from(!pending.was_counted);
                    self.counters.backplane_unsent.add_shared(unsent);
                    self.stored.end(pending.origin, false);
                }
                fits
            });
        }
    }

    /// Reads all streams again, because packets may be missing. Pending messages may be among them if the engine was gone.
    pub(super) fn read_streams(&mut self, was_gone: bool) {
        for (name, kept) in &mut self.kept.streams {
            kept.reading = match kept.reading {
                // A stream that is read again and again from its beginning would never be read to its end.
                Reading::Asked | Reading::AskedAgain if !was_gone => Reading::AskedAgain,
                _ => Reading::Due,
            };
            kept.appends_again |= was_gone;
            self.kept.due.insert(name.clone());
        }
    }

    /// Reads streams that have not given back a message for long, and closes histories that nobody uses.
    pub(super) fn tend_streams(&mut self, now: Instant, wire: &mut dyn Wire) {
        self.stored.end_doubts(now);
        let directory = &self.directory;
        directory.forget_failures();
        let silence_max = self.kept.silence_max();
        let due = &mut self.kept.due;
        self.kept.streams.retain(|name, kept| {
            let waits = kept.waits_since;
            let is_late = waits.is_some_and(|at| now.saturating_duration_since(at) > STORE_TIMEOUT);
            kept.warn_if_late(name, is_late);
            if kept.must_be_read(silence_max) || is_late && kept.reading == Reading::No {
                kept.reading = Reading::Due;
                if is_late {
                    (kept.appends_again, kept.waits_since) = (true, Some(now));
                }
                due.insert(name.clone());
            }
            let is_busy = !kept.pending.is_empty() || kept.reading != Reading::No;
            let is_busy = std::mem::take(&mut kept.is_offered) || is_busy;
            let feed = kept.feed.as_ref().filter(|_| !is_busy);
            let is_unused = feed.is_some_and(|feed| directory.is_unused(name, feed));
            // The last messages of a member that has left may still be on their way from its lane.
            let was_unused = std::mem::replace(&mut kept.is_unused, is_unused);
            let is_closed = was_unused && feed.is_some_and(|feed| directory.close_feed(name, feed));
            if is_closed {
                wire.unfollow(name);
            }
            !is_closed
        });
    }

    /// Handles a new packet of a stream.
    pub fn handle_appended(
        &mut self,
        name: &RoomOrTopic,
        message: HistoryMessage<'_>,
        now: Instant,
    ) {
        let Some(kept) = self.kept.streams.get_mut(name) else {
            return;
        };
        let HistoryMessage { sequence, packet } = message;
        let was_idle = kept.reading == Reading::No;
        match kept.hear(sequence, packet) {
            Heard::Next => return self.record(name, packet, now),
            Heard::Known => self.confirm_own(name, packet, now),
            // If the stream has lost its end, the message is appended again.
            Heard::Kept => {}
        }
        let kept = self.kept.streams.get(name);
        if was_idle && kept.is_some_and(|kept| kept.reading == Reading::Due) {
            self.kept.due.insert(name.clone());
        }
    }

    /// Handles what the engine has read of a stream.
    pub fn handle_history(
        &mut self,
        name: &RoomOrTopic,
        state: HistoryState,
        messages: &[HistoryMessage<'_>],
        now: Instant,
    ) {
        let Some(kept) = self.kept.streams.get_mut(name) else {
            return;
        };
        if state.from > kept.from() {
            // The stream was only appended to when this was asked for. It is read again, from its beginning.
            return;
        }
        if let Some(lost) = kept.lost_end(&state, messages) {
            tracing::warn!(%name, known = lost.offset, last = state.last, "{LOST_END}");
            kept.lost = Some(lost);
            (kept.reading, kept.appends_again) = (Reading::Due, true);
            self.kept.due.insert(name.clone());
            return;
        }
        kept.reading = match kept.reading {
            Reading::AskedAgain => Reading::Due,
            _ => Reading::No,
        };
        kept.has_warned = false;
        let epoch = state.epoch & EPOCH_MAX;
        let first = messages.first();
        let offset = first.map_or(state.last, |first| first.sequence.saturating_sub(1));
        let last = Position { epoch, offset };
        let known = kept.feed.as_ref().map(Feed::last).or(kept.known.take());
        let has_hole = known.is_some_and(|it| it.epoch == epoch && it.offset < offset);
        let (feed, is_new) = match &kept.feed {
            Some(feed) => (feed.clone(), false),
            None => {
                let limits = kept.kept_limits();
                kept.ids.clear();
                (self.directory.begin_feed(limits, last), kept.is_wanted)
            }
        };
        kept.feed = Some(feed.clone());
        kept.is_offered |= is_new;
        if feed.last().epoch != epoch {
            tracing::warn!(%name, "a history was lost, and begins again");
            kept.ids.clear();
            feed.continue_behind(last);
            self.send_hole(name, last.offset);
        }
        for message in messages {
            self.record_at(name, &feed, *message, now);
        }
        self.skip_to(name, &feed, state.last);
        if is_new {
            self.directory.open_feed(name, &feed);
            self.kept.has_answers = true;
        }
        self.take_early(name, &feed, now);
        self.judge_pending(name, has_hole, now);
    }

    /// Decides about pending messages after the stream was read.
    fn judge_pending(&mut self, name: &RoomOrTopic, has_hole: bool, now: Instant) {
        let Some(kept) = self.kept.streams.get_mut(name) else {
            return;
        };
        self.kept.due.insert(name.clone());
        let appends_again = std::mem::take(&mut kept.appends_again);
        let all = &mut self.kept.pending_bytes;
        kept.pending.retain_mut(|pending| {
            // Packets that were removed may be those of appended messages. The engine knows their ids, and does not give them
            // back. They are appended again only if they may not have arrived, and only once.
            let is_stored = match (has_hole, appends_again) {
                (true, false) => pending.is_appended,
                (false, true) => pending.may_be_stored,
                _ => false,
            };
            if is_stored {
                *all -= pending.packet.len();
                // It may still be on its way, or lost there.
                self.stored.doubt(pending.number, pending.origin, now);
            }
            pending.may_be_stored |= has_hole && pending.is_appended;
            pending.is_appended &= !appends_again;
            !is_stored
        });
        if kept.pending.is_empty() {
            kept.waits_since = None;
        }
    }

    /// Handles that the engine cannot make or read a stream. Messages that wait for it go on waiting.
    pub fn handle_history_failure(&mut self, name: &RoomOrTopic, text: &str) {
        let Some(kept) = self.kept.streams.get_mut(name) else {
            return;
        };
        if !std::mem::replace(&mut kept.has_warned, true) {
            tracing::warn!(%name, text, "the backplane does not give a history");
        }
        kept.reading = Reading::Failed;
        if kept.feed.is_some() {
            return;
        }
        kept.is_wanted = false;
        if kept.pending.is_empty() {
            self.kept.streams.remove(name);
            self.kept.due.insert(name.clone());
        }
        self.directory.fail_feed(name, text);
        self.kept.has_answers = true;
    }

    /// Records the packets that came early, up to the next one that is missing.
    fn take_early(&mut self, name: &RoomOrTopic, feed: &Feed, now: Instant) {
        while let Some(kept) = self.kept.streams.get_mut(name)
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
                    self.record(name, &packet, now);
                }
            }
        }
    }

    /// Records a packet that was read. Those between the last one and this one are lost.
    fn record_at(
        &mut self,
        name: &RoomOrTopic,
        feed: &Feed,
        message: HistoryMessage<'_>,
        now: Instant,
    ) {
        if message.sequence <= feed.last().offset {
            return self.confirm_own(name, message.packet, now);
        }
        self.skip_to(name, feed, message.sequence - 1);
        self.record(name, message.packet, now);
    }

    /// Passes over packets that the stream does not have any more.
    fn skip_to(&mut self, name: &RoomOrTopic, feed: &Feed, offset: u64) {
        let last = feed.last();
        if offset <= last.offset {
            return;
        }
        self.counters
            .backplane_lost
            .add_shared(offset - last.offset);
        if let Some(kept) = self.kept.streams.get_mut(name) {
            kept.ids.clear();
        }
        feed.continue_behind(Position { offset, ..last });
        self.send_hole(name, offset);
    }

    /// Lets the lanes look into the history, up to an offset. They tell their members what is missing there.
    pub(super) fn send_hole(&mut self, name: &RoomOrTopic, offset: u64) {
        if let Some(shared) = self.directory.fed(name) {
            let at = (offset, SessionId::NONE);
            let (lanes, alias) = (shared.lanes(), shared.alias);
            self.to_lanes.send_recorded(lanes, alias, at, &[]);
        }
    }

    /// Forgets a pending message if this is its packet, which the node has recorded already, or has passed over.
    fn confirm_own(&mut self, name: &RoomOrTopic, packet: &[u8], now: Instant) {
        if let Ok(packet) = Packet::decode(packet)
            && let Content::Sequence(stream) = packet.content
            && packet.from == self.me.borrow()
        {
            self.confirm(name, stream.point.message, now);
        }
    }

    /// Forgets a pending message that the stream has given back.
    pub(super) fn confirm(&mut self, name: &RoomOrTopic, number: u64, now: Instant) {
        let Some(kept) = self.kept.streams.get_mut(name) else {
            return;
        };
        let index = kept.pending.iter().position(|it| it.number == number);
        let Some(confirmed) = index.and_then(|index| kept.pending.remove(index)) else {
            return self.stored.end_doubt(number);
        };
        self.stored.end(confirmed.origin, true);
        self.kept.pending_bytes -= confirmed.packet.len();
        kept.waits_since = (!kept.pending.is_empty()).then_some(now);
        if kept.pending.front().is_some_and(|next| !next.is_appended) {
            self.kept.due.insert(name.clone());
        }
    }

    /// Whether messages wait for their streams that the engine does not have.
    pub(super) fn has_unappended(&self) -> bool {
        self.kept.streams.values().any(|kept| {
            let mut pending = kept.pending.iter();
            pending.any(|it| kept.appends_again || !it.is_appended)
        })
    }

    /// Counts the messages that wait when the node ends.
    pub(super) fn count_unappended(&self) {
        let streams = self.kept.streams.values();
        let unsent = streams.flat_map(|kept| &kept.pending);
        let unsent = unsent.filter(|pending| !pending.was_counted).count();
        self.counters.backplane_unsent.add_shared(unsent as u64);
    }
}

/// Bytes of messages that wait for their streams, beyond which publishers are refused.
const PENDING_BYTES_MAX: usize = 4 << 20;

/// Bytes that a node appends to one stream before the stream gives them back. They usually leave together, so a broken
/// connection seldom loses only the first of them.
const APPENDED_BYTES_MAX: usize = 32 << 10;

/// Bytes that the id of a message adds to its packet.
const ID_BYTES_MAX: usize = 128;

/// The time for the stream to give a message back, before the node reads it and appends the message again.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(2);

const LOST_END: &str = "a stream has lost messages that this node has, as when its engine loses power or gets an older copy; it is made \
     again, and its readers are told that an unknown number is missing";

const CUT_OFF: &str = "the server is cut off from this history; try again later, or another server";

const TOO_MANY: &str = "the server keeps as many histories as it may (names of the history); try again later, or another server";
