//! Rooms at a client: join, leave, say, whisper, list the members.

use tidewire_proto::body::{JoinBody, JoinedBody, RoomCall, Roster};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Message};

use super::Client;
use super::error::RequestError;
use super::operation::Operation;
use super::reply::Reply;
use crate::mailbox::EnqueueError;
use crate::room::Joined;

impl Client {
    /// Enters a room under a name. [`Operation`] has an example.
    ///
    /// A join that is dropped or times out leaves the room again if the server agrees to it later. Until then, another join
    /// of that room is refused with [`ErrorCode::AlreadyJoined`](crate::ErrorCode::AlreadyJoined).
    ///
    /// # Errors
    /// [`RequestError::Refused`] if the name is empty, malformed or taken (try another) or a limit is reached, and the other
    /// [`RequestError`]s if there is no reply.
    pub fn join(&self, room: &str, name: &str) -> Operation<Joined> {
        let mut body = Vec::new();
        let encoded = JoinBody { room, name }.encode(&mut body);
        self.operate(Kind::Join, 0, encoded, &body, |reply| {
            let joined =
                JoinedBody::decode(reply.payload()).map_err(|_| RequestError::MalformedReply)?;
            Ok(Joined {
                room: reply.channel(),
                member: joined.member,
                members: joined.members as usize,
                presence: true,
            })
        })
    }

    /// Leaves a room.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn leave(&self, room: u16) -> Operation<()> {
        self.operate(Kind::Leave, room, Ok(()), &[], |_| Ok(()))
    }

    /// Sends a message to all other members of a room. It has no reply, so there is nothing to wait for.
    ///
    /// # Errors
    /// As [`Client::try_send`].
    pub fn say(&self, room: u16, payload: &[u8]) -> Result<(), EnqueueError> {
        self.send(&Message::new(Kind::Say, room, payload))
    }

    /// Lists the members of a room.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn list(&self, room: u16) -> Operation<Vec<(MemberId, String)>> {
        let mut body = Vec::new();
        let encoded = RoomCall::List.encode(&mut body);
        self.operate(Kind::Request, room, encoded, &body, |reply| {
            let roster =
                Roster::decode(reply.payload()).map_err(|_| RequestError::MalformedReply)?;
            let members = roster.entries();
            Ok(members
                .map(|(member, name)| (member, name.to_owned()))
                .collect())
        })
    }

    /// Sends a message to one member. The call is done when the server has passed the message on.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if no member has that name, and the other [`RequestError`]s if there is no reply.
    pub fn whisper(&self, room: u16, to: &str, text: &[u8]) -> Operation<()> {
        let mut body = Vec::new();
        let encoded = RoomCall::Whisper { to, text }.encode(&mut body);
        self.operate(Kind::Request, room, encoded, &body, |_| Ok(()))
    }

    fn operate<T>(
        &self,
        kind: Kind,
        room: u16,
        encoded: Result<(), EncodeError>,
        body: &[u8],
        finish: fn(Reply) -> Result<T, RequestError>,
    ) -> Operation<T>
    where
        T: 'static,
    {
        match encoded {
            Ok(()) => Operation::new(self.request(body).kind(kind).channel(room).send(), finish),
            Err(error) => Operation::failed(error),
        }
    }
}
