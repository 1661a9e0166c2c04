//! Clients of proxies that speak HTTP: the address of the client is in the request of its WebSocket.
//!
//! Problem: behind such a proxy all clients have the address of the proxy, so one client could use up what one address may have, and
//! lock out the others. Approach: a session of a listed proxy has no address until its handshake is over. Then it gets that of
//! its client, and counts for it: as a session, and as a handshake that this address began. A request that names no client is of the
//! proxy itself.

use std::net::SocketAddr;
use std::sync::Arc;

use super::Core;
use super::accept::Refusal;
use crate::address::Endpoint;
use crate::session::CloseReason;
use crate::transport::Transport;

impl Core {
    /// Gives a session whose handshake is over the address of its client, if it came from a listed proxy. Returns false, and
    /// closes the session, if the client may have no more sessions or handshakes.
    pub(crate) fn follow_forwarded(&mut self, slot: usize) -> bool {
        let session = &mut self.sessions[slot];
        let attached = session.profile.attached.as_mut();
        let Some(proxy) = attached.and_then(|it| it.forwarder.take()) else {
            return true;
        };
        let listener = session.profile.listener.as_ref();
        let is_listed = |ip| listener.is_some_and(|it| it.is_forwarder(ip));
        let named = session
            .stream
            .forwarded()
            .and_then(|it| it.client(is_listed));
        let client = match named {
            Some(ip) => Arc::new(Endpoint::from(SocketAddr::new(ip, 0))),
            None => proxy,
        };
        let reason = match self.count_client(&client) {
            Ok(()) => None,
            Err(Refusal::Handshakes) => Some(CloseReason::HandshakeLimit),
            Err(_) => Some(CloseReason::SessionLimit),
        };
        if let Some(reason) = reason {
            self.sessions.close(slot, reason);
            return false;
        }
        self.sessions[slot].profile.peer = Some(client);
        true
    }

    /// Counts a session, which has no address yet, and its handshake for the address of its client.
    fn count_client(&mut self, client: &Endpoint) -> Result<(), Refusal> {
        self.begin_handshake(Some(client))?;
        match self.shared.limiter.name(client) {
            true => Ok(()),
            false => Err(self.note_refusal(Refusal::Sessions, Some(client))),
        }
    }
}
