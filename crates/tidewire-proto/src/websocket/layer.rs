//! WebSocket as a layer: the handshake, then frames.
//!
//! A server's binary messages need no copy: [`Layer::header`] makes their header, and the plaintext follows from where
//! it lies. A client masks its messages, and text is checked, so both are copied once.

use std::io::IoSlice;
use std::net::IpAddr;
use std::sync::Arc;

use super::accept::{Answer, ServerTerms, refusal};
use super::connect::ClientTerms;
use super::frame::{NO_CODE, Opcode, close_frame, header};
use super::http::HeadEnd;
use super::reader::Frames;
use super::text::{TextWriter, is_text};
use super::{HeadLimits, Mask, Masks, MessageKind, frame_header};
use crate::layer::{Ending, Forwarded, Layer, LayerError, RecordHeader, WebSocketFault};

/// One side of a WebSocket connection.
#[derive(Debug)]
pub struct WebSocketLayer {
    phase: Phase,
    frames: Frames,
    /// The kind of the messages that this side sends.
    kind: MessageKind,
    text: TextWriter,
    /// The last byte of the message that is being received was a line end.
    ends_line: bool,
    /// Present on a client.
    masks: Option<Masks>,
    /// Bytes of the handshake, or the close frame after a fault, that are not sent yet.
    own: Vec<u8>,
    is_closed: bool,
    /// The place of the codec that the client chose. `None` on a client. The terms bound it.
    protocol: Option<u8>,
}

#[derive(Debug)]
enum Phase {
    /// The server waits for a request.
    Accepting(Arc<ServerTerms>, HeadEnd),
    /// The client waits for the answer, in which this key must be.
    Connecting(Arc<ClientTerms>, HeadEnd, String),
    /// The addresses that proxies wrote into the request.
    Open(Forwarded),
    /// The peer wanted the page, and gets it.
    PageServed,
    /// With the part of the request that was refused, for the log.
    Failed(WebSocketFault, Option<Box<str>>),
}

impl WebSocketLayer {
    /// The layer of a connection that a server accepted.
    #[must_use]
    pub fn accepting(terms: Arc<ServerTerms>) -> Self {
        let (frames, kind) = (terms.frames(), terms.kind(0));
        let phase = Phase::Accepting(terms, HeadEnd::default());
        Self::new(phase, frames, kind, None)
    }

    /// The layer of a connection that a client opened. `masks` make the key, too.
    #[must_use]
    pub fn connecting(terms: Arc<ClientTerms>, mut masks: Masks) -> Self {
        let (frames, kind) = (terms.frames(), terms.kind());
        let (request, key) = terms.request(&mut masks);
        let phase = Phase::Connecting(terms, HeadEnd::default(), key);
        let mut layer = Self::new(phase, frames, kind, Some(masks));
        layer.own = request;
        layer
    }

    fn new(phase: Phase, frames: Frames, kind: MessageKind, masks: Option<Masks>) -> Self {
        Self {
            phase,
            frames,
            kind,
            text: TextWriter::default(),
            ends_line: false,
            masks,
            own: Vec::new(),
            is_closed: false,
            protocol: None,
        }
    }

    fn next_mask(&mut self) -> Option<Mask> {
        self.masks.as_mut().map(Masks::next_mask)
    }

