//! Sessions whose transport has layers: the bytes that the layers hold, their last records, and their errors. A session
//! without layers costs one check for each flush.

use std::io::{self, ErrorKind};

use tidewire_proto::layer::LayerError;

use super::{CloseReason, LaneSessions};
use crate::transport::Transport;

impl LaneSessions {
    /// Writes the bytes that a session's layers hold, when its output is empty. Returns whether all were written, which
    /// is also true without layers.
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

    /// Writes the last bytes of the layers after this side has ended, and closes a session that only waits for that.
    pub(super) fn flush_last(&mut self, slot: usize) {
        match self.flush_layers(slot) {
            Ok(true) => self.change(slot, |connection, _| connection.handle_ended()),
            Ok(false) => {}
            Err(kind) => return self.handle_write_failure(slot, kind),
        }
        self.update_interest(slot);
    }
}

/// Converts a read error into the reason of the session's end.
pub(crate) fn close_reason(error: &io::Error) -> CloseReason {
    let cause = error.get_ref();
    let cause = cause.and_then(|cause| cause.downcast_ref::<LayerError>());
    match (cause, error.kind()) {
        (Some(LayerError::PageServed), _) => CloseReason::PageServed,
        (Some(cause), _) => CloseReason::Layer(*cause),
        (_, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted) => {
            CloseReason::PeerReset
        }
        (_, other) => CloseReason::Io(other),
    }
}
