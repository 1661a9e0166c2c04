//! One history of the carrier that this node follows, and what waits for it; [`histories`](super) has the order.

use std::collections::VecDeque;
use std::time::Instant;

use tidewire_proto::backplane::{Content, NodeLife, Packet};

use super::early::EarlyPackets;
use super::pending::PendingMessages;
use super::{HistoryMessage, HistoryState, ReadStart};
use crate::backplane::Wire;
use crate::broker::{Position, RoomOrTopic};
use crate::history::{History, NodeHistory};
use crate::observe::LaneCounters;
use crate::room::Directory;

/// A history that the node follows.
#[derive(Debug)]
pub(super) struct FollowedHistory {
    limits: History,
    /// Whether lanes want the history. If not, the node only appends.
    is_wanted: bool,
    /// The messages on this node, once the history was read. Those of a node that only appends are none, and lanes do
    /// not have it.
    messages: Option<NodeHistory>,
    /// Up to where the node had followed the history before lanes wanted it, until it was read.
    known: Option<Position>,
    /// The ids of the newest messages, up to the last one. They show whether the history is still the one that the node
    /// knows.
    ids: VecDeque<u64>,
    /// Up to where the node has followed a history that has lost its end, until the engine is asked to replace it.
    lost: Option<Position>,
    /// Lanes were told of the history since the last heartbeat, and may not have come to use it.
    is_offered: bool,
    /// Whether nobody used the history at the last heartbeat.
    is_unused: bool,
    pending: PendingMessages,
    /// Heartbeats since the history was read, or the next message came.
    silent_beats: usize,
    early: EarlyPackets,
    reading: Reading,
    /// Whether the log says already that the engine does not give the history.
    has_warned: bool,
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
    /// The engine reads, and is asked again after that.
    AskedAgain,
}

/// The place of a new packet of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketPlace {
    Next,
    /// It is recorded after the history was read.
    Early,
    /// It is not recorded any more.
    Known,
}

/// The outcome of a heartbeat of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tended {
    Stays,
    /// It must be read.
    Due,
    /// It has no users.
    Closed,
}

