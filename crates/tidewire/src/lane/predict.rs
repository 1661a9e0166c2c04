//! Header prediction: frames that differ from the last one only in id and payload are served without decoding their headers.

use tidewire_proto::codec::{Codec, FrameTemplate};
use tidewire_proto::message::Message;

use super::read::serve;
use crate::service::{Context, Service};

/// Serves the frames at the front of `rest` that differ from `predicted` only in id and payload. Returns the input behind them
/// and their number.
#[inline(always)]
pub(super) fn predict<'a, S: Service, C: Codec + ?Sized, const IS_DATAGRAM: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    predicted: (&'a [u8], &Message<'a>),
    rest: &'a [u8],
) -> (&'a [u8], u64) {
    let behind =
        serve_predicted::<S, C, IS_DATAGRAM, false>(cx, service, codec, slot, predicted, rest);
    let count = (rest.len() - behind.len()) / predicted.0.len();
    (behind, count as u64)
}

/// A key of a frame's length, kind, channel and name. All frames that one template reads have the same key.
#[inline(always)]
pub(super) fn header_key(message: &Message<'_>, frame_bytes: usize) -> u64 {
    let head =
        frame_bytes as u64 ^ u64::from(message.kind as u8) << 40 ^ u64::from(message.channel) << 48;
    match message.name.as_bytes() {
        [] => head,
        name => head ^ checksum(name),
    }
}

/// A checksum that differs for most names. A collision costs one comparison.
fn checksum(name: &[u8]) -> u64 {
    let end = name.len().saturating_sub(size_of::<u64>());
    let fold = |sum: u64, byte: &u8| sum.rotate_left(8) ^ u64::from(*byte);
    let last = name.iter().skip(end).fold(0, fold);
    last.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Header prediction: serves the frames at the front of `input` whose header is that of `frame`, until the session stops.
/// Returns the input behind them. `frame` was served, so the kind and the length of the others need no check.
///
/// It is a function of its own, so that its loop has all registers, and the compiler knows the common parts of the codec's
/// templates. Messages with a name have a copy of it, so that the loop for messages without a name stays short.
#[inline(never)]
fn serve_predicted<'a, S, C, const IS_DATAGRAM: bool, const IS_NAMED: bool>(
    cx: &mut Context<'_>,
    service: &mut S,
    codec: &C,
    slot: usize,
    (frame, message): (&'a [u8], &Message<'a>),
    input: &'a [u8],
) -> &'a [u8]
where
    S: Service,
    C: Codec + ?Sized,
{
    let predicted = (frame, message);
    if !IS_NAMED && !message.name.is_empty() {
        return serve_predicted::<S, C, IS_DATAGRAM, true>(
            cx, service, codec, slot, predicted, input,
        );
    }
    let Some(template) = FrameTemplate::expect(codec, frame, message) else {
        return input;
    };
    let mut rest = input;
    loop {
        let Some((message, behind)) = template.read(rest) else {
            return rest;
        };
        rest = behind;
        serve::<S, C, IS_DATAGRAM>(cx, service, codec, slot, message, frame.len());
        if cx.stopped {
            return rest;
        }
    }
}
