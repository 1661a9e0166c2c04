//! Histories of a server that is a node: the order and the offsets come from a stream that all nodes share.
//!
//! ```text
//!   lane: say ─▶ node ─▶ stream (decides the order) ─▶ every node with members ─▶ its history ─▶ its lanes
//! ```
//!
//! A lane neither records nor delivers a message of such a room or topic; it gives it to the node. The node records each message
//! when the stream gives it back, its own ones too, so a message has the same offset on all nodes. The lanes then get it like one
//! of another lane. A history is here while the room has members on this node, or the topic subscribers. A join or a subscription
//! waits until it is here; see [`waiting`](super::waiting).

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use tidewire_io::clock::now_ns;
use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::message::MemberId;
use tidewire_proto::topic::Pattern;

use super::directory::Directory;
use super::history::{Histories, History, RoomHistory};
use super::ring::Kept;
use super::shared_room::SharedRoom;
use crate::broker::{BackplaneLink, Position, RoomOrTopic};

/// A history that the node opens.
#[derive(Debug)]
pub(super) struct Wanted {
    limits: History,
    /// Why the node cannot open it, and whether that is older than a heartbeat.
    failure: Option<(Arc<str>, bool)>,
}

/// Whether a session can join a room, or subscribe to a topic.
#[derive(Debug)]
pub(crate) enum Readiness {
    /// It can.
    Ready(#[expect(dead_code, reason = "it keeps the history open")] Option<Held>),
    /// The node opens the history.
    Waits,
    /// The node cannot open it.
    Failed(Arc<str>),
}

/// Keeps the history of a node open.
#[derive(Debug)]
pub(crate) struct Held(Arc<RoomHistory>);

/// The node's side of a history.
#[derive(Clone, Debug)]
pub(crate) struct Feed(Arc<RoomHistory>);

impl Directory {
    /// Whether so many messages wait for their streams that no more are taken.
    pub(super) fn is_stream_full(&self) -> bool {
        self.link().is_some_and(BackplaneLink::is_full)
    }

    fn histories_of(&self, name: &RoomOrTopic) -> &Histories {
        match name {
            RoomOrTopic::Room(_) => &self.histories,
            RoomOrTopic::Topic(_) => &self.kept_topics.histories,
        }
    }

    /// Returns a room with members here, or a topic with subscribers here.
    pub(crate) fn shared(&self, name: &RoomOrTopic) -> Option<Arc<SharedRoom>> {
        match name {
            RoomOrTopic::Room(room) => self.by_name(room),
            RoomOrTopic::Topic(topic) => self.lock().topic(topic).cloned(),
        }
    }

    /// Returns a room with members here, or a topic with subscribers that its history feeds.
    pub(crate) fn fed(&self, name: &RoomOrTopic) -> Option<Arc<SharedRoom>> {
        let is_room = name.kind() == SequenceKind::Room;
        // The subscribers of a topic that the history does not feed get its messages on another way.
        self.shared(name)
            .filter(|shared| is_room || shared.is_fed())
    }

    /// Keeps the history of a room or topic open, if the node has it.
    fn hold(&self, name: &RoomOrTopic) -> Option<Held> {
        let table = self.histories_of(name).table();
        let history = table.get(name.text()).filter(|history| history.is_fed)?;
        history.holds.fetch_add(1, Ordering::Relaxed);
        Some(Held(Arc::clone(history)))
    }

    /// Keeps the history of a topic open, if the node has it. A pattern with a wildcard has none.
    pub(super) fn hold_topic(&self, pattern: &Pattern<'_>) -> Option<Held> {
        self.link().filter(|link| link.keeps_histories())?;
        self.hold(&RoomOrTopic::new(SequenceKind::Topic, pattern.text()))
    }

