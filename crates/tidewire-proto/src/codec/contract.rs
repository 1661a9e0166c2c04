//! The contract of a codec, checked: what the tests of a codec of one's own can call.
//!
//! Problem: what a codec owes ([`codec`](super)) is easy to get wrong where a read ends within a header, and a server
//! meets that only under load. Approach: feed a codec what it wrote itself, or any bytes at all, whole and in pieces,
//! as a lane would, and compare. Nothing here is random; give it what your property test or fuzzer invents, or take
//! [`check_every_cut`] alone, which needs neither.
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
//! Rejected: panics, which would not let a fuzzer or a property test say what it had in its hands.

use thiserror::Error;

use super::{Codec, Decoded, LastFrame};
use crate::error::{DecodeError, EncodeError};
use crate::limits::FRAME_BYTES_MAX;
use crate::message::Message;

/// A decoded message and the bytes it took.
pub type Found<'a> = (Message<'a>, &'a [u8]);

/// The whole frames at the front of a stream, and how decoding ended: with an unfinished frame or none, or an error.
pub type Stream<'a> = (Vec<Found<'a>>, Result<(), DecodeError>);

/// What a codec does that it must not. Places are counted in bytes from the start of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BrokenContract {
    /// A frame that takes nothing of the input would be decoded for ever.
    #[error("the frame at byte {at} takes no bytes")]
    EmptyFrame {
        /// Where it starts.
        at: usize,
    },
    /// A frame takes more than there is.
    #[error("the frame at byte {at} takes {consumed} bytes of {available}")]
    BeyondInput {
        /// Where it starts.
        at: usize,
        /// Bytes it takes.
        consumed: usize,
        /// Bytes there were.
        available: usize,
    },
    /// A frame is longer than allowed, or an unfinished one would be.
    #[error(
        "the frame at byte {at} of {bytes} bytes exceeds the limit of {limit} and is not refused"
    )]
    OverLimit {
        /// Where it starts.
        at: usize,
        /// Its length.
        bytes: usize,
        /// The limit given.
        limit: usize,
    },
    /// A frame is called unfinished and has all the bytes it is said to need.
    #[error("the frame at byte {at} is called incomplete and has all of its {frame_bytes} bytes")]
    IsComplete {
        /// Where it starts.
        at: usize,
        /// Its length, as the codec said.
        frame_bytes: usize,
    },
    /// The same bytes in pieces gave another frame, one too many or one too few.
    #[error("the frame at byte {at} differs when the stream comes in pieces")]
    PiecesDiffer {
        /// Where it starts.
        at: usize,
    },
    /// The same bytes in pieces ended otherwise.
    #[error("the end differs when the stream comes in pieces")]
    EndsDiffer {
        /// How decoding the whole ended.
        whole: Result<(), DecodeError>,
        /// How decoding the pieces ended.
        pieces: Result<(), DecodeError>,
    },
    /// [`Codec::decode_grown`] gave another answer than [`Codec::decode`].
    #[error("decode_grown differs from decode at byte {at} after {searched} bytes were searched")]
    GrownDiffers {
        /// Where the frame starts.
        at: usize,
        /// How much of it was known to be unfinished.
        searched: usize,
    },
    /// [`Codec::decode_alike`] gave another answer behind the frames before than [`Codec::decode`].
    #[error("decode_alike differs from decode at byte {at}")]
    AlikeDiffers {
        /// Where the frame starts.
        at: usize,
    },
    /// The codec refuses a message that it was to carry.
    #[error("message {index} is refused: {error}")]
    Refused {
        /// Index of the message.
        index: usize,
        /// Why.
        error: EncodeError,
    },
    /// Encoding changed what was in the output before, or left something there with an error.
    #[error("encoding message {index} changes what was in the output")]
    OutputChanged {
        /// Index of the message.
        index: usize,
    },
    /// A message came out otherwise than it went in, or not at all.
    #[error("message {index} does not come out as it went in")]
    MessageChanged {
        /// Index of the message.
        index: usize,
    },
    /// More came out than went in, or what went in does not end where its last frame does.
    #[error("something is left after the last of {messages} messages")]
    Leftover {
        /// How many messages there were.
        messages: usize,
    },
}

/// Decodes the front of a stream over and over, as a lane does, and checks each answer on its own.
///
/// # Errors
/// An answer that no codec may give. That the bytes are no frames is none; it is how the stream ends.
pub fn decode_all<'a, C: Codec + ?Sized>(
    codec: &C,
    stream: &'a [u8],
    frame_bytes_max: usize,
) -> Result<Stream<'a>, BrokenContract> {
    decode_from(codec, stream, 0, frame_bytes_max)
}

