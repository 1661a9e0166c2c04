//! Clients of proxies that speak HTTP: the address of the client is in the request of its WebSocket.
//!
//! Problem: behind such a proxy all clients have the address of the proxy. Approach: when the handshake is over, the session
//! moves from the account of the proxy's address to that of the client. Only listed proxies are believed, and of their header only
//! what listed proxies appended: the client is the last address that is not listed.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Core;
use crate::address::Endpoint;
use crate::session::CloseReason;
use crate::transport::Transport;

impl Core {
    /// Gives a session whose handshake is over the address of its client, if a listed proxy has named it. Returns false, and closes
    /// the session, if the client may have no more sessions.
    pub(crate) fn follow_forwarded(&mut self, slot: usize) -> bool {
        let Some(client) = self.forwarded_client(slot) else {
            return true;
        };
        // The memory of the handshake counts for the address that it came from.
        self.release_handshake(slot);
        let client = Endpoint::from(SocketAddr::new(client, 0));
        let proxy = self.sessions[slot].profile.peer.clone();
        if !self.shared.limiter.move_to(proxy.as_deref(), &client) {
            self.note_refusal(super::accept::Refusal::Sessions, Some(&client));
            self.sessions.close(slot, CloseReason::SessionLimit);
            return false;
        }
        self.sessions[slot].profile.peer = Some(Arc::new(client));
        true
    }

    /// The address of the client that a listed proxy has named.
    fn forwarded_client(&self, slot: usize) -> Option<IpAddr> {
        let session = &self.sessions[slot];
        let chain = session.stream.forwarded_for();
        let listener = session.profile.listener.as_ref()?;
        let proxy = session.profile.peer.as_deref()?.socket_address()?.ip();
        if chain.is_empty() || !listener.is_forwarder(proxy) {
            return None;
        }
        let mut from_here = chain.iter().rev();
        let client = from_here.find(|it| !listener.is_forwarder(**it));
        client.or(chain.first()).copied()
    }
}
