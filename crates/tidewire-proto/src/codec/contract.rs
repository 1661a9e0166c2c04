//! Checks the contract of a codec, for the tests of a custom codec.
//!
//! Problem: the contract of a codec ([`codec`](super)) is easy to break where a read ends within a header, and a server
//! meets that only under load. Approach: give a codec its own output, or any bytes, whole and in pieces, like a lane,
//! and compare. This module makes no random input: pass the input of a property test or fuzzer, or use
//! [`check_every_cut`] alone.
//!
//! ```
//! use tidewire_proto::codec::{LengthField, LengthSize, contract};
//! use tidewire_proto::message::{Kind, Message};
//!
//! let codec = LengthField::new(LengthSize::U16Be);
//! let payloads = [&b""[..], b"a", &[0xFF; 300]];
//! let messages = payloads.map(|payload| Message::new(Kind::OneWay, 0, payload));
//! contract::check_every_cut(&codec, &messages)?;
//! contract::check_stream(&codec, b"whatever a peer may send", 64, &[1, 3])?;
//! # Ok::<(), contract::BrokenContract>(())
//! ```
//!
//! Rejected: panics, because a fuzzer or a property test could not report its input.

mod state;

use thiserror::Error;

pub use state::check_connection;

use super::{Codec, ConnectionState, Decoded, FrameTemplate, Subscription};
use crate::error::{DecodeError, EncodeError};
use crate::limits::FRAME_BYTES_MAX;
use crate::message::Message;

/// The messages of the whole frames at the front of a stream, each with its bytes, and how decoding ended: with a
/// partial frame or none, or with an error.
type Stream<'a> = (Vec<(Message<'a>, &'a [u8])>, Result<(), DecodeError>);

/// A violation of the contract. Offsets count the bytes from the start of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are what their texts call them")]
pub enum BrokenContract {
    /// A frame of no bytes would be decoded for ever.
    #[error("the frame at byte {at} takes no bytes")]
    EmptyFrame { at: usize },
    /// A frame takes more bytes than there are.
    #[error("the frame at byte {at} takes {consumed} bytes of {available}")]
    BeyondInput {
        at: usize,
        consumed: usize,
        available: usize,
    },
    /// A frame, or a partial frame once it is complete, is longer than allowed.
    #[error(
        "the frame at byte {at} of {bytes} bytes exceeds the limit of {limit} and is not refused"
    )]
    OverLimit {
        at: usize,
        bytes: usize,
        limit: usize,
    },
    /// The codec reports a partial frame although all its bytes are there.
    #[error(
        "the frame at byte {at} is reported as incomplete although all of its {frame_bytes} bytes are there"
    )]
    IsComplete { at: usize, frame_bytes: usize },
    /// The same bytes in pieces gave another frame, or another number of frames.
    #[error("the frame at byte {at} differs when the stream comes in pieces")]
    PiecesDiffer { at: usize },
    /// The same bytes in pieces ended differently.
    #[error("the end differs when the stream comes in pieces")]
    EndsDiffer {
        whole: Result<(), DecodeError>,
        pieces: Result<(), DecodeError>,
    },
    /// [`Codec::decode_next`] gave another answer than [`Codec::decode`], without a state.
    #[error("decode_next differs from decode at byte {at} after {searched} bytes were searched")]
    GrownDiffers { at: usize, searched: usize },
    /// A frame that differs from this frame only in id and payload is not decoded as [`Codec::layout`] says.
    #[error("the frame at byte {at} decodes differently than its layout says")]
    LayoutReads { at: usize },
    /// A message that differs from this message only in id and payload is not encoded as [`Codec::layout`] says.
    #[error("messages like message {index} are encoded differently than their layout says")]
    LayoutWrites { index: usize },
    /// The codec refuses a message that it must carry.
    #[error("message {index} is refused: {error}")]
    Refused { index: usize, error: EncodeError },
    /// [`Codec::delivery_header`] is longer than its maximum, differs between calls, or forms no whole frame with the
    /// bytes after it.
    #[error("the header of delivery {index} is too long, changes, or is not part of its frame")]
    DeliveryHeader { index: usize },
    /// Encoding changed earlier bytes of the output, or left bytes there with an error.
    #[error("encoding message {index} changes earlier bytes of the output")]
    OutputChanged { index: usize },
    /// A message was decoded differently than it was encoded, or not at all.
    #[error("message {index} is decoded differently than it was encoded")]
    MessageChanged { index: usize },
    /// More messages were decoded than encoded, or bytes are left after the last frame.
    #[error("bytes are left behind the last of {messages} messages")]
    Leftover { messages: usize },
}