impl FollowedHistory {
    pub(super) fn new(limits: History) -> Self {
        Self {
            limits,
            is_wanted: false,
            messages: None,
            known: None,
            ids: VecDeque::new(),
            lost: None,
            is_offered: false,
            is_unused: false,
            pending: PendingMessages::default(),
            silent_beats: 0,
            early: EarlyPackets::default(),
            reading: Reading::Due,
            has_warned: false,
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// The messages on this node, once the history was read.
    pub(super) fn messages(&self) -> Option<&NodeHistory> {
        self.messages.as_ref()
    }

    pub(super) fn pending(&mut self) -> &mut PendingMessages {
        &mut self.pending
    }

    pub(super) fn has_unappended(&self) -> bool {
        self.pending.has_unappended()
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The number of pending messages that were never given to the engine.
    pub(super) fn uncounted(&self) -> u64 {
        self.pending.uncounted()
    }

    /// Notes that lanes want the history. One that this node only appended to is read from its beginning.
    pub(super) fn want(&mut self) {
        self.is_wanted = true;
        self.known = self.messages.take().map(|messages| messages.last());
        self.reading = Reading::Due;
    }

    /// Notes that lanes are told of the history now.
    pub(super) fn offer(&mut self) {
        self.is_offered = true;
    }

    /// Whether the engine must be asked to read the history in the next turn.
    pub(super) fn must_be_read(&self) -> bool {
        self.reading == Reading::Due
    }

    /// Reads the history again, because packets may be missing. Pending messages may be among them if the engine was
    /// gone.
    pub(super) fn read_again(&mut self, was_gone: bool) {
        self.reading = match self.reading {
            // A history that is read again and again from its beginning would never be read to its end.
            Reading::Asked | Reading::AskedAgain if !was_gone => Reading::AskedAgain,
            _ => Reading::Due,
        };
        if was_gone {
            self.pending.append_again();
        }
    }

    /// Gives the engine what is due; if this is the last turn, all that waits. Returns whether it took all.
    pub(super) fn serve(
        &mut self,
        name: &RoomOrTopic,
        me: NodeLife<&str>,
        is_last: bool,
        now: Instant,
        counters: &LaneCounters,
        wire: &mut dyn Wire,
    ) -> bool {
        if self.reading == Reading::Due {
            (self.reading, self.silent_beats) = (Reading::Asked, 0);
            // The engine reads all that came until now.
            self.early.forget();
            match self.lost.take() {
                Some(lost) => wire.replace(name, &self.limits, lost),
                None => wire.follow(name, &self.limits, self.read_from()),
            }
        }
        let is_outstanding = self.pending.is_outstanding() && !is_last;
        if self.pending.appends_again() || self.messages.is_none() || is_outstanding {
            return true;
        }
        self.pending.append(name, me, is_last, now, counters, wire)
    }

    /// Looks after the history at a heartbeat: one that has not given back a message for long, has been silent for more
    /// heartbeats than this, or could not be read is read; one that nobody uses is closed.
    pub(super) fn tend(
        &mut self,
        name: &RoomOrTopic,
        silence_max: usize,
        directory: &Directory,
        now: Instant,
    ) -> Tended {
        let is_late = self.pending.is_late(now);
        self.pending.warn_if_late(name, is_late);
        self.silent_beats += 1;
        let is_silent = self.silent_beats > silence_max && self.messages.is_some();
        let is_idle = self.reading == Reading::No;
        if self.reading == Reading::Failed || (is_silent || is_late) && is_idle {
            self.reading = Reading::Due;
            if is_late {
                self.pending.retry(now);
            }
        }
        let is_busy = self.has_pending() || self.reading != Reading::No;
        let is_busy = std::mem::take(&mut self.is_offered) || is_busy;
        let messages = self.messages.as_ref().filter(|_| !is_busy);
        let is_unused = messages.is_some_and(|messages| directory.is_unused(name, messages));
        // The last messages of a member that has left may still be on their way from its lane.
        let was_unused = std::mem::replace(&mut self.is_unused, is_unused);
        if was_unused && messages.is_some_and(|messages| directory.close_history(name, messages)) {
            return Tended::Closed;
        }
        match self.reading {
            Reading::Due => Tended::Due,
            _ => Tended::Stays,
        }
    }

    /// Handles a new packet. One that is neither the next one nor known is kept until the history was read.
    pub(super) fn hear(&mut self, message: HistoryMessage<'_>) -> PacketPlace {
        let HistoryMessage { offset, packet } = message;
        let last = self
            .messages
            .as_ref()
            .map(|messages| messages.last().offset);
        let is_next = last.is_some_and(|last| offset == last + 1);
        if self.reading == Reading::No && is_next {
            self.silent_beats = 0;
            return PacketPlace::Next;
        }
        let passed = last.filter(|last| offset <= *last);
        let has_recorded = passed.and_then(|last| self.has_recorded(message, last));
        if has_recorded == Some(true) {
            // It was read before it came.
            return PacketPlace::Known;
        }
        self.early.keep(offset, packet);
        self.reading = match self.reading {
            Reading::No => Reading::Due,
            // The history may have gone back, and what is read now may be from before.
            Reading::Asked if passed.is_some() => Reading::AskedAgain,
            reading => reading,
        };
        match passed {
            // The node has it, or has passed over it, as far as it knows.
            Some(_) if has_recorded.is_none() => PacketPlace::Known,
            _ => PacketPlace::Early,
        }
    }

    /// Takes the next packet that came early: `Some` with a packet if it is the next one to record, and with none if it
    /// is known.
    pub(super) fn take_early(&mut self) -> Option<Option<Box<[u8]>>> {
        let offset = self.early.first()?;
        let next = self.messages.as_ref()?.last().offset + 1;
        if offset > next {
            self.reading = Reading::Due;
            return None;
        }
        let packet = self.early.take_first()?;
        Some((offset == next).then_some(packet))
    }

    /// Begins to handle what the engine has read. `None` if it is not what the node needs.
    pub(super) fn begin_read(
        &mut self,
        name: &RoomOrTopic,
        state: &HistoryState,
        messages: &[HistoryMessage<'_>],
        directory: &Directory,
    ) -> Option<ReadStart> {
        if state.from > self.read_from() {
            // The history was only appended to when this was asked for. It is read again, from its beginning.
            return None;
        }
        if let Some(lost) = self.lost_end(state, messages) {
            tracing::warn!(%name, known = lost.offset, last = state.last, "{LOST_END}");
            self.lost = Some(lost);
            self.reading = Reading::Due;
            self.pending.append_again();
            return None;
        }
        self.reading = match self.reading {
            Reading::AskedAgain => Reading::Due,
            _ => Reading::No,
        };
        self.has_warned = false;
        let epoch = state.epoch & EPOCH_MAX;
        let first = messages.first();
        let offset = first.map_or(state.last, |first| first.offset.saturating_sub(1));
        let last = Position { epoch, offset };
        let known = self
            .messages
            .as_ref()
            .map(NodeHistory::last)
            .or(self.known.take());
        let mut start = ReadStart {
            is_new: self.messages.is_none() && self.is_wanted,
            has_hole: known.is_some_and(|it| it.epoch == epoch && it.offset < offset),
            begins_after: None,
        };
        match &self.messages {
            None => {
                self.ids.clear();
                self.messages = Some(directory.histories().begin(self.own_limits(), last));
                self.is_offered |= start.is_new;
            }
            Some(messages) if messages.last().epoch != epoch => {
                tracing::warn!(%name, "a history was lost, and begins again");
                self.ids.clear();
                messages.continue_after(last);
                start.begins_after = Some(offset);
            }
            Some(_) => {}
        }
        Some(start)
    }

    /// Notes that the engine cannot make or read the history. Returns whether lanes that wait for it must be told.
    pub(super) fn fail(&mut self, name: &RoomOrTopic, text: &str) -> bool {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(%name, text, "the backplane does not give a history");
        }
        self.reading = Reading::Failed;
        let is_unread = self.messages.is_none();
        self.is_wanted &= !is_unread;
        is_unread
    }

    /// Passes over packets up to an offset that the history does not have any more. Returns their number.
    pub(super) fn skip_to(&mut self, offset: u64) -> u64 {
        let last = self.messages.as_ref().map(NodeHistory::last);
        let (Some(messages), Some(last)) =
            (&self.messages, last.filter(|last| last.offset < offset))
        else {
            return 0;
        };
        self.ids.clear();
        messages.continue_after(Position { offset, ..last });
        offset - last.offset
    }

    /// Notes the packet that is recorded next.
    pub(super) fn note_id(&mut self, packet: Option<&Packet<'_>>) {
        if self.ids.len() == IDS_MAX {
            self.ids.pop_front();
        }
        self.ids.push_back(id_of(packet));
    }

    /// The limits of the history on this node. One that nobody wants keeps nothing.
    fn own_limits(&self) -> History {
        let messages_max = match self.is_wanted {
            true => self.limits.messages_max,
            false => 0,
        };
        History {
            messages_max,
            ..self.limits
        }
    }

    /// The offset from which the history must be read: that of the newest message. One that is only appended to is not
    /// read before its end.
    fn read_from(&self) -> u64 {
        let unread = if self.is_wanted { 0 } else { u64::MAX };
        let messages = self.messages.as_ref();
        messages.map_or(unread, |messages| messages.last().offset)
    }

    /// Whether the node has recorded this packet at its offset; `None` if it does not know.
    fn has_recorded(&self, message: HistoryMessage<'_>, last: u64) -> Option<bool> {
        let back = usize::try_from(last.checked_sub(message.offset)?).ok()?;
        let index = self.ids.len().checked_sub(1)?.checked_sub(back)?;
        let packet = Packet::decode(message.packet).ok();
        Some(self.ids[index] == id_of(packet.as_ref()))
    }

    /// Returns the newest position of the node if the history that was read has the same epoch, and does not have the
    /// messages up to there.
    fn lost_end(&self, state: &HistoryState, messages: &[HistoryMessage<'_>]) -> Option<Position> {
        let last = self.messages.as_ref().map(NodeHistory::last)?;
        let is_other =
            |message: &HistoryMessage<'_>| self.has_recorded(*message, last.offset) == Some(false);
        let is_lost = state.last < state.from || messages.iter().any(is_other);
        (is_lost && state.epoch & EPOCH_MAX == last.epoch).then_some(last)
    }
}

/// Returns a number that tells the message of a packet from all others, and 0 if it is none: the run of its node is a
/// random number.
fn id_of(packet: Option<&Packet<'_>>) -> u64 {
    packet.map_or(0, |packet| match &packet.content {
        Content::Sequence(sequence) => packet.from.epoch.wrapping_add(sequence.point.message),
        _ => 0,
    })
}

/// Ids of messages that a node remembers. Few packets come later than the reading of the history.
const IDS_MAX: usize = 128;

/// The largest epoch of a history. The largest number of 64 bits has a meaning of its own.
const EPOCH_MAX: u64 = u64::MAX >> 1;

const LOST_END: &str = "a history has lost messages that this node has, as when its engine loses power or gets an \
     older copy; it is made again, and its readers are told that an unknown number is missing";
