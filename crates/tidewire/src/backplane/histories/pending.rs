//! Messages of this node that a history of the carrier has not given back.

use std::collections::VecDeque;
use std::time::Instant;

use tidewire_proto::backplane::NodeLife;

use super::STORE_TIMEOUT;
use super::confirmations::SpanId;
use crate::backplane::Wire;
use crate::broker::RoomOrTopic;
use crate::observe::LaneCounters;

/// The pending messages of one history, in their order.
#[derive(Debug, Default)]
pub(super) struct PendingMessages {
    messages: VecDeque<PendingMessage>,
    /// When the first message was appended, or one was given back.
    waits_since: Option<Instant>,
    /// Whether the log says already that the history does not give the first message back.
    has_warned: bool,
    /// All messages are appended again after the history was read.
    appends_again: bool,
}

/// A message until the history has given it back.
#[derive(Debug)]
pub(super) struct PendingMessage {
    number: u64,
    span: SpanId,
    packet: Box<[u8]>,
    is_appended: bool,
    /// The history has removed packets that the node did not see, and this message may be one of them.
    may_be_stored: bool,
    was_counted: bool,
}

impl PendingMessage {
    pub(super) fn new(number: u64, span: SpanId, packet: Vec<u8>) -> Self {
        Self {
            number,
            span,
            packet: packet.into(),
            is_appended: false,
            may_be_stored: false,
            was_counted: false,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn span(&self) -> SpanId {
        self.span
    }

    pub(super) fn bytes(&self) -> usize {
        self.packet.len()
    }

    /// Whether a packet with an id fits the limit of the engine.
    pub(super) fn fits(packet: &[u8], bytes_max: usize) -> bool {
        packet.len() + ID_BYTES_MAX <= bytes_max
    }
}

impl PendingMessages {
    pub(super) fn push(&mut self, message: PendingMessage) {
        self.messages.push_back(message);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether the engine has the first message, and has not given it back.
    pub(super) fn is_outstanding(&self) -> bool {
        self.messages.front().is_some_and(|it| it.is_appended)
    }

    /// Whether the next message can be appended.
    pub(super) fn is_next_unappended(&self) -> bool {
        self.messages.front().is_some_and(|it| !it.is_appended)
    }

    /// Whether there are messages that the engine does not have.
    pub(super) fn has_unappended(&self) -> bool {
        let mut messages = self.messages.iter();
        messages.any(|it| self.appends_again || !it.is_appended)
    }

    /// The number of messages that were never given to the engine.
    pub(super) fn uncounted(&self) -> u64 {
        let uncounted = self.messages.iter().filter(|it| !it.was_counted);
        uncounted.count() as u64
    }

    /// Appends all messages again, after the history was read.
    pub(super) fn append_again(&mut self) {
        self.appends_again = true;
    }

    /// Whether the history must be read before messages are appended.
    pub(super) fn appends_again(&self) -> bool {
        self.appends_again
    }

    /// Appends the next messages, or all of them. Returns whether the engine took them.
    pub(super) fn append(
        &mut self,
        name: &RoomOrTopic,
        me: NodeLife<&str>,
        appends_all: bool,
        now: Instant,
        counters: &LaneCounters,
        wire: &mut dyn Wire,
    ) -> bool {
        let mut bytes = 0;
        for message in self.messages.iter_mut().filter(|it| !it.is_appended) {
            let is_first = bytes == 0;
            bytes += message.packet.len() + ID_BYTES_MAX;
            if bytes > APPENDED_BYTES_MAX && !is_first && !appends_all {
                break;
            }
            let id = format!("{}-{:x}-{}", me.node, me.epoch, message.number);
            if !wire.append(name, &id, &message.packet) {
                return false;
            }
            message.is_appended = true;
            self.waits_since.get_or_insert(now);
            if !std::mem::replace(&mut message.was_counted, true) {
                counters.backplane_sent.add_shared(1);
            }
        }
        true
    }

    /// Whether the history has not given back a message for too long.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        let since = self.waits_since;
        since.is_some_and(|at| now.saturating_duration_since(at) > STORE_TIMEOUT)
    }

    /// Begins to wait anew, and appends all messages again after the history was read.
    pub(super) fn retry(&mut self, now: Instant) {
        self.appends_again = true;
        self.waits_since = Some(now);
    }

    /// Logs once that the engine does not store what it is given.
    pub(super) fn warn_if_late(&mut self, name: &RoomOrTopic, is_late: bool) {
        if is_late && !self.has_warned {
            tracing::warn!(%name, messages = self.messages.len(), "{LATE}");
        }
        self.has_warned = !self.messages.is_empty() && (self.has_warned || is_late);
    }

    /// Removes the message that the history has given back.
    pub(super) fn confirm(&mut self, number: u64, now: Instant) -> Option<PendingMessage> {
        let index = self.messages.iter().position(|it| it.number == number)?;
        let confirmed = self.messages.remove(index);
        self.waits_since = (!self.messages.is_empty()).then_some(now);
        confirmed
    }

    /// Removes the messages that are too long for the engine. It would never give them back. Calls `dropped` for each,
    /// with whether the engine never got it.
    pub(super) fn drop_long(
        &mut self,
        bytes_max: usize,
        mut dropped: impl FnMut(&PendingMessage, bool),
    ) {
        self.messages.retain(|message| {
            let fits = PendingMessage::fits(&message.packet, bytes_max);
            if !fits {
                dropped(message, !message.was_counted);
            }
            fits
        });
    }

    /// Decides about the messages after the history was read. Calls `removed` for those that may be stored already,
    /// although the history has not given them back.
    ///
    /// Packets that the history has removed may be those of appended messages. The engine knows their ids, and does not
    /// give them back. They are appended again only if they may not have arrived, and only once.
    pub(super) fn judge(&mut self, has_hole: bool, mut removed: impl FnMut(&PendingMessage)) {
        let appends_again = std::mem::take(&mut self.appends_again);
        self.messages.retain_mut(|message| {
            let is_stored = match (has_hole, appends_again) {
                (true, false) => message.is_appended,
                (false, true) => message.may_be_stored,
                _ => false,
            };
            if is_stored {
                removed(message);
            }
            message.may_be_stored |= has_hole && message.is_appended;
            message.is_appended &= !appends_again;
            !is_stored
        });
        if self.messages.is_empty() {
            self.waits_since = None;
        }
    }
}

/// Bytes that a node appends to one history before the history gives them back. They usually leave together, so a
/// broken connection seldom loses only the first of them.
const APPENDED_BYTES_MAX: usize = 32 << 10;

/// Bytes that the id of a message adds to its packet.
const ID_BYTES_MAX: usize = 128;

const LATE: &str = "a history does not give back the messages of this node; they wait, and are appended again until \
     it does; look whether the backplane has space on its disk, and whether the limits of the history were changed \
     there";