    /// Takes the peer's part of the handshake. Returns the number of used bytes.
    fn shake_hands(&mut self, network: &[u8]) -> Result<usize, WebSocketFault> {
        match &mut self.phase {
            Phase::Accepting(terms, end) => {
                check_first(network, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")?;
                let Some((bytes, answer, forwarded)) = terms.take(network, end)? else {
                    return Ok(0);
                };
                (self.phase, self.own) = match answer {
                    Answer::Accepted { head, protocol } => {
                        self.kind = terms.kind(protocol);
                        self.protocol = u8::try_from(protocol).ok();
                        (Phase::Open(forwarded), head)
                    }
                    Answer::Page(answer) => (Phase::PageServed, answer),
                };
                Ok(bytes)
            }
            Phase::Connecting(terms, end, key) => {
                check_first(network, b"H")?;
                let Some(bytes) = end.find(network, HeadLimits::default())? else {
                    return Ok(0);
                };
                terms.check(&network[..bytes], key)?;
                self.phase = Phase::Open(Forwarded::default());
                Ok(bytes)
            }
            Phase::Open(_) => Ok(0),
            // Further requests are not answered.
            Phase::PageServed => Ok(network.len()),
            Phase::Failed(fault, _) => Err(*fault),
        }
    }

    /// Takes frames until no complete part is left.
    fn take_frames(
        &mut self,
        network: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<usize, WebSocketFault> {
        let (mut used, mut controls) = (0, 0);
        loop {
            let before = plain.len();
            let received = self.frames.receive(&network[used..], plain)?;
            used += received.used;
            controls += self.frames.take_controls();
            if controls > CONTROLS_AT_ONCE_MAX {
                return Err(WebSocketFault::ControlFlood);
            }
            if received
                .message
                .or(self.frames.message())
                .is_some_and(is_text)
                && !is_text(self.kind)
            {
                return Err(WebSocketFault::UnexpectedText);
            }
            if is_text(self.kind) {
                self.end_line(before, received.message.is_some(), plain);
            }
            if received.used == 0 || used == network.len() {
                return Ok(used);
            }
        }
    }

    /// Ends a message with a line end, because pages and people send lines without it.
    fn end_line(&mut self, before: usize, has_ended: bool, plain: &mut Vec<u8>) {
        if plain.len() > before {
            self.ends_line = plain.last() == Some(&b'\n');
        }
        if has_ended && !std::mem::take(&mut self.ends_line) {
            plain.push(b'\n');
        }
    }

    /// Keeps the answer to a fault for the peer: an HTTP answer, or a close frame.
    fn fail(&mut self, fault: WebSocketFault, network: &[u8]) -> LayerError {
        let part = match &mut self.phase {
            Phase::Accepting(terms, _) => terms.refused_part(fault, network),
            // A stack asks once more after a failure.
            Phase::Failed(_, part) => part.take(),
            _ => None,
        };
        self.own = match (&self.phase, fault) {
            (Phase::Accepting(..), fault) => refusal(fault, network.starts_with(b"HEAD ")),
            (Phase::Open(_), fault) => {
                let mut frame = Vec::new();
                let mask = self.next_mask();
                close_frame(Some(fault.close_code()), mask, &mut frame);
                self.is_closed = true;
                frame
            }
            _ => Vec::new(),
        };
        self.phase = Phase::Failed(fault, part);
        fault.into()
    }

    fn send_binary(&mut self, plain: &[IoSlice<'_>], bytes: usize, network: &mut Vec<u8>) {
        let mask = self.next_mask();
        let header = frame_header(MessageKind::Binary, bytes, mask);
        network.reserve(header.bytes().len() + bytes);
        network.extend_from_slice(header.bytes());
        let start = network.len();
        for slice in plain {
            network.extend_from_slice(slice);
        }
        if let Some(mut mask) = mask {
            mask.apply(&mut network[start..]);
        }
    }
}

impl Layer for WebSocketLayer {
    fn receive(&mut self, network: &[u8], plain: &mut Vec<u8>) -> Result<usize, LayerError> {
        let taken = match self.phase {
            Phase::Open(_) => self.take_frames(network, plain),
            _ => self.shake_hands(network),
        };
        if let (Ok(_), Some(code)) = (taken, self.frames.close_code())
            && !matches!(code, 1000 | 1001 | NO_CODE)
        {
            return Err(self.fail(WebSocketFault::Closed(code), network));
        }
        taken.map_err(|fault| self.fail(fault, network))
    }

    fn send(&mut self, plain: &[IoSlice<'_>], network: &mut Vec<u8>) -> Result<usize, LayerError> {
        if !self.is_ready() || self.is_closed {
            return Ok(0);
        }
        self.transmit(network);
        let bytes = plain.iter().map(|slice| slice.len()).sum();
        match self.kind {
            MessageKind::Binary => self.send_binary(plain, bytes, network),
            MessageKind::Text => {
                let mask = self.next_mask();
                self.text.send(plain, bytes, mask, network);
            }
        }
        Ok(bytes)
    }

    fn header(&self, plain_bytes: usize) -> Option<RecordHeader> {
        let is_plain = matches!(self.phase, Phase::Open(_))
            && !self.is_closed
            && self.masks.is_none()
            && self.kind == MessageKind::Binary
            && self.own.is_empty();
        is_plain.then(|| frame_header(MessageKind::Binary, plain_bytes, None))
    }

    fn transmit(&mut self, network: &mut Vec<u8>) {
        if !self.own.is_empty() {
            network.append(&mut std::mem::take(&mut self.own));
        }
        if self.frames.has_pongs() && !self.is_closed {
            let Self { frames, masks, .. } = self;
            frames.append_pongs(|| masks.as_mut().map(Masks::next_mask), network);
        }
    }

    fn has_pings(&self) -> bool {
        true
    }

    fn ping(&mut self, network: &mut Vec<u8>) {
        if matches!(self.phase, Phase::Open(_)) && !self.is_closed {
            self.transmit(network);
            let mask = self.next_mask();
            network.extend_from_slice(header(Opcode::Ping, true, 0, mask).bytes());
        }
    }

    fn forwarded_client(&self, is_listed: &dyn Fn(IpAddr) -> bool) -> Option<IpAddr> {
        match &self.phase {
            Phase::Open(forwarded) => forwarded.client(is_listed),
            _ => None,
        }
    }

    fn chosen_protocol(&self) -> Option<usize> {
        self.protocol.map(usize::from)
    }

    fn is_ready(&self) -> bool {
        // A fault ends the connection, but a layer that was ready stays it.
        matches!(self.phase, Phase::Open(_)) || self.is_closed
    }

    fn has_served_page(&self) -> bool {
        matches!(self.phase, Phase::PageServed)
    }

    fn has_ended(&self) -> bool {
        self.frames.close_code().is_some()
    }

    fn close(&mut self, why: Ending, network: &mut Vec<u8>) {
        if !self.is_ready() || self.is_closed {
            return;
        }
        self.transmit(network);
        self.is_closed = true;
        // The answer to a close frame repeats its code.
        let code = self.frames.close_code().filter(|code| *code != NO_CODE);
        let mask = self.next_mask();
        close_frame(code.or(Some(close_code(why))), mask, network);
    }

    fn refused_part(&self) -> Option<&str> {
        match &self.phase {
            Phase::Failed(_, part) => part.as_deref(),
            _ => None,
        }
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.own.capacity()
    }
}

/// Refuses a peer at its first byte if it cannot be HTTP. Without it, a peer that sends less than a head would wait
/// until the handshake times out.
fn check_first(network: &[u8], allowed: &[u8]) -> Result<(), WebSocketFault> {
    match network.first() {
        Some(first) if !allowed.contains(first) => Err(WebSocketFault::NotHttp),
        _ => Ok(()),
    }
}

/// Control frames that may come with one read of the socket, at most 64 KiB. A peer that pings every second and a lane
/// that stalls for minutes stay below it.
const CONTROLS_AT_ONCE_MAX: u32 = 256;

/// The code of a close frame for the end of a connection. Those of faults are [`WebSocketFault::close_code`].
fn close_code(why: Ending) -> u16 {
    match why {
        Ending::InOrder => 1000,
        Ending::GoingAway => 1001,
        Ending::Invalid => 1002,
        Ending::Forbidden => 1008,
        Ending::TooLong => 1009,
        Ending::Failed => 1011,
        Ending::Overloaded => 1013,
    }
}

#[cfg(test)]
mod tests;
