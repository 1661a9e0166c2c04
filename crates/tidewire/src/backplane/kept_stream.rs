//! The streams that a node follows, and what waits for each of them; [`kept`](super::kept) has the order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use super::stored::Origin;
use crate::broker::{KeptName, Position};
use crate::room::{Feed, History};

/// The streams that this node follows.
#[derive(Debug, Default)]
pub(super) struct KeptStreams {
    pub(super) streams: HashMap<KeptName, KeptStream>,
    /// The number of messages that this node has appended or will append.
    pub(super) appended: u64,
    pub(super) pending_bytes: usize,
    /// Streams whose pending messages must be appended, or which must be read or left.
    pub(super) due: HashSet<KeptName>,
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
    /// Lanes were told of the history since the last heartbeat, and may not have come to use it.
    pub(super) is_offered: bool,
    /// Messages of this node that the stream has not given back.
    pub(super) pending: VecDeque<Pending>,
    /// When the first of them was appended, or one was given back.
    pub(super) waits_since: Option<Instant>,
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

impl KeptStreams {
    /// Whether lanes want the history of a stream.
    pub(super) fn is_wanted(&self, name: &KeptName) -> bool {
        self.streams.get(name).is_some_and(|kept| kept.is_wanted)
    }

    /// Returns a stream, which is read if it was not known.
    pub(super) fn stream(&mut self, name: &KeptName, limits: History) -> &mut KeptStream {
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
            is_offered: false,
            pending: VecDeque::new(),
            waits_since: None,
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

    /// The sequence from which the stream must be read. One that is only appended to is not read before its end.
    pub(super) fn next(&self) -> u64 {
        let unread = if self.is_wanted { 0 } else { u64::MAX };
        let feed = self.feed.as_ref();
        feed.map_or(unread, |feed| feed.last().offset + 1)
    }

    /// Keeps a packet until those before it were read. If too many wait, they are read later, too.
    pub(super) fn keep_early(&mut self, sequence: u64, packet: &[u8]) {
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

/// Bytes of packets of a stream that wait until those before them were read.
const EARLY_BYTES_MAX: usize = 1 << 20;
