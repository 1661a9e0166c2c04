//! One connection.
//!
//! Reading and writing are single system calls with no state beside the descriptor. The session keeps everything that
//! must be remembered between calls.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketType, connect,
    getpeername, getsockname, recv, send, sendmsg, shutdown, socketpair, sockopt,
};

use super::error::CONNECT;
use super::{FLAGS, PeerCredentials, SocketAddress, SocketError, SocketOptions, tcp};

/// A non-blocking stream socket, connected or connecting.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    /// The address that it connected to or was accepted from; `None` for a socket without an address.
    peer: Option<SocketAddress>,
}

/// The state of a connection's peer, as one look at the socket shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The peer is there, and no bytes wait to be read.
    Silent,
    /// The peer is there, and bytes wait to be read.
    Speaking,
    /// The peer has ended its own side, and may still read.
    HalfClosed,
    /// The connection is over.
    Gone,
}

impl Stream {
    /// Begins to connect. The stream becomes writable when the outcome is known; call
    /// [`finish_connect`](Self::finish_connect) then.
    ///
    /// # Errors
    ///
    /// [`SocketError`] when the connection is refused at once, as Unix sockets and loopback often do.
    pub fn connect(address: &SocketAddress) -> Result<Self, SocketError> {
        Self::connect_with(address, &SocketOptions::default())
    }

