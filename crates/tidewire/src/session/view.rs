//! The facts about a session, for handlers and for the predicates of broadcasts.

use std::any::Any;
use std::sync::Arc;

use tidewire_io::clock::Moment;
use tidewire_io::socket::PeerCredentials;
use tidewire_proto::connection::Farewell;
use tidewire_proto::layer::{CertificateNames, Encryption};
use tidewire_proto::message::RoomId;

use super::{Session, SessionId};
use crate::address::Endpoint;
use crate::auth::Identity;
use crate::transport::{Transport, TransportKind};

/// The facts about a session, on its own lane. [`Context::session`](crate::Context::session) returns them for the
/// session of a call, and the predicate of [`Sessions::broadcast_where`](crate::Sessions::broadcast_where) gets them
/// for each session. In a call without a session, [`Self::id`] is [`SessionId::NONE`] and everything else is absent.
///
/// ```
/// use tidewire::{Context, ErrorCode, HandlerError, HandlerResult, Message};
///
/// fn stop(cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
///     match cx.session().identity() {
///         Some(identity) if identity.name() == "root" => cx.reply(b"bye"),
///         _ => Err(HandlerError::new(ErrorCode::Forbidden, "only root stops this server")),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SessionView<'a> {
    session: Option<&'a Session>,
}

impl<'a> SessionView<'a> {
    pub(crate) fn of(session: Option<&'a Session>) -> Self {
        Self { session }
    }

    /// The session's number.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.session.map_or(SessionId::NONE, |session| session.id)
    }

    /// The index of its lane. `None` in a call without a session.
    #[must_use]
    pub fn lane(&self) -> Option<usize> {
        Some(self.session?.id.lane())
    }

    /// The state of this type that the service attached with [`Context::set_state`](crate::Context::set_state).
    #[must_use]
    pub fn state<T: Any>(&self) -> Option<&'a T> {
        self.session?.profile.attached.as_ref()?.state()
    }

    /// The peer's address. Clients of a Unix socket and of the same process have none.
    #[must_use]
    pub fn peer(&self) -> Option<&'a Endpoint> {
        self.session?.profile.peer.as_deref()
    }

    /// The process, user and group of a peer that connected through a Unix socket, as they were at that moment.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        self.session?.profile.shared.as_ref()?.credentials
    }

    /// The names in the certificate that the peer has shown over TLS, if it has shown one and an authority of
    /// [`ServerTls`](crate::tls::ServerTls) has signed it.
    #[must_use]
    pub fn certificate(&self) -> Option<&'a CertificateNames> {
        self.session?.stream.certificate()
    }

    /// How the connection is encrypted. `None` if it is not.
    #[must_use]
    pub fn encryption(&self) -> Option<Encryption> {
        self.session?.stream.encryption()
    }

    /// The kind of its transport.
    #[must_use]
    pub fn transport(&self) -> Option<TransportKind> {
        Some(self.session?.stream.kind())
    }

    /// The peer's identity. `None` if the server does not ask, and for connections that the server made.
    #[must_use]
    pub fn identity(&self) -> Option<&'a Arc<Identity>> {
        Some(self.session?.profile.admitted.as_ref()?.identity())
    }

    /// Whether a lane of this server opened the connection, and not the peer.
    #[must_use]
    pub fn is_outgoing(&self) -> bool {
        self.session
            .is_some_and(|session| session.connection.handshake().is_outgoing())
    }

    /// The agent name of the server, on a session that this lane opened.
    #[must_use]
    pub fn peer_agent(&self) -> Option<&'a str> {
        self.session?.connection.handshake().peer_agent()
    }

    /// The farewell with which the peer has closed the session, if it sent one. The text is not trusted: see
    /// [`Farewell::text`].
    #[must_use]
    pub fn peer_farewell(&self) -> Option<&'a Farewell> {
        self.session?.connection.output().peer_farewell()
    }

    /// The name under which it joined its first room.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        let member = self.session?.profile.member.as_ref()?;
        Some(&member.name)
    }

    /// The rooms that it is in.
    pub fn rooms(&self) -> impl Iterator<Item = RoomId> + use<'a> {
        let memberships = self.session.into_iter().flat_map(|it| &it.memberships);
        let rooms = memberships.filter(|membership| !membership.is_topic);
        rooms.map(|membership| RoomId(membership.room))
    }

    /// Whether it is in this room.
    #[must_use]
    pub fn is_in(&self, room: RoomId) -> bool {
        self.session
            .is_some_and(|session| session.room_membership(room.0).is_some())
    }

    pub(crate) fn has_room(&self) -> bool {
        self.session
            .is_some_and(|session| session.memberships.iter().any(|it| !it.is_topic))
    }

    /// The address of another server that the peer's go-away has. It may be any text.
    pub(crate) fn peer_moved_to(&self) -> Option<&'a str> {
        self.session?.connection.output().peer_moved_to()
    }

    /// When it opened. `None` before that.
    #[must_use]
    pub fn opened_at(&self) -> Option<Moment> {
        let shared = self.session?.profile.shared.as_ref()?;
        Some(Moment::from_ns(shared.opened_ns))
    }
}
