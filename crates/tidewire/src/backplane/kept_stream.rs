//! The streams that a node follows, and what waits for each of them; [`kept`](super::kept) has the order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use tidewire_proto::backplane::{Content, Packet};

use super::stored::Origin;
use super::{HistoryMessage, HistoryState};
use crate::broker::{Position, RoomOrTopic};
use crate::room::{Feed, History};

/// The streams that this node follows.
#[derive(Debug, Default)]
pub(super) struct KeptStreams {
    pub(super) streams: HashMap<RoomOrTopic, KeptStream>,
    /// The number of messages that this node has appended or will append.
    pub(super) appended: u64,
    pub(super) pending_bytes: usize,
    /// Streams whose pending messages must be appended, or which must be read or left.
    pub(super) due: HashSet<RoomOrTopic>,
    /// Whether lanes must look whether their joins and subscriptions can go on.
    pub(super) has_answers: bool,
}

#[derive(Debug)]
pub(super) struct KeptStream {
    pub(super) limits: History,
    /// Whether lanes want the history. Else the node only appends.
    pub(super) is_wanted: bool,
    /// The history, once the stream was read. That of a node that only appends is empty, and lanes do not have it.
    pub(super) feed: Option<Feed>,
    /// Up to where the node had followed the stream before lanes wanted the history, until it was read.
    pub(super) known: Option<Position>,
    /// The ids of the newest messages, up to the last one. They show whether the stream is still the one that the node knows.
    pub(super) ids: VecDeque<u64>,
    /// Up to where the node has followed a stream that has lost its end, until the engine is asked to replace it.
    pub(super) lost: Option<Position>,
    /// Lanes were told of the history since the last heartbeat, and may not have come to use it.
    pub(super) is_offered: bool,
    /// Whether nobody used the history at the last heartbeat.
    pub(super) is_unused: bool,
    /// Messages of this node that the stream has not given back.
    pub(super) pending: VecDeque<Pending>,
    /// When the first of them was appended, or one was given back.
    pub(super) waits_since: Option<Instant>,
    /// Whether the log says already that the stream does not give it back.
    pub(super) has_warned_late: bool,
    /// Heartbeats since the stream was read, or the next message came.
    pub(super) silent_beats: usize,
    /// Packets that came before those that are read now.
    pub(super) early: VecDeque<(u64, Box<[u8]>)>,
    pub(super) early_bytes: usize,
    pub(super) reading: Reading,
    /// All pending messages are appended again after the stream was read.
    pub(super) appends_again: bool,
    /// Whether the log says already that the engine does not give the stream.
    pub(super) has_warned: bool,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) number: u64,
    pub(super) origin: Origin,
    pub(super) packet: Box<[u8]>,
    pub(super) is_appended: bool,
    /// The stream has removed packets that the node did not see, and this message may be one of them.
    pub(super) may_be_stored: bool,
    pub(super) was_counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    No,
    /// The engine must be asked in the next turn.
    Due,
    /// The engine failed, and is asked again at the next heartbeat.
    Failed,
    /// The engine reads.
    Asked,
    /// The engine reads, and is asked again behind that.
    AskedAgain,
}

/// A new packet of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is the next one.
    Next,
    /// It is recorded when the stream was read.
    Kept,
    /// It is not recorded any more.
    Known,
}

impl KeptStreams {
    /// Whether lanes want the history of a stream.
    pub(super) fn is_wanted(&self, name: &RoomOrTopic) -> bool {
        self.streams.get(name).is_some_and(|kept| kept.is_wanted)
    }

    /// Heartbeats without a message after which a stream is read, in case that its last one was lost on the way.
    pub(super) fn silence_max(&self) -> usize {
        SILENCE_BEATS.max(self.streams.len() / CHECKS_PER_BEAT)
    }

    /// Returns a stream, which is read if it was not known.
    pub(super) fn stream(&mut self, name: &RoomOrTopic, limits: History) -> &mut KeptStream {
        self.due.insert(name.clone());
        let new = || KeptStream::new(limits);
        self.streams.entry(name.clone()).or_insert_with(new)
    }
}

impl KeptStream {
    pub(super) fn new(limits: History) -> Self {
        Self {
            limits,
            is_wanted: false,
            feed: None,
            known: None,
            ids: VecDeque::new(),
            lost: None,
            is_offered: false,
            is_unused: false,
            pending: VecDeque::new(),
            waits_since: None,
            has_warned_late: false,
            silent_beats: 0,
            early: VecDeque::new(),
            early_bytes: 0,
            reading: Reading::Due,
            appends_again: false,
            has_warned: false,
        }
    }

    /// The limits of the history on this node. One that nobody wants keeps nothing.
    pub(super) fn kept_limits(&self) -> History {
        let messages_max = if self.is_wanted {
            self.limits.messages_max
        } else {
            0
        };
        History {
            messages_max,
            ..self.limits
        }
    }

