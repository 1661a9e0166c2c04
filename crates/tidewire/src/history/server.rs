//! The histories of a server: who numbers their messages, which rooms and topics have one, and what lanes wait for.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

use tidewire_proto::backplane::SequenceKind;
use tidewire_proto::body::Since;
use tidewire_proto::topic::Pattern;

use super::limits::HistoryPattern;
use super::message_history::MessageHistory;
use super::named::NamedHistories;
use super::node_history::{HistoryHold, NodeHistory, Readiness, WantedHistory};
use super::{History, Numbering, TopicHistory};
use crate::broker::{BackplaneLink, Position, RoomOrTopic};

/// The histories of a server. See the module.
#[derive(Debug)]
pub(crate) struct ServerHistories {
    rooms: NamedHistories,
    topics: NamedHistories,
    /// The topics that keep a history. The first pattern that matches a topic counts.
    patterns: OnceLock<Vec<HistoryPattern>>,
    /// The way to the node, which asks the carrier for histories.
    link: Option<Arc<BackplaneLink>>,
    /// Logs once that a node keeps no history.
    told: Once,
    /// Whether a lane looks for expired messages.
    is_expiring: AtomicBool,
    /// Counts the answers of the node that joins and subscriptions wait for.
    answers: AtomicU64,
}

impl ServerHistories {
    pub(crate) fn new(link: Option<Arc<BackplaneLink>>) -> Self {
        Self {
            rooms: NamedHistories::default(),
            topics: NamedHistories::default(),
            patterns: OnceLock::new(),
            link,
            told: Once::new(),
            is_expiring: AtomicBool::new(false),
            answers: AtomicU64::new(0),
        }
    }

    fn of(&self, name: &RoomOrTopic) -> &NamedHistories {
        match name {
            RoomOrTopic::Room(_) => &self.rooms,
            RoomOrTopic::Topic(_) => &self.topics,
        }
    }

    /// The side that numbers the messages: this server if it is alone, else the carrier. `None` if the server keeps no
    /// history: a node that had only its own messages would miss those of other nodes in silence.
    pub(crate) fn numbering(&self) -> Option<Numbering> {
        match &self.link {
            None => Some(Numbering::Here),
            Some(link) => link.keeps_histories().then_some(Numbering::Carrier),
        }
    }

    /// Logs once that histories that were asked for are not kept.
    pub(crate) fn warn_of_none(&self) {
        self.told.call_once(|| {
            tracing::warn!(
                "this server is a node of a cluster whose settings do not say that it keeps histories, so its rooms \
                 and topics keep none: it would have only its own messages"
            );
        });
    }

