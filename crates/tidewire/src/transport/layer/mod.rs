//! A socket with layers over it: TLS, WebSocket, or one over the other.
//!
//! The layers have no I/O ([`tidewire_proto::layer`]). This transport moves bytes between them and the socket, so that
//! the lane above sees plaintext.
//!
//! A layer accepts plaintext before the socket does, and seals it: it makes records of it. So plaintext is sealed only
//! when the socket has accepted all sealed bytes. Records are as large as possible. A write that is accepted whole may
//! leave [bytes](super::Transport::pending_bytes) that wait for the socket. Messages that a policy may drop stay
//! plaintext.
//!
//! One read of the socket may bring more plaintext than the lane takes in a turn. No event announces the rest, so the
//! stream stays [awake](super::Transport::is_awake) while there is some.
//!
//! The layers end before the socket, in both directions. If the socket ends first, the connection was cut: reading
//! answers `ConnectionReset`, never an end.

mod config;

use std::io::{self, ErrorKind, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use tidewire_io::poller::{Interest, Poller, PollerError, Token};
use tidewire_io::socket::{SocketError, Stream};
use tidewire_proto::layer::{CertificateNames, Encryption, Ending, LayerError, Stack};

pub(crate) use config::{LayerFactory, Layers};

use super::Transport;

/// A socket with layers. See the module.
#[derive(Debug)]
pub(crate) struct LayeredStream {
    stream: Stream,
    stack: Stack,
    /// The last read took all bytes of the socket.
    is_dry: bool,
    /// Plaintext was left when reading stopped, and the lane checks it at the end of each turn.
    is_awake: bool,
    /// The lane waits for input.
    is_read: bool,
    /// Bytes came from the socket since the lane asked.
    is_heard: bool,
    /// The socket ends when it has accepted all sealed bytes.
    is_ending: bool,
    /// A read has returned the end of the peer's layers.
    is_end_told: bool,
    /// A failure of the layers. The plaintext before it is read first.
    failed: Option<LayerError>,
    /// Why this side ends, which the layers tell the peer.
    ending: Ending,
}

impl LayeredStream {
    pub(crate) fn new(stream: Stream, stack: Stack) -> Self {
        Self {
            stream,
            stack,
            is_dry: false,
            is_awake: false,
            is_read: false,
            is_heard: false,
            is_ending: false,
            is_end_told: false,
            failed: None,
            ending: Ending::InOrder,
        }
    }

    /// Sets why this side ends, before it does.
    pub(crate) fn set_ending(&mut self, why: Ending) {
        self.ending = why;
    }

    /// Returns the part that a layer refused of the peer's handshake, for the log.
    pub(crate) fn refused_part(&self) -> Option<&str> {
        self.stack.refused_part()
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(super) fn awaits_costly_bytes(&self) -> bool {
        self.stack.awaits_costly_bytes()
    }

    /// Reads the socket once, through the layers. `scratch` is for the network's bytes.
    fn receive(&mut self, scratch: &mut [u8]) -> io::Result<()> {
        let room = scratch.len().min(READ_BYTES_MAX);
        let outcome = match self.stream.read(&mut scratch[..room])? {
            0 => self.stack.handle_network_end(),
            count => {
                self.is_dry = count < room;
                self.is_heard = true;
                self.stack.receive(&scratch[..count])
            }
        };
        let Err(error) = outcome else {
            return Ok(());
        };
        // This sends the alert of the layer, if it has one and the socket accepts it.
        let _ = self.flush();
        match self.stack.has_plain() {
            true => {
                self.failed = Some(error);
                Ok(())
            }
            false => Err(failure(error)),
        }
    }

    /// Whether a read has a result without the socket: plaintext, or the end of the layers. No event announces the end
    /// if the peer waits for our end before it closes the socket.
    fn has_news(&self) -> bool {
        let is_end_news = self.stack.has_ended() && !self.is_end_told;
        self.stack.has_plain() || self.failed.is_some() || is_end_news
    }

    /// Passes plaintext to the layers. The socket must have accepted all sealed bytes before. A layer that only puts a
    /// header in front is no detour: both go to the socket in one gathered write.
    fn seal(&mut self, plain: &[IoSlice<'_>]) -> io::Result<usize> {
        let Self { stream, stack, .. } = self;
        if let Some(written) = stack.write_through(plain, |slices| stream.write_vectored(slices)) {
            return written;
        }
        match self.stack.write(plain).map_err(failure)? {
            0 if self.stack.is_closed() => Err(ErrorKind::BrokenPipe.into()),
            0 => Err(ErrorKind::WouldBlock.into()),
            accepted => Ok(accepted),
        }
    }
}

impl Transport for LayeredStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for _ in 0..READS_WITHOUT_PLAINTEXT_MAX {
            let count = self.stack.read(buffer).map_err(failure)?;
            if count > 0 {
                return Ok(count);
            }
            if let Some(error) = self.failed.take() {
                return Err(failure(error));
            }
            if self.stack.has_ended() {
                self.is_end_told = true;
                return Ok(0);
            }
            self.receive(buffer)?;
        }
        match self.stack.read(buffer).map_err(failure)? {
            // The poller reports the rest after other sessions had their turn.
            0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.failed.is_some() {
            // The layers take nothing any more. The next read returns the reason.
            return Err(ErrorKind::BrokenPipe.into());
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let count = pieces.len().min(SLICES_MAX);
        slices[..count].copy_from_slice(&pieces[..count]);
        let mut rest = &mut slices[..count];
        let mut accepted = 0;
        loop {
            match self.flush() {
                Err(error) if is_blocked(&error) && accepted > 0 => return Ok(accepted),
                flushed => flushed?,
            }
            if rest.iter().all(|slice| slice.is_empty()) {
                return Ok(accepted);
            }
            let count = match self.seal(rest) {
                Err(error) if is_blocked(&error) && accepted > 0 => return Ok(accepted),
                sealed => sealed?,
            };
            IoSlice::advance_slices(&mut rest, count);
            accepted += count;
        }
    }

    fn shutdown_write(&mut self) -> io::Result<()> {
        self.stack.close(self.ending).map_err(failure)?;
        self.is_ending = true;
        match self.flush() {
            Err(error) if is_blocked(&error) => Ok(()),
            flushed => flushed,
        }
    }

    fn finish_connect(&self) -> Result<bool, SocketError> {
        Transport::finish_connect(&self.stream)
    }

    fn add(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        self.is_read = interest.is_readable();
        poller.add(self.stream.as_fd(), token, interest)
    }

    fn watch(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        self.is_read = interest.is_readable();
        poller.modify(self.stream.as_fd(), token, interest)
    }

    fn is_dry_after_short_read(&self) -> bool {
        self.is_dry && !self.has_news()
    }

    fn is_awake(&self) -> bool {
        self.is_awake
    }

    fn finish_turn(&mut self, _sleeps: bool) -> bool {
        self.is_awake = self.has_news();
        self.is_awake && self.is_read
    }

    fn wake(&mut self) -> bool {
        let wakes = self.has_news() && !self.is_awake;
        self.is_awake |= wakes;
        wakes
    }

    fn has_layers(&self) -> bool {
        true
    }

    fn is_secured(&self) -> bool {
        self.stack.is_ready()
    }

    fn secure(&mut self) -> io::Result<bool> {
        self.stack.start().map_err(failure)?;
        let mut scratch = [0; HANDSHAKE_READ_BYTES];
        for _ in 0..HANDSHAKE_READS_MAX {
            match self.flush() {
                Err(error) if is_blocked(&error) => {}
                flushed => flushed?,
            }
            if self.stack.is_ready() {
                self.stack.shrink();
                return Ok(true);
            }
            if self.stack.has_served_page() {
                let _ = self.shutdown_write();
                return Err(failure(LayerError::PageServed));
            }
            if self.stack.has_ended() {
                return Err(ErrorKind::ConnectionReset.into());
            }
            match self.receive(&mut scratch) {
                Err(error) if is_blocked(&error) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => received?,
            }
        }
        match self.flush() {
            Err(error) if is_blocked(&error) => {}
            flushed => flushed?,
        }
        // The poller reports the rest after other sessions had their turn.
        Ok(self.stack.is_ready())
    }

    fn has_pings(&self) -> bool {
        self.stack.has_pings()
    }

    fn ping(&mut self) -> io::Result<()> {
        self.stack.ping().map_err(failure)
    }

    fn take_heard(&mut self) -> bool {
        std::mem::take(&mut self.is_heard)
    }

    fn pending_bytes(&self) -> usize {
        self.stack.unsent().len()
    }

    fn memory_bytes(&self) -> usize {
        self.stack.memory_bytes()
    }

    fn certificate(&self) -> Option<&CertificateNames> {
        self.stack.certificate()
    }

    fn forwarded_client(&self, is_listed: &dyn Fn(IpAddr) -> bool) -> Option<IpAddr> {
        self.stack.forwarded_client(is_listed)
    }

    fn chosen_protocol(&self) -> Option<usize> {
        self.stack.chosen_protocol()
    }

    fn encryption(&self) -> Option<Encryption> {
        self.stack.encryption()
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            let unsent = self.stack.unsent();
            if unsent.is_empty() {
                break;
            }
            let bytes = unsent.len();
            match self.stream.write(unsent) {
                Ok(count) => {
                    self.stack.advance(count);
                    if count < bytes {
                        return Err(ErrorKind::WouldBlock.into());
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    if !is_blocked(&error) {
                        // The socket has failed, so no byte waits for it.
                        self.stack.advance(bytes);
                    }
                    return Err(error);
                }
            }
        }
        match std::mem::take(&mut self.is_ending) {
            true => self.stream.shutdown_write(),
            false => Ok(()),
        }
    }
}

impl AsFd for LayeredStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_blocked(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

/// Wraps an error of a layer as an error of the transport. The lane finds the cause in it.
fn failure(error: LayerError) -> io::Error {
    match error {
        LayerError::Truncated => ErrorKind::ConnectionReset.into(),
        error => io::Error::new(ErrorKind::InvalidData, error),
    }
}

/// Bytes that are read from the socket at once. It bounds the plaintext that waits.
const READ_BYTES_MAX: usize = 64 << 10;

/// Reads of the socket for one read of plaintext, so that a peer that sends records without plaintext does not hold up
/// the lane.
const READS_WITHOUT_PLAINTEXT_MAX: usize = 8;

/// Slices that are sealed at once. The lane gathers as many for one write.
const SLICES_MAX: usize = 32;

/// Bytes that are read at once during a handshake: more than one flight of TLS with its certificates.
const HANDSHAKE_READ_BYTES: usize = 16 << 10;

/// Reads of one turn during a handshake, so that a peer that sends an endless handshake does not hold up the lane.
const HANDSHAKE_READS_MAX: usize = 4;

#[cfg(test)]
mod tests;
