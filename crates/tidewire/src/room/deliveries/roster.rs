//! The roster of a room, for a session that has just joined.

use tidewire_proto::codec::{AnyCodec, Codec, Presence};
use tidewire_proto::message::PresenceEvent;

use super::LaneDeliveries;
use crate::session::{SessionId, append_with_header};

impl LaneDeliveries<'_> {
    /// Queues the roster for a session that has just joined, unless the room is too large to announce members.
    pub(in crate::room) fn push_small_roster(&mut self, id: SessionId, alias: u16) {
        let members_max = self.sessions.config.limits.rooms.presence_members_max();
        if self.open.directory().size_of(alias) <= members_max {
            self.push_roster(id, alias);
        }
    }

    /// Queues the roster for a session that has just joined.
    pub(crate) fn push_roster(&mut self, id: SessionId, alias: u16) {
        let Some(session) = self.sessions.table.find(id) else {
            return;
        };
        let Some(membership) = session.room_membership(alias) else {
            return;
        };
        let subscription = session.memberships[membership].subscription();
        let own = session.profile.member.as_ref().map(|member| member.id());
        let directory = self.open.directory();
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
}
