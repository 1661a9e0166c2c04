//! Rooms at a client: join, leave, say, whisper, the members.

use std::future::IntoFuture;

use tidewire_io::clock::now_ns;
use tidewire_proto::body::{JoinBody, JoinedBody, RoomCall, Roster, Since};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, MemberId, Message, RoomId};

use super::Client;
use super::error::RequestError;
use super::holdings::Opening;
use super::link::Control;
use super::operation::Operation;
use super::reply::Reply;
use super::request::Request;
use crate::broker::Position;
use crate::session::SendError;

/// A room that a client is in, made by [`Client::join`]. It keeps its client alive, and dropping it does not leave the
/// room.
///
/// The messages of the room come as events of the client, with [`Self::id`] as their channel. The room ends with the
/// connection: after a reconnect it must be joined again.
///
/// ```
/// use tidewire::{Chat, Client, Event, Kind, Server};
///
/// let server = Server::builder().listen("tcp://127.0.0.1:0")?.start_one(Chat::new())?;
/// let [ada, bob] = [Client::connect(&server.to_string()).wait()?, Client::connect(&server.to_string()).wait()?];
/// let room = ada.join("lobby").named("ada").wait()?;
/// bob.join("lobby").named("bob").wait()?.say(b"hello")?;
/// let message = loop {
///     if let Event::Message(message) = ada.next_event().wait()
///         && message.kind == Kind::Deliver { break message };
/// };
/// assert_eq!((message.room(), &message.payload[..]), (room.id(), &b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Room {
    client: Client,
    id: RoomId,
    joined: Option<JoinedBody>,
}

/// A join that is not requested yet, made by [`Client::join`]. Await it, [`wait`](Self::wait) for it, or
/// [`send`](Self::send) it and take the outcome later. [`Room`] has an example.
#[derive(Debug)]
#[must_use = "nothing is sent before `send`, `wait` or `.await`"]
pub struct Join<'a> {
    client: &'a Client,
    room: &'a str,
    name: &'a str,
    since: Option<Since>,
}

impl Client {
    /// Enters a room. Methods of the returned value set the name and the position; a client that has a name already
    /// needs none. [`Room`] has an example.
    ///
    /// A join that is dropped or times out leaves the room again if the server agrees later. Until then, another join
    /// of that room is refused with [`ErrorCode::AlreadyJoined`](crate::ErrorCode::AlreadyJoined).
    ///
    /// If the room keeps a history, its messages follow as [`Event::Message`](crate::Event::Message). A client that was
    /// in the room on an earlier connection receives only the messages after the last one that it received, its own
    /// among them. Before them comes an [`Event::Recovered`](crate::Event::Recovered) that says whether messages are
    /// missing.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if the name is empty, malformed or taken (try another) or a limit is reached, and the
    /// other [`RequestError`]s if there is no reply.
    pub fn join<'a>(&'a self, room: &'a str) -> Join<'a> {
        Join {
            client: self,
            room,
            name: "",
            since: None,
        }
    }

    /// Returns a room that a handler of the server has put this client into, as [`Event::Joined`](crate::Event::Joined)
    /// says.
    #[must_use]
    pub fn room(&self, id: RoomId) -> Room {
        Room {
            client: self.clone(),
            id,
            joined: None,
        }
    }
}

impl<'a> Join<'a> {
    /// Sets the name under which the client enters. It is unique in the server, and the client keeps it for the
    /// connection.
    pub fn named(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }

    /// Requests the messages of the room's history after this position: the position of the application's last message,
    /// for example from an earlier run.
    pub fn since(mut self, position: Position) -> Self {
        self.since = Some(Since::Position(position));
        self
    }