    /// Whether a room or topic can be entered now. If not, the node is asked to open its history, or to subscribe to it if it keeps
    /// none.
    ///
    /// A failure is told to all that waited for it. Whoever comes later makes the node try again.
    pub(crate) fn readiness(
        &self,
        name: &RoomOrTopic,
        limits: Option<History>,
        is_repeating: bool,
    ) -> Readiness {
        let link = self.link().filter(|link| link.keeps_histories());
        let (Some(link), Some(limits)) = (link, limits) else {
            return match self.stands(name) {
                true => Readiness::Ready(None),
                false => Readiness::Waits,
            };
        };
        if let Some(held) = self.hold(name) {
            return Readiness::Ready(Some(held));
        }
        if link.is_closed() {
            return Readiness::Failed(ENDED.into());
        }
        let room = name.text();
        let mut wanted = self.histories_of(name).wanted();
        match wanted.get(room).map(|known| known.failure.as_ref()) {
            Some(None) => return Readiness::Waits,
            Some(Some((text, _))) if is_repeating => return Readiness::Failed(Arc::clone(text)),
            _ => {}
        }
        let failure = None;
        wanted.insert(room.into(), Wanted { limits, failure });
        link.note_history(name);
        Readiness::Waits
    }

    /// Forgets failures that all who waited have been told of: those that are older than a heartbeat.
    pub(crate) fn forget_failures(&self) {
        for histories in [&self.histories, &self.kept_topics.histories] {
            histories.wanted().retain(|_, wanted| {
                let failure = wanted.failure.as_mut();
                failure.is_none_or(|(_, is_old)| !std::mem::replace(is_old, true))
            });
        }
    }

    /// The limits of a history that lanes wait for.
    pub(crate) fn wanted_history(&self, name: &RoomOrTopic) -> Option<History> {
        let wanted = self.histories_of(name).wanted();
        let found = wanted.get(name.text()).filter(|it| it.failure.is_none());
        found.map(|it| it.limits)
    }

    /// Makes a history that is empty up to a position, for the node to fill.
    pub(crate) fn begin_feed(&self, limits: History, last: Position) -> Feed {
        Feed(self.histories.begin_at(limits, last, true))
    }

    /// Lets sessions enter the room or topic of a history.
    pub(crate) fn open_feed(&self, name: &RoomOrTopic, feed: &Feed) {
        let histories = self.histories_of(name);
        histories
            .table()
            .insert_fed(name.text(), Arc::clone(&feed.0));
        histories.wanted().remove(name.text());
        self.note_answer();
    }

    /// Refuses the joins and subscriptions that wait for a history.
    pub(crate) fn fail_feed(&self, name: &RoomOrTopic, text: &str) {
        let histories = self.histories_of(name);
        if let Some(wanted) = histories.wanted().get_mut(name.text()) {
            wanted.failure = Some((text.into(), false));
        }
        self.note_answer();
    }

    /// Whether the node still opens a history, or still makes a subscription.
    pub(super) fn awaits(&self, name: &RoomOrTopic) -> bool {
        if self.link().is_none_or(BackplaneLink::is_closed) {
            return false;
        }
        let wanted = self.histories_of(name).wanted();
        let wanted = wanted.get(name.text());
        wanted.is_some_and(|it| it.failure.is_none()) || self.awaits_opening(name)
    }

    /// Lets the lanes look again whether joins can go on.
    pub(crate) fn note_answer(&self) {
        self.histories.answers.fetch_add(1, Ordering::Release);
    }

    /// Counts the answers of the node that joins wait for.
    pub(super) fn node_answers(&self) -> u64 {
        self.histories.answers.load(Ordering::Acquire)
    }

    /// Returns the history that the node feeds for this room or topic.
    pub(super) fn fed_history(&self, name: &RoomOrTopic) -> Option<Arc<RoomHistory>> {
        Some(self.hold(name)?.history())
    }

    /// Removes a history that nobody uses. Returns whether it was removed.
    pub(crate) fn close_feed(&self, name: &RoomOrTopic, feed: &Feed) -> bool {
        let mut table = self.histories_of(name).table();
        // While the table is locked, no lane begins to hold it.
        let is_unused = self.is_unused(name, feed);
        if is_unused {
            table.remove(name.text());
            // The copies of routes may still have the topic.
            feed.0.lock().clear();
        }
        is_unused
    }

