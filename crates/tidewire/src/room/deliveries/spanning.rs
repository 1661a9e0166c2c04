//! Messages of this lane for other nodes. A room without a backplane never comes here.

use tidewire_proto::backplane::Entry;
use tidewire_proto::message::MemberId;

use super::LaneDeliveries;
use crate::broker::Addressee;
use crate::room::SharedRoom;
use crate::session::SessionId;

/// The message of a frame in a log, for nodes that frame it themselves.
#[derive(Clone, Copy, Debug)]
pub(in crate::room) enum Origin<'m> {
    /// The frame is for this server only.
    Local,
    /// A session of this lane said something in a room.
    ChatMessage {
        /// The session.
        id: SessionId,
        payload: &'m [u8],
    },
    /// The room itself said something.
    Announced { payload: &'m [u8] },
    /// A message of a topic.
    Published { topic: &'m str, payload: &'m [u8] },
}

impl LaneDeliveries<'_> {
    /// Sends a message of a room or topic to other nodes.
    #[cold]
    pub(super) fn send_to_nodes(&mut self, shared: &SharedRoom, origin: &Origin<'_>) {
        let (member, name, payload) = match *origin {
            Origin::Local => return,
            Origin::Published { topic, payload } => {
                let published = Entry::Published { payload };
                let to = Addressee::Topic;
                return self.exchange.send_to_nodes(to, topic, &published);
            }
            Origin::Announced { payload } => (MemberId(0), "", payload),
            Origin::ChatMessage { id, payload } => {
                let session = self.sessions.table.find(id);
                let Some(member) = session.and_then(|it| it.profile.member.as_deref()) else {
                    return;
                };
                (member.id(), &**member.name(), payload)
            }
        };
        let entry = Entry::ChatMessage {
            member,
            name,
            payload,
        };
        let to = Addressee::Room;
        self.exchange.send_to_nodes(to, shared.name(), &entry);
    }
}
