//! Rooms on a lane: join, leave, presence. Chat messages are in [`saying`].

mod presence;
mod removing;
mod saying;

use std::sync::Arc;

use tidewire_proto::body::validate_name;
use tidewire_proto::message::{MemberId, PresenceEvent, RoomId};
use tidewire_proto::room::Policy;

use super::LaneRooms;
use super::directory::{EnterError, NameConflict};
use super::refusal::{ReachedLimit, RoomError};
use crate::observe::DropReason;
use crate::session::{Member, SessionId};
pub(super) use removing::Departures;

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
    /// Lets a session into a room, and counts a refusal by a limit.
    pub(crate) fn join(
        &mut self,
        id: SessionId,
        room: &str,
        name: &str,
        policy: Option<Policy>,
    ) -> Result<Joined, RoomError> {
        let joined = self.try_join(id, room, name, policy);
        if let Err(RoomError::TooManyRooms(_) | RoomError::OutOfMemory) = joined {
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
    ) -> Result<Joined, RoomError> {
        let directory = Arc::clone(self.table.open.directory());
        let config = Arc::clone(&self.sessions.config);
        let slot = self.check_join(id, room, policy)?;
        let owner = self.sessions[slot].owner();
        let (member, claimed) = self.member_of(slot, name)?;
        let (room, members) = match directory.enter(room, &member, self.exchange.lane(), owner) {
            Ok(entered) => entered,
            Err(error) => {
                if claimed {
                    directory.names().release(&member);
                }
                return Err(match error {
                    EnterError::Full(full) => RoomError::TooManyRooms(full.into()),
                    EnterError::Confusable => RoomError::RoomConfusable,
                });
            }
        };
        let presence = members <= config.limits.rooms.presence_members_max();
        if presence {
            self.announce_presence(&room, &member, PresenceEvent::Joined);
        }
        self.tell_joined(&room, &member);
        let profile = &mut self.sessions[slot].profile;
        profile.member = Some(Box::new(member.clone()));
        if let Some(admitted) = &mut profile.admitted {
            admitted.forget();
        }
        self.deliveries().attach(slot, &room, policy);
        Ok(Joined {
            room: RoomId(room.alias()),
            member: member.id(),
            members,
            presence,
        })
    }

    /// Checks whether a session may join a room. Returns its slot.
    pub(crate) fn check_join(
        &self,
        id: SessionId,
        room: &str,
        policy: Option<Policy>,
    ) -> Result<usize, RoomError> {
        let config = &self.sessions.config;
        validate_name(room).map_err(RoomError::RoomName)?;
        let slot = self.sessions.table.slot_of(id).ok_or(RoomError::NotOpen)?;
        let session = &self.sessions[slot];
        if let Some(policy) = policy {
            config
                .codecs
                .policies(session.codec_number())
                .check(policy)?;
        }
        if session.stream.is_unproven() {
            return Err(RoomError::Unproven);
        }
        let admitted = session.profile.admitted.as_ref();
        let rooms_max = admitted.and_then(|it| it.identity().own_limits().rooms_max);
        let rooms_max = rooms_max.map_or(config.limits.rooms.per_session_max(), |own| {
            own.min(config.limits.rooms.per_session_max())
        });
        if session.has_memberships(false, rooms_max) {
            return Err(RoomError::TooManyRooms(ReachedLimit::Session));
        }
        if self.sessions.relief.is_at_its_share(Some(session)) {
            return Err(RoomError::OutOfMemory);
        }
        if session.connection.handshake().frame_bytes_max()
            < config.limits.connections.frame_bytes_max()
        {
            // A message is framed once for all members. A member with a small frame limit would be cut off by the
            // first long message, or limit the messages of all others.
            return Err(RoomError::FrameLimit);
        }
        if let Some(shared) = self.table.open.directory().room(room)
            && session.room_membership(shared.alias()).is_some()
        {
            return Err(RoomError::AlreadyJoined);
        }
        Ok(slot)
    }

    /// Returns the session as a member with this name, and whether the name was claimed now.
    fn member_of(&self, slot: usize, name: &str) -> Result<(Member, bool), RoomError> {
        let directory = self.table.open.directory();
        let session = &self.sessions[slot];
        let admitted = session.profile.admitted.as_ref();
        let name = match admitted.and_then(|it| it.identity().chat_name()) {
            Some(own) if name.is_empty() || name == own => own,
            Some(_) => return Err(RoomError::NotYourName),
            None if session.profile.member.is_some() => name,
            None => {
                validate_name(name).map_err(RoomError::Name)?;
                if directory.names().is_reserved(name) {
                    return Err(RoomError::NameReserved);
                }
                name
            }
        };
        match &session.profile.member {
            Some(member) if name.is_empty() || name == &**member.name() => {
                Ok((Member::clone(member), false))
            }
            Some(_) => Err(RoomError::NameFixed),
            None => {
                validate_name(name).map_err(
                    match admitted.map(|it| it.identity().is_anonymous()) {
                        Some(false) => RoomError::IdentityName,
                        _ => RoomError::Name,
                    },
                )?;
                let claim = directory.names().claim(name, session.id);
                let member = claim.map_err(|conflict| match conflict {
                    NameConflict::Taken => RoomError::NameTaken,
                    NameConflict::Confusable => RoomError::NameConfusable,
                })?;
                Ok((member, true))
            }
        }
    }

    pub(crate) fn leave(&mut self, id: SessionId, alias: u16) -> Result<(), RoomError> {
        let slot = self
            .sessions
            .table
            .slot_of(id)
            .ok_or(RoomError::NotJoined)?;
        let index = self.sessions[slot]
            .room_membership(alias)
            .ok_or(RoomError::NotJoined)?;
        self.detach(slot, index, DropReason::Left);
        Ok(())
    }

    /// Removes a closing session from all its rooms and subscriptions, and releases its name.
    pub(crate) fn leave_all(&mut self, slot: usize) {
        self.joins().forget(slot);
        while let Some(last) = self.sessions[slot].memberships.len().checked_sub(1) {
            match self.sessions[slot].memberships[last].is_topic() {
                true if self.is_ending => self.topics().close(slot, last),
                true => self.topics().detach(slot, last, DropReason::Closed),
                false => self.detach(slot, last, DropReason::Closed),
            }
        }
        if let Some(member) = self.sessions[slot].profile.member.take() {
            self.table.open.directory().names().release(&member);
        }
        self.sessions.outputs.drop_room_messages(slot);
    }

    fn detach(&mut self, slot: usize, membership: usize, reason: DropReason) {
        let member = self.sessions[slot].profile.member.clone();
        let Some(shared) = self.deliveries().detach(slot, membership, (reason, 0)) else {
            return;
        };
        if let Some(member) = member {
            self.tell_left(&shared, member.id());
            let directory = self.table.open.directory();
            let remaining = directory.exit(shared.alias(), member.id(), self.exchange.lane());
            if remaining > 0 && remaining < self.sessions.config.limits.rooms.presence_members_max()
            {
                self.announce_presence(&shared, &member, PresenceEvent::Left);
            }
        }
        self.deliveries().close_unused(&shared);
    }
}
