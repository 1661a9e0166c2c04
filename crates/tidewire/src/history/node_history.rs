//! The node's side of a history whose messages the carrier numbers, and what lanes wait for.

use std::sync::Arc;

use tidewire_io::clock::now_ns;
use tidewire_proto::message::MemberId;

use super::History;
use super::Record;
use super::message_history::MessageHistory;
use crate::broker::Position;

/// The messages of a history on this node, for the node to fill.
#[derive(Clone, Debug)]
pub(crate) struct NodeHistory(Arc<MessageHistory>);

/// Keeps the history of a node open.
#[derive(Debug)]
pub(crate) struct HistoryHold(Arc<MessageHistory>);

/// Whether a session can join a room, or subscribe to a topic.
#[derive(Debug)]
pub(crate) enum Readiness {
    /// It can.
    Ready(#[expect(dead_code, reason = "it keeps the history open")] Option<HistoryHold>),
    Waits,
    /// The node cannot open it.
    Failed(Arc<str>),
}

/// A history that the node opens.
#[derive(Debug)]
pub(super) struct WantedHistory {
    limits: History,
    /// Why the node cannot open it, and whether that is older than a heartbeat.
    failure: Option<(Arc<str>, bool)>,
}

impl WantedHistory {
    pub(super) fn new(limits: History) -> Self {
        Self {
            limits,
            failure: None,
        }
    }

    /// The limits, unless the node could not open the history.
    pub(super) fn limits(&self) -> Option<History> {
        self.failure.is_none().then_some(self.limits)
    }

    /// Why the node cannot open it.
    pub(super) fn failure(&self) -> Option<&Arc<str>> {
        self.failure.as_ref().map(|(text, _)| text)
    }

    pub(super) fn fail(&mut self, text: &str) {
        self.failure = Some((text.into(), false));
    }

    /// Counts a heartbeat. Returns whether the failure is older than the last one, so that all who waited have been
    /// told.
    pub(super) fn grow_old(&mut self) -> bool {
        let failure = self.failure.as_mut();
        failure.is_some_and(|(_, is_old)| std::mem::replace(is_old, true))
    }
}

impl HistoryHold {
    pub(super) fn new(history: &Arc<MessageHistory>) -> Self {
        history.hold();
        Self(Arc::clone(history))
    }

    pub(crate) fn history(&self) -> Arc<MessageHistory> {
        Arc::clone(&self.0)
    }
}

impl Drop for HistoryHold {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl NodeHistory {
    pub(super) fn new(history: Arc<MessageHistory>) -> Self {
        Self(history)
    }

    pub(super) fn messages(&self) -> &Arc<MessageHistory> {
        &self.0
    }

    /// Whether a session is about to join or subscribe.
    pub(crate) fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// The position of the newest message.
    pub(crate) fn last(&self) -> Position {
        self.0.lock().last()
    }

    /// Continues at another position, because the messages before it are lost.
    pub(crate) fn continue_after(&self, last: Position) {
        self.0.lock().continue_after(last);
    }

    /// Records the next message.
    pub(crate) fn record(&self, member: MemberId, name: &str, payload: &[u8]) {
        let message = Record::by(member, name, payload);
        let mut records = self.0.lock();
        self.0.record(&mut records, &message, now_ns());
        drop(records);
        self.0.touch();
    }

    /// Records that the next message cannot be shown. Members who come back are told that it is missing.
    pub(crate) fn record_hole(&self) {
        self.0.record_hole(&mut self.0.lock(), now_ns());
    }

    /// Whether the history keeps a message of this size.
    pub(crate) fn has_room_for(&self, name: &str, payload: &[u8]) -> bool {
        self.0.has_room_for(&Record::by(MemberId(0), name, payload))
    }
}
