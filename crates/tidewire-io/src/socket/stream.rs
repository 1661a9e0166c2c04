//! One connection.
//!
//! Reading and writing are single system calls with no state beside the descriptor; whatever must be
//! remembered between calls belongs to the session.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketType, connect,
    getpeername, getsockname, recv, send, sendmsg, shutdown, socketpair, sockopt,
};

use super::{FLAGS, PeerCredentials, SocketAddress, SocketOptions, StreamConnectError};

/// A non-blocking stream socket, connected or connecting.
#[derive(Debug)]
pub struct Stream {
    socket: OwnedFd,
    /// Where it was connected to, or where it was accepted from; none for what has no address.
    peer: Option<SocketAddress>,
}

impl Stream {
    /// Begins to connect. The stream becomes writable when that is decided; ask
    /// [`finish_connect`](Self::finish_connect) then how.
    ///
    /// # Errors
    ///
    /// [`StreamConnectError`] when it is refused at once, as Unix sockets and loopback often do.
    pub fn connect(address: &SocketAddress) -> Result<Self, StreamConnectError> {
        Self::connect_with(address, &SocketOptions::default())
    }

    /// As [`connect`](Self::connect), with options of its own.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and [`StreamConnectError::Options`] when the options cannot be.
    pub fn connect_with(
        address: &SocketAddress,
        options: &SocketOptions,
    ) -> Result<Self, StreamConnectError> {
        let failed = |cause| StreamConnectError::new(address, cause);
        let socket = address.socket().map_err(failed)?;
        let unusable = |source| StreamConnectError::Options {
            address: address.clone(),
            source,
        };
        options.apply(&socket, address).map_err(unusable)?;
        let kernel = address.to_kernel().map_err(failed)?;
        match connect(&socket, &kernel) {
            // An interrupted connect goes on by itself, like one that is in progress.
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(Self {
                socket,
                peer: Some(address.clone()),
            }),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// How a connection begun with [`connect`](Self::connect) turned out. Ask once the stream is writable.
    ///
    /// # Errors
    ///
    /// [`StreamConnectError::InProgress`] when it is not decided; any other variant when it failed.
    pub fn finish_connect(&self) -> Result<(), StreamConnectError> {
        let address = self.peer.clone().unwrap_or_else(unnamed);
        let failed = |cause| StreamConnectError::new(&address, cause);
        sockopt::socket_error(&self.socket)
            .and_then(|outcome| outcome)
            .map_err(failed)?;
        let peer = match getpeername(&self.socket) {
            Ok(peer) => peer,
            Err(Errno::NOTCONN) => return Err(StreamConnectError::InProgress { address }),
            Err(cause) => return Err(failed(cause)),
        };
        // Where nobody listens on a port the system also hands out, TCP may connect a socket to itself:
        // a client that keeps trying while its server is down would become its own peer.
        if let SocketAddress::Tcp(_) = address
            && getsockname(&self.socket).ok() == peer
        {
            return Err(failed(Errno::CONNREFUSED));
        }
        Ok(())
    }

    /// Two connected Unix sockets without a name, for tests and for talking within a process.
    ///
    /// # Errors
    ///
    /// The kernel's refusal, as a rule because descriptors are used up.
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

    /// Reads what is there, up to the size of the buffer; 0 means that the peer sends no more.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing is there; `ConnectionReset` when the peer vanished.
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

    /// Writes as much as there is room for and returns how much.
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

    /// Writes several pieces in order with one system call, as much as there is room for, and returns how
    /// much. At most [`Stream::PIECES_MAX`] pieces are looked at; the rest counts as not written.
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

    /// The most pieces the kernel takes at once (`IOV_MAX`).
    pub const PIECES_MAX: usize = 1_024;

    /// Tells the peer that nothing more will be sent; what it sends can still be read.
    ///
    /// # Errors
    ///
    /// `NotConnected` when the peer is gone already.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(shutdown(&self.socket, Shutdown::Write)?)
    }

    /// The IP address of the peer; none for Unix sockets.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        match self.peer {
            Some(SocketAddress::Tcp(address)) => Some(address),
            _ => None,
        }
    }

    /// The peer for a log line: its address, or for a client of a Unix socket the process it was when it
    /// connected. Costs a system call for the latter.
    #[must_use]
    pub fn peer_text(&self) -> String {
        match &self.peer {
            Some(address) => address.to_string(),
            None => self.peer_credentials().map_or_else(
                || "ipc (unknown peer)".to_owned(),
                |credentials| format!("ipc (process {})", credentials.process_id),
            ),
        }
    }

    /// Whether it is a TCP connection, and not one of a Unix socket.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        self.peer().is_some()
    }

    /// Who is at the other end of a Unix socket; none for TCP. Costs a system call.
    #[must_use]
    pub fn peer_credentials(&self) -> Option<PeerCredentials> {
        if self.is_tcp() {
            return None;
        }
        PeerCredentials::of(&self.socket).ok()
    }

    /// Whether small writes are sent at once (true by default) or held back to be joined (Nagle's
    /// algorithm). Only TCP has the option.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a Unix socket.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        Ok(sockopt::set_tcp_nodelay(&self.socket, nodelay)?)
    }

    /// Makes closing the stream discard what is unsent and, over TCP, reset the connection rather than
    /// end it. For tests of vanishing peers, and for throwing out one that will not read.
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

    /// Takes over a connected stream socket, for example one inherited from another process, and makes it
    /// non-blocking.
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

/// Stands for the missing address of a stream that was never connected to one.
fn unnamed() -> SocketAddress {
    SocketAddress::Unix(std::path::PathBuf::new())
}
