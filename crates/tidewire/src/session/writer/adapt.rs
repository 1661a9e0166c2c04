//! Streams of a codec that has a state for each connection.
//!
//! Handlers, rooms and other threads append frames that suit any connection. Just before the frames are written, the
//! codec adapts each one to its connection. So the state sees each frame once, in the order of the wire, and a message
//! that a policy drops never gets a number. Only lanes with such a codec use this module.

use std::io::ErrorKind;

use tidewire_proto::codec::ConnectionState;

use super::Writer;
use crate::session::{Logs, Outputs, Session};

/// The state of a session's codec, and the part of the output that is adapted.
#[derive(Debug, Default)]
pub(in crate::session) struct CodecAdapter {
    state: ConnectionState,
    /// Bytes at the front of the unsent output that are adapted already.
    adapted_bytes: usize,
}

impl Session {
    /// The codec's state for the connection.
    #[inline(always)]
    pub(crate) fn codec_state(&mut self) -> &mut ConnectionState {
        &mut self.adapter.state
    }
}

impl Writer {
    /// Writes a session's output and room messages, adapted to its connection. Returns whether everything was written.
    // Out of line, to keep the write of all other codecs short.
    #[cold]
    #[inline(never)]
    pub(super) fn write_adapted(
        &self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
    ) -> Result<bool, ErrorKind> {
        loop {
            self.announce_gaps(session, outputs, logs);
            // One part at a time, so that policies still apply to most of the waiting messages.
            self.pull_frames(session, outputs, logs);
            self.adapt_output(session, outputs);
            if outputs.of(session.id.slot()).is_empty() {
                return session.flush_layers();
            }
            let is_whole = self.write_own(session, outputs)?;
            session.adapter.adapted_bytes = outputs.of(session.id.slot()).len();
            if !is_whole {
                return Ok(false);
            }
        }
    }

    /// Lets the codec adapt the frames that were appended since the last call.
    pub(super) fn adapt_output(&self, session: &mut Session, outputs: &mut Outputs) {
        let mut fresh = outputs.take_buffer();
        let output = outputs.of_mut(session.id.slot());
        let codec = self.config.codecs.get(session.codec_number());
        let CodecAdapter {
            state,
            adapted_bytes,
        } = &mut session.adapter;
        output.adapt(codec, state, *adapted_bytes, &mut fresh);
        *adapted_bytes = output.len();
        outputs.put_buffer(fresh);
    }
}
