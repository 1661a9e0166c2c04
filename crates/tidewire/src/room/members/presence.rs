//! The members of this lane are told who joins and leaves, and so are other nodes.

use tidewire_proto::backplane::Entry;
use tidewire_proto::codec::{AnyCodec, Codec, Presence};
use tidewire_proto::message::{MemberId, PresenceEvent};

use crate::broker::Addressee;
use crate::room::deliveries::Origin;
use crate::room::{FRAME_OVERHEAD_BYTES_MAX, LaneRooms, SharedRoom};
use crate::session::Member;

impl LaneRooms<'_> {
    /// Tells the members of a room on this server that a member has joined or left.
    pub(super) fn announce_presence(
        &mut self,
        shared: &SharedRoom,
        member: &Member,
        event: PresenceEvent,
    ) {
        if self.is_ending {
            return;
        }
        let presence = Presence {
            channel: shared.alias(),
            member: member.id(),
            name: member.name(),
            event,
        };
        let expected = member.name().len() + FRAME_OVERHEAD_BYTES_MAX;
        let mut deliveries = self.deliveries();
        let encode = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode_presence(&presence, out);
        let appended = deliveries.append_shared(shared, expected, None, &Origin::Local, &encode);
        if let Err(error) = appended {
            tracing::debug!(%error, "presence not announced");
        }
    }

    /// Tells other nodes that a session of this lane has joined a room.
    pub(super) fn tell_joined(&mut self, shared: &SharedRoom, member: &Member) {
        if shared.spans() {
            let joined = Entry::Joined {
                member: member.id(),
                name: member.name(),
            };
            let to = Addressee::Room;
            self.exchange.send_to_nodes(to, shared.name(), &joined);
        }
    }

    /// Tells other nodes that a session of this lane has left a room. At the end of the server the node tells them.
    pub(super) fn tell_left(&mut self, shared: &SharedRoom, member: MemberId) {
        if !self.is_ending && shared.spans() {
            let left = Entry::Left { member };
            let to = Addressee::Room;
            self.exchange.send_to_nodes(to, shared.name(), &left);
        }
    }
}