    /// Begins to connect like [`connect`](Self::connect), with these options.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`SocketError::Options`] when the options are invalid.
    pub fn connect_with(
        address: &SocketAddress,
        options: &SocketOptions,
    ) -> Result<Self, SocketError> {
        let failed = |cause| SocketError::connecting(address, cause);
        let socket = address.socket().map_err(failed)?;
        let unusable = |source| SocketError::options(CONNECT, address, source);
        options.apply(&socket, address).map_err(unusable)?;
        let kernel = address.to_kernel().map_err(failed)?;
        match connect(&socket, &kernel) {
            // An interrupted connect continues, like one that is in progress.
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(Self {
                socket,
                peer: Some(address.clone()),
            }),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// Reports the outcome of [`connect`](Self::connect). Call it once the stream is writable.
    ///
    /// # Errors
    ///
    /// [`SocketError::InProgress`] when the outcome is not known yet; any other variant when connecting failed.
    pub fn finish_connect(&self) -> Result<(), SocketError> {
        let address = self.peer.clone().unwrap_or_else(unnamed);
        let failed = |cause| SocketError::connecting(&address, cause);
        sockopt::socket_error(&self.socket)
            .and_then(|outcome| outcome)
            .map_err(failed)?;
        let peer = match getpeername(&self.socket) {
            Ok(peer) => peer,
            Err(Errno::NOTCONN) => {
                return Err(SocketError::InProgress {
                    address: address.to_any(),
                });
            }
            Err(cause) => return Err(failed(cause)),
        };
        // If no server listens on a port of the range that the system gives to clients, TCP may connect a socket to
        // itself. A client that keeps trying while its server is down would become its own peer.
        if let SocketAddress::Tcp(_) = address
            && getsockname(&self.socket).ok() == peer
        {
            return Err(failed(Errno::CONNREFUSED));
        }
        Ok(())
    }

    /// Creates two connected Unix sockets without a name, for tests and for use within a process.
    ///
    /// # Errors
    ///
    /// The kernel refuses, usually because no descriptor is left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        Ok((Self::accepted(near, None), Self::accepted(far, None)))
    }

    pub(super) fn accepted(socket: OwnedFd, peer: Option<SocketAddr>) -> Self {
        Self {
            socket,
            peer: peer.map(SocketAddress::Tcp),
        }
    }

    /// Reads the available bytes, up to the size of the buffer; 0 means that the peer sends no more.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when no bytes are there; `ConnectionReset` when the peer vanished.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((length, _)) => return Ok(length),
                Err(Errno::INTR) => {}
                Err(cause) => return Err(cause.into()),
            }
        }
    }

    /// Writes as many bytes as there is room for, and returns their number.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is no room; `BrokenPipe` or `ConnectionReset` when the peer is gone.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    /// Writes several pieces in order with one system call, as many bytes as there is room for, and returns their
    /// number. Uses only the first [`Stream::PIECES_MAX`] pieces; the rest is not written.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let pieces = &pieces[..pieces.len().min(Self::PIECES_MAX)];
        loop {
            let mut nothing = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, pieces, &mut nothing, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    /// The maximum number of pieces that the kernel takes at once (`IOV_MAX`).
    pub const PIECES_MAX: usize = 1_024;

    /// Tells the peer that this end sends no more. The peer's bytes can still be read.
    ///
    /// # Errors
    ///
    /// `NotConnected` when the peer is gone already.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(shutdown(&self.socket, Shutdown::Write)?)
    }

    /// The IP address of the peer; `None` for Unix sockets.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        match self.peer {
            Some(SocketAddress::Tcp(address)) => Some(address),
            _ => None,
        }
    }

    /// Whether it is a TCP connection rather than a Unix socket.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        self.peer().is_some()
    }

    /// The process at the other end of a Unix socket; `None` for TCP. Costs a system call.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        if self.is_tcp() {
            return None;
        }
        PeerCredentials::of(&self.socket).ok()
    }

    /// Checks whether the peer is still there. Costs a system call. A peer that vanished without closing counts as
    /// present.
    #[must_use]
    pub fn presence(&self) -> Presence {
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::RDHUP)];
        loop {
            match poll(&mut watched, Some(&Timespec::default())) {
                Err(Errno::INTR) => {}
                // The kernel is short of memory. The next read decides.
                Err(_) => return Presence::Speaking,
                Ok(_) => break,
            }
        }
        let seen = watched[0].revents();
        if seen.intersects(PollFlags::HUP | PollFlags::ERR) {
            Presence::Gone
        } else if seen.contains(PollFlags::RDHUP) {
            Presence::HalfClosed
        } else if seen.contains(PollFlags::IN) {
            Presence::Speaking
        } else {
            Presence::Silent
        }
    }

    /// Returns the time since the last bytes of the peer arrived at this machine, read or unread. Before the first
    /// bytes, it is the age of the connection. `None` for a Unix socket. Costs a system call.
    #[must_use]
    pub fn since_arrival(&self) -> Option<Duration> {
        let is_tcp = self.is_tcp();
        is_tcp.then(|| tcp::since_arrival(&self.socket))?
    }

    /// Makes closing the stream discard unsent bytes and, over TCP, reset the connection rather than end it. For tests
    /// of vanishing peers, and for disconnecting a peer that does not read.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn reset_on_close(&self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(
            &self.socket,
            Some(Duration::ZERO),
        )?)
    }

    /// If the peer takes no bytes for this time, the kernel discards unsent bytes and ends the connection. Without this
    /// option the kernel keeps the bytes for minutes after a close. Does nothing for a Unix socket, which discards them
    /// at the close.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        if self.is_tcp() {
            let milliseconds = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
            sockopt::set_tcp_user_timeout(&self.socket, milliseconds)?;
        }
        Ok(())
    }

    /// Sets the size of the kernel's send buffer. The kernel doubles it for its own bookkeeping, cuts it to
    /// `net.core.wmem_max`, and stops adapting it to the connection.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn set_send_buffer_bytes(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size(&self.socket, bytes)?)
    }

    /// Sets the size of the kernel's receive buffer, like
    /// [`set_send_buffer_bytes`](Self::set_send_buffer_bytes), with `net.core.rmem_max`.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn set_receive_buffer_bytes(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.socket, bytes)?)
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl TryFrom<OwnedFd> for Stream {
    type Error = io::Error;

    /// Takes over a connected stream socket, for example one inherited from another process, and makes it non-blocking.
    fn try_from(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let peer = getpeername(&socket)?.and_then(|peer| SocketAddr::try_from(peer).ok());
        Ok(Self::accepted(socket, peer))
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        stream.socket
    }
}

/// A placeholder for the missing address of a stream.
fn unnamed() -> SocketAddress {
    SocketAddress::Unix(std::path::PathBuf::new())
}
