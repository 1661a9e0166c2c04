//! A custom codec: frames with a checksum, as devices on a noisy line send them.
//!
//! ```text
//!   AA | kind | sequence | length, u16 big-endian | payload | checksum, u16 big-endian
//! ```
//!
//! The checksum is Fletcher's, over all bytes between the first byte and the checksum. The kinds are 0 one-way, 1
//! request, 2 reply, 3 error. A frame with a wrong checksum ends the connection, because its length cannot be trusted
//! either.

use tidewire::codec::{Codec, DecodeError, Decoded, EncodeError, Format, RequestIds};
use tidewire::{Kind, Message};

/// The codec. It has no state: one instance serves all connections of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum;

impl Codec for Checksum {
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        let Some(header) = input.first_chunk::<HEADER_BYTES>() else {
            // The header is incomplete. Its first byte may already be wrong.
            return match input.first() {
                Some(first) if *first != START => Err(DecodeError::HeaderMismatch { at: 0 }),
                _ => Ok(Decoded::Incomplete { frame_bytes: 0 }),
            };
        };
        let [start, kind, sequence, length @ ..] = *header;
        if start != START {
            return Err(DecodeError::HeaderMismatch { at: 0 });
        }
        let payload_end = HEADER_BYTES + usize::from(u16::from_be_bytes(length));
        let frame_bytes = payload_end + CHECKSUM_BYTES;
        if frame_bytes > frame_bytes_max {
            return Err(DecodeError::FrameTooLarge {
                bytes: frame_bytes as u64,
                limit: frame_bytes_max as u64,
            });
        }
        let Some(frame) = input.get(..frame_bytes) else {
            return Ok(Decoded::Incomplete { frame_bytes });
        };
        let (body, checksum) = frame.split_at(payload_end);
        if fletcher(&body[1..]).to_be_bytes() != checksum {
            return Err(DecodeError::MalformedFrame);
        }
        let payload = &body[HEADER_BYTES..];
        let message = match kind {
            ONE_WAY => Message::new(Kind::OneWay, 0, payload),
            REQUEST => Message::with_id(Kind::Request, 0, u32::from(sequence), payload),
            REPLY => Message::with_id(Kind::Reply, 0, u32::from(sequence), payload),
            ERROR => Message::with_id(Kind::Error, 0, u32::from(sequence), payload),
            unknown => return Err(DecodeError::UnknownKind(unknown)),
        };
        Ok(Decoded::Frame {
            message,
            consumed: frame_bytes,
        })
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let kind = match message.kind {
            // Members of a room get messages that need no reply.
            Kind::OneWay | Kind::Deliver => ONE_WAY,
            Kind::Request => REQUEST,
            Kind::Reply => REPLY,
            Kind::Error => ERROR,
            kind => return Err(EncodeError::Unsupported { codec: NAME, kind }),
        };
        if !message.name.is_empty() && message.kind.has_name() {
            return Err(EncodeError::NameUnsupported { codec: NAME });
        }
        let id = if kind == ONE_WAY { 0 } else { message.id };
        let Ok(sequence) = u8::try_from(id) else {
            return Err(EncodeError::IdOutOfRange { id, limit: 255 });
        };
        let Ok(length) = u16::try_from(message.payload.len()) else {
            return Err(EncodeError::PayloadTooLarge {
                bytes: message.payload.len() as u64,
                limit: u64::from(u16::MAX),
            });
        };
        // Nothing fails from here on, so `out` never has half a frame.
        let start = out.len();
        out.extend_from_slice(&[START, kind, sequence]);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(message.payload);
        let checksum = fletcher(&out[start + 1..]);
        out.extend_from_slice(&checksum.to_be_bytes());
        Ok(())
    }
}

fn fletcher(bytes: &[u8]) -> u16 {
    let (low, high) = bytes.iter().fold((0_u16, 0_u16), |(low, high), byte| {
        let low = (low + u16::from(*byte)) % 255;
        (low, (high + low) % 255)
    });
    high << 8 | low
}

/// Replies match their requests by the sequence number. A client does not reuse a number that is in flight.
const FORMAT: Format = Format {
    ids: RequestIds::Bits8,
    ..Format::new(NAME)
};
const NAME: &str = "checksum";
const START: u8 = 0xAA;
const HEADER_BYTES: usize = 5;
const CHECKSUM_BYTES: usize = 2;

const ONE_WAY: u8 = 0;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const ERROR: u8 = 3;

#[cfg(test)]
mod tests {
    use tidewire::codec::contract;

    use super::*;

    #[test]
    fn frames_survive_every_cut() {
        let messages = [
            Message::with_id(Kind::Request, 0, 1, b"temperature"),
            Message::with_id(Kind::Reply, 0, 255, b""),
            Message::new(Kind::OneWay, 0, &[START; 300]),
            Message::with_id(Kind::Error, 0, 7, b"no"),
        ];
        assert_eq!(contract::check_every_cut(&Checksum, &messages), Ok(()));
    }

    #[test]
    fn a_frame_looks_as_agreed() {
        let mut frame = Vec::new();
        let message = Message::with_id(Kind::Request, 0, 7, b"hi");
        assert_eq!(Checksum.encode(&message, &mut frame), Ok(()));
        // 01, 07, 00, 02, 68 and 69 add up to DB. Their running sums add up to 69 modulo FF.
        let expected = [0xAA, 0x01, 0x07, 0x00, 0x02, 0x68, 0x69, 0x69, 0xDB];
        assert_eq!(frame, expected);
    }

    #[test]
    fn any_flipped_bit_is_refused_and_never_another_message() {
        let mut frame = Vec::new();
        let message = Message::with_id(Kind::Reply, 0, 3, b"21.5");
        assert_eq!(Checksum.encode(&message, &mut frame), Ok(()));
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let decoded = contract::check_stream(&Checksum, &damaged, 1 << 20, &[1, 2]);
            let (frames, _) = decoded.expect("the contract holds for any bytes");
            assert!(frames.is_empty(), "bit {bit}: {frames:?}");
        }
    }
}
