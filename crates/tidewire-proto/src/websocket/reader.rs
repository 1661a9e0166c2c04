//! The frames of a peer: checks them, and makes answers.

use super::frame::{FINAL, MASKED, NO_CODE, Opcode, append_control};
use super::text::{CutCharacter, is_text};
use super::{Mask, MessageKind};
use crate::layer::WebSocketFault;

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that accepted the connection. Its peer masks frames.
    Server,
    /// The side that opened the connection, and masks frames.
    Client,
}

/// Reads the frames of one peer, and keeps the answers to its control frames.
///
/// ```
/// use tidewire_proto::websocket::{Frames, MessageKind, Side};
///
/// let mut frames = Frames::new(Side::Client, 1 << 20);
/// let mut payload = Vec::new();
/// let received = frames.receive(b"\x81\x05Hello", &mut payload)?;
/// assert_eq!((received.used, received.message), (7, Some(MessageKind::Text)));
/// assert_eq!(payload, b"Hello");
/// # Ok::<(), tidewire_proto::layer::WebSocketFault>(())
/// ```
#[derive(Debug)]
pub struct Frames {
    side: Side,
    message_bytes_max: u64,
    /// The rest of the frame that is being read.
    payload: Payload,
    /// The kind of the message that has begun, and its bytes so far.
    message: Option<(MessageKind, u64)>,
    cut: CutCharacter,
    /// The contents of the last pings, until their answers are sent.
    pongs: Vec<Vec<u8>>,
    /// The number of control frames since they were last counted.
    controls: u32,
    /// The code of the peer's close frame; 1005 means none.
    closed: Option<u16>,
}

/// The payload of a frame that has begun.
#[derive(Clone, Copy, Debug, Default)]
struct Payload {
    left: u64,
    mask: Option<Mask>,
    /// The last fragment of its message.
    is_final: bool,
}

/// The header of a frame that a peer sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameHeader {
    opcode: Opcode,
    is_final: bool,
    payload_bytes: u64,
    mask: Option<Mask>,
}

impl FrameHeader {
    /// Reads the header at the front of `input`, and returns it with its length. `None` if the header is not complete.
    /// A fault is reported as soon as its byte arrives.
    fn read(input: &[u8]) -> Result<Option<(Self, usize)>, WebSocketFault> {
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

/// The outcome of one call of [`Frames::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The number of bytes that it used. With 0, more must come first.
    pub used: usize,
    /// The kind of the message that ended with them. Its payload is whole.
    pub message: Option<MessageKind>,
}

impl Frames {
    /// The frames that come to this side.
    #[must_use]
    pub fn new(side: Side, message_bytes_max: u64) -> Self {
        Self {
            side,
            message_bytes_max,
            payload: Payload::default(),
            message: None,
            cut: CutCharacter::default(),
            pongs: Vec::new(),
            controls: 0,
            closed: None,
        }
    }

