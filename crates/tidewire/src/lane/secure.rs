//! Sessions whose transport has layers: their handshakes before the hello, and reading through them. A session without layers
//! never comes here.

use super::Lane;
use crate::service::Service;
use crate::session::close_reason;
use crate::transport::Transport;

impl<S: Service> Lane<S> {
    /// Goes on with the handshakes of a session's layers. The session begins when they are over.
    pub(crate) fn secure(&mut self, slot: usize) {
        let core = &mut self.core;
        match core.sessions[slot].stream.secure() {
            Ok(true) => {
                self.begin(slot);
                // Plaintext may have come with the last record of the handshake, and no event announces it.
                if !self.core.sessions[slot].connection.is_closed() {
                    self.read_session(slot);
                }
            }
            Ok(false) => core.sessions.update_interest(slot),
            Err(error) => core.sessions.close(slot, close_reason(&error)),
        }
    }

    /// As for any stream, and then sees to what the layers hold.
    pub(super) fn read_layers(&mut self, slot: usize) {
        let was_awake = self.core.sessions[slot].stream.is_awake();
        self.read_stream(slot);
        let stream = &self.core.sessions[slot].stream;
        let is_awake = stream.is_awake();
        if stream.pending_bytes() > 0 {
            // An answer of a layer is output like any other.
            self.core.sessions.mark_dirty(slot);
        }
        if is_awake && !was_awake {
            self.note_awake(slot);
        }
    }
}