    /// Whether nobody uses a history.
    pub(crate) fn is_unused(&self, name: &RoomOrTopic, feed: &Feed) -> bool {
        // A lane that lets go of it after this is a member or subscriber, who is seen below.
        let is_held = feed.0.holds.load(Ordering::Acquire) > 0;
        let shared = self.shared(name);
        !is_held && !shared.is_some_and(|shared| shared.is_fed())
    }
}

/// The reason why a node opens no history any more.
const ENDED: &str =
    "this server has left its cluster, because the thread of its backplane has ended";

impl Histories {
    fn wanted(&self) -> MutexGuard<'_, std::collections::HashMap<Box<str>, Wanted>> {
        // No code under the lock panics.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    pub(super) fn history(&self) -> Arc<RoomHistory> {
        Arc::clone(&self.0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The thread that sees the number sees the join of the session, too.
        self.0.holds.fetch_sub(1, Ordering::Release);
    }
}

impl Feed {
    /// The position of the newest message.
    pub(crate) fn last(&self) -> Position {
        self.0.lock().last
    }

    /// Continues at another position, because the messages before it are lost.
    pub(crate) fn continue_behind(&self, last: Position) {
        self.0.lock().continue_behind(last);
    }

    /// Records the next message.
    pub(crate) fn record(&self, member: MemberId, name: &str, payload: &[u8]) {
        let message = Kept {
            member,
            name,
            payload,
        };
        let mut records = self.0.lock();
        self.0.record(&mut records, &message, now_ns());
        drop(records);
        self.0.touch();
    }

    /// Records that the next message cannot be shown. Those who come back are told that it is missing.
    pub(crate) fn record_hole(&self) {
        self.0.record_hole(&mut self.0.lock(), now_ns());
    }

    /// Whether the history keeps a message of this size.
    pub(crate) fn has_room_for(&self, name: &str, payload: &[u8]) -> bool {
        let member = MemberId(0);
        self.0.has_room_for(&Kept {
            member,
            name,
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use tidewire_proto::backplane::NodeLife;

    use super::*;
    use crate::limits::Limits;

    /// Regression: only one of those that waited was told of a failure, and the next one made the node try again. If it had gone
    /// meanwhile, somebody else was told later, and names that nobody asked for again stayed for ever.
    #[test]
    fn a_failure_is_told_to_all_that_waited_and_to_nobody_later() {
        let link = Arc::new(BackplaneLink::new(NodeLife::new("one", 1), 1_000, true));
        let directory = Directory::new(&Limits::default(), None, Some(Arc::clone(&link)));
        let room = RoomOrTopic::Room("lobby".into());
        let limits = Some(History::default());
        let fails = |is_repeating| {
            let readiness = directory.readiness(&room, limits, is_repeating);
            matches!(readiness, Readiness::Failed(_))
        };
        assert!(!fails(false) && !fails(false), "both wait");
        assert!(directory.awaits(&room));
        directory.fail_feed(&room, "no space");
        assert!(!directory.awaits(&room));
        assert!(fails(true) && fails(true), "both are told");
        assert!(!fails(false), "the node tries again");
        assert_eq!(link.take().histories.len(), 1);
        directory.fail_feed(&room, "no space");
        directory.forget_failures();
        assert!(fails(true), "a heartbeat may be due at once");
        directory.forget_failures();
        assert!(directory.histories.wanted().is_empty());
        assert!(!fails(false));
        // A node that has ended answers nothing.
        link.close();
        assert!(!directory.awaits(&room));
        assert!(fails(false) && fails(true), "it waited when the node ended");
        assert!(matches!(
            directory.readiness(&RoomOrTopic::Room("new".into()), limits, false),
            Readiness::Failed(_)
        ));
    }
}
