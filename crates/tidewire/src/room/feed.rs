//! Histories of a server that is a node: the order and the offsets come from a stream that all nodes share.
//!
//! ```text
//!   lane: say ─▶ node ─▶ stream (decides the order) ─▶ every node with members ─▶ its history ─▶ its lanes
//! ```
//!
//! A lane neither records nor delivers a message of such a room; it gives it to the node. The node records each message when
//! the stream gives it back, its own ones too, so a message has the same offset on all nodes. The lanes then get it like one
//! of another lane. A history is here while the room has members on this node. A join waits until it is here; see
//! [`waiting`](super::waiting).

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use tidewire_io::clock::now_ns;
use tidewire_proto::backplane::StreamKind;
use tidewire_proto::message::MemberId;

use super::directory::Directory;
use super::history::{Histories, History, RoomHistory};
use super::ring::Kept;
use crate::broker::{BackplaneLink, Followed, Position};

/// A history that the node opens.
#[derive(Debug)]
pub(super) struct Wanted {
    limits: History,
    /// Why the node cannot open it.
    failure: Option<Arc<str>>,
}

/// Whether a session can join a room.
#[derive(Debug)]
pub(crate) enum Readiness {
    /// It can. The history of a node stays open as long as this value.
    Ready(#[expect(dead_code, reason = "it keeps the history open")] Option<Feed>),
    /// The node opens the history.
    Waits,
    /// The node cannot open it.
    Failed(Arc<str>),
}

/// The node's side of a history.
#[derive(Clone, Debug)]
pub(crate) struct Feed(Arc<RoomHistory>);

impl Directory {
    /// Whether so many messages wait for their streams that no more are taken.
    pub(super) fn is_stream_full(&self) -> bool {
        self.link().is_some_and(BackplaneLink::is_full)
    }

    /// Whether a room can be joined now. If not, the node is asked to open its history, or to subscribe to it if it keeps none.
    pub(crate) fn readiness(&self, room: &str, limits: Option<History>) -> Readiness {
        let link = self.link().filter(|link| link.keeps_histories());
        let (Some(link), Some(limits)) = (link, limits) else {
            return match self.stands(StreamKind::Room, room) {
                true => Readiness::Ready(None),
                false => Readiness::Waits,
            };
        };
        if let Some(history) = self.histories.rooms().get(room) {
            return Readiness::Ready(Some(Feed(Arc::clone(history))));
        }
        let mut wanted = self.histories.wanted();
        if let Some(known) = wanted.get_mut(room) {
            return match known.failure.take() {
                Some(text) => {
                    wanted.remove(room);
                    Readiness::Failed(text)
                }
                None => Readiness::Waits,
            };
        }
        let failure = None;
        wanted.insert(room.into(), Wanted { limits, failure });
        link.note_history(room);
        Readiness::Waits
    }

    /// The limits of a history that lanes wait for.
    pub(crate) fn wanted_history(&self, room: &str) -> Option<History> {
        let wanted = self.histories.wanted();
        let found = wanted.get(room).filter(|it| it.failure.is_none());
        found.map(|it| it.limits)
    }

    /// Makes a history that is empty up to a position, for the node to fill.
    pub(crate) fn begin_feed(&self, limits: History, last: Position) -> Feed {
        Feed(self.histories.begin_at(limits, last, true))
    }

    /// Lets sessions join the room of a history.
    pub(crate) fn open_feed(&self, room: &str, feed: &Feed) {
        let mut rooms = self.histories.rooms();
        rooms.insert(room.into(), Arc::clone(&feed.0));
        drop(rooms);
        self.histories.wanted().remove(room);
        self.note_answer();
    }

    /// Refuses the joins that wait for a history.
    pub(crate) fn fail_feed(&self, room: &str, text: &str) {
        if let Some(wanted) = self.histories.wanted().get_mut(room) {
            wanted.failure = Some(text.into());
        }
        self.note_answer();
    }

    /// Whether the node still opens the history of a room, or still makes a subscription.
    pub(super) fn awaits(&self, followed: &Followed) -> bool {
        let (kind, name) = followed;
        let wanted = self.histories.wanted();
        let awaits_history =
            *kind == StreamKind::Room && wanted.get(name).is_some_and(|it| it.failure.is_none());
        awaits_history || self.awaits_opening(followed)
    }

    /// Lets the lanes look again whether joins can go on.
    pub(super) fn note_answer(&self) {
        self.histories.answers.fetch_add(1, Ordering::Release);
    }

    /// Counts the answers of the node that joins wait for.
    pub(super) fn node_answers(&self) -> u64 {
        self.histories.answers.load(Ordering::Acquire)
    }

    /// Returns the history that the node feeds for this room.
    pub(super) fn fed_history(&self, room: &str) -> Option<Arc<RoomHistory>> {
        let fed = self.histories.rooms().get(room).cloned();
        fed.filter(|history| history.is_fed)
    }

    /// Removes a history that nobody uses. Returns whether it was removed.
    pub(crate) fn close_feed(&self, room: &str, feed: &Feed) -> bool {
        let mut rooms = self.histories.rooms();
        // The map and the feed have a reference each, and a room with members or a join a further one.
        let is_idle = Arc::strong_count(&feed.0) <= 2;
        if is_idle {
            rooms.remove(room);
        }
        is_idle
    }
}

impl Histories {
    fn rooms(&self) -> MutexGuard<'_, std::collections::HashMap<Box<str>, Arc<RoomHistory>>> {
        // No code under the lock panics.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> MutexGuard<'_, std::collections::HashMap<Box<str>, Wanted>> {
        // No code under the lock panics.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
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
