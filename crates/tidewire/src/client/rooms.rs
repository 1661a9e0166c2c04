//! Rooms at a client: join, leave, say, whisper, list the members.

use tidewire_io::clock::now_ns;
use tidewire_proto::body::{JoinBody, JoinedBody, RoomCall, Roster, Since};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Message};

use super::Client;
use super::error::RequestError;
use super::link::{Control, Join};
use super::operation::Operation;
use super::reply::Reply;
use super::request::Request;
use crate::broker::Position;
use crate::limits::nanoseconds;
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
    ///
    /// If the room keeps a history, its messages follow as [`Event::Message`](crate::Event::Message). A client that was in
    /// the room on an earlier connection gets only those that it does not have, and before them an
    /// [`Event::Recovered`](crate::Event::Recovered) that says whether some are missing. Its own messages behind the last one
    /// that it got are among them.
    pub fn join(&self, room: &str, name: &str) -> Operation<Joined> {
        self.join_with(room, name, None)
    }

    /// As [`Self::join`], for the messages of the room's history behind this position, which is that of the last message
    /// that the application has, for example from an earlier run.
    ///
    /// # Errors
    /// Those of [`Self::join`].
    pub fn join_since(&self, room: &str, name: &str, since: Position) -> Operation<Joined> {
        self.join_with(room, name, Some(Since::Position(since)))
    }

    fn join_with(&self, room: &str, name: &str, since: Option<Since>) -> Operation<Joined> {
        let inner = &self.inner;
        if !inner.matches_replies {
            return Operation::failed(RequestError::CannotMatch);
        }
        // The lane makes the body, because it knows the positions. An error of the names is known here.
        if let Err(error) = (JoinBody { room, name }).encode(&mut Vec::new()) {
            return Operation::failed(error);
        }
        let link = &inner.link;
        let deadline_ns = now_ns().saturating_add(nanoseconds(inner.request_timeout));
        let sent = link.table.submit_control(|slot| {
            Control::Join(Box::new(Join {
                room: room.into(),
                name: name.into(),
                since,
                deadline_ns,
                when_full: inner.when_window_full,
                slot,
            }))
        });
        Operation::new(Request::new(link, sent), |reply| {
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
