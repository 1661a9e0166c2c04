//! Unfinished handshakes of layers such as TLS: their memory counts for the address that they came from.
//!
//! Problem: a handshake costs a server memory before it knows the peer, so one address that begins many could use up what is
//! meant for all. Approach: the memory of its unfinished handshakes has a limit, and the handshake that passes it is closed.

use super::Core;
use crate::session::CloseReason;
use crate::transport::Transport;

impl Core {
    /// Counts the memory of an unfinished handshake for its address. Closes the session, and returns false, if the address
    /// holds too much.
    pub(crate) fn hold_handshake(&mut self, slot: usize) -> bool {
        let session = &self.sessions[slot];
        let Some(owner) = session.owner() else {
            return true;
        };
        let held = self.acceptor.unfinished.entry(slot).or_default();
        let bytes = session.stream.memory_bytes();
        if self.shared.limiter.hold_handshake(owner, *held, bytes) {
            *held = bytes;
            return true;
        }
        let now_ns = self.sessions.now_ns();
        if let Some(unlogged) = self.acceptor.refusal_log.may_log(now_ns) {
            let peer = session.profile.peer.as_ref().map(tracing::field::display);
            tracing::warn!(
                peer,
                unlogged,
                "closing a handshake: the unfinished ones of its address hold too much memory; raise \
                 `handshake_bytes_per_address_max` unless this is an attack; further refusals are not logged for 10 s"
            );
        }
        self.sessions.close(slot, CloseReason::HandshakeLimit);
        false
    }

    /// Ends the count for a session that is open now, or is being removed.
    #[inline]
    pub(super) fn release_handshake(&mut self, slot: usize) {
        if self.acceptor.unfinished.is_empty() {
            return;
        }
        if let (Some(bytes), Some(owner)) = (
            self.acceptor.unfinished.remove(&slot),
            self.sessions[slot].owner(),
        ) {
            self.shared.limiter.hold_handshake(owner, bytes, 0);
        }
    }
}
