//! Frames that a codec translates to messages, in memory beside the input.
//!
//! The loop has no prediction, because such frames have no layout, and a spare buffer of the lane. It is apart from the
//! loop of all other codecs, so that those keep their registers.

use tidewire_proto::codec::{Codec, ConnectionState, Decoded};
use tidewire_proto::connection::Handled;
use tidewire_proto::error::DecodeError;
use tidewire_proto::message::Message;

use super::read::{Flow, Progress, refuse_input, serve};
use super::{control, metered};
use crate::service::{Context, Service};

/// Decodes, translates and handles every whole frame, as [`decode_frames`](super::read::decode_frames) does. A client
/// of such a codec may leave the hello out.
#[inline(never)]
pub(super) fn decode_translated<S: Service, C: Codec + ?Sized, const IS_DATAGRAM: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    input: &[u8],
    progress: &mut Progress,
) -> (usize, Flow) {
    let mut scratch = cx.core.sessions.outputs.take_buffer();
    let mut rest = input;
    let flow = loop {
        if rest.is_empty() {
            break Flow::Continue;
        }
        let searched = std::mem::take(&mut progress.searched);
        let limit = progress.filter.frame_bytes_max();
        let (message, consumed) = match next(codec, rest, searched, limit, &mut scratch) {
            Ok(Some(translated)) => translated,
            Ok(None) => break Flow::Continue,
            Err(_) => break refuse_input(cx, codec, rest, progress.filter, progress.frames == 0),
        };
        let handled = match progress.filter.is_open() {
            true => None,
            false => control::handle_missing_hello(cx, slot, message.kind),
        };
        if handled.is_none() {
            rest = &rest[consumed..];
            progress.frames += 1;
        }
        if progress.filter.serves(message.kind) {
            serve::<S, C, IS_DATAGRAM>(cx, service, codec, slot, message, consumed);
        } else if progress.filter.is_asking()
            && cx.core.sessions[slot].connection.serves(message.kind)
        {
            metered::serve_metered::<S, C, IS_DATAGRAM>(
                cx, service, codec, slot, &message, consumed,
            );
        } else {
            // A frame that came instead of a hello is handled again, now that the session is open.
            let handled = handled.unwrap_or_else(|| control::handle(cx, slot, &message));
            if let Handled::Closed(reason) = handled {
                break Flow::Close(reason);
            }
            progress.filter = metered::filter(cx.core, slot);
            if matches!(handled, Handled::Opened) {
                service.on_open(cx);
            }
        }
        if cx.call.is_stopped() {
            break Flow::Stop;
        }
    };
    cx.core.sessions.outputs.put_buffer(scratch);
    (input.len() - rest.len(), flow)
}

/// Returns the message of the first frame and the frame's length, or `None` if the frame is not whole yet.
fn next<'a, C: Codec + ?Sized>(
    codec: &C,
    input: &'a [u8],
    searched: usize,
    frame_bytes_max: usize,
    scratch: &'a mut Vec<u8>,
) -> Result<Option<(Message<'a>, usize)>, DecodeError> {
    let mut no_state = ConnectionState::default();
    match codec.decode_next(&mut no_state, input, searched, frame_bytes_max)? {
        Decoded::Incomplete { .. } => Ok(None),
        Decoded::Frame { message, consumed } => {
            Ok(Some((codec.translate(message, scratch)?, consumed)))
        }
    }
}
