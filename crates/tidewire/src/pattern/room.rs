//! Rooms on a lane: joining, leaving, saying, sweeping.
//!
//! The log, the cursors and the policies are sans-IO and live in [`tidewire_proto::room`]; this file binds
//! them to sessions, timers and other lanes. A room spans lanes: each has a log of its own, and what is said
//! crosses to another lane once, not once per subscriber there.

use std::cmp::Reverse;
use std::sync::Arc;

use tidewire_io::timer::TimerId;
use tidewire_proto::body::validate_name;
use tidewire_proto::codec::{Codec, Presence, Said};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{MemberId, PresenceEvent};
use tidewire_proto::room::{Coalescer, Policy, RoomLog, Subscriber};

use super::directory::{EnterError, NameConflict, SharedRoom};
use super::refusal::{JoinError, ReachedLimit, RoomError};
use crate::lane::{BatchEntry, Core};
use crate::limits::nanoseconds;
use crate::metrics::DropReason;
use crate::session::{Member, Membership, Session, SessionId};

/// A room, or the subscribers of one topic pattern, as one lane sees it.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) shared: Arc<SharedRoom>,
    pub(crate) log: RoomLog,
    pub(super) coalescer: Coalescer,
    /// Slots of the sessions that are in the room, or subscribed.
    pub(super) members: Vec<usize>,
    /// Set while a `block` subscriber of this lane holds the publishers: the timer that ends it.
    pub(super) blocked: Option<TimerId>,
}

/// The result of joining a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The room's alias, used to say and leave.
    pub room: u16,
    /// The session's number as a member.
    pub member: MemberId,
    /// Members of the room now, this one included.
    pub members: usize,
    /// Whether coming and going is announced in a room of this size.
    pub presence: bool,
}

impl Core {
    pub(crate) fn join(
        &mut self,
        id: SessionId,
        room: &str,
        name: &str,
        policy: Option<Policy>,
    ) -> Result<Joined, JoinError> {
        let shared = Arc::clone(&self.shared);
        validate_name(room).map_err(JoinError::RoomName)?;
        let slot = self.slot_of(id).ok_or(JoinError::NotOpen)?;
        let session = &self.sessions[slot];
        if session.is_unproven() {
            return Err(JoinError::Unproven);
        }
        let rooms = session.memberships.iter();
        if rooms.filter(|room| !room.is_topic).count() >= shared.limits.rooms_per_session_max {
            return Err(JoinError::LimitReached(ReachedLimit::Session));
        }
        let owner = session.owner();
        if session.connection.frame_bytes_max() < shared.limits.frame_bytes_max {
            // What is said is framed once for all. One member with a small limit must neither be cut off by the
            // first long message nor make everybody else be brief.
            return Err(JoinError::FrameLimit);
        }
        if let Some(alias) = shared.directory.alias_of(room)
            && session.room_membership(alias).is_some()
        {
            return Err(JoinError::AlreadyJoined);
        }
        let (member, claimed) = match &session.member {
            Some(member) if name.is_empty() || name == &*member.name => {
                (Member::clone(member), false)
            }
            Some(_) => return Err(JoinError::NameFixed),
            None => {
                validate_name(name).map_err(JoinError::Name)?;
                let claim = shared.directory.claim(name, id);
                let member = claim.map_err(|conflict| match conflict {
                    NameConflict::Taken => JoinError::NameTaken,
                    NameConflict::Confusable => JoinError::NameConfusable,
                })?;
                (member, true)
            }
        };
        let entered = match shared.directory.enter(room, &member, self.lane, owner) {
            Ok(entered) => entered,
            Err(error) => {
                if claimed {
                    shared.directory.release(&member);
                }
                return Err(match error {
                    EnterError::Full(full) => JoinError::LimitReached(full.into()),
                    EnterError::Confusable => JoinError::RoomConfusable,
                });
            }
        };
        let alias = entered.room.alias;
        let presence = entered.members <= shared.limits.presence_members_max;
        self.open_room(&entered.room);
        if presence {
            self.announce_presence(alias, &member, PresenceEvent::Joined);
        }
        self.sessions[slot].member = Some(Box::new(member.clone()));
        let policy = policy.unwrap_or(shared.room_defaults.policy);
        self.attach(slot, &entered.room, policy);
        Ok(Joined {
            room: alias,
            member: member.id,
            members: entered.members,
            presence,
        })
    }

