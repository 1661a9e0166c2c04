//! Rooms on a lane: join, leave, presence. Chat messages are in [`saying`](super::saying).
//!
//! The log, the cursors and the policies do no I/O and live in [`tidewire_proto::room`]. This file binds them to
//! sessions, timers and other lanes. A room spans lanes: each lane has its own log, and a message is sent to another
//! lane once, not once per subscriber there.

use std::collections::VecDeque;
use std::sync::Arc;

use tidewire_io::timer::TimerId;
use tidewire_proto::body::validate_name;
use tidewire_proto::codec::{AnyCodec, Codec, Presence};
use tidewire_proto::message::{MemberId, PresenceEvent, RoomId};
use tidewire_proto::room::{Coalescer, Policy};

use super::appending::Rooms;
use super::directory::{Directory, EnterError, NameConflict};
use super::members::Departure;
use super::quiet::QuietLogs;
use super::refusal::{JoinError, ReachedLimit, RoomError};
use super::routes::{RecentTopic, Routes};
use super::shared_room::SharedRoom;
use super::spanning::Origin;
use super::waiting::WaitingJoins;
use crate::limits::nanoseconds;
use crate::mailbox::Exchange;
use crate::observe::{DropReason, QuietLog};
use crate::session::{
    LaneSessions, MEMBERSHIP_BYTES, Member, Membership, MembershipEnd, Session, SessionId,
    SessionLimiter, append_with_header,
};

/// A room, or the subscribers of one topic pattern, as one lane sees it.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) shared: Arc<SharedRoom>,
    pub(super) coalescer: Coalescer,
    /// The end of the log at the last sweep.
    pub(super) swept: u64,
    /// Slots of the sessions that are in the room, or subscribed.
    pub(super) members: Vec<usize>,
    /// The end of the log at the last look, while [`QuietLogs`](super::quiet::QuietLogs) watches it.
    pub(super) watched: Option<u64>,
    /// The timer that ends the block, while a `block` subscriber of this lane blocks the publishers.
    pub(super) blocked: Option<TimerId>,
}

/// The rooms of a lane, and the subscribers of topics.
#[derive(Debug)]
pub(crate) struct RoomTable {
    /// Names, rooms and patterns of the whole server.
    pub(crate) directory: Arc<Directory>,
    /// Counts the registrations of the whole server.
    pub(super) limiter: Arc<SessionLimiter>,
    /// Rooms with members, and patterns with subscribers, on this lane.
    pub(super) rooms: Rooms,
    /// Logs with much memory, which is freed when they are quiet.
    pub(super) quiet: QuietLogs,
    /// Publishers that are paused because a room blocks for a slow subscriber.
    pub(super) held: Vec<(SessionId, Arc<SharedRoom>)>,
    /// The subscriptions that match a topic.
    pub(super) routes: Routes,
    /// The topic of the last message, and its subscriptions.
    pub(super) recent: RecentTopic,
    /// Rooms in which a subscriber of this lane blocks the publishers.
    pub(super) blocked_rooms: Vec<u16>,
    /// Rooms whose messages from other lanes wait in the history, because memory is short.
    pub(super) behind: Vec<u16>,
    /// Joins that wait for the history of their room.
    pub(super) waiting: WaitingJoins,
    /// Members that handlers removed; `None` until a chat with a hook asks for them.
    pub(super) departures: Option<VecDeque<Departure>>,
    /// Limits the log lines about refused registrations.
    pub(super) registration_log: QuietLog,
}

/// The rooms of a lane, with the parts of the lane that they use.
#[derive(Debug)]
pub(crate) struct LaneRooms<'a> {
    pub(crate) table: &'a mut RoomTable,
    pub(crate) sessions: &'a mut LaneSessions,
    pub(crate) exchange: &'a mut Exchange,
    /// Whether the lane ends with its server, so that presence frames are no longer needed.
    pub(crate) is_ending: bool,
}

