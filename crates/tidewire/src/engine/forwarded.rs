//! Clients of proxies that speak HTTP: the address of the client is in the request of its WebSocket.
//!
//! Problem: behind such a proxy all clients have the address of the proxy, so one client could use up what one address
//! may have, and lock out the others. Approach: a connection of a listed proxy has no address and is no session until
//! its handshake is over. Then it counts for its client: as a session, and as a handshake that this address began. A
//! request that names no client is of the proxy itself. Rejected: a session without an address from the beginning,
//! because at a full server it displaced a session of another address before anybody knew whose it was.

use std::net::SocketAddr;
use std::sync::Arc;

use super::admission::{Admission, Refusal};
use crate::address::Endpoint;
use crate::session::{CloseReason, LaneSessions};
use crate::transport::Transport;

impl Admission {
    /// Gives a session whose handshake is over the address of its client, if it came from a listed proxy. Returns
    /// false, and closes the session, if the client may have no more sessions or handshakes.
    pub(crate) fn follow_forwarded(&mut self, sessions: &mut LaneSessions, slot: usize) -> bool {
        let session = &sessions[slot];
        let attached = session.profile.attached.as_ref();
        let Some(proxy) = attached.and_then(|it| it.forwarder().cloned()) else {
            return true;
        };
        let listener = session.profile.listener.as_ref();
        let is_listed = |ip| listener.is_some_and(|it| it.is_forwarder(ip));
        let client = match session.stream.forwarded_client(&is_listed) {
            Some(ip) => Arc::new(Endpoint::from(SocketAddr::new(ip, 0))),
            None => proxy,
        };
        let counted = self
            .begin_handshake(sessions, Some(&client))
            .and_then(|()| self.count_in(sessions, Some(&client), true));
        if let Err(refusal) = counted {
            sessions.table.close(slot, reason_of(refusal));
            return false;
        }
        self.leave_unnamed();
        let profile = &mut sessions[slot].profile;
        profile.attach().set_forwarder(None);
        profile.peer = Some(client);
        true
    }
}

fn reason_of(refusal: Refusal) -> CloseReason {
    match refusal {
        Refusal::Handshakes => CloseReason::HandshakeLimit,
        Refusal::Memory => CloseReason::MemoryLimit,
        _ => CloseReason::SessionLimit,
    }
}
