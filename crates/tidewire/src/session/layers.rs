//! Sessions whose transport has layers: what the layers hold, their last records, and why they failed. A session without layers
//! is only asked whether it has some, once for each flush.

use std::io::{self, ErrorKind};

use tidewire_proto::layer::LayerError;

use super::{CloseReason, LaneSessions};
use crate::transport::Transport;

impl LaneSessions {
    /// Writes what the layers of a session hold, when the session has nothing for them. Returns whether all of it went. Without
    /// layers there is nothing.
    #[inline]
    pub(super) fn flush_layers(&mut self, slot: usize) -> Result<bool, ErrorKind> {
        match self.slab[slot].stream.pending_bytes() {
            0 => Ok(true),
            _ => self.flush_pending(slot),
        }
    }

    #[cold]
    fn flush_pending(&mut self, slot: usize) -> Result<bool, ErrorKind> {
        match self.slab[slot].stream.flush() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.kind()),
        }
    }

    /// This side has ended: writes what its layers still have, and closes a session that only waits for that.
    pub(super) fn flush_last(&mut self, slot: usize) {
        match self.flush_layers(slot) {
            Ok(true) => self.change(slot, |connection, _| connection.handle_ended()),
            Ok(false) => {}
            Err(kind) => return self.handle_write_failure(slot, kind),
        }
        self.update_interest(slot);
    }
}

/// Why a session ends whose transport could not be read.
pub(crate) fn close_reason(error: &io::Error) -> CloseReason {
    let cause = error.get_ref();
    let cause = cause.and_then(|cause| cause.downcast_ref::<LayerError>());
    match (cause, error.kind()) {
        (Some(cause), _) => CloseReason::Layer(*cause),
        (_, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted) => {
            CloseReason::PeerReset
        }
        (_, other) => CloseReason::Io(other),
    }
}