/// Decodes a stream that arrives in pieces of `piece_bytes`, taken in turn, and compares with the whole. Sizes of 0
/// count as 1. Returns what the whole decodes to.
///
/// # Errors
/// The codec breaks its contract.
pub fn check_stream<'a, C: Codec + ?Sized>(
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
        if codec.decode_grown(tail, searched, frame_bytes_max) != plain {
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

/// Encodes messages one behind the other, and checks that they come out as they went in, whole and in pieces of
/// `piece_bytes`, taken in turn. Give it messages as the codec would decode them: without an id where it has none,
/// with the flags that it shows.
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

/// [`check_messages`] for every way of cutting the stream in two, and for pieces of every size up to 16 bytes. Takes
/// time in the square of the stream's length, so a few short messages and one that crosses a border of the format are
/// better than many.
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
    }
    Ok(stream)
}

fn check_encoded<C: Codec + ?Sized>(
    codec: &C,
    messages: &[Message<'_>],
    stream: &[u8],
    piece_bytes: &[usize],
) -> Result<(), BrokenContract> {
    let (found, end) = check_stream(codec, stream, FRAME_BYTES_MAX, piece_bytes)?;
    for (index, message) in messages.iter().enumerate() {
        if found.get(index).map(|(message, _)| message) != Some(message) {
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

/// As [`decode_all`] for the part of a stream that starts at byte `start`.
fn decode_from<'a, C: Codec + ?Sized>(
    codec: &C,
    stream: &'a [u8],
    start: usize,
    limit: usize,
) -> Result<Stream<'a>, BrokenContract> {
    let mut frames = Vec::new();
    let mut rest = stream;
    let mut last = LastFrame::new();
    loop {
        let at = start + stream.len() - rest.len();
        let available = rest.len();
        let decoded = codec.decode(rest, limit);
        if let Some((message, behind)) = codec.decode_alike(rest, &last) {
            let consumed = available - behind.len();
            if decoded != Ok(Decoded::Frame { message, consumed }) {
                return Err(BrokenContract::AlikeDiffers { at });
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
                codec.remember(frame, &message, &mut last);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Delimited, RequestIds, Tw1};
    use crate::message::Kind;

    /// A length of one byte before the payload, with one fault.
    struct Faulty(Fault);

    #[derive(Clone, Copy, PartialEq)]
    enum Fault {
        None,
        FrameOfNothing,
        ReadsBeyond,
        TakesAnyLength,
        ForgetsPieces,
        ForgetsGrowth,
        TrustsTheLast,
        ClearsOutput,
        LosesLastByte,
        SaysIncomplete,
        Refuses,
        WritesTwice,
    }

    impl Codec for Faulty {
        fn name(&self) -> &'static str {
            "faulty"
        }

        fn has_handshake(&self) -> bool {
            false
        }

        fn ids(&self) -> RequestIds {
            RequestIds::None
        }

        fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
            let Some((length, rest)) = input.split_first() else {
                return Ok(Decoded::Incomplete { frame_bytes: 0 });
            };
            let bytes = usize::from(*length);
            if bytes + 1 > limit && self.0 != Fault::TakesAnyLength {
                return Err(DecodeError::FrameTooLarge {
                    bytes: bytes as u64 + 1,
                    limit: limit as u64,
                });
            }
            let payload = match rest.get(..bytes) {
                Some(payload) => payload,
                // Hands on what there is, as if no more would come.
                None if self.0 == Fault::ForgetsPieces => rest,
                None if self.0 == Fault::ReadsBeyond => rest,
                None if self.0 == Fault::SaysIncomplete => {
                    return Ok(Decoded::Incomplete { frame_bytes: 1 });
                }
                None => {
                    let frame_bytes = bytes + 1;
                    return Ok(Decoded::Incomplete { frame_bytes });
                }
            };
            let shown = match self.0 {
                Fault::LosesLastByte => &payload[..payload.len().saturating_sub(1)],
                _ => payload,
            };
            let consumed = match self.0 {
                Fault::FrameOfNothing => 0,
                Fault::ReadsBeyond => bytes + 1,
                _ => payload.len() + 1,
            };
            let message = Message::new(Kind::OneWay, 0, shown);
            Ok(Decoded::Frame { message, consumed })
        }

        fn decode_grown<'a>(
            &self,
            input: &'a [u8],
            searched: usize,
            limit: usize,
        ) -> Result<Decoded<'a>, DecodeError> {
            match self.0 {
                // Looks only at what is new.
                Fault::ForgetsGrowth => self.decode(&input[searched..], limit),
                _ => self.decode(input, limit),
            }
        }

        fn decode_alike<'a>(
            &self,
            input: &'a [u8],
            last: &LastFrame,
        ) -> Option<(Message<'a>, &'a [u8])> {
            let (payload, rest) = input.get(1..)?.split_at_checked(last.payload_bytes)?;
            Some((Message::new(Kind::OneWay, 0, payload), rest))
        }

        fn remember(&self, _: &[u8], message: &Message<'_>, last: &mut LastFrame) {
            if self.0 == Fault::TrustsTheLast {
                last.payload_bytes = message.payload.len();
            }
        }

        fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
            match self.0 {
                Fault::ClearsOutput => out.clear(),
                Fault::Refuses => return Err(EncodeError::EmptyFrame { codec: "faulty" }),
                Fault::WritesTwice => {
                    out.push(message.payload.len() as u8);
                    out.extend_from_slice(message.payload);
                }
                _ => {}
            }
            out.push(message.payload.len() as u8);
            out.extend_from_slice(message.payload);
            Ok(())
        }
    }

    fn broken(fault: Fault) -> BrokenContract {
        let messages = [&b"hello"[..], b"to", b"you"].map(|it| Message::new(Kind::OneWay, 0, it));
        check_every_cut(&Faulty(fault), &messages).unwrap_err()
    }

    #[test]
    fn every_fault_is_found_and_named() {
        use BrokenContract as Broken;
        let messages = [Message::new(Kind::OneWay, 0, b"hello")];
        assert_eq!(check_every_cut(&Faulty(Fault::None), &messages), Ok(()));
        assert_eq!(broken(Fault::FrameOfNothing), Broken::EmptyFrame { at: 0 });
        let beyond = Broken::BeyondInput {
            at: 0,
            consumed: 6,
            available: 1,
        };
        assert_eq!(broken(Fault::ReadsBeyond), beyond);
        let differs = Broken::PiecesDiffer { at: 0 };
        assert_eq!(broken(Fault::ForgetsPieces), differs);
        let grown = Broken::GrownDiffers { at: 0, searched: 1 };
        assert_eq!(broken(Fault::ForgetsGrowth), grown);
        let alike = Broken::AlikeDiffers { at: 6 };
        assert_eq!(broken(Fault::TrustsTheLast), alike);
        let output = Broken::OutputChanged { index: 1 };
        assert_eq!(broken(Fault::ClearsOutput), output);
        let changed = Broken::MessageChanged { index: 0 };
        assert_eq!(broken(Fault::LosesLastByte), changed);
        let complete = Broken::IsComplete {
            at: 0,
            frame_bytes: 1,
        };
        assert_eq!(broken(Fault::SaysIncomplete), complete);
        let error = EncodeError::EmptyFrame { codec: "faulty" };
        assert_eq!(broken(Fault::Refuses), Broken::Refused { index: 0, error });
        let twice = broken(Fault::WritesTwice);
        assert_eq!(twice, Broken::MessageChanged { index: 1 });
        let one = check_messages(&Faulty(Fault::WritesTwice), &messages, &[1]);
        assert_eq!(one, Err(Broken::Leftover { messages: 1 }));
        let long = check_stream(&Faulty(Fault::TakesAnyLength), &[200], 100, &[1]);
        let over = Broken::OverLimit {
            at: 0,
            bytes: 201,
            limit: 100,
        };
        assert_eq!(long, Err(over));
    }

    #[test]
    fn bytes_that_are_no_frames_end_the_stream_and_break_nothing() {
        let limit = DecodeError::FrameTooLarge {
            bytes: 201,
            limit: 100,
        };
        let stream = [2, b'h', b'i', 200, 1];
        let (frames, end) = check_stream(&Faulty(Fault::None), &stream, 100, &[1]).unwrap();
        assert_eq!((frames.len(), end), (1, Err(limit)));
        let (frames, end) = check_stream(&Tw1, b"", 100, &[]).unwrap();
        assert_eq!((frames.len(), end), (0, Ok(())));
    }

    /// A codec behind a pointer is checked like any other.
    #[test]
    fn any_codec_can_be_checked() {
        let codec: &dyn Codec = &Delimited::new();
        let messages = [&b"a\rb"[..], b""].map(|it| Message::new(Kind::OneWay, 0, it));
        assert_eq!(check_every_cut(codec, &messages), Ok(()));
    }
}
