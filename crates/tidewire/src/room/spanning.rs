//! Messages and members of this lane for other nodes. A room without a backplane never comes here.

use std::sync::Arc;

use tidewire_proto::backplane::Entry;
use tidewire_proto::message::MemberId;

use super::refusal::RoomError;
use super::rooms::LaneRooms;
use super::shared_room::SharedRoom;
use crate::broker::Addressee;
use crate::session::{Member, SessionId};

/// The message of a frame in a log, for nodes that frame it themselves.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'m> {
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

impl LaneRooms<'_> {
    /// Sends the message of a frame to other nodes. The log of `alias` has the frame.
    #[cold]
    pub(super) fn send_to_nodes(&mut self, alias: u16, origin: &Origin<'_>) {
        if let Some(room) = self.table.get(alias) {
            let shared = Arc::clone(&room.shared);
            self.send_to_nodes_of(&shared, origin);
        }
    }

    /// Sends a message of a room or topic to other nodes.
    pub(super) fn send_to_nodes_of(&mut self, shared: &SharedRoom, origin: &Origin<'_>) {
        let room = shared.name.as_deref();
        match (*origin, room) {
            (Origin::ChatMessage { id, payload }, Some(room)) => {
                let session = self.sessions.find(id);
                let Some(member) = session.and_then(|it| it.profile.member.as_deref()) else {
                    return;
                };
                let entry = Entry::ChatMessage {
                    member: member.id,
                    name: &member.name,
                    payload,
                };
                self.exchange.send_to_nodes(Addressee::Room, room, &entry);
            }
            (Origin::Announced { payload }, Some(room)) => {
                let entry = Entry::ChatMessage {
                    member: MemberId(0),
                    name: "",
                    payload,
                };
                self.exchange.send_to_nodes(Addressee::Room, room, &entry);
            }
            (Origin::Published { topic, payload }, _) => {
                let published = Entry::Published { payload };
                self.exchange
                    .send_to_nodes(Addressee::Topic, topic, &published);
            }
            (Origin::Local | Origin::ChatMessage { .. } | Origin::Announced { .. }, _) => {}
        }
    }

    /// Tells other nodes that a session of this lane has joined a room.
    pub(super) fn tell_joined(&mut self, shared: &SharedRoom, member: &Member) {
        if let Some(room) = &shared.name {
            let joined = Entry::Joined {
                member: member.id,
                name: &member.name,
            };
            self.exchange.send_to_nodes(Addressee::Room, room, &joined);
        }
    }

    /// Tells other nodes that a session of this lane has left a room. At the end of the server they learn it from the node.
    pub(super) fn tell_left(&mut self, shared: &SharedRoom, member: MemberId) {
        if !self.is_ending
            && let Some(room) = &shared.name
        {
            let left = Entry::Left { member };
            self.exchange.send_to_nodes(Addressee::Room, room, &left);
        }
    }

    /// Sends a message to one member of a room on another node.
    pub(super) fn whisper_to_node(
        &mut self,
        alias: u16,
        (author, author_name): (MemberId, &str),
        name: &str,
        payload: &[u8],
    ) -> Result<(), RoomError> {
        let remote = self.table.directory.remote_named(alias, name);
        let (room, remote) = remote.ok_or(RoomError::NoSuchMember)?;
        self.sessions
            .config
            .check_shared_frame(payload.len(), super::rooms::FRAME_OVERHEAD_BYTES_MAX)?;
        let entry = Entry::ChatMessage {
            member: author,
            name: author_name,
            payload,
        };
        let to = Addressee::Member {
            node: &remote.node,
            member: remote.number,
        };
        self.exchange.send_to_nodes(to, &room, &entry);
        Ok(())
    }
}