    /// Takes bytes up to the end of a message, and appends its payload to `out`, unmasked. Call it again until it uses
    /// none. It leaves the header of a frame, and a control frame, unused until they are whole.
    ///
    /// # Errors
    /// The peer broke the rules.
    pub fn receive(
        &mut self,
        network: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Received, WebSocketFault> {
        let mut used = 0;
        let mut message = None;
        while message.is_none() && self.closed.is_none() {
            if self.message.is_none() || self.payload.left == 0 {
                match self.begin_frame(&network[used..])? {
                    0 => break,
                    count => used += count,
                }
                if self.payload.left == 0 {
                    message = self.end_frame()?;
                }
                continue;
            }
            let count = self.take_payload(&network[used..], out)?;
            used += count;
            if self.payload.left > 0 {
                break;
            }
            message = self.end_frame()?;
        }
        Ok(Received { used, message })
    }

    /// The kind of the message that has begun and not ended.
    #[must_use]
    pub fn message(&self) -> Option<MessageKind> {
        self.message.map(|(kind, _)| kind)
    }

    /// The code of the peer's close frame, if any; 1005 for a frame without a code. Bytes after this frame are not
    /// used.
    #[must_use]
    pub fn close_code(&self) -> Option<u16> {
        self.closed
    }

    /// Appends the answers to pings that have none yet. Of many pings at once, only the last 16 are answered.
    pub fn append_pongs(&mut self, mut mask: impl FnMut() -> Option<Mask>, out: &mut Vec<u8>) {
        for pong in self.pongs.drain(..) {
            append_control(Opcode::Pong, &pong, mask(), out);
        }
    }

    /// Whether a ping has no answer yet.
    #[must_use]
    pub fn has_pongs(&self) -> bool {
        !self.pongs.is_empty()
    }

    /// The number of control frames since the last call.
    pub fn take_controls(&mut self) -> u32 {
        std::mem::take(&mut self.controls)
    }

    /// Takes the header of a data frame, or a whole control frame. Returns the number of used bytes.
    fn begin_frame(&mut self, network: &[u8]) -> Result<usize, WebSocketFault> {
        let Some((header, header_bytes)) = FrameHeader::read(network)? else {
            return Ok(0);
        };
        match (self.side, header.mask) {
            (Side::Server, None) => return Err(WebSocketFault::Unmasked),
            (Side::Client, Some(_)) => return Err(WebSocketFault::Masked),
            _ => {}
        }
        if header.opcode.is_control() {
            return self.take_control(&header, header_bytes, network);
        }
        let (kind, bytes) = match (header.opcode, self.message) {
            (Opcode::Continuation, Some(message)) => message,
            (Opcode::Continuation, None) => return Err(WebSocketFault::UnexpectedFragment),
            (_, Some(_)) => return Err(WebSocketFault::UnfinishedMessage),
            (Opcode::Text, None) => (MessageKind::Text, 0),
            (_, None) => (MessageKind::Binary, 0),
        };
        let bytes = bytes.saturating_add(header.payload_bytes);
        if bytes > self.message_bytes_max {
            return Err(WebSocketFault::MessageTooLong);
        }
        self.message = Some((kind, bytes));
        self.payload = Payload {
            left: header.payload_bytes,
            mask: header.mask,
            is_final: header.is_final,
        };
        Ok(header_bytes)
    }

    fn take_payload(&mut self, network: &[u8], out: &mut Vec<u8>) -> Result<usize, WebSocketFault> {
        let left = usize::try_from(self.payload.left).unwrap_or(usize::MAX);
        let count = left.min(network.len());
        let start = out.len();
        out.extend_from_slice(&network[..count]);
        if let Some(mask) = &mut self.payload.mask {
            mask.apply(&mut out[start..]);
        }
        self.payload.left -= count as u64;
        if self.message().is_some_and(is_text) {
            self.cut.check(&out[start..])?;
        }
        Ok(count)
    }

    /// Ends the frame whose payload has come. Returns the kind of its message if that has ended, too.
    fn end_frame(&mut self) -> Result<Option<MessageKind>, WebSocketFault> {
        if !self.payload.is_final {
            return Ok(None);
        }
        // A control frame leaves no payload, and may come outside of a message.
        self.payload.is_final = false;
        match self.message.take() {
            Some((MessageKind::Text, _)) if !self.cut.is_empty() => Err(WebSocketFault::BadText),
            message => Ok(message.map(|(kind, _)| kind)),
        }
    }

    fn take_control(
        &mut self,
        header: &FrameHeader,
        header_bytes: usize,
        network: &[u8],
    ) -> Result<usize, WebSocketFault> {
        // A control frame has at most 125 bytes.
        let payload_bytes = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
        let Some(payload) = network[header_bytes..].get(..payload_bytes) else {
            return Ok(0);
        };
        self.controls = self.controls.saturating_add(1);
        let mut payload = payload.to_vec();
        if let Some(mut mask) = header.mask {
            mask.apply(&mut payload);
        }
        match header.opcode {
            Opcode::Ping => {
                if self.pongs.len() == PONGS_MAX {
                    self.pongs.remove(0);
                }
                self.pongs.push(payload);
            }
            Opcode::Close => self.closed = Some(read_close(&payload)?),
            _ => {}
        }
        Ok(header_bytes + payload_bytes)
    }
}

fn read_close(payload: &[u8]) -> Result<u16, WebSocketFault> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(NO_CODE),
            _ => Err(WebSocketFault::BadClose),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(WebSocketFault::BadClose);
    }
    match std::str::from_utf8(reason) {
        Ok(_) => Ok(code),
        Err(_) => Err(WebSocketFault::BadText),
    }
}

/// Pings of one read that are answered. The RFC allows an answer to the last ping only, but some peers count answers.
const PONGS_MAX: usize = 16;

#[cfg(test)]
mod tests;
