//! Connections that a handler makes to other servers.

use std::any::Any;

use tidewire_io::clock::Moment;
use tidewire_proto::connection::Farewell;

use super::Context;
use crate::address::Endpoint;
use crate::auth::Token;
use crate::session::{CloseReason, SendError, SessionId};
use crate::transport::ConnectError;

/// The actions of a handler on the connections that its lane makes to other servers. [`Context::connections`] returns
/// it.
///
/// [`Upstream`](crate::upstream::Upstream) makes such connections for requests, and keeps them.
#[derive(Debug)]
pub struct ConnectionActions<'c, 'a> {
    cx: &'c mut Context<'a>,
}

impl<'a> Context<'a> {
    /// Returns the actions on connections to other servers.
    #[must_use]
    pub fn connections(&mut self) -> ConnectionActions<'_, 'a> {
        ConnectionActions { cx: self }
    }
}

impl ConnectionActions<'_, '_> {
    /// Starts a connection from this lane. [`Service::on_open`](crate::Service::on_open) or
    /// [`Service::on_connect_failed`](crate::Service::on_connect_failed) is called later, for the session that this
    /// call returns. A connection to a `tls://` or `wss://` address needs
    /// [`ServerBuilder::outgoing_tls`](crate::ServerBuilder::outgoing_tls).
    ///
    /// # Errors
    /// [`ConnectError`] if the system refused at once. A later failure is reported by `on_connect_failed`.
    pub fn connect(&mut self, endpoint: &Endpoint) -> Result<SessionId, ConnectError> {
        self.cx.core.connect(endpoint, false, None)
    }

    /// Attaches a value to a connection that [`Self::connect`] has started, as [`Context::set_state`] does for the
    /// session of a call. The calls about the connection, `on_connect_failed` too, find the value. Returns the former
    /// value of this type. A value for a session that has ended, or that is on another lane, is dropped.
    pub fn set_state<T: Any + Send>(&mut self, id: SessionId, state: T) -> Option<T> {
        let session = self.cx.core.sessions.table.find_mut(id)?;
        session.profile.attach().set_state(state)
    }

    /// Starts a connection, as [`Self::connect`] does. If no server listens on an in-process name yet, the connection
    /// waits for one, up to
    /// [`ConnectionLimits::handshake_timeout`](crate::limits::ConnectionLimits::handshake_timeout).
    ///
    /// # Errors
    /// [`ConnectError::TooManyWaiting`] or [`ConnectError::CannotWait`] if too many connections wait already or the
    /// address is not `inproc://`, and the errors of [`Self::connect`].
    pub fn connect_when_bound(&mut self, endpoint: &Endpoint) -> Result<SessionId, ConnectError> {
        self.cx.core.connect(endpoint, true, None)
    }

    /// Sets the credentials of a connection that this lane makes. Right after [`Self::connect`] they are those of its
    /// hello. On an open session they are newer ones, before the present ones [expire](Self::credentials_expire).
    /// Returns whether newer ones were sent now: only a server that has an authenticator takes them. A session that it
    /// then refuses ends.
    ///
    /// # Errors
    /// [`ConnectError::PlaintextCredentials`] or [`ConnectError::LongCredentials`]: nothing is sent, and the
    /// session ends.
    pub fn set_credentials(&mut self, id: SessionId, token: Token) -> Result<bool, ConnectError> {
        let core = &mut *self.cx.core;
        let Some(slot) = core.sessions.table.slot_of(id) else {
            return Ok(false);
        };
        let session = &mut core.sessions[slot];
        if let Some(endpoint) = &session.profile.peer
            && let Err(failure) = core.shared.outgoing.check_credentials(endpoint, &token)
        {
            core.sessions.table.close(slot, CloseReason::Service);
            return Err(failure);
        }
        session.profile.attach().set_credentials(token);
        let renews = session.connection.renew();
        if renews {
            core.sessions.transmit(slot);
        }
        Ok(renews)
    }

    /// Appends whole frames to the output of a connection of this lane.
    pub(crate) fn send_frames(&mut self, id: SessionId, frames: &[u8]) -> Result<(), SendError> {
        self.cx.core.sessions.append_to(id, |_, _, out| {
            out.extend_from_slice(frames);
            Ok(())
        })
    }

    /// Closes a connection of this lane, and sends its peer the reason.
    pub(crate) fn end(&mut self, id: SessionId, farewell: Option<Box<Farewell>>) {
        self.cx
            .call
            .end_session(&mut self.cx.core.sessions, id, farewell);
    }

    /// Whether the server of a session that this lane made finds out who its clients are.
    #[must_use]
    pub fn takes_credentials(&self, id: SessionId) -> bool {
        let session = self.cx.core.sessions.table.find(id);
        session.is_some_and(|session| session.connection.handshake().may_renew())
    }

    /// Returns when the credentials of a session expire. `None` if they never do.
    #[must_use]
    pub fn credentials_expire(&self, id: SessionId) -> Option<Moment> {
        let session = self.cx.core.sessions.table.find(id)?;
        let expire_ns = session.connection.handshake().credentials_expire_ns()?;
        Some(Moment::from_ns(expire_ns))
    }
}