    pub(crate) fn leave(&mut self, id: SessionId, alias: u16) -> Result<(), RoomError> {
        let slot = self.slot_of(id).ok_or(RoomError::NotJoined)?;
        let index = self.sessions[slot]
            .room_membership(alias)
            .ok_or(RoomError::NotJoined)?;
        self.detach(slot, index, DropReason::Left);
        Ok(())
    }

    /// Takes a closing session out of all its rooms and subscriptions and gives its name back.
    pub(crate) fn leave_all(&mut self, slot: usize) {
        while !self.sessions[slot].memberships.is_empty() {
            self.detach(slot, 0, DropReason::Closed);
        }
        let session = &mut self.sessions[slot];
        let in_output = std::mem::take(&mut session.messages_in_output);
        if let Some(member) = session.member.take() {
            self.shared.directory.release(&member);
        }
        self.count_undelivered(in_output);
    }

    /// Appends what `id` says to the room's log. Returns whether the publisher must stop for now.
    pub(crate) fn say(
        &mut self,
        id: SessionId,
        alias: u16,
        payload: &[u8],
    ) -> Result<bool, RoomError> {
        let slot = id.slot();
        let Self {
            sessions,
            rooms,
            shared,
            ..
        } = self;
        let session = sessions.get_mut(slot).filter(|session| session.id == id);
        let session = session.ok_or(RoomError::NotJoined)?;
        let index = session.room_membership(alias).ok_or(RoomError::NotJoined)?;
        let Some(Some(room)) = rooms.get_mut(usize::from(alias)) else {
            return Err(RoomError::NotJoined);
        };
        let Some(member) = &session.member else {
            return Err(RoomError::NotJoined);
        };
        let said = Said {
            channel: alias,
            member: member.id,
            name: &member.name,
            private: false,
            payload,
        };
        let limit = shared.limits.frame_bytes_max;
        if payload.len() + FRAME_OVERHEAD_BYTES_MAX > limit {
            let (bytes, limit) = (
                payload.len() as u64,
                limit.saturating_sub(FRAME_OVERHEAD_BYTES_MAX) as u64,
            );
            return Err(EncodeError::PayloadTooLarge { bytes, limit }.into());
        }
        let (position, bytes) = room
            .log
            .append_with(payload.len() + FRAME_OVERHEAD_BYTES_MAX, |out| {
                shared.codec.encode_said(&said, out)
            })?;
        session.memberships[index]
            .subscriber
            .skip_own(&room.log, position, bytes);
        let held = room.shared.is_congested().then(|| Arc::clone(&room.shared));
        self.counters.said.add(1);
        self.handle_appended(alias, bytes, 1);
        if let Some(room) = &held {
            self.hold(slot, room);
        }
        Ok(held.is_some())
    }

    pub(crate) fn whisper(
        &mut self,
        id: SessionId,
        alias: u16,
        name: &str,
        payload: &[u8],
    ) -> Result<(), RoomError> {
        let session = self.session(id).ok_or(RoomError::NotJoined)?;
        session.room_membership(alias).ok_or(RoomError::NotJoined)?;
        let member = session.member.clone().ok_or(RoomError::NotJoined)?;
        let target = self
            .shared
            .directory
            .find(name)
            .ok_or(RoomError::NoSuchMember)?;
        let said = Said {
            channel: alias,
            member: member.id,
            name: &member.name,
            private: true,
            payload,
        };
        Ok(self.send_to(target, |codec, out| codec.encode_said(&said, out))?)
    }

    pub(crate) fn roster(
        &self,
        id: SessionId,
        alias: u16,
        visit: impl FnMut(MemberId, &str),
    ) -> Result<(), RoomError> {
        let session = self.session(id).ok_or(RoomError::NotJoined)?;
        session.room_membership(alias).ok_or(RoomError::NotJoined)?;
        self.shared.directory.roster(alias, visit);
        Ok(())
    }

