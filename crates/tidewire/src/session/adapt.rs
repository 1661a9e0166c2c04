//! Streams of a codec that keeps a state for each connection.
//!
//! Whatever appends to an output (a handler, a room, another thread) appends frames for any connection. Just before they
//! are written, the codec makes of each what this connection is sent. So the state sees each frame once and in the order
//! of the wire, and a message that a policy drops was never numbered. Only lanes with such a codec come here.

use std::io::ErrorKind;

use tidewire_proto::codec::{Codec, ConnectionState, Decoded};

use super::outbox::Outbox;
use super::write::{Wrote, account_own, attempt};
use super::{LaneSessions, Session};
use crate::transport::Transport;

/// What a session has of its codec's state.
#[derive(Debug, Default)]
pub(crate) struct Adapting {
    pub(crate) state: ConnectionState,
    /// Bytes at the front of the unsent output that were adapted and did not go.
    adapted_bytes: usize,
}

impl LaneSessions {
    /// Writes what waits for a session, adapted to its connection. Returns whether everything went.
    // Out of line, so that the write of every other codec stays as short as it was.
    #[cold]
    #[inline(never)]
    pub(super) fn write_adapted(&mut self, slot: usize) -> Result<bool, ErrorKind> {
        loop {
            self.announce_gaps(slot);
            // A part at a time, so that policies still meet most of what waits.
            self.pull_frames(slot);
            self.adapt_output(slot);
            let session = &mut self.slab[slot];
            let Session { stream, output, .. } = &mut *session;
            let offered = output.len();
            if offered == 0 {
                return self.flush_layers(slot);
            }
            let wrote = attempt(stream, &self.counters, |stream| {
                stream.write(output.unsent())
            });
            match wrote {
                Wrote::Bytes(count) | Wrote::Held(count) => {
                    let (_, delivered) = account_own(session, &self.counters, count);
                    session.adapting.adapted_bytes = session.output.len();
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

    /// Has the codec adapt the frames that were appended since the last time.
    pub(super) fn adapt_output(&mut self, slot: usize) {
        let Self {
            slab,
            config,
            outbox: Outbox { buffers, .. },
            ..
        } = self;
        let Session {
            output, adapting, ..
        } = &mut slab[slot];
        let adapted_end = output.sent + adapting.adapted_bytes.min(output.len());
        if adapted_end == output.bytes.len() {
            return;
        }
        let mut fresh = buffers.take();
        fresh.extend_from_slice(&output.bytes[adapted_end..]);
        output.bytes.truncate(adapted_end);
        let mut rest = &fresh[..];
        while !rest.is_empty() {
            let frame_bytes = match config.codec.decode(rest, usize::MAX) {
                Ok(Decoded::Frame { consumed, .. }) if consumed > 0 => consumed.min(rest.len()),
                // A frame that the codec writes and does not read is the last one that can be told apart.
                _ => rest.len(),
            };
            let (frame, behind) = rest.split_at(frame_bytes);
            let out = &mut output.bytes;
            config.codec.adapt_frame(&mut adapting.state, frame, out);
            rest = behind;
        }
        buffers.put(fresh);
        adapting.adapted_bytes = output.len();
    }
}
