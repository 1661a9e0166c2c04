//! The messages that members and subscribers of a lane have to get: the logs of its rooms and topics, and who reads
//! them.
//!
//! The log, the cursors and the policies do no I/O and live in [`tidewire_proto::room`]. This folder binds them to
//! sessions, timers and other lanes. A room spans lanes: each lane has its own log, and a message is sent to another
//! lane once, not once per subscriber there.

mod appending;
mod codecs;
mod fanout;
mod figures;
mod quiet;
mod roster;
mod slow;
mod spanning;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use tidewire_proto::room::{Coalescer, Policy};

pub(super) use appending::{LaneLogs, NewFrame};
pub(super) use codecs::InEachCodec;
pub(crate) use fanout::{EARLY_SWEEP_BYTES, GROWTH_STEP_BYTES};
pub(super) use spanning::Origin;

use super::directory::Directory;
use super::shared_room::SharedRoom;
use crate::history::MessageHistory;
use crate::limits::nanoseconds;
use crate::mailbox::Exchange;
use crate::observe::DropReason;
use crate::session::{LaneSessions, LogKey, MEMBERSHIP_BYTES};
use quiet::QuietLogs;
use slow::SlowMembers;

/// The rooms with members, and the patterns with subscribers, on a lane, by alias; and when their logs are swept.
#[derive(Debug)]
pub(crate) struct OpenRooms {
    /// Names, rooms and patterns of the whole server.
    directory: Arc<Directory>,
    all: Vec<Option<Box<Room>>>,
    /// Planned sweeps, earliest first.
    due: BinaryHeap<Reverse<(u64, u16)>>,
    /// Rooms whose logs grew by a step in this turn. An early sweep of them may be worth its writes.
    grown: Vec<u16>,
    /// Logs with much memory, which is freed when they are quiet.
    quiet: QuietLogs,
    slow: SlowMembers,
    /// Rooms whose messages from other lanes wait in the history, because memory is short.
    behind: Vec<u16>,
    /// The queue groups of subscriptions of this lane that have ended, by alias, until the alias is used again.
    left_groups: HashMap<u16, Arc<str>>,
}

/// A room, or the subscribers of one topic pattern, as one lane sees it.
#[derive(Debug)]
struct Room {
    shared: Arc<SharedRoom>,
    coalescer: Coalescer,
    /// The end of the log at the last sweep.
    swept: u64,
    /// Slots of the sessions that are in the room, or subscribed.
    members: Vec<usize>,
    /// The end of the log at the last look, while [`QuietLogs`] watches it.
    watched: Option<u64>,
    /// Whether it is a subscription in a queue group that is looked at again, because it had unsent messages.
    is_behind: bool,
}

/// The messages that members and subscribers of a lane have to get. See the module.
#[derive(Debug)]
pub(crate) struct LaneDeliveries<'a> {
    open: &'a mut OpenRooms,
    sessions: &'a mut LaneSessions,
    exchange: &'a mut Exchange,
}

impl OpenRooms {
    pub(super) fn new(directory: Arc<Directory>) -> Self {
        Self {
            directory,
            all: Vec::new(),
            due: BinaryHeap::new(),
            grown: Vec::new(),
            quiet: QuietLogs::default(),
            slow: SlowMembers::default(),
            behind: Vec::new(),
            left_groups: HashMap::new(),
        }
    }

    /// Names, rooms and patterns of the whole server.
    #[inline]
    pub(crate) fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    #[inline]
    fn get(&self, alias: u16) -> Option<&Room> {
        self.all.get(usize::from(alias))?.as_deref()
    }

    #[inline]
    fn get_mut(&mut self, alias: u16) -> Option<&mut Room> {
        self.all.get_mut(usize::from(alias))?.as_deref_mut()
    }

    /// Whether a room has members here, or a pattern has subscribers here.
    pub(super) fn has(&self, alias: u16) -> bool {
        self.get(alias).is_some()
    }

    /// Returns what the lanes share of a room with members here, or of a pattern with subscribers here.
    #[inline]
    pub(crate) fn shared(&self, alias: u16) -> Option<&Arc<SharedRoom>> {
        self.get(alias).map(|room| &room.shared)
    }

    /// Returns the history of a room with members here, or of a topic with subscribers here.
    pub(super) fn history(&self, alias: u16) -> Option<Arc<MessageHistory>> {
        self.shared(alias)?.history().cloned()
    }

    /// Notes that a subscription in a queue group has ended. Messages for it may still come from other lanes.
    pub(super) fn note_left_group(&mut self, alias: u16, group: Arc<str>) {
        self.left_groups.insert(alias, group);
    }