    /// An entry of a batch from another lane.
    pub(crate) fn deliver_entry(&mut self, entry: &BatchEntry<'_>) {
        match *entry {
            BatchEntry::Session { id, frame } => {
                // A session that is gone or full is counted in `sends_refused` by `send_to` itself.
                let result = self.send_to(id, |_, out| {
                    out.extend_from_slice(frame);
                    Ok(())
                });
                if let Err(error) = result {
                    tracing::trace!(session = %id, %error, "a message from another lane was refused");
                }
            }
            BatchEntry::Room { alias, frame } => {
                let Some(Some(room)) = self.rooms.get_mut(usize::from(alias)) else {
                    return;
                };
                let appended = room.log.append_with::<EncodeError>(frame.len(), |out| {
                    out.extend_from_slice(frame);
                    Ok(())
                });
                if appended.is_ok() {
                    self.count_and_plan(alias, 0);
                }
            }
        }
    }

    /// Runs every sweep that is planned, because no later one will be.
    pub(crate) fn sweep_all(&mut self) {
        while let Some(Reverse((_, alias))) = self.due.pop() {
            self.sweep(alias);
        }
    }

    /// Runs every sweep that is due.
    pub(crate) fn sweep_due(&mut self) {
        while let Some(Reverse((at, alias))) = self.due.peek().copied() {
            if at > self.now_ns {
                return;
            }
            self.due.pop();
            self.sweep(alias);
        }
    }

    /// Writes a room's news to all its subscribers.
    fn sweep(&mut self, alias: u16) {
        let started_ns = self.clock.now_ns();
        let mut index = 0;
        loop {
            let Some(Some(room)) = self.rooms.get(usize::from(alias)) else {
                return;
            };
            let Some(slot) = room.members.get(index).copied() else {
                break;
            };
            index += 1;
            if self.sessions[slot].connection.outbound().is_blocked() {
                self.enforce(slot, alias);
            } else {
                self.flush(slot);
                if self.sessions[slot].connection.outbound().is_blocked() {
                    self.enforce(slot, alias);
                }
            }
        }
        self.counters.sweeps.add(1);
        let Some(Some(room)) = self.rooms.get_mut(usize::from(alias)) else {
            return;
        };
        room.coalescer.handle_sweep(started_ns, self.clock.now_ns());
    }

    /// Queues the present members for a session that just joined.
    pub(crate) fn push_roster(&mut self, joined: &Joined, out: &mut Vec<u8>) {
        let codec = &self.shared.codec;
        self.shared.directory.roster(joined.room, |member, name| {
            if member == joined.member {
                return;
            }
            let presence = Presence {
                channel: joined.room,
                member,
                name,
                event: PresenceEvent::Here,
            };
            if let Err(error) = codec.encode_presence(&presence, out) {
                tracing::debug!(%error, name, "presence not announced");
            }
        });
    }

    fn announce_presence(&mut self, alias: u16, member: &Member, event: PresenceEvent) {
        if self.ends_with_server() {
            return;
        }
        let Self { rooms, shared, .. } = self;
        let Some(Some(room)) = rooms.get_mut(usize::from(alias)) else {
            return;
        };
        let presence = Presence {
            channel: alias,
            member: member.id,
            name: &member.name,
            event,
        };
        let appended = room
            .log
            .append_with(member.name.len() + FRAME_OVERHEAD_BYTES_MAX, |out| {
                shared.codec.encode_presence(&presence, out)
            });
        match appended {
            Ok((_, bytes)) => self.handle_appended(alias, bytes, 0),
            Err(error) => tracing::debug!(%error, "presence not announced"),
        }
    }

    /// The newest frame of a room's log goes to the lanes that have members, and a sweep is planned here.
    /// `own` is 1 if its author is a subscriber of this lane's log, else 0.
    pub(super) fn handle_appended(&mut self, alias: u16, bytes: usize, own: u64) {
        self.count_and_plan(alias, own);
        let Some(Some(room)) = self.rooms.get(usize::from(alias)) else {
            return;
        };
        let others = room.shared.other_lanes(self.lane);
        if others == 0 {
            return;
        }
        let mut frame = self.buffers.take();
        frame.extend_from_slice(room.log.newest(bytes));
        self.send_to_lanes(others, alias, &frame);
        self.buffers.put(frame);
    }

