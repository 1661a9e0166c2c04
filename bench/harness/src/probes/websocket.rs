//! WebSocket by hand: a header before each write, a mask on what a client sends, and nothing else.
//!
//! A link is generic over the one beneath it, so that it is `ws` over a socket and `wss` over TLS. As in Tidewire, a
//! write is one message, and the payloads are a stream of bytes. With `MESSAGE_BYTES` above 0 every so many bytes are a
//! message of their own, still in one write: what most libraries do with small messages, so that their servers can be
//! driven by the same client.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use tidewire_io::socket::Stream;
use tidewire_proto::websocket::{Answer, Mask, Masks, MessageKind, ServerTerms, frame_header};

use super::wait::WaitSet;
use super::{BLOCK_BYTES, Link};

/// A WebSocket over another link.
#[derive(Debug)]
pub(crate) struct WebSocketLink<L, const MESSAGE_BYTES: usize> {
    link: L,
    state: State,
    /// The masks of a client. A server does not mask.
    masks: Option<Masks>,
    incoming: Incoming,
    /// Bytes that the link beneath has not taken.
    output: Vec<u8>,
    /// Messages that wait for the end of the handshake.
    early: Vec<u8>,
    /// Bytes of messages that came with the end of the handshake.
    unread: Vec<u8>,
}

/// The state of the handshake.
#[derive(Debug)]
enum State {
    /// The client has not asked yet.
    Silent,
    /// The head of the request, or of the answer, as far as it has come.
    Head(Vec<u8>),
    Open,
}

/// The frame that is being read.
#[derive(Debug, Default)]
struct Incoming {
    /// Bytes of a header that is not whole.
    header: Vec<u8>,
    /// Bytes of the payload that have not come.
    left: u64,
    mask: Option<Mask>,
}