    /// The name of the queue group in which a subscription was that has ended.
    pub(super) fn left_group(&self, alias: u16) -> Option<&Arc<str>> {
        self.left_groups.get(&alias)
    }

    /// Notes that messages of a room from other lanes wait in its history for memory.
    pub(super) fn note_behind(&mut self, alias: u16) {
        if !self.behind.contains(&alias) {
            self.behind.push(alias);
        }
    }

    /// Whether messages of rooms wait in histories for memory.
    #[inline]
    pub(super) fn has_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Takes the rooms whose messages wait in histories for memory.
    pub(super) fn take_behind(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.behind)
    }
}

impl<'a> LaneDeliveries<'a> {
    #[inline(always)]
    pub(super) fn new(
        open: &'a mut OpenRooms,
        sessions: &'a mut LaneSessions,
        exchange: &'a mut Exchange,
    ) -> Self {
        Self {
            open,
            sessions,
            exchange,
        }
    }

    /// Lets a session get what the log of a room or pattern gets from now on. The first member here opens the log.
    pub(super) fn attach(&mut self, slot: usize, shared: &Arc<SharedRoom>, policy: Option<Policy>) {
        let alias = shared.alias();
        let config = &self.sessions.config;
        let policy = match policy.unwrap_or(config.room_defaults.policy) {
            Policy::ConflateByTopic if !shared.is_wildcard() => Policy::Conflate,
            other => other,
        };
        let (limits, interval_max) = (config.limits.rooms.lag(), config.room_defaults.coalesce_max);
        let codec = self.sessions[slot].codec_number();
        let key = LogKey::new(alias, codec);
        let LaneSessions { relief, logs, .. } = &mut *self.sessions;
        if relief.open_log(logs, key) {
            let codecs = &self.sessions.config.codecs;
            shared.open_log(codec, self.exchange.lane(), codecs);
        }
        let Some(subscriber) = self.sessions.logs.attach(key, policy, limits) else {
            return;
        };
        let index = usize::from(alias);
        self.open.left_groups.remove(&alias);
        if self.open.all.len() <= index {
            self.open.all.resize_with(index + 1, || None);
        }
        let room = self.open.all[index].get_or_insert_with(|| {
            Box::new(Room {
                shared: Arc::clone(shared),
                coalescer: Coalescer::new(nanoseconds(interval_max)),
                swept: 0,
                members: Vec::new(),
                watched: None,
                is_behind: false,
            })
        });
        let index = room.members.len();
        room.members.push(slot);
        self.sessions.relief.charge(0, MEMBERSHIP_BYTES);
        let kind = (shared.is_topic(), shared.is_in_group());
        self.sessions[slot].enter(alias, kind, index, subscriber);
    }

    /// Ends a membership or subscription of a session. So many of its messages go to another member of its queue group,
    /// and the others are dropped for a reason. Returns what the lanes share of the room or pattern.
    pub(super) fn detach(
        &mut self,
        slot: usize,
        membership: usize,
        (reason, reassigned): (DropReason, u64),
    ) -> Option<Arc<SharedRoom>> {
        let LaneSessions {
            table,
            logs,
            relief,
            ..
        } = &mut *self.sessions;
        let session = &mut table[slot];
        let alias = session.memberships[membership].room();
        let (index, undelivered) = logs.detach(session, membership, relief)?;
        let room = self.open.get_mut(alias)?;
        room.members.swap_remove(index);
        if let Some(moved) = room.members.get(index).copied() {
            self.sessions[moved].move_member(alias, index);
        }
        let dropped = &self.sessions.counters.room_dropped;
        dropped[DropReason::Reassigned as usize].add(reassigned);
        dropped[reason as usize].add(undelivered.saturating_sub(reassigned));
        Some(Arc::clone(&room.shared))
    }

    /// Closes the logs of a room or pattern that have no member here any more.
    pub(super) fn close_unused(&mut self, shared: &SharedRoom) {
        let alias = shared.alias();
        let LaneSessions { relief, logs, .. } = &mut *self.sessions;
        let unused: Vec<LogKey> = logs
            .keys(alias)
            .filter(|key| logs.members(*key) == 0)
            .collect();
        for key in unused {
            shared.close_log(key.codec(), self.exchange.lane());
            relief.close_log(logs, key);
        }
        let room = self.open.get(alias);
        if room.is_some_and(|room| room.members.is_empty()) {
            if let Some(history) = shared.history() {
                history.leave(self.exchange.lane(), self.sessions.timers.now_ns());
            }
            self.unblock(alias);
            self.open.all[usize::from(alias)] = None;
        }
    }
}

/// Most bytes that a codec adds to a payload in a room: a header, or brackets and a name, which may be `name@node`.
pub(crate) const FRAME_OVERHEAD_BYTES_MAX: usize = 104;