/// Decodes the front of a stream repeatedly, like a lane, and checks each answer by itself.
///
/// # Errors
/// An answer that no codec may give. Bytes that are no frames are not an error; they are how the stream ends.
pub fn decode_all<'a, C: Codec + ?Sized>(
    codec: &C,
    stream: &'a [u8],
    frame_bytes_max: usize,
) -> Result<Stream<'a>, BrokenContract> {
    decode_from(codec, stream, 0, frame_bytes_max)
}

/// Decodes a stream that arrives in pieces of `piece_bytes`, taken in turn, and compares with the whole. Sizes of 0
/// count as 1. Returns the frames of the whole.
///
/// # Errors
/// The codec breaks its contract.
pub fn check_stream<'a, C: Codec + ?Sized>(
    codec: &C,
    stream: &'a [u8],
    frame_bytes_max: usize,
    piece_bytes: &[usize],
) -> Result<Stream<'a>, BrokenContract> {
    let (frames, end) = check_pieces(codec, stream, frame_bytes_max, piece_bytes)?;
    let mut at = 0;
    for (message, frame) in &frames {
        if !layout_reads(codec, frame, message, frame_bytes_max) {
            return Err(BrokenContract::LayoutReads { at });
        }
        at += frame.len();
    }
    Ok((frames, end))
}

/// Checks like [`check_stream`], without the layouts of the frames.
fn check_pieces<'a, C: Codec + ?Sized>(
    codec: &C,
    stream: &'a [u8],
    frame_bytes_max: usize,
    piece_bytes: &[usize],
) -> Result<Stream<'a>, BrokenContract> {
    let (frames, end) = decode_all(codec, stream, frame_bytes_max)?;
    let mut sizes = piece_bytes.iter().copied().cycle();
    let mut expected = frames.iter();
    let (mut decoded, mut arrived, mut searched) = (0, 0, 0);
    let mut pieces_end = Ok(());
    while arrived < stream.len() && pieces_end.is_ok() {
        arrived += sizes.next().unwrap_or(1).clamp(1, stream.len() - arrived);
        let tail = &stream[decoded..arrived];
        let plain = codec.decode(tail, frame_bytes_max);
        let mut state = ConnectionState::default();
        let next = |state| codec.decode_next(state, tail, searched, frame_bytes_max);
        if !codec.format().keeps_state() && next(&mut state) != plain {
            let at = decoded;
            return Err(BrokenContract::GrownDiffers { at, searched });
        }
        let (found, result) = decode_from(codec, tail, decoded, frame_bytes_max)?;
        for (message, frame) in found {
            if expected.next() != Some(&(message, frame)) {
                return Err(BrokenContract::PiecesDiffer { at: decoded });
            }
            decoded += frame.len();
        }
        searched = arrived - decoded;
        pieces_end = result;
    }
    if expected.next().is_some() {
        return Err(BrokenContract::PiecesDiffer { at: decoded });
    }
    if pieces_end != end {
        return Err(BrokenContract::EndsDiffer {
            whole: end,
            pieces: pieces_end,
        });
    }
    Ok((frames, end))
}