    /// The sequence from which the stream must be read: that of the newest message. One that is only appended to is not read before
    /// its end.
    pub(super) fn from(&self) -> u64 {
        let unread = if self.is_wanted { 0 } else { u64::MAX };
        let feed = self.feed.as_ref();
        feed.map_or(unread, |feed| feed.last().offset)
    }

    /// Whether the stream must be read at this heartbeat: it could not be read, or has been silent for more heartbeats than this.
    pub(super) fn must_be_read(&mut self, silence_max: usize) -> bool {
        self.silent_beats += 1;
        let is_silent = self.silent_beats > silence_max && self.feed.is_some();
        self.reading == Reading::Failed || is_silent && self.reading == Reading::No
    }

    /// Logs once that the engine does not store what it is given.
    pub(super) fn warn_if_late(&mut self, name: &RoomOrTopic, is_late: bool) {
        if is_late && !self.has_warned_late {
            tracing::warn!(%name, messages = self.pending.len(), "{LATE}");
        }
        self.has_warned_late = !self.pending.is_empty() && (self.has_warned_late || is_late);
    }

    /// Notes the id of the message that is recorded.
    pub(super) fn note_id(&mut self, id: u64) {
        if self.ids.len() == IDS_MAX {
            self.ids.pop_front();
        }
        self.ids.push_back(id);
    }

    /// Whether the node has recorded this packet with this sequence; `None` if it does not know.
    fn has_recorded(&self, sequence: u64, packet: &[u8], last: u64) -> Option<bool> {
        let back = usize::try_from(last.checked_sub(sequence)?).ok()?;
        let index = self.ids.len().checked_sub(1)?.checked_sub(back)?;
        Some(self.ids[index] == id_of(Packet::decode(packet).ok().as_ref()))
    }

    /// Returns the newest position of the node if the stream that was read has the same epoch, and does not have the messages up
    /// to there.
    pub(super) fn lost_end(
        &self,
        state: &HistoryState,
        messages: &[HistoryMessage<'_>],
    ) -> Option<Position> {
        let last = self.feed.as_ref().map(Feed::last)?;
        let is_other = |message: &HistoryMessage<'_>| {
            self.has_recorded(message.sequence, message.packet, last.offset) == Some(false)
        };
        let is_lost = state.last < state.from || messages.iter().any(is_other);
        (is_lost && state.epoch & EPOCH_MAX == last.epoch).then_some(last)
    }

    /// Takes a new packet. One that is neither the next one nor known is kept until the stream was read.
    pub(super) fn hear(&mut self, sequence: u64, packet: &[u8]) -> Heard {
        let last = self.feed.as_ref().map(|feed| feed.last().offset);
        let is_next = last.is_some_and(|last| sequence == last + 1);
        if self.reading == Reading::No && is_next {
            self.silent_beats = 0;
            return Heard::Next;
        }
        let behind = last.filter(|last| sequence <= *last);
        let has_recorded = behind.and_then(|last| self.has_recorded(sequence, packet, last));
        if has_recorded == Some(true) {
            // It was read before it came.
            return Heard::Known;
        }
        self.keep_early(sequence, packet);
        self.reading = match self.reading {
            Reading::No => Reading::Due,
            // The stream may have gone back, and what is read now may be from before.
            Reading::Asked if behind.is_some() => Reading::AskedAgain,
            reading => reading,
        };
        match behind {
            // The node has it, or has passed over it, as far as it knows.
            Some(_) if has_recorded.is_none() => Heard::Known,
            _ => Heard::Kept,
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

    pub(super) fn forget_early(&mut self) {
        self.early.clear();
        self.early_bytes = 0;
    }
}

/// Returns a number that tells the message of a packet from all others, and 0 if it is none: the run of its node is a random number.
pub(super) fn id_of(packet: Option<&Packet<'_>>) -> u64 {
    packet.map_or(0, |packet| match &packet.content {
        Content::Sequence(stream) => packet.from.epoch.wrapping_add(stream.point.message),
        _ => 0,
    })
}

/// Ids of messages that a node remembers. Few packets come later than the reading of the stream.
const IDS_MAX: usize = 128;

/// Heartbeats without a message after which a stream is read.
const SILENCE_BEATS: usize = 10;

/// Silent streams that are read at each heartbeat, about. With many streams the silence may last longer.
const CHECKS_PER_BEAT: usize = 4;

const LATE: &str = "a stream does not give back the messages of this node; they wait, and are appended again until it does; look whether \
     the backplane has space on its disk, and whether the limits of the stream were changed there";

/// The largest epoch of a stream. The largest number of 64 bits has a meaning of its own.
pub(super) const EPOCH_MAX: u64 = u64::MAX >> 1;

/// Bytes of packets of a stream that wait until those before them were read.
const EARLY_BYTES_MAX: usize = 1 << 20;
