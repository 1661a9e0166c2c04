//! Makes and removes sessions.

use std::sync::Arc;
use std::time::Duration;

use tidewire_proto::connection::Connection;
use tidewire_proto::layer::Stack;

use super::Core;
use crate::address::Endpoint;
use crate::config::CodecNumber;
use crate::limits::DATAGRAM_FRAME_BYTES_MAX;
use crate::observe::trace::Connecting;
use crate::session::{CloseReason, Session, SessionId, SessionShared};
use crate::transport::{AnyTransport, ConnectError};

impl Core {
    /// Starts a connection. With `wait_for_server`, a connection to an in-process name without a listener waits for
    /// one until the handshake times out. `stack` replaces the layers that the server has for connections to such a
    /// `tls://`, `ws://` or `wss://` address.
    pub(crate) fn connect(
        &mut self,
        endpoint: &Endpoint,
        wait_for_server: bool,
        stack: Option<Stack>,
    ) -> Result<SessionId, ConnectError> {
        let waiter = wait_for_server.then(|| self.exchange.mailbox.party());
        let outgoing = &self.shared.outgoing;
        let stream = outgoing.open(&self.config, endpoint, waiter.as_ref(), stack)?;
        let is_inproc = matches!(endpoint, Endpoint::Inproc(_));
        let peer = (!is_inproc).then(|| endpoint.clone());
        let (delivery, now_ns) = (stream.delivery(), self.sessions.timers.now_ns());
        let codec = CodecNumber::MAIN;
        let rules = self.config.codecs.rules(codec);
        let connection = Connection::connecting(rules, delivery, now_ns);
        let slot = self.insert(stream, codec, peer, connection);
        let slot = slot.map_err(ConnectError::Closed)?;
        Ok(self.sessions[slot].id)
    }

    pub(crate) fn insert(
        &mut self,
        stream: AnyTransport,
        codec: CodecNumber,
        peer: Option<Endpoint>,
        mut connection: Connection,
    ) -> Result<usize, CloseReason> {
        let id = self.sessions.table.next_id(self.exchange.lane());
        let slot = id.slot();
        if stream.preserves_boundaries() {
            connection
                .handshake_mut()
                .limit_frames(DATAGRAM_FRAME_BYTES_MAX);
        }
        let mut session = Session::new(stream, id, codec, connection);
        session.profile.peer = peer.map(Arc::new);
        session.profile.connecting = Connecting::of(&session, || {
            self.config.codecs.get(session.codec_number()).name()
        });
        if let Err(error) = session.watch(&mut *self.sessions.poller) {
            tracing::error!(%error, "cannot watch a connection");
            return Err(CloseReason::Io(std::io::ErrorKind::Other));
        }
        if let Some(stream) = session.stream.as_inproc() {
            self.sessions.table.note_ring();
            if let Some(door) = self.exchange.mailbox.door(slot) {
                stream.set_attendant(door);
            }
        }
        self.sessions.insert(session);
        self.exchange.mailbox.load.add();
        self.counters.sessions_opened.add(1);
        Ok(slot)
    }

    /// Makes a session visible to other threads, just before the service learns of it.
    pub(crate) fn enter(&mut self, slot: usize) {
        self.admission.release_handshake(&self.sessions, slot);
        let now_ns = self.sessions.timers.now_ns();
        let session = &mut self.sessions[slot];
        session.begin();
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
        self.sessions.say_end(slot, reason);
        self.ports.forget_peer(&mut self.sessions, slot);
        self.admission.release_handshake(&self.sessions, slot);
        self.guard().end_authentication(slot);
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
        // The state is dropped before the session is counted as closed, so that a reader of the counter can rely on it.
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
            self.admission
                .note_layer_error(&self.sessions, &session, error);
        }
    }

    /// Removes all sessions without calling the service, which has failed. Peers learn of it at once instead of
    /// waiting for a lane that does not answer.
    pub(crate) fn abandon(&mut self) {
        let slots = self.sessions.table.slots();
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

/// How long the kernel keeps the last bytes of a session for a peer that takes nothing. A network may be away for so
/// long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same for a peer that was too slow already.
const PATIENCE_WITH_SLOW: Duration = Duration::from_secs(5);