/// Encodes messages one after the other, and checks that they are decoded unchanged, whole and in pieces of
/// `piece_bytes`, taken in turn. Pass messages as the codec decodes them: with its flags, and without an id if it has
/// none.
///
/// # Errors
/// The codec breaks its contract, or refuses one of the messages.
pub fn check_messages<C: Codec + ?Sized>(
    codec: &C,
    messages: &[Message<'_>],
    piece_bytes: &[usize],
) -> Result<(), BrokenContract> {
    let stream = encode_all(codec, messages)?;
    check_encoded(codec, messages, &stream, piece_bytes)
}

/// Runs [`check_messages`] for every way of cutting the stream in two, and for pieces of every size up to 16 bytes. The
/// time grows with the square of the stream's length. So pass a few short messages, and one that crosses a size limit
/// of the format.
///
/// # Errors
/// As [`check_messages`].
pub fn check_every_cut<C: Codec + ?Sized>(
    codec: &C,
    messages: &[Message<'_>],
) -> Result<(), BrokenContract> {
    let stream = encode_all(codec, messages)?;
    for size in 1..=16 {
        check_encoded(codec, messages, &stream, &[size])?;
    }
    for cut in 1..stream.len().max(2) {
        check_encoded(codec, messages, &stream, &[cut, stream.len()])?;
    }
    Ok(())
}

/// Puts the header of each of `subscriptions` before each of `messages`, and checks that both together are one frame,
/// whole and in pieces of `piece_bytes`, taken in turn. Returns the deliveries, one after the other.
///
/// # Errors
/// The codec breaks its contract, or refuses one of the messages.
pub fn check_deliveries<C: Codec + ?Sized>(
    codec: &C,
    subscriptions: &[Subscription],
    messages: &[Message<'_>],
    piece_bytes: &[usize],
) -> Result<Vec<u8>, BrokenContract> {
    let mut stream = Vec::new();
    let mut ends = Vec::new();
    for (message, subscription) in messages.iter().flat_map(|message| {
        let pairs = subscriptions.iter();
        pairs.map(move |subscription| (message, *subscription))
    }) {
        let index = ends.len();
        let shared = encode_all(codec, &[*message])?;
        let headers = [(); 2].map(|()| {
            let mut header = Vec::new();
            codec.delivery_header(subscription, &shared, &mut header);
            header
        });
        let is_short = headers[0].len() <= codec.format().delivery_header_bytes_max;
        let before = stream.clone();
        codec.delivery_header(subscription, &shared, &mut stream);
        if !is_short || headers[0] != headers[1] || stream != [&before[..], &headers[0]].concat() {
            return Err(BrokenContract::DeliveryHeader { index });
        }
        stream.extend_from_slice(&shared);
        ends.push(stream.len());
    }
    let (found, end) = check_pieces(codec, &stream, FRAME_BYTES_MAX, piece_bytes)?;
    let mut at = 0;
    let mut found = found.iter().map(|(_, frame)| {
        at += frame.len();
        at
    });
    for (index, end) in ends.into_iter().enumerate() {
        if found.next() != Some(end) {
            return Err(BrokenContract::DeliveryHeader { index });
        }
    }
    match (found.next(), end) {
        (None, Ok(())) => Ok(stream),
        _ => Err(BrokenContract::Leftover {
            messages: messages.len(),
        }),
    }
}

fn encode_all<C: Codec + ?Sized>(
    codec: &C,
    messages: &[Message<'_>],
) -> Result<Vec<u8>, BrokenContract> {
    let mut stream = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let before = stream.clone();
        let result = codec.encode(message, &mut stream);
        let kept = stream.starts_with(&before) && (result.is_ok() || stream.len() == before.len());
        if !kept {
            return Err(BrokenContract::OutputChanged { index });
        }
        result.map_err(|error| BrokenContract::Refused { index, error })?;
        let frame = &stream[before.len()..];
        if !layout_writes(codec, frame, message) {
            return Err(BrokenContract::LayoutWrites { index });
        }
        let decoded = codec.decode(frame, FRAME_BYTES_MAX);
        if let Ok(Decoded::Frame { message, consumed }) = decoded
            && consumed == frame.len()
            && !layout_reads(codec, frame, &message, FRAME_BYTES_MAX)
        {
            let at = before.len();
            return Err(BrokenContract::LayoutReads { at });
        }
    }
    Ok(stream)
}

/// Returns whether a template reads variants of this decoded frame like [`Codec::decode`].
fn layout_reads<C: Codec + ?Sized>(
    codec: &C,
    frame: &[u8],
    message: &Message<'_>,
    frame_bytes_max: usize,
) -> bool {
    let Some(template) = FrameTemplate::expect(codec, frame, message) else {
        return true;
    };
    let agrees = |frame: &[u8], payload: &[u8], id| {
        let (message, consumed) = (
            Message {
                id,
                payload,
                ..*message
            },
            frame.len(),
        );
        template.read(frame) == Some((message, &[]))
            && codec.decode(frame, frame_bytes_max) == Ok(Decoded::Frame { message, consumed })
    };
    let has_id = !template.layout().id().is_empty();
    let mut ignored = frame.to_vec();
    for byte in &mut ignored[template.layout().ignored()] {
        *byte ^= 0xFF;
    }
    agrees(frame, message.payload, message.id)
        && agrees(&ignored, message.payload, message.id)
        && each_variant(&template, |id, payload| {
            let mut frame = Vec::new();
            let id_read = if has_id { id } else { message.id };
            !template.write(id, payload, &mut frame) || agrees(&frame, payload, id_read)
        })
}

/// Returns whether a template writes variants of this encoded frame like [`Codec::encode`].
fn layout_writes<C: Codec + ?Sized>(codec: &C, frame: &[u8], message: &Message<'_>) -> bool {
    let Some(template) = FrameTemplate::learn(codec, frame, message) else {
        return true;
    };
    let agrees = |id, payload: &[u8]| {
        let (mut written, mut encoded) = (Vec::new(), Vec::new());
        let message = Message {
            id,
            payload,
            ..*message
        };
        !template.write(id, payload, &mut written)
            || codec.encode(&message, &mut encoded).is_ok() && written == encoded
    };
    agrees(message.id, message.payload) && each_variant(&template, agrees)
}

/// Tries ids at the limits of formats, and payloads that look like the bytes around them.
fn each_variant(
    template: &FrameTemplate<'_>,
    mut is_right: impl FnMut(u32, &[u8]) -> bool,
) -> bool {
    let (frame, message) = (template.frame(), template.message());
    let (head, rest) = frame.split_at(template.layout().payload().start);
    let (payload, tail) = rest.split_at(message.payload.len());
    let fills: [&[u8]; 5] = [&[0], &[0xFF], head, tail, payload];
    let ids = [message.id, message.id ^ 0xFF, message.id ^ u32::MAX];
    fills.iter().filter(|fill| !fill.is_empty()).all(|fill| {
        let bytes = fill.iter().copied().cycle().take(payload.len());
        let payload: Vec<u8> = bytes.collect();
        let mut ids = IDS.iter().chain(&ids);
        ids.all(|id| is_right(*id, &payload))
    })
}

fn check_encoded<C: Codec + ?Sized>(
    codec: &C,
    messages: &[Message<'_>],
    stream: &[u8],
    piece_bytes: &[usize],
) -> Result<(), BrokenContract> {
    let (found, end) = check_pieces(codec, stream, FRAME_BYTES_MAX, piece_bytes)?;
    let mut scratch = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let frame = found.get(index).map(|(frame, _)| *frame);
        let decoded = frame.map(|frame| codec.translate(frame, &mut scratch));
        if decoded != Some(Ok(*message)) {
            return Err(BrokenContract::MessageChanged { index });
        }
    }
    let taken: usize = found.iter().map(|(_, frame)| frame.len()).sum();
    if end.is_err() || found.len() != messages.len() || taken != stream.len() {
        let messages = messages.len();
        return Err(BrokenContract::Leftover { messages });
    }
    Ok(())
}

/// Decodes like [`decode_all`] the part of a stream that starts at byte `start`.
fn decode_from<'a, C: Codec + ?Sized>(
    codec: &C,
    stream: &'a [u8],
    start: usize,
    limit: usize,
) -> Result<Stream<'a>, BrokenContract> {
    let mut frames = Vec::new();
    let mut rest = stream;
    let mut template: Option<FrameTemplate<'a>> = None;
    loop {
        let at = start + stream.len() - rest.len();
        let available = rest.len();
        let decoded = codec.decode(rest, limit);
        if let Some(template) = &template
            && let Some((message, behind)) = template.read(rest)
        {
            let consumed = available - behind.len();
            if decoded != Ok(Decoded::Frame { message, consumed }) {
                return Err(BrokenContract::LayoutReads { at });
            }
        }
        match decoded {
            Ok(Decoded::Frame { consumed: 0, .. }) => {
                return Err(BrokenContract::EmptyFrame { at });
            }
            Ok(Decoded::Frame { consumed, .. }) if consumed > available => {
                return Err(BrokenContract::BeyondInput {
                    at,
                    consumed,
                    available,
                });
            }
            Ok(Decoded::Frame { consumed, .. }) if consumed > limit => {
                let bytes = consumed;
                return Err(BrokenContract::OverLimit { at, bytes, limit });
            }
            Ok(Decoded::Frame { message, consumed }) => {
                let (frame, behind) = rest.split_at(consumed);
                template = FrameTemplate::expect(codec, frame, &message);
                frames.push((message, frame));
                rest = behind;
            }
            Ok(Decoded::Incomplete { frame_bytes }) if frame_bytes > limit => {
                let bytes = frame_bytes;
                return Err(BrokenContract::OverLimit { at, bytes, limit });
            }
            Ok(Decoded::Incomplete { frame_bytes })
                if frame_bytes > 0 && frame_bytes <= available =>
            {
                return Err(BrokenContract::IsComplete { at, frame_bytes });
            }
            Ok(Decoded::Incomplete { .. }) => return Ok((frames, Ok(()))),
            Err(error) => return Ok((frames, Err(error))),
        }
    }
}

/// Ids of one byte and more, the limit between them, and the largest.
const IDS: [u32; 6] = [0, 1, 255, 256, 257, u32::MAX];

#[cfg(test)]
mod tests;
