//! Makes and removes sessions.

use crate::session::SessionShared;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidewire_io::datagram::{DatagramConnectError, DatagramSocket};
use tidewire_io::poller::Token;
use tidewire_io::socket::{SocketAddress, Stream};
use tidewire_proto::codec::Codec;
use tidewire_proto::connection::Connection;
use tidewire_proto::layer::Stack;

use super::Core;
use crate::address::Endpoint;
use crate::limits::DATAGRAM_FRAME_BYTES_MAX;
use crate::observe::trace::Connecting;
use crate::session::{CloseReason, Session, SessionId};
use crate::transport::ConnectFailure;
use crate::transport::datagram::DatagramPeer;
use crate::transport::inproc::{self, InprocConnectError};
use crate::transport::{AnyTransport, Transport};

impl Core {
    /// Starts a connection. With `wait_for_server`, a connection to an in-process name without a listener waits for
    /// one until the handshake times out.
    pub(crate) fn connect(
        &mut self,
        endpoint: &Endpoint,
        wait_for_server: bool,
    ) -> Result<SessionId, ConnectFailure> {
        self.connect_over(endpoint, wait_for_server, None)
    }

    /// Starts a connection, as [`Self::connect`] does. `stack` replaces the layers that the server has for connections to such
    /// a `tls://`, `ws://` or `wss://` address.
    pub(crate) fn connect_over(
        &mut self,
        endpoint: &Endpoint,
        wait_for_server: bool,
        stack: Option<Stack>,
    ) -> Result<SessionId, ConnectFailure> {
        let (stream, peer) = match endpoint {
            Endpoint::Socket(_) | Endpoint::Tls(_) | Endpoint::WebSocket(_) | Endpoint::Udp(_)
                if wait_for_server =>
            {
                return Err(InprocConnectError::CannotWait.into());
            }
            Endpoint::Socket(address) => {
                let stream = Stream::connect_with(address, &self.config.socket_options)?;
                let stream = match &self.shared.outgoing.layers {
                    Some(layers) => layers.over(stream),
                    None => stream.into(),
                };
                (stream, Some(address.clone().into()))
            }
            Endpoint::Tls(address) => {
                // A connection that must be encrypted is never sent as plaintext.
                let stack = stack.or_else(|| self.shared.outgoing.stack(address.ip()));
                let stack = stack.ok_or(ConnectFailure::NoTls)?;
                (
                    self.connect_layered(*address, stack)?,
                    Some(endpoint.clone()),
                )
            }
            Endpoint::WebSocket(at) => {
                let make = || self.shared.outgoing.websocket_stack(at, &self.config.codec);
                let stack = stack.map_or_else(make, Ok)?;
                (
                    self.connect_layered(at.address(), stack)?,
                    Some(endpoint.clone()),
                )
            }
            Endpoint::Udp(address) => {
                self.check_framing()?;
                let peer = self.connect_datagram(*address)?;
                (peer.into(), Some(endpoint.clone()))
            }
            Endpoint::Inproc(name) => {
                let waiter = wait_for_server.then(|| self.exchange.mailbox.party());
                let stream = inproc::connect(name, waiter.as_ref())?;
                (AnyTransport::Inproc(Box::new(stream)), None)
            }
        };
        let connection = Connection::connecting(
            &self.config.rules,
            stream.delivery(),
            self.sessions.now_ns(),
        );
        let slot = self.insert(stream, peer, connection);
        let slot = slot.map_err(ConnectFailure::Closed)?;
        Ok(self.sessions[slot].id)
    }

    /// Connects a socket, with these layers above it.
    fn connect_layered(
        &self,
        address: SocketAddr,
        stack: Stack,
    ) -> Result<AnyTransport, ConnectFailure> {
        let address = SocketAddress::Tcp(address);
        let stream = Stream::connect_with(&address, &self.config.socket_options)?;
        Ok(AnyTransport::layered(stream, stack))
    }

    /// Checks that the lane's codec frames datagrams.
    fn check_framing(&self) -> Result<(), ConnectFailure> {
        let codec = &self.config.codec;
        let for_datagrams = codec.clone().for_datagrams();
        if for_datagrams.format().fills_datagrams() == codec.format().fills_datagrams() {
            return Ok(());
        }
        let codec = codec.name();
        Err(ConnectFailure::Framing { codec })
    }

    /// Opens a session's own socket, for datagrams to and from one server.
    fn connect_datagram(&self, address: SocketAddr) -> Result<DatagramPeer, DatagramConnectError> {
        let socket = DatagramSocket::connect(&address, &self.config.datagram_options)?;
        Ok(DatagramPeer::connected(Arc::new(socket), address))
    }

