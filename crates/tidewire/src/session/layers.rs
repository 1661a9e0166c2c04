//! Sessions whose transport has layers: the bytes that the layers hold, their last records, and their errors. A session
//! without layers costs one check for each flush.

use std::io::{self, ErrorKind};

use tidewire_proto::layer::LayerError;

use super::{CloseReason, Session};
use crate::transport::Transport;

impl Session {
    /// Writes the bytes that the layers hold, when the output is empty. Returns whether all were written, which is also
    /// true without layers.
    #[inline]
    pub(super) fn flush_layers(&mut self) -> Result<bool, ErrorKind> {
        match self.stream.pending_bytes() {
            0 => Ok(true),
            _ => self.flush_pending(),
        }
    }

    #[cold]
    fn flush_pending(&mut self) -> Result<bool, ErrorKind> {
        match self.stream.flush() {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.kind()),
        }
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
