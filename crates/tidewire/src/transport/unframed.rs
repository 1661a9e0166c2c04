//! A socket whose peers take frames without a length in front, although the server's codec writes one.
//!
//! Problem: a server frames a room's message once for all members, but the original implementation of UVRPC reads
//! frames with a length over TCP and without one over Unix sockets. Approach: the sessions of such a listener get the
//! same frames as all others, and this transport leaves out the lengths as it writes. Input is read with the codec's
//! other form. Rejected: a codec for each session, which would frame each message of a room once for each form, and
//! rewriting the input, which would copy it.
//!
//! A length counts as written together with the first bytes of its frame. If the socket refuses those, the lane offers
//! the length and the frame again. A length, or a part of one, at the end of a slice counts as written at once, and is
//! kept here.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use tidewire_io::socket::{SocketError, Stream};

use super::Transport;

/// A socket that leaves out the length in front of each frame, a big-endian u32.
#[derive(Debug)]
pub(crate) struct UnframedStream {
    stream: Stream,
    position: Position,
}

/// The position within a frame up to which bytes are written.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    length: [u8; LENGTH_BYTES],
    /// Bytes of the length that are known.
    length_bytes: usize,
    /// Bytes of the frame that are not written yet.
    frame_bytes_left: usize,
}

impl UnframedStream {
    pub(crate) fn new(stream: Stream) -> Self {
        Self {
            stream,
            position: Position::default(),
        }
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Advances by `written` bytes of frames, and by the lengths in front of them. Returns the advance in bytes of
    /// `pieces`.
    fn advance(&mut self, pieces: &[IoSlice<'_>], mut written: usize) -> usize {
        let mut consumed = 0;
        for piece in pieces {
            let mut rest: &[u8] = piece;
            loop {
                let before = (self.position, rest.len());
                let Some(part) = self.position.next(&mut rest) else {
                    consumed += before.1;
                    break;
                };
                if part.len() > written {
                    let missing = part.len() - written;
                    if written == 0 {
                        self.position = before.0;
                        return consumed;
                    }
                    self.position.frame_bytes_left += missing;
                    return consumed + (before.1 - rest.len()) - missing;
                }
                written -= part.len();
                consumed += before.1 - rest.len();
            }
        }
        consumed
    }
}

impl Position {
    /// Takes the next part of a frame off the input, with the lengths before it. `None` if the input has no such part.
    fn next<'a>(&mut self, input: &mut &'a [u8]) -> Option<&'a [u8]> {
        while self.frame_bytes_left == 0 {
            let (byte, rest) = input.split_first()?;
            *input = rest;
            self.length[self.length_bytes] = *byte;
            self.length_bytes += 1;
            if self.length_bytes == LENGTH_BYTES {
                self.length_bytes = 0;
                self.frame_bytes_left = u32::from_be_bytes(self.length) as usize;
            }
        }
        if input.is_empty() {
            return None;
        }
        let (part, rest) = input.split_at(self.frame_bytes_left.min(input.len()));
        self.frame_bytes_left -= part.len();
        *input = rest;
        Some(part)
    }
}

impl Transport for UnframedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut parts = [IoSlice::new(&[]); PARTS_MAX];
        let (mut position, mut count) = (self.position, 0);
        'pieces: for piece in pieces {
            let mut rest: &[u8] = piece;
            while let Some(part) = position.next(&mut rest) {
                parts[count] = IoSlice::new(part);
                count += 1;
                if count == PARTS_MAX {
                    break 'pieces;
                }
            }
        }
        let written = match count {
            // The pieces have only a part of a length.
            0 => 0,
            _ => self.stream.write_vectored(&parts[..count])?,
        };
        Ok(self.advance(pieces, written))
    }

    fn shutdown_write(&mut self) -> io::Result<()> {
        self.stream.shutdown_write()
    }

    fn finish_connect(&self) -> Result<bool, SocketError> {
        Transport::finish_connect(&self.stream)
    }
}

impl AsFd for UnframedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

const LENGTH_BYTES: usize = 4;

/// The most frames that one call writes.
const PARTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    /// Frames of all short lengths, with their lengths and without.
    fn frames() -> (Vec<u8>, Vec<u8>) {
        let (mut framed, mut bare) = (Vec::new(), Vec::new());
        for bytes in (1..100).chain([0, 3_000, 20_000]) {
            let frame = vec![bytes as u8; bytes];
            framed.extend_from_slice(&(bytes as u32).to_be_bytes());
            framed.extend_from_slice(&frame);
            bare.extend_from_slice(&frame);
        }
        (framed, bare)
    }

    #[test]
    fn lengths_are_left_out_wherever_a_write_ends() {
        let (framed, bare) = frames();
        for offered_max in [1, 2, 3, 4, 5, 7, 64, 1_000, framed.len()] {
            let (near, mut far) = Stream::pair().unwrap();
            near.set_send_buffer_bytes(4_096).unwrap();
            let mut stream = UnframedStream::new(near);
            let (mut sent, mut received, mut refusals) = (0, Vec::new(), 0);
            let mut buffer = vec![0; 1 << 16];
            while sent < framed.len() || received.len() < bare.len() {
                let end = framed.len().min(sent + offered_max);
                let (first, second) = framed[sent..end].split_at((end - sent) / 2);
                match stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
                    Ok(written) => sent += written,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        refusals += 1;
                    }
                }
                // The test reads only when the socket is full, so that writes end at every position.
                if sent == framed.len() || refusals > 0 {
                    refusals = 0;
                    let count = far.read(&mut buffer).unwrap();
                    received.extend_from_slice(&buffer[..count]);
                }
            }
            assert_eq!(received, bare, "{offered_max} bytes at once");
        }
    }
}
