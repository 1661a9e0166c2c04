//! The histories of all rooms, or of all topics, by their names.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::message_history::MessageHistory;
use super::node_history::WantedHistory;
use super::table::HistoryTable;
use super::{History, Numbering};
use crate::broker::Position;

/// The histories of the rooms, or of the topics, of a server.
#[derive(Debug)]
pub(super) struct NamedHistories {
    table: Mutex<HistoryTable>,
    /// The epoch of the first history. Further histories count on from this epoch. The epoch is random, so that the
    /// positions of a former run of the program are in other epochs.
    epoch_first: u64,
    /// Counts messages, and so shows which room was silent for the longest time.
    clock: Arc<AtomicU64>,
    /// Histories that lanes wait for until the node has them.
    wanted: Mutex<HashMap<Box<str>, WantedHistory>>,
}

impl Default for NamedHistories {
    fn default() -> Self {
        Self {
            table: Mutex::default(),
            epoch_first: RandomState::new().hash_one(0),
            clock: Arc::default(),
            wanted: Mutex::default(),
        }
    }
}

impl NamedHistories {
    /// Histories that lanes wait for until the node has them.
    pub(super) fn wanted(&self) -> MutexGuard<'_, HashMap<Box<str>, WantedHistory>> {
        // No code under the lock panics.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an empty history whose newest message has this position.
    pub(super) fn begin_at(
        &self,
        limits: History,
        last: Position,
        numbering: Numbering,
    ) -> Arc<MessageHistory> {
        MessageHistory::begin(limits, last, numbering, Arc::clone(&self.clock))
    }

    pub(super) fn table(&self) -> MutexGuard<'_, HistoryTable> {
        // No code under the lock panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the history of this room, and creates it if there is none. If there are too many, it keeps nothing,
    /// because its memory would exceed the limit. `owner` returns the address that brings a new name.
    pub(super) fn open(
        &self,
        room: &str,
        limits: History,
        owner: impl FnOnce() -> Option<IpAddr>,
    ) -> Arc<MessageHistory> {
        let history = self.open_within(room, limits, owner);
        history.unwrap_or_else(|| {
            self.begin(History {
                messages_max: 0,
                ..limits
            })
        })
    }

    /// As [`Self::open`], but returns `None` if there are too many.
    pub(super) fn open_within(
        &self,
        room: &str,
        limits: History,
        owner: impl FnOnce() -> Option<IpAddr>,
    ) -> Option<Arc<MessageHistory>> {
        let mut table = self.table();
        if let Some(history) = table.get(room) {
            return Some(Arc::clone(history));
        }
        let owner = owner();
        if table.len() >= limits.names_max && !table.make_room(owner, limits.names_max) {
            return None;
        }
        let history = self.begin(limits);
        table.insert(room, Arc::clone(&history), owner);
        Some(history)
    }

    fn begin(&self, limits: History) -> Arc<MessageHistory> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        let last = Position {
            // The largest epoch has a meaning of its own.
            epoch: self.epoch_first.wrapping_add(now) & (u64::MAX >> 1),
            offset: 0,
        };
        self.begin_at(limits, last, Numbering::Here)
    }
}
