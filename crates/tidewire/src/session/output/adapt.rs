//! Adapting an output to its connection, for a codec that has a state for each connection.

use tidewire_proto::codec::{AnyCodec, Codec, ConnectionState, Decoded};

use super::Output;

impl Output {
    /// Lets the codec adapt the frames that were appended since the last call. The first `adapted_bytes` unsent bytes
    /// are adapted already. `fresh` is an empty buffer.
    pub(in crate::session) fn adapt(
        &mut self,
        codec: &AnyCodec,
        state: &mut ConnectionState,
        adapted_bytes: usize,
        fresh: &mut Vec<u8>,
    ) {
        let adapted_end = self.sent + adapted_bytes.min(self.len());
        fresh.extend_from_slice(&self.bytes[adapted_end..]);
        self.bytes.truncate(adapted_end);
        let mut rest = &fresh[..];
        while !rest.is_empty() {
            let frame_bytes = match codec.decode(rest, usize::MAX) {
                Ok(Decoded::Frame { consumed, .. }) if consumed > 0 => consumed.min(rest.len()),
                // A frame that the codec writes but cannot read: its end is unknown, so the rest counts as one frame.
                _ => rest.len(),
            };
            let (frame, behind) = rest.split_at(frame_bytes);
            codec.adapt_frame(state, frame, &mut self.bytes);
            rest = behind;
        }
    }
}
