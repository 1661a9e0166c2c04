//! The header of a frame.

use super::Mask;
use crate::layer::RecordHeader;

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

impl Opcode {
    pub(super) fn is_control(self) -> bool {
        self as u8 >= Self::Close as u8
    }

    pub(super) fn of(number: u8) -> Option<Self> {
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
pub(super) const FINAL: u8 = 0x80;

/// The first bit of the second byte.
pub(super) const MASKED: u8 = 0x80;
