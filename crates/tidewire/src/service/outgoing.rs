//! Connections that a handler makes to other servers.

use tidewire_proto::layer::Stack;

use super::Context;
use crate::address::Endpoint;
use crate::auth::Token;
use crate::session::{CloseReason, SessionId};
use crate::transport::ConnectFailure;

impl Context<'_> {
    /// Starts a connection from this lane. `on_open` or `on_connect_failed` is called later, with `tag`. A connection to a
    /// `tls://` or `wss://` address needs [`ServerBuilder::outgoing_tls`](crate::ServerBuilder::outgoing_tls).
    ///
    /// # Errors
    /// [`ConnectFailure`] if the system refused at once. A later failure is reported by `on_connect_failed`.
    pub fn connect(&mut self, endpoint: &Endpoint, tag: u64) -> Result<SessionId, ConnectFailure> {
        self.core.connect(endpoint, tag, false)
    }

    /// Starts a connection with these layers, which are those of the address.
    pub(crate) fn connect_over(
        &mut self,
        endpoint: &Endpoint,
        stack: Option<Stack>,
    ) -> Result<SessionId, ConnectFailure> {
        self.core.connect_over(endpoint, 0, false, stack)
    }

    /// Starts a connection, as [`Context::connect`] does. If no server listens on an in-process name yet, the
    /// connection waits for one, up to [`Limits::handshake_timeout`](crate::Limits::handshake_timeout).
    ///
    /// # Errors
    /// [`ConnectFailure::Inproc`] if too many connections wait already or the address is not `inproc://`, and the
    /// errors of [`Context::connect`].
    pub fn connect_when_bound(
        &mut self,
        endpoint: &Endpoint,
        tag: u64,
    ) -> Result<SessionId, ConnectFailure> {
        self.core.connect(endpoint, tag, true)
    }

    /// Sets the credentials of a connection that this lane makes. Right after [`Context::connect`] they are those of its hello.
    /// On an open session they are newer ones, before the present ones [expire](Context::credentials_expire_ns). Returns whether
    /// newer ones were sent now: only a server that has an authenticator takes them. A session that it then refuses ends.
    ///
    /// # Errors
    /// [`ConnectFailure::PlaintextCredentials`] or [`ConnectFailure::LongCredentials`]: nothing is sent, and the session ends.
    pub fn set_credentials(&mut self, id: SessionId, token: Token) -> Result<bool, ConnectFailure> {
        let Some(slot) = self.core.sessions.slot_of(id) else {
            return Ok(false);
        };
        let session = &mut self.core.sessions[slot];
        if let Some(endpoint) = &session.profile.peer
            && let Err(failure) = self
                .core
                .shared
                .outgoing
                .check_credentials(endpoint, &token)
        {
            self.core.sessions.close(slot, CloseReason::Service);
            return Err(failure);
        }
        session.profile.attach().credentials = Some(token);
        let connection = &mut session.connection;
        let renews = connection.may_send() && connection.handshake_mut().renew();
        if renews {
            self.core.sessions.transmit(slot);
        }
        Ok(renews)
    }

    /// Refuses an address to which [`Context::set_credentials`] would not send.
    pub(crate) fn check_credentials(
        &self,
        endpoint: &Endpoint,
        token: &Token,
    ) -> Result<(), ConnectFailure> {
        self.core.shared.outgoing.check_credentials(endpoint, token)
    }

    /// Whether the server of a session that this lane made finds out who its clients are.
    #[must_use]
    pub fn takes_credentials(&self, id: SessionId) -> bool {
        let session = self.core.sessions.find(id);
        session.is_some_and(|session| session.connection.handshake().may_renew())
    }

    /// Returns when the credentials of a session expire, on the clock of [`Context::now_ns`]. `None` if they never do.
    #[must_use]
    pub fn credentials_expire_ns(&self, id: SessionId) -> Option<u64> {
        let session = self.core.sessions.find(id)?;
        session.connection.handshake().credentials_expire_ns()
    }
}