    /// Hands a frame for all members of a room to the lanes whose bits are set.
    pub(super) fn send_to_lanes(&mut self, mut lanes: u64, alias: u16, frame: &[u8]) {
        while lanes != 0 {
            let lane = lanes.trailing_zeros() as usize;
            lanes &= lanes - 1;
            self.batch(lane, &BatchEntry::Room { alias, frame });
        }
    }

    fn count_and_plan(&mut self, alias: u16, own: u64) {
        let Some(Some(room)) = self.rooms.get_mut(usize::from(alias)) else {
            return;
        };
        self.counters
            .room_offered
            .add(room.members.len() as u64 - own);
        if let Some(due_ns) = room.coalescer.handle_append(self.now_ns) {
            self.due.push(Reverse((due_ns, alias)));
        }
    }

    pub(super) fn open_room(&mut self, shared: &Arc<SharedRoom>) {
        let index = usize::from(shared.alias);
        if self.rooms.len() <= index {
            self.rooms.resize_with(index + 1, || None);
        }
        let interval_max_ns = nanoseconds(self.shared.room_defaults.coalesce_max);
        self.rooms[index].get_or_insert_with(|| {
            Box::new(Room {
                shared: Arc::clone(shared),
                log: RoomLog::new(),
                coalescer: Coalescer::new(interval_max_ns),
                members: Vec::new(),
                blocked: None,
            })
        });
    }

    pub(super) fn attach(&mut self, slot: usize, shared: &SharedRoom, policy: Policy) {
        let limits = self.shared.limits.lag();
        let alias = shared.alias;
        let Some(Some(room)) = self.rooms.get_mut(usize::from(alias)) else {
            return;
        };
        let subscriber = Subscriber::attach(&mut room.log, policy, limits);
        let index = room.members.len();
        room.members.push(slot);
        self.sessions[slot].memberships.push(Membership {
            room: alias,
            is_topic: shared.pattern.is_some(),
            index,
            subscriber,
        });
    }

    pub(super) fn detach(&mut self, slot: usize, membership: usize, reason: DropReason) {
        let session = &mut self.sessions[slot];
        let Membership {
            room: alias,
            is_topic,
            index,
            subscriber,
        } = session.memberships.swap_remove(membership);
        let member = session.member.clone();
        let Some(Some(room)) = self.rooms.get_mut(usize::from(alias)) else {
            return;
        };
        let undelivered = subscriber.detach(&mut room.log);
        room.members.swap_remove(index);
        if let Some(moved) = room.members.get(index).copied()
            && let Some(membership) = self.sessions[moved].membership(alias)
        {
            self.sessions[moved].memberships[membership].index = index;
        }
        let empty = room.members.is_empty();
        self.counters.room_dropped[reason as usize].add(undelivered);
        if is_topic {
            self.shared.directory.unsubscribe(&room.shared, self.lane);
            if self.shared.codec.registers_subscribers() {
                let owner = self.sessions[slot].owner();
                self.shared.gate.unregister(owner);
            }
        } else if let Some(member) = member {
            let remaining = self.shared.directory.exit(alias, member.id, self.lane);
            if remaining > 0 && remaining < self.shared.limits.presence_members_max {
                self.announce_presence(alias, &member, PresenceEvent::Left);
            }
        }
        if empty {
            self.unblock(alias);
            self.rooms[usize::from(alias)] = None;
        }
    }
}

impl Session {
    /// The index of the session's place in a room that is not a topic's.
    #[inline]
    fn room_membership(&self, alias: u16) -> Option<usize> {
        self.membership(alias)
            .filter(|index| !self.memberships[*index].is_topic)
    }

    /// The index of the session's subscription with this alias.
    pub(super) fn subscription(&self, alias: u16) -> Option<usize> {
        self.membership(alias)
            .filter(|index| self.memberships[*index].is_topic)
    }

    /// The index of the session's place in a room, or of its subscription.
    #[inline]
    pub(crate) fn membership(&self, alias: u16) -> Option<usize> {
        self.memberships
            .iter()
            .position(|membership| membership.room == alias)
    }
}

/// Most a codec adds to a payload in a room: a header, or brackets and a name.
const FRAME_OVERHEAD_BYTES_MAX: usize = 96;