impl<L: Link, const MESSAGE_BYTES: usize> WebSocketLink<L, MESSAGE_BYTES> {
    fn new(link: L, state: State, masks: Option<Masks>) -> Self {
        Self {
            link,
            state,
            masks,
            incoming: Incoming::default(),
            output: Vec::new(),
            early: Vec::new(),
            unread: Vec::new(),
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut written = 0;
        while written < self.output.len() {
            match self.link.write(&self.output[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.output.drain(..written);
        match self.link.is_blocked() {
            true => self.link.write(&[]).map(drop),
            false => Ok(()),
        }
    }

    fn read_once(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = match self.link.read(buffer)? {
            0 => return Ok(0),
            count => count,
        };
        let filled = match self.is_open() {
            true => self.incoming.unframe(&mut buffer[..count])?,
            false => self.shake_hands(&mut buffer[..count])?,
        };
        match filled {
            0 => Err(ErrorKind::WouldBlock.into()),
            filled => Ok(filled),
        }
    }

    /// Goes on with the handshake. Returns the bytes of messages behind it, at the front of `bytes`.
    #[cold]
    fn shake_hands(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let State::Head(head) = &mut self.state else {
            return Err(io::Error::other("the server speaks before it is asked"));
        };
        let before = head.len();
        head.extend_from_slice(bytes);
        let end = head.windows(4).position(|four| four == b"\r\n\r\n");
        let Some(end) = end.map(|end| end + 4) else {
            return match head.len() {
                0..HEAD_BYTES_MAX => Ok(0),
                _ => Err(io::Error::other("a head without an end")),
            };
        };
        if self.masks.is_some() {
            let is_accepted = head.starts_with(b"HTTP/1.1 101")
                && head[..end]
                    .windows(ACCEPT.len())
                    .any(|it| it == ACCEPT.as_bytes());
            if !is_accepted {
                return Err(io::Error::other("the server refuses the WebSocket"));
            }
        } else {
            let terms = ServerTerms::new("/", "", MessageKind::Binary);
            let answer = terms.answer(&head[..end]).map_err(io::Error::other)?;
            let Answer::Accepted { head, .. } = answer else {
                return Err(io::Error::other("a page is asked for, and there is none"));
            };
            self.output = head;
        }
        let rest = before + bytes.len() - end;
        self.state = State::Open;
        self.output.append(&mut self.early);
        self.flush()?;
        bytes.copy_within(bytes.len() - rest.., 0);
        self.incoming.unframe(&mut bytes[..rest])
    }
}

/// Appends bytes as messages.
fn frame(bytes: &[u8], message_bytes: usize, masks: &mut Option<Masks>, out: &mut Vec<u8>) {
    for message in bytes.chunks(message_bytes) {
        let mask = masks.as_mut().map(Masks::next_mask);
        let header = frame_header(MessageKind::Binary, message.len(), mask);
        out.extend_from_slice(header.bytes());
        let start = out.len();
        out.extend_from_slice(message);
        if let Some(mut mask) = mask {
            mask.apply(&mut out[start..]);
        }
    }
}

impl Incoming {
    /// Leaves the payloads at the front of `bytes`, without headers and masks. Returns how many bytes they are.
    fn unframe(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut at, mut filled) = (0, 0);
        while at < bytes.len() {
            if self.left == 0 {
                self.header.push(bytes[at]);
                at += 1;
                self.begin()?;
                continue;
            }
            let there = bytes.len() - at;
            let count = usize::try_from(self.left).map_or(there, |left| left.min(there));
            bytes.copy_within(at..at + count, filled);
            if let Some(mask) = &mut self.mask {
                mask.apply(&mut bytes[filled..filled + count]);
            }
            self.left -= count as u64;
            at += count;
            filled += count;
        }
        Ok(filled)
    }

    /// Begins with a payload if the header is whole.
    fn begin(&mut self) -> io::Result<()> {
        let header = &self.header;
        let [first, second, rest @ ..] = &header[..] else {
            return Ok(());
        };
        if !matches!(first & 0x0F, 0..=2) {
            return Err(io::Error::other("a control frame, which ends the probe"));
        }
        let length_bytes = match second & 0x7F {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask_bytes = if second & 0x80 == 0 { 0 } else { 4 };
        if rest.len() < length_bytes + mask_bytes {
            return Ok(());
        }
        let (length, mask) = rest.split_at(length_bytes);
        let length = length
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        self.left = match length_bytes {
            0 => u64::from(second & 0x7F),
            _ => length,
        };
        self.mask = mask.first_chunk().map(|bytes| Mask::new(*bytes));
        self.header.clear();
        Ok(())
    }
}

impl<L: Link, const MESSAGE_BYTES: usize> Link for WebSocketLink<L, MESSAGE_BYTES> {
    fn dial(stream: Stream) -> io::Result<Self> {
        let seed = [fastrand::u64(..), fastrand::u64(..)];
        Ok(Self::new(
            L::dial(stream)?,
            State::Silent,
            Some(Masks::new(seed)),
        ))
    }

    fn accept(stream: Stream) -> io::Result<Self> {
        Ok(Self::new(L::accept(stream)?, State::Head(Vec::new()), None))
    }

    fn stream(&self) -> &Stream {
        self.link.stream()
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty() {
            return self.read_once(buffer);
        }
        let kept = self.unread.len();
        let room = buffer.len() - kept;
        let count = self.read_once(&mut buffer[..room])?;
        buffer.copy_within(..count, kept);
        buffer[..kept].copy_from_slice(&self.unread);
        self.unread.clear();
        Ok(kept + count)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let State::Silent = self.state {
            self.output.extend_from_slice(REQUEST.as_bytes());
            self.state = State::Head(Vec::new());
        }
        self.flush()?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let bytes = &bytes[..bytes.len().min(BLOCK_BYTES)];
        // A server answers what one read brought by one message, as Tidewire does.
        let message_bytes = match MESSAGE_BYTES {
            count if count > 0 && self.masks.is_some() => count,
            _ => bytes.len(),
        };
        if !self.is_open() {
            frame(bytes, message_bytes, &mut self.masks, &mut self.early);
            return Ok(bytes.len());
        }
        if self.is_blocked() {
            return Err(ErrorKind::WouldBlock.into());
        }
        if self.masks.is_some() || message_bytes < bytes.len() {
            frame(bytes, message_bytes, &mut self.masks, &mut self.output);
            self.flush()?;
            return Ok(bytes.len());
        }
        let header = frame_header(MessageKind::Binary, bytes.len(), None);
        let pieces = [IoSlice::new(header.bytes()), IoSlice::new(bytes)];
        let written = self.link.write_vectored(&pieces)?;
        let header_left = header.bytes().get(written..).unwrap_or_default();
        self.output.extend_from_slice(header_left);
        let plain_written = written.saturating_sub(header.bytes().len());
        self.output.extend_from_slice(&bytes[plain_written..]);
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // Nothing is above a WebSocket that has several pieces.
        self.write(pieces.first().map_or(&[], |piece| piece))
    }

    fn is_blocked(&self) -> bool {
        !self.output.is_empty() || self.link.is_blocked()
    }

    fn finish_handshake(&mut self) -> io::Result<()> {
        // The handshake of the link beneath is over before, because the head of a request needs it.
        let mut set = WaitSet::new()?;
        set.add(self.as_fd(), 0)?;
        let (mut ready, mut buffer) = (Vec::new(), vec![0; BLOCK_BYTES / 2]);
        if self.masks.is_some() {
            self.write(&[])?;
        }
        while !self.is_open() {
            set.wait(&mut ready)?;
            match self.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                // A publisher begins as soon as its last subscriber is there.
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<L: Link, const MESSAGE_BYTES: usize> AsFd for WebSocketLink<L, MESSAGE_BYTES> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The request of a client, with the key of the example in RFC 6455: any key does for a benchmark, and of this one the
/// answer is known. It names no subprotocol, because not all servers choose one.
pub(crate) const REQUEST: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                                  Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

/// The answer to the key.
pub(crate) const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// Longest head of a request or an answer, in bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds frames in pieces of this size. Returns the payloads.
    fn unframed(frames: &[u8], piece_bytes: usize) -> Vec<u8> {
        let (mut incoming, mut plain) = (Incoming::default(), Vec::new());
        for piece in frames.chunks(piece_bytes) {
            let mut piece = piece.to_vec();
            let count = incoming.unframe(&mut piece).unwrap();
            plain.extend_from_slice(&piece[..count]);
        }
        plain
    }

    #[test]
    fn payloads_come_back_however_they_were_framed_masked_and_cut() {
        let plain: Vec<u8> = (0..70_000_u32).map(|number| number as u8).collect();
        for message_bytes in [1, 32, 125, 126, 65_535, 65_536, plain.len()] {
            for is_client in [false, true] {
                let mut masks = is_client.then(|| Masks::new([1, 2]));
                let mut frames = Vec::new();
                frame(&plain, message_bytes, &mut masks, &mut frames);
                for piece_bytes in [1, 7, 4_096, frames.len()] {
                    assert_eq!(unframed(&frames, piece_bytes), plain, "{message_bytes}");
                }
            }
        }
    }

    #[test]
    fn a_control_frame_ends_the_probe() {
        assert!(Incoming::default().unframe(&mut [0x89, 0]).is_err());
        assert!(Incoming::default().unframe(&mut [0x88, 0]).is_err());
    }
}