impl RoomTable {
    pub(crate) fn new(directory: Arc<Directory>, limiter: Arc<SessionLimiter>) -> Self {
        Self {
            directory,
            limiter,
            rooms: Rooms::default(),
            quiet: QuietLogs::default(),
            held: Vec::new(),
            routes: Routes::default(),
            recent: RecentTopic::default(),
            blocked_rooms: Vec::new(),
            behind: Vec::new(),
            waiting: WaitingJoins::default(),
            departures: None,
            registration_log: QuietLog::default(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, alias: u16) -> Option<&Room> {
        self.rooms.get(alias)
    }

    /// Calls `visit` for every member of a room that the session is in.
    pub(crate) fn roster(
        &self,
        session: Option<&Session>,
        alias: u16,
        visit: impl FnMut(MemberId, &str),
    ) -> Result<(), RoomError> {
        let session = session.ok_or(RoomError::NotJoined)?;
        session.room_membership(alias).ok_or(RoomError::NotJoined)?;
        self.directory.roster(alias, visit);
        Ok(())
    }

    /// Returns when the next sweep is due.
    pub(crate) fn sweep_ns(&self) -> Option<u64> {
        self.rooms.sweep_ns()
    }

    /// Whether the log of a room grew by a step in this turn.
    #[inline]
    pub(crate) fn has_grown(&self) -> bool {
        self.rooms.has_grown()
    }

    /// Whether a room has paused publishers of this lane.
    pub(crate) fn holds_publishers(&self) -> bool {
        !self.held.is_empty()
    }
}

/// The result of joining a room. [`RoomActions::join`](crate::RoomActions::join) returns it;
/// [`RoomActions`](crate::RoomActions) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The room, for the other [actions](crate::RoomActions) on it.
    pub room: RoomId,
    /// The session's number as a member.
    pub member: MemberId,
    /// The number of members, including this one.
    pub members: usize,
    /// Whether a room of this size announces joins and leaves.
    pub presence: bool,
}

impl LaneRooms<'_> {
    pub(crate) fn join(
        &mut self,
        id: SessionId,
        room: &str,
        name: &str,
        policy: Option<Policy>,
    ) -> Result<Joined, JoinError> {
        let joined = self.try_join(id, room, name, policy);
        if let Err(JoinError::LimitReached(_)) = joined {
            self.sessions.counters.rooms_refused.add(1);
        }
        joined
    }

    fn try_join(
        &mut self,
        id: SessionId,
        room: &str,
        name: &str,
        policy: Option<Policy>,
    ) -> Result<Joined, JoinError> {
        let directory = Arc::clone(&self.table.directory);
        let config = Arc::clone(&self.sessions.config);
        let slot = self.check_join(id, room, policy)?;
        let owner = self.sessions[slot].owner();
        let (member, claimed) = self.member_of(slot, name)?;
        let entered = match directory.enter(room, &member, self.exchange.lane, owner) {
            Ok(entered) => entered,
            Err(error) => {
                if claimed {
                    directory.release(&member);
                }
                return Err(match error {
                    EnterError::Full(full) => JoinError::LimitReached(full.into()),
                    EnterError::Confusable => JoinError::RoomConfusable,
                });
            }
        };
        let alias = entered.room.alias;
        let presence = entered.members <= config.limits.rooms.presence_members_max();
        self.open_room(&entered.room);
        if presence {
            self.announce_presence(alias, &member, PresenceEvent::Joined);
        }
        if entered.room.spans() {
            self.tell_joined(&entered.room, &member);
        }
        let profile = &mut self.sessions[slot].profile;
        profile.member = Some(Box::new(member.clone()));
        if let Some(admitted) = &mut profile.admitted {
            admitted.forget();
        }
        let policy = policy.unwrap_or(config.room_defaults.policy);
        self.attach(slot, &entered.room, policy);
        Ok(Joined {
            room: RoomId(alias),
            member: member.id,
            members: entered.members,
            presence,
        })
    }

    /// Checks whether a session may join a room. Returns its slot.
    pub(crate) fn check_join(
        &self,
        id: SessionId,
        room: &str,
        policy: Option<Policy>,
    ) -> Result<usize, JoinError> {
        let config = &self.sessions.config;
        validate_name(room).map_err(JoinError::RoomName)?;
        if let Some(policy) = policy {
            config.policies.check(policy)?;
        }
        let slot = self.sessions.slot_of(id).ok_or(JoinError::NotOpen)?;
        let session = &self.sessions[slot];
        if session.stream.is_unproven() {
            return Err(JoinError::Unproven);
        }
        let admitted = session.profile.admitted.as_ref();
        let rooms_max = admitted.and_then(|it| it.identity.own_limits().rooms_max);
        let rooms_max = rooms_max.map_or(config.limits.rooms.per_session_max(), |own| {
            own.min(config.limits.rooms.per_session_max())
        });
        if session.has_memberships(false, rooms_max) {
            return Err(JoinError::LimitReached(ReachedLimit::Session));
        }
        if self.sessions.is_at_its_share(id) {
            return Err(JoinError::LimitReached(ReachedLimit::Memory));
        }
        if session.connection.handshake().frame_bytes_max()
            < config.limits.connections.frame_bytes_max()
        {
            // A message is framed once for all members. A member with a small frame limit would be cut off by the
            // first long message, or limit the messages of all others.
            return Err(JoinError::FrameLimit);
        }
        if let Some(alias) = self.table.directory.alias_of(room)
            && session.room_membership(alias).is_some()
        {
            return Err(JoinError::AlreadyJoined);
        }
        Ok(slot)
    }

