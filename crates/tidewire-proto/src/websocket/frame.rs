//! The header of a frame.

use super::Mask;
use crate::layer::{RecordHeader, WebSocketFault};

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// UTF-8 text.
    Text,
    /// Bytes.
    Binary,
}

/// The kind of a frame, by its number in RFC 6455.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

/// The header of a frame that a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) opcode: Opcode,
    pub(super) is_final: bool,
    pub(super) payload_bytes: u64,
    pub(super) mask: Option<Mask>,
}

impl Opcode {
    pub(super) fn is_control(self) -> bool {
        self as u8 >= Self::Close as u8
    }

    fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }
}

impl FrameHeader {
    /// Reads the header at the front of `input`, and returns it with its length. `None` if the header is not complete.
    /// A fault is reported as soon as its byte arrives.
    pub(super) fn read(input: &[u8]) -> Result<Option<(Self, usize)>, WebSocketFault> {
        let Some(&first) = input.first() else {
            return Ok(None);
        };
        if first & 0x70 != 0 {
            return Err(WebSocketFault::ReservedBits);
        }
        let opcode = Opcode::of(first & 0x0F).ok_or(WebSocketFault::ReservedOpcode)?;
        let is_final = first & FINAL != 0;
        if opcode.is_control() && !is_final {
            return Err(WebSocketFault::ControlFragmented);
        }
        let Some(&second) = input.get(1) else {
            return Ok(None);
        };
        let short = second & 0x7F;
        if opcode.is_control() && short > 125 {
            return Err(WebSocketFault::ControlTooLong);
        }
        let rest = &input[2..];
        let (payload_bytes, length_bytes) = match short {
            126 => match rest.first_chunk() {
                Some(bytes) => (u64::from(u16::from_be_bytes(*bytes)), 2),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(bytes) => (u64::from_be_bytes(*bytes), 8),
                None => return Ok(None),
            },
            short => (u64::from(short), 0),
        };
        // Only the shortest form is valid, so that each frame has one encoding.
        let is_valid = match length_bytes {
            2 => payload_bytes > 125,
            8 => payload_bytes > 0xFFFF && payload_bytes >> 63 == 0,
            _ => true,
        };
        if !is_valid {
            return Err(WebSocketFault::BadLength);
        }
        let mut header_bytes = 2 + length_bytes;
        let mut mask = None;
        if second & MASKED != 0 {
            let Some(bytes) = rest[length_bytes..].first_chunk() else {
                return Ok(None);
            };
            mask = Some(Mask::new(*bytes));
            header_bytes += 4;
        }
        let header = Self {
            opcode,
            is_final,
            payload_bytes,
            mask,
        };
        Ok(Some((header, header_bytes)))
    }
}

/// The header of a message in one frame.
#[must_use]
pub fn frame_header(kind: MessageKind, payload_bytes: usize, mask: Option<Mask>) -> RecordHeader {
    let opcode = match kind {
        MessageKind::Text => Opcode::Text,
        MessageKind::Binary => Opcode::Binary,
    };
    header(opcode, true, payload_bytes, mask)
}

/// Appends a close frame. The code 1005 means no code, as in [`Frames::close_code`](super::Frames::close_code).
pub fn close_frame(code: Option<u16>, mask: Option<Mask>, out: &mut Vec<u8>) {
    let code = code.filter(|code| *code != NO_CODE);
    let payload = code.map(u16::to_be_bytes);
    let payload = payload.as_ref().map_or(&[][..], |bytes| bytes);
    append_control(Opcode::Close, payload, mask, out);
}

pub(super) fn header(
    opcode: Opcode,
    is_final: bool,
    payload_bytes: usize,
    mask: Option<Mask>,
) -> RecordHeader {
    let mut header = RecordHeader::default();
    let final_bit = if is_final { FINAL } else { 0 };
    let mask_bit = if mask.is_some() { MASKED } else { 0 };
    header.push(&[final_bit | opcode as u8]);
    match (u8::try_from(payload_bytes), u16::try_from(payload_bytes)) {
        (Ok(short @ ..=125), _) => header.push(&[mask_bit | short]),
        (_, Ok(middle)) => {
            header.push(&[mask_bit | 126]);
            header.push(&middle.to_be_bytes());
        }
        _ => {
            header.push(&[mask_bit | 127]);
            header.push(&(payload_bytes as u64).to_be_bytes());
        }
    }
    if let Some(mask) = mask {
        header.push(&mask.bytes());
    }
    header
}

pub(super) fn append_control(
    opcode: Opcode,
    payload: &[u8],
    mask: Option<Mask>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(header(opcode, true, payload.len(), mask).bytes());
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(mut mask) = mask {
        mask.apply(&mut out[start..]);
    }
}

/// The code of a close frame without a code. It is never sent.
pub(super) const NO_CODE: u16 = 1005;

/// The first bit of a frame.
const FINAL: u8 = 0x80;

/// The first bit of the second byte.
const MASKED: u8 = 0x80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were_written_and_only_whole() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536, 1 << 40] {
            for mask in [None, Some(Mask::new([1, 2, 3, 4]))] {
                let written = frame_header(MessageKind::Binary, length, mask);
                let bytes = written.bytes();
                let (header, count) = FrameHeader::read(bytes).unwrap().unwrap();
                assert_eq!(count, bytes.len());
                assert_eq!(header.payload_bytes, length as u64);
                assert_eq!(
                    (header.mask, header.is_final, header.opcode),
                    (mask, true, Opcode::Binary)
                );
                for cut in 0..bytes.len() {
                    assert_eq!(FrameHeader::read(&bytes[..cut]), Ok(None));
                }
            }
        }
    }

    #[test]
    fn bad_headers_are_named() {
        use WebSocketFault::{
            BadLength, ControlFragmented, ControlTooLong, ReservedBits, ReservedOpcode,
        };
        for (bytes, fault) in [
            (&[0xC1][..], ReservedBits),
            (&[0x91], ReservedBits),
            (&[0x83], ReservedOpcode),
            (&[0x8F], ReservedOpcode),
            (&[0x09], ControlFragmented),
            (&[0x89, 126], ControlTooLong),
            (&[0x82, 126, 0, 125], BadLength),
            (&[0x82, 127, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF], BadLength),
            (&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], BadLength),
        ] {
            assert_eq!(FrameHeader::read(bytes), Err(fault), "{bytes:x?}");
        }
    }
}