    /// Whether so many messages wait for the carrier that no more are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_full())
    }

    /// Sets which topics keep a history. Only the first call has an effect.
    pub(crate) fn keep_topics(&self, patterns: Vec<HistoryPattern>) {
        let _ = self.patterns.set(patterns);
    }

    /// Whether some topics keep a history.
    pub(crate) fn keeps_topics(&self) -> bool {
        self.patterns.get().is_some_and(|all| !all.is_empty())
    }

    /// The limits of the history of this topic, if it keeps one.
    pub(crate) fn topic_limits(&self, topic: &str) -> Option<History> {
        HistoryPattern::limits_of(self.patterns.get()?, topic)
    }

    /// Returns the history of this room on a server alone. `owner` returns the address that brings a new name.
    pub(crate) fn open_room(
        &self,
        room: &str,
        limits: History,
        owner: impl FnOnce() -> Option<IpAddr>,
    ) -> Arc<MessageHistory> {
        self.rooms.open(room, limits, owner)
    }

    /// Returns the history of this topic, if it keeps one. On a server alone it keeps none if there are too many
    /// topics; then the topic has no positions. `owner` returns the address that brings a new topic.
    pub(crate) fn topic(
        &self,
        topic: &str,
        owner: impl FnOnce() -> Option<IpAddr>,
    ) -> Option<TopicHistory> {
        let limits = self.topic_limits(topic)?;
        match &self.link {
            Some(_) => Some(TopicHistory::OfCarrier),
            None => {
                let here = self.topics.open_within(topic, limits, owner);
                here.map(TopicHistory::Here)
            }
        }
    }

    /// How many of the newest messages of each topic a subscriber of a wildcard gets that asks for this. A node has
    /// those of some topics only, so it gives none.
    pub(crate) fn newest_count(&self, since: Since) -> u64 {
        match since {
            Since::Last(count) if self.keeps_topics() && self.link.is_none() => count,
            _ => 0,
        }
    }

    /// The topics with a history that a pattern matches, in the order of their names.
    pub(crate) fn topics_of(&self, pattern: &Pattern<'_>) -> Vec<Arc<str>> {
        let mut topics = self.topics.table().matched_by(pattern);
        topics.sort_unstable();
        topics
    }

    /// The history of a topic, if there is one. Let it go soon: a history that is held does not give way to others.
    pub(crate) fn of_topic(&self, topic: &str) -> Option<Arc<MessageHistory>> {
        self.topics.table().get(topic).cloned()
    }

    /// Keeps the history of a room or topic open, if the node has it.
    fn hold(&self, name: &RoomOrTopic) -> Option<HistoryHold> {
        let table = self.of(name).table();
        let history = table.get(name.text())?;
        (history.numbering() == Numbering::Carrier).then(|| HistoryHold::new(history))
    }

    /// Keeps the history of a topic open, if the node has it. A pattern with a wildcard has none.
    pub(crate) fn hold_topic(&self, pattern: &Pattern<'_>) -> Option<HistoryHold> {
        self.link.as_ref().filter(|link| link.keeps_histories())?;
        self.hold(&RoomOrTopic::new(SequenceKind::Topic, pattern.text()))
    }

    pub(crate) fn of_node(&self, name: &RoomOrTopic) -> Option<Arc<MessageHistory>> {
        Some(self.hold(name)?.history())
    }

    /// Whether a room or topic whose messages the carrier numbers can be entered now. If not, the node is asked to open
    /// its history.
    ///
    /// All joins that waited get the failure. A later join makes the node try again.
    pub(crate) fn readiness(
        &self,
        name: &RoomOrTopic,
        limits: History,
        is_repeating: bool,
    ) -> Readiness {
        if let Some(hold) = self.hold(name) {
            return Readiness::Ready(Some(hold));
        }
        let link = self.link.as_ref().filter(|link| !link.is_closed());
        let Some(link) = link else {
            return Readiness::Failed(ENDED.into());
        };
        let mut wanted = self.of(name).wanted();
        match wanted.get(name.text()).map(WantedHistory::failure) {
            Some(None) => return Readiness::Waits,
            Some(Some(text)) if is_repeating => return Readiness::Failed(Arc::clone(text)),
            _ => {}
        }
        wanted.insert(name.text().into(), WantedHistory::new(limits));
        link.note_history(name);
        Readiness::Waits
    }

    /// Whether the node still opens a history.
    pub(crate) fn awaits(&self, name: &RoomOrTopic) -> bool {
        self.wanted_limits(name).is_some()
    }

    /// The limits of a history that lanes wait for.
    pub(crate) fn wanted_limits(&self, name: &RoomOrTopic) -> Option<History> {
        self.of(name).wanted().get(name.text())?.limits()
    }

    /// Forgets failures that all who waited have been told of: those that are older than a heartbeat.
    pub(crate) fn forget_failures(&self) {
        for histories in [&self.rooms, &self.topics] {
            histories.wanted().retain(|_, wanted| !wanted.grow_old());
        }
    }

    /// Makes a history that is empty up to a position, for the node to fill.
    pub(crate) fn begin(&self, limits: History, last: Position) -> NodeHistory {
        NodeHistory::new(self.rooms.begin_at(limits, last, Numbering::Carrier))
    }

    /// Lets sessions enter the room or topic of a history.
    pub(crate) fn open(&self, name: &RoomOrTopic, history: &NodeHistory) {
        let histories = self.of(name);
        let messages = Arc::clone(history.messages());
        histories.table().insert_of_node(name.text(), messages);
        histories.wanted().remove(name.text());
        self.note_answer();
    }

    /// Refuses the joins and subscriptions that wait for a history.
    pub(crate) fn fail(&self, name: &RoomOrTopic, text: &str) {
        if let Some(wanted) = self.of(name).wanted().get_mut(name.text()) {
            wanted.fail(text);
        }
        self.note_answer();
    }

    /// Removes a history unless it is used. Returns whether it was removed.
    pub(crate) fn close(
        &self,
        name: &RoomOrTopic,
        history: &NodeHistory,
        is_unused: impl FnOnce() -> bool,
    ) -> bool {
        let mut table = self.of(name).table();
        // While the table is locked, no lane begins to hold it.
        let is_unused = is_unused();
        if is_unused {
            table.remove(name.text());
            // The copies of routes may still have the topic.
            history.messages().lock().clear();
        }
        is_unused
    }

    /// Lets the lanes look again whether joins can go on.
    pub(crate) fn note_answer(&self) {
        self.answers.fetch_add(1, Ordering::Release);
    }

    /// Counts the answers of the node that joins wait for.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Acquire)
    }

    /// Whether no lane looked for expired messages before. From now on the caller does.
    pub(crate) fn begin_expiry(&self) -> bool {
        !self.is_expiring.swap(true, Ordering::Relaxed)
    }

    /// Removes the expired messages of the next histories of a round, at most `count_max` of rooms and of topics.
    /// Returns the number of all histories.
    pub(crate) fn expire_next(&self, count_max: usize, now_ns: u64) -> usize {
        let expire = |histories: &NamedHistories| {
            let mut table = histories.table();
            let (count, part) = (table.len(), table.next(count_max));
            drop(table);
            part.iter().for_each(|history| history.expire(now_ns));
            count
        };
        expire(&self.rooms).max(expire(&self.topics))
    }

    /// Bytes of the histories of topics.
    #[cfg(test)]
    pub(crate) fn held_by_topics(&self) -> usize {
        let mut table = self.topics.table();
        // The first call ends the present round.
        table.next(usize::MAX / 2);
        let all = table.next(usize::MAX / 2);
        all.iter().map(|history| history.lock().held_bytes()).sum()
    }

    /// Whether no lane waits for a history, or was told of a failure.
    #[cfg(test)]
    pub(crate) fn wants_nothing(&self) -> bool {
        self.rooms.wanted().is_empty() && self.topics.wanted().is_empty()
    }
}

/// The reason why a node opens no history any more.
const ENDED: &str =
    "this server has left its cluster, because the thread of its backplane has ended";