    /// Returns the session as a member with this name, and whether the name was claimed now.
    fn member_of(&self, slot: usize, name: &str) -> Result<(Member, bool), JoinError> {
        let directory = &self.table.directory;
        let session = &self.sessions[slot];
        let admitted = session.profile.admitted.as_ref();
        let name = match admitted.and_then(|it| it.identity.chat_name()) {
            Some(own) if name.is_empty() || name == own => own,
            Some(_) => return Err(JoinError::NotYourName),
            None if session.profile.member.is_some() => name,
            None => {
                validate_name(name).map_err(JoinError::Name)?;
                if directory.is_reserved(name) {
                    return Err(JoinError::NameReserved);
                }
                name
            }
        };
        match &session.profile.member {
            Some(member) if name.is_empty() || name == &*member.name => {
                Ok((Member::clone(member), false))
            }
            Some(_) => Err(JoinError::NameFixed),
            None => {
                validate_name(name).map_err(
                    match admitted.map(|it| it.identity.is_anonymous()) {
                        Some(false) => JoinError::IdentityName,
                        _ => JoinError::Name,
                    },
                )?;
                let claim = directory.claim(name, session.id);
                let member = claim.map_err(|conflict| match conflict {
                    NameConflict::Taken => JoinError::NameTaken,
                    NameConflict::Confusable => JoinError::NameConfusable,
                })?;
                Ok((member, true))
            }
        }
    }

    pub(crate) fn leave(&mut self, id: SessionId, alias: u16) -> Result<(), RoomError> {
        let slot = self.sessions.slot_of(id).ok_or(RoomError::NotJoined)?;
        let index = self.sessions[slot]
            .room_membership(alias)
            .ok_or(RoomError::NotJoined)?;
        self.detach(slot, index, DropReason::Left);
        Ok(())
    }

    /// Removes a closing session from all its rooms and subscriptions, and releases its name.
    pub(crate) fn leave_all(&mut self, slot: usize) {
        self.forget_waiting(slot);
        while let Some(last) = self.sessions[slot].memberships.len().checked_sub(1) {
            self.detach(slot, last, DropReason::Closed);
        }
        if let Some(member) = self.sessions[slot].profile.member.take() {
            self.table.directory.release(&member);
        }
        self.sessions.drop_room_messages(slot);
    }

    /// Queues the roster for a session that has just joined, unless the room is too large to announce members.
    pub(super) fn push_small_roster(&mut self, id: SessionId, alias: u16) {
        let members_max = self.sessions.config.limits.rooms.presence_members_max();
        if self.table.directory.size_of(alias) <= members_max {
            self.push_roster(id, alias);
        }
    }

    /// Queues the roster for a session that has just joined.
    pub(crate) fn push_roster(&mut self, id: SessionId, alias: u16) {
        let Some(session) = self.sessions.find(id) else {
            return;
        };
        let Some(membership) = session.room_membership(alias) else {
            return;
        };
        let subscription = session.memberships[membership].subscription();
        let own = session.profile.member.as_ref().map(|member| member.id);
        let directory = &self.table.directory;
        let encode = |codec: &AnyCodec, out: &mut Vec<u8>| {
            directory.roster(alias, |member, name| {
                if own == Some(member) {
                    return;
                }
                let presence = Presence {
                    channel: alias,
                    member,
                    name,
                    event: PresenceEvent::Here,
                };
                let encoded = append_with_header(codec, subscription, out, |out| {
                    codec.encode_presence(&presence, out)
                });
                if let Err(error) = encoded {
                    tracing::debug!(%error, name, "presence not announced");
                }
            });
            Ok(())
        };
        let appended = self
            .sessions
            .append_to(id, |_, codec, out| encode(codec, out));
        if let Err(error) = appended {
            tracing::debug!(session = %id, %error, "the roster was not sent");
        }
    }

    fn announce_presence(&mut self, alias: u16, member: &Member, event: PresenceEvent) {
        if self.is_ending {
            return;
        }
        let presence = Presence {
            channel: alias,
            member: member.id,
            name: &member.name,
            event,
        };
        let expected = member.name.len() + FRAME_OVERHEAD_BYTES_MAX;
        let appended = self.append(alias, expected, |codec, out| {
            codec.encode_presence(&presence, out)
        });
        match appended {
            Ok(Some(appended)) => self.pass_on(appended, None, || Origin::Local),
            Err(error) => tracing::debug!(%error, "presence not announced"),
            Ok(None) => {}
        }
    }

