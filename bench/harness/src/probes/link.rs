//! The connection of a probe: a socket, or a socket with TLS by hand.

use std::fmt::Debug;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use tidewire_io::socket::Stream;

use super::wait::WaitSet;
use crate::certificates;

/// A connection that never blocks.
pub(crate) trait Link: AsFd + Debug + Send + 'static {
    /// Makes the client's side over a connected socket.
    fn dial(stream: Stream) -> io::Result<Self>
    where
        Self: Sized;

    /// Makes the server's side over an accepted socket.
    fn accept(stream: Stream) -> io::Result<Self>
    where
        Self: Sized;

    /// Reads the socket once. All that comes is returned at once, so that nothing is left when the socket is not ready.
    /// 0 is the end.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    /// The socket.
    fn stream(&self) -> &Stream;

    /// Accepts bytes, and writes what the socket takes of them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// The same with bytes in several pieces.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Whether accepted bytes wait for the socket. [`Self::write`] goes on with them, also if it is given no bytes.
    fn is_blocked(&self) -> bool {
        false
    }

    /// Waits for the end of the handshake, if there is one.
    fn finish_handshake(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Link for Stream {
    fn dial(stream: Stream) -> io::Result<Self> {
        Ok(stream)
    }

    fn accept(stream: Stream) -> io::Result<Self> {
        Ok(stream)
    }

    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Self::read(self, buffer)
    }

    fn stream(&self) -> &Stream {
        self
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write(self, bytes)
    }

    #[inline]
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Self::write_vectored(self, pieces)
    }
}

/// Returns the bytes of a read that never blocks; nothing where nothing has come, and an error at the end.
#[inline]
pub(crate) fn received(read: io::Result<usize>) -> io::Result<Option<usize>> {
    match read {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the bytes of a write, or of received datagrams, that never blocks; 0 where it would have to wait.
#[inline]
pub(crate) fn or_none(done: io::Result<usize>) -> io::Result<usize> {
    match done {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        done => done,
    }
}

/// The beginning of a frame whose end has not come.
#[derive(Debug, Default)]
pub(crate) struct PartialFrame(Vec<u8>);

impl PartialFrame {
    /// Puts the partial frame at the front of `buffer`, and reads the next bytes after the frame. Returns how much of
    /// the buffer is filled, or `None` if no bytes have come.
    #[inline]
    pub(crate) fn fill(
        &self,
        buffer: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        let kept = self.0.len();
        buffer[..kept].copy_from_slice(&self.0);
        Ok(received(read(&mut buffer[kept..]))?.map(|count| kept + count))
    }

    /// Keeps what the buffer ends with until the next time.
    #[inline]
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.0.clear();
        self.0.extend_from_slice(bytes);
    }
}

/// TLS by hand: the buffered calls of rustls over a socket, with nothing between them. Records go from rustls to the
/// socket without a copy. Bytes of the socket are read in large blocks, where rustls would read 4 KiB at a time.
#[derive(Debug)]
pub(crate) struct TlsLink {
    stream: Stream,
    pub(crate) tls: rustls::Connection,
}

impl TlsLink {
    pub(crate) fn new(stream: Stream, tls: impl Into<rustls::Connection>) -> Self {
        let tls = tls.into();
        Self { stream, tls }
    }

    /// Writes records as far as the socket takes them.
    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if or_none(self.tls.write_tls(&mut Socket(&mut self.stream)))? == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Link for TlsLink {
    fn dial(stream: Stream) -> io::Result<Self> {
        Ok(Self::new(stream, certificates::client()?))
    }

    fn accept(stream: Stream) -> io::Result<Self> {
        Ok(Self::new(stream, certificates::server()?))
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The bytes of the socket stand behind a gap of one record, and plaintext is written from the front. There is
        // never more plaintext than bytes that were used and a record that rustls had begun, so it does not reach the
        // unused bytes.
        let mut at = RECORD_BYTES_MAX;
        let end = match self.stream.read(&mut buffer[at..])? {
            0 => return Ok(0),
            count => at + count,
        };
        let mut filled = 0;
        while at < end {
            let used = self.tls.read_tls(&mut &buffer[at..end])?;
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            at += used;
            let plain_bytes = state.plaintext_bytes_to_read();
            if plain_bytes > 0 {
                let room = &mut buffer[filled..at];
                filled += io::Read::read(&mut self.tls.reader(), room)?;
            }
            if used == 0 || state.peer_has_closed() {
                break;
            }
        }
        // The records of a handshake.
        self.flush()?;
        match filled {
            0 => Err(ErrorKind::WouldBlock.into()),
            filled => Ok(filled),
        }
    }

    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Ok(0);
        }
        if self.is_blocked() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let accepted = io::Write::write_vectored(&mut self.tls.writer(), pieces)?;
        self.flush()?;
        Ok(accepted)
    }

    fn is_blocked(&self) -> bool {
        self.tls.wants_write()
    }

    fn finish_handshake(&mut self) -> io::Result<()> {
        let mut set = WaitSet::new()?;
        set.add(self.stream.as_fd(), 0)?;
        let mut ready = Vec::new();
        let mut buffer = vec![0; 2 * RECORD_BYTES_MAX];
        self.flush()?;
        while self.tls.is_handshaking() {
            set.wait(&mut ready)?;
            if received(self.read(&mut buffer))?.is_some() {
                return Err(io::Error::other("the peer speaks before it is asked"));
            }
        }
        set.remove(self.stream.as_fd())
    }
}

impl AsFd for TlsLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The socket as rustls writes to it.
struct Socket<'a>(&'a mut Stream);

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The longest record of TLS: 16 KiB and what is around them, in bytes.
const RECORD_BYTES_MAX: usize = 18 << 10;
