//! Rooms and patterns that a node subscribes to before they have members.
//!
//! A session that is told that it has joined must get what other nodes send from then on, or be told what is missing.
//! So the first join of a room on a node waits, some milliseconds, until the engine has the subscription of the node.
//! Later joins find members and do not wait. Two other joins do not wait: a join on a node whose members were told that
//! the node is cut off, and a join that a handler makes by [`RoomActions::join`](crate::RoomActions::join).
//!
//! Rejected: a gap notice after the join, because neither node knows how many messages were sent in between.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidewire_proto::body::validate_name;
use tidewire_proto::topic::Pattern;

use super::Directory;
use crate::broker::RoomOrTopic;

/// The rooms and patterns that the node subscribes to for a join, each with whether the subscription stands. A pattern
/// has the name of a topic here.
#[derive(Debug, Default)]
pub(super) struct Openings(Mutex<HashMap<RoomOrTopic, bool>>);

impl Openings {
    fn lock(&self) -> MutexGuard<'_, HashMap<RoomOrTopic, bool>> {
        // No code under the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory {
    /// Whether a session can join a room, or subscribe to a pattern, now. If not, the node is asked to subscribe first.
    pub(in crate::room) fn stands(&self, name: &RoomOrTopic) -> bool {
        let Some(link) = self.link().filter(|link| !link.is_cut_off()) else {
            return true;
        };
        // A name that is not valid is refused later.
        let is_valid = match name {
            RoomOrTopic::Room(room) => validate_name(room).is_ok(),
            RoomOrTopic::Topic(pattern) => Pattern::parse(pattern).is_ok(),
        };
        if !is_valid || self.has_members(name) {
            return true;
        }
        let mut openings = self.openings.lock();
        if let Some(stands) = openings.get(name) {
            return *stands;
        }
        if openings.len() < OPENINGS_MAX {
            link.note_opening(name.clone());
            openings.insert(name.clone(), false);
            return false;
        }
        true
    }

    /// Whether the node still makes the subscription of a room or pattern.
    pub(in crate::room) fn awaits_opening(&self, name: &RoomOrTopic) -> bool {
        self.openings.lock().get(name) == Some(&false)
    }

    /// Lets sessions join a room or subscribe to a pattern.
    pub(crate) fn end_opening(&self, name: &RoomOrTopic) {
        if let Some(stands) = self.openings.lock().get_mut(name) {
            *stands = true;
        }
        self.histories().note_answer();
    }

    /// Forgets that the subscription of a room or pattern was made, because the room has members now, or no session has
    /// joined.
    pub(crate) fn forget_opening(&self, name: &RoomOrTopic) {
        self.openings.lock().remove(name);
        self.histories().note_answer();
    }

    pub(crate) fn has_members(&self, name: &RoomOrTopic) -> bool {
        match name {
            RoomOrTopic::Room(room) => self.room(room).is_some(),
            RoomOrTopic::Topic(pattern) => self.has_pattern(pattern),
        }
    }
}

/// Most subscriptions without members. Joins beyond this limit do not wait.
const OPENINGS_MAX: usize = 4_096;
