//! The histories of a server, and the rooms and topics that use them.

use std::sync::Arc;

use tidewire_proto::backplane::SequenceKind;

use super::Directory;

use crate::broker::{BackplaneLink, RoomOrTopic};
use crate::history::{History, NodeHistory, Numbering, Readiness};
use crate::room::SharedRoom;

impl Directory {
    /// Returns a room with members here, or a topic with subscribers here.
    fn shared(&self, name: &RoomOrTopic) -> Option<Arc<SharedRoom>> {
        match name {
            RoomOrTopic::Room(room) => self.room(room),
            RoomOrTopic::Topic(topic) => self.pattern(topic),
        }
    }

    /// Returns a room with members here, or a topic whose subscribers get its messages by its history.
    pub(crate) fn receiver_of_history(&self, name: &RoomOrTopic) -> Option<Arc<SharedRoom>> {
        let is_room = name.kind() == SequenceKind::Room;
        // The other subscribers of a topic get its messages on another way.
        self.shared(name)
            .filter(|shared| is_room || shared.is_numbered_by_carrier())
    }

    /// Whether a room or topic can be entered now. If not, the node is asked to open its history, or to subscribe to it
    /// if it keeps none.
    pub(in crate::room) fn readiness(
        &self,
        name: &RoomOrTopic,
        limits: Option<History>,
        is_repeating: bool,
    ) -> Readiness {
        let is_of_carrier = self.histories().numbering() == Some(Numbering::Carrier);
        match limits.filter(|_| is_of_carrier) {
            Some(limits) => self.histories().readiness(name, limits, is_repeating),
            None if self.stands(name) => Readiness::Ready(None),
            None => Readiness::Waits,
        }
    }

    /// Whether the node still opens a history, or still makes a subscription.
    pub(in crate::room) fn awaits(&self, name: &RoomOrTopic) -> bool {
        !self.link().is_none_or(BackplaneLink::is_closed)
            && (self.histories().awaits(name) || self.awaits_opening(name))
    }

    /// Removes a history that has no users. Returns whether it was removed.
    pub(crate) fn close_history(&self, name: &RoomOrTopic, history: &NodeHistory) -> bool {
        let is_unused = || self.is_unused(name, history);
        self.histories().close(name, history, is_unused)
    }

    pub(crate) fn is_unused(&self, name: &RoomOrTopic, history: &NodeHistory) -> bool {
        // A lane that lets go of it after this is a member or subscriber, who is seen below.
        let is_held = history.is_held();
        let shared = self.shared(name);
        !is_held && !shared.is_some_and(|shared| shared.is_numbered_by_carrier())
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