    /// Sends the request and returns a future of the room.
    pub fn send(self) -> Operation<Room> {
        let Self {
            client,
            room,
            name,
            since,
        } = self;
        let inner = &client.inner;
        if !inner.matches_replies {
            return Operation::failed(RequestError::CannotMatch);
        }
        let mut body = Vec::new();
        if let Err(error) = (JoinBody { room, name }).encode(&mut body) {
            return Operation::failed(error);
        }
        let link = &inner.link;
        let deadline_ns = now_ns().saturating_add(inner.request_timeout_ns);
        let sent = link.table.submit_control(|slot| {
            Control::Open(Box::new(Opening {
                kind: Kind::Join,
                name: room.into(),
                body,
                queue: None,
                since,
                deadline_ns,
                when_full: inner.when_window_full,
                slot,
            }))
        });
        let client = client.clone();
        Operation::new(Request::new(link, sent), move |reply| {
            let body = JoinedBody::decode(reply.payload());
            Ok(Room {
                client,
                id: RoomId(reply.channel()),
                joined: Some(body.map_err(|_| RequestError::MalformedReply)?),
            })
        })
    }

    /// Sends the request and blocks until the server has agreed. On a lane it fails at once, with
    /// [`RequestError::OnLane`].
    ///
    /// # Errors
    /// The errors of [`Client::join`].
    pub fn wait(self) -> Result<Room, RequestError> {
        self.send().wait()
    }
}

impl IntoFuture for Join<'_> {
    type Output = Result<Room, RequestError>;
    type IntoFuture = Operation<Room>;

    fn into_future(self) -> Self::IntoFuture {
        self.send()
    }
}

impl Room {
    /// Returns the number of the room, which is the channel of its messages.
    #[must_use]
    pub fn id(&self) -> RoomId {
        self.id
    }

    /// Returns the client's own number in the room. `None` if a handler of the server has put it there, and the number
    /// is in [`Event::Joined`](crate::Event::Joined).
    #[must_use]
    pub fn own_member(&self) -> Option<MemberId> {
        Some(self.joined?.member)
    }

    /// Returns the number of members when the client joined, with the client. `None` as for [`Self::own_member`].
    #[must_use]
    pub fn size_at_join(&self) -> Option<usize> {
        Some(self.joined?.members as usize)
    }

    /// Sends a message to all other members. It has no reply, so there is nothing to wait for.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub fn say(&self, payload: &[u8]) -> Result<(), SendError> {
        self.client
            .send(Message::new(Kind::Say, self.id.0, payload))
    }

    /// Sends a message to one member. The call is done when the server has passed the message on.
    ///
    /// # Errors
    /// [`RequestError::Refused`] if no member has that name, and the other [`RequestError`]s if there is no reply.
    pub fn whisper(&self, to: &str, text: &[u8]) -> Operation<()> {
        let mut body = Vec::new();
        let encoded = RoomCall::Whisper { to, text }.encode(&mut body);
        self.operate(Kind::Request, encoded, &body, |_| Ok(()))
    }

    /// Lists the members.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn members(&self) -> Operation<Vec<(MemberId, String)>> {
        let mut body = Vec::new();
        let encoded = RoomCall::List.encode(&mut body);
        self.operate(Kind::Request, encoded, &body, |reply| {
            let roster =
                Roster::decode(reply.payload()).map_err(|_| RequestError::MalformedReply)?;
            let members = roster.entries();
            Ok(members
                .map(|(member, name)| (member, name.to_owned()))
                .collect())
        })
    }

    /// Leaves the room.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn leave(&self) -> Operation<()> {
        self.operate(Kind::Leave, Ok(()), &[], |_| Ok(()))
    }

    fn operate<T: 'static>(
        &self,
        kind: Kind,
        encoded: Result<(), EncodeError>,
        body: &[u8],
        finish: fn(Reply) -> Result<T, RequestError>,
    ) -> Operation<T> {
        let call = || self.client.request(body).kind(kind).channel(self.id.0);
        match encoded {
            Ok(()) => Operation::new(call().send(), finish),
            Err(error) => Operation::failed(error),
        }
    }
}
