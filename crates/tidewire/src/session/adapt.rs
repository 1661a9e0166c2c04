//! Streams of a codec that has a state for each connection.
//!
//! Handlers, rooms and other threads append frames that suit any connection. Just before the frames are written, the codec
//! adapts each one to its connection. So the state sees each frame once, in the order of the wire, and a message that a
//! policy drops never gets a number. Only lanes with such a codec use this module.

use std::io::ErrorKind;

use tidewire_proto::codec::ConnectionState;

use super::LaneSessions;
use super::gather::{Wrote, account_own, attempt};
use crate::transport::Transport;

/// The state of a session's codec, and the part of the output that is adapted.
#[derive(Debug, Default)]
pub(crate) struct Adapting {
    pub(crate) state: ConnectionState,
    /// Bytes at the front of the unsent output that are adapted already.
    adapted_bytes: usize,
}

impl LaneSessions {
    /// Writes a session's output and room messages, adapted to its connection. Returns whether everything was written.
    // Out of line, to keep the write of all other codecs short.
    #[cold]
    #[inline(never)]
    pub(super) fn write_adapted(&mut self, slot: usize) -> Result<bool, ErrorKind> {
        loop {
            self.announce_gaps(slot);
            // One part at a time, so that policies still apply to most of the waiting messages.
            self.pull_frames(slot);
            self.adapt_output(slot);
            let session = &mut self.slab[slot];
            let output = self.outputs.of_mut(slot);
            let offered = output.len();
            if offered == 0 {
                return self.flush_layers(slot);
            }
            let wrote = attempt(&mut session.stream, &self.counters, |stream| {
                stream.write(output.unsent())
            });
            match wrote {
                Wrote::Bytes(count) | Wrote::Held(count) => {
                    let (_, delivered) = account_own(session, output, &self.counters, count);
                    session.adapting.adapted_bytes = output.len();
                    self.counters.room_delivered.add(delivered);
                    if count < offered || matches!(wrote, Wrote::Held(_)) {
                        return Ok(false);
                    }
                }
                Wrote::Blocked => return Ok(false),
                Wrote::Failed(kind) => return Err(kind),
            }
        }
    }

    /// Lets the codec adapt the frames that were appended since the last call.
    pub(super) fn adapt_output(&mut self, slot: usize) {
        let adapting = &mut self.slab[slot].adapting;
        let mut fresh = self.outputs.take_buffer();
        let output = self.outputs.of_mut(slot);
        let Adapting {
            state,
            adapted_bytes,
        } = adapting;
        output.adapt(&self.config.codec, state, *adapted_bytes, &mut fresh);
        *adapted_bytes = output.len();
        self.outputs.put_buffer(fresh);
    }
}