    pub(super) fn open_room(&mut self, shared: &Arc<SharedRoom>) {
        let interval_max_ns = nanoseconds(self.sessions.config.room_defaults.coalesce_max);
        self.sessions.open_log(shared.alias);
        self.table.rooms.open(shared.alias, || Room {
            shared: Arc::clone(shared),
            coalescer: Coalescer::new(interval_max_ns),
            swept: 0,
            members: Vec::new(),
            watched: None,
            blocked: None,
        });
    }

    pub(super) fn attach(&mut self, slot: usize, shared: &SharedRoom, policy: Policy) {
        let alias = shared.alias;
        let Some(room) = self.table.rooms.get_mut(alias) else {
            return;
        };
        let policy = match policy {
            Policy::ConflateByTopic if !shared.is_wildcard => Policy::Conflate,
            other => other,
        };
        let limits = self.sessions.config.limits.rooms.lag();
        let Some(subscriber) = self.sessions.logs.attach(alias, policy, limits) else {
            return;
        };
        let index = room.members.len();
        room.members.push(slot);
        self.sessions.relief.charge(0, MEMBERSHIP_BYTES);
        let membership = Membership {
            room: alias,
            held_bytes: MEMBERSHIP_BYTES,
            is_topic: shared.pattern.is_some(),
            number: 0,
            index,
            subscriber,
        };
        let memberships = &mut self.sessions[slot].memberships;
        let at = memberships.partition_point(|it| it.room < alias);
        memberships.insert(at, membership);
    }

    pub(super) fn detach(&mut self, slot: usize, membership: usize, reason: DropReason) {
        let session = &self.sessions[slot];
        let is_topic = session.memberships[membership].is_topic;
        let member = session.profile.member.clone();
        let Some(end) = self.sessions.detach(slot, membership) else {
            return;
        };
        let MembershipEnd {
            room: alias,
            index,
            undelivered,
        } = end;
        let Some(room) = self.table.rooms.get_mut(alias) else {
            return;
        };
        room.members.swap_remove(index);
        if let Some(moved) = room.members.get(index).copied()
            && let Some(membership) = self.sessions[moved].membership(alias)
        {
            self.sessions[moved].memberships[membership].index = index;
        }
        let empty = room.members.is_empty();
        self.sessions.counters.room_dropped[reason as usize].add(undelivered);
        if is_topic {
            self.table
                .directory
                .unsubscribe(&room.shared, self.exchange.lane);
            if self.sessions.config.codec.format().registers_subscribers {
                let owner = self.sessions[slot].owner();
                self.table.limiter.unregister(owner);
            }
        } else if let Some(member) = member {
            if room.shared.spans() {
                let shared = Arc::clone(&room.shared);
                self.tell_left(&shared, member.id);
            }
            let remaining = self
                .table
                .directory
                .exit(alias, member.id, self.exchange.lane);
            if remaining > 0 && remaining < self.sessions.config.limits.rooms.presence_members_max()
            {
                self.announce_presence(alias, &member, PresenceEvent::Left);
            }
        }
        if empty {
            if let Some(history) = self.history_here(alias) {
                history.leave(self.exchange.lane, self.sessions.now_ns());
            }
            self.unblock(alias);
            self.table.rooms.close(alias);
            self.sessions.close_log(alias);
        }
    }
}

impl Session {
    /// Returns the index of the session's membership in a room that is not a topic's.
    #[inline]
    pub(crate) fn room_membership(&self, alias: u16) -> Option<usize> {
        self.membership(alias)
            .filter(|index| !self.memberships[*index].is_topic)
    }

    /// Returns the index of the session's subscription with this alias.
    pub(super) fn subscription(&self, alias: u16) -> Option<usize> {
        self.membership(alias)
            .filter(|index| self.memberships[*index].is_topic)
    }

    /// Returns the index of the session's membership or subscription with this alias.
    #[inline]
    pub(crate) fn membership(&self, alias: u16) -> Option<usize> {
        self.memberships
            .binary_search_by_key(&alias, |membership| membership.room)
            .ok()
    }

    /// Whether it has at least this many subscriptions, or memberships in rooms.
    pub(super) fn has_memberships(&self, of_topics: bool, count: usize) -> bool {
        let memberships = self.memberships.iter();
        self.memberships.len() >= count
            && memberships.filter(|it| it.is_topic == of_topics).count() >= count
    }
}

/// Most bytes that a codec adds to a payload in a room: a header, or brackets and a name, which may be `name@node`.
pub(crate) const FRAME_OVERHEAD_BYTES_MAX: usize = 104;