    pub(crate) fn insert(
        &mut self,
        stream: AnyTransport,
        peer: Option<Endpoint>,
        mut connection: Connection,
    ) -> Result<usize, CloseReason> {
        let id = self.sessions.next_id(self.exchange.lane);
        let slot = id.slot();
        if stream.preserves_boundaries() {
            connection
                .handshake_mut()
                .limit_frames(DATAGRAM_FRAME_BYTES_MAX);
        }
        let mut session = Session::new(stream, id, connection);
        session.profile.peer = peer.map(Arc::new);
        session.profile.connecting = Connecting::of(&session, &self.config.codec);
        session.interest = session.wanted_interest();
        let interest = session.interest;
        if let Err(error) = session
            .stream
            .add(&mut *self.sessions.poller, Token(slot), interest)
        {
            tracing::error!(%error, "cannot watch a connection");
            return Err(CloseReason::Io(std::io::ErrorKind::Other));
        }
        self.sessions.insert(session);
        self.exchange.mailbox.load.add();
        self.counters.sessions_opened.add(1);
        Ok(slot)
    }

    /// Makes a session visible to other threads, just before the service learns of it.
    pub(crate) fn enter(&mut self, slot: usize) {
        self.release_handshake(slot);
        let now_ns = self.sessions.now_ns();
        let session = &mut self.sessions[slot];
        session
            .connection
            .timing_mut()
            .spread_pings(session.id.ping_part());
        if session.profile.is_upstream() {
            // An upstream session must not get messages for clients.
            return;
        }
        let shared = Arc::new(SessionShared::new(session, now_ns));
        session.profile.shared = Some(Arc::clone(&shared));
        self.shared.sessions.enter(shared);
        if self.config.age.is_some() {
            self.sessions.arm_timer(slot);
        }
    }

    /// Removes a closed session.
    pub(crate) fn dismantle(&mut self, slot: usize, reason: CloseReason) {
        // The session is removed from the table before the peer learns of the close, so that no thread finds the
        // session open after that.
        if let Some(shared) = self.sessions[slot].profile.shared.take() {
            self.shared.sessions.remove(&shared);
        }
        self.rooms().leave_all(slot);
        self.sessions.last_words(slot, reason);
        self.sessions.say_end(slot, reason);
        self.forget_peer(slot);
        self.sessions.cancel_all(slot);
        self.sessions.end_meter(slot);
        self.release_handshake(slot);
        self.end_authentication(slot);
        let Some(mut session) = self.sessions.remove(slot) else {
            return;
        };
        self.exchange.mailbox.load.remove();
        if !matches!(reason, CloseReason::PeerClosed | CloseReason::PeerReset) {
            let patience = match session.connection.output().state().is_blocked() {
                true => PATIENCE_WITH_SLOW,
                false => PATIENCE,
            };
            // If the kernel refuses, it keeps the last bytes as long as it likes.
            let _ = session.stream.set_patience(patience);
        }
        if !session.connection.handshake().is_outgoing() {
            let profile = &session.profile;
            let limiter = &self.shared.limiter;
            limiter.release(profile.peer.as_deref(), profile.is_unnamed());
        }
        // The state is dropped before the session is counted as closed, so that a reader of the counter can rely on
        // it.
        let attached = session.profile.attached.take();
        if attached.is_some() {
            // The state is of the application's types, whose `drop` may panic.
            let _ = self.contain(SessionId::NONE, |_| drop(attached));
        }
        self.counters.closed[reason.index()].add(1);
        let peer = session.profile.source().map(tracing::field::display);
        tracing::debug!(session = %session.id, peer, reason = %reason.name(), "session closed: {reason}");
        if let CloseReason::Layer(error) = reason
            && !session.connection.handshake().is_outgoing()
        {
            self.note_layer_error(error, session.stream.refused_part(), &session.profile);
        }
    }

    /// Removes all sessions without calling the service, which has failed. Peers learn of it at once instead of
    /// waiting for a lane that does not answer.
    pub(crate) fn abandon(&mut self) {
        let slots = self.sessions.slots();
        for slot in slots {
            let connection = &mut self.sessions[slot].connection;
            connection.close(CloseReason::LaneFailed);
            let reason = connection
                .phase()
                .close_reason()
                .unwrap_or(CloseReason::LaneFailed);
            self.dismantle(slot, reason);
        }
        self.exchange.post_batches();
    }
}

/// How long the kernel keeps the last bytes of a session for a peer that takes nothing. A network may be away for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same for a peer that was too slow already.
const PATIENCE_WITH_SLOW: Duration = Duration::from_secs(5);
