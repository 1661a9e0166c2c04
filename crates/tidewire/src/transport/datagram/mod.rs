//! UDP: one peer's share of a socket that many peers use, or a client's own socket.
//!
//! A server's sessions all send over the one socket of their lane, so none of them has a descriptor to watch; the lane
//! watches the socket, takes what arrives in batches and finds the session by its peer's address. A client's session has a socket of its own, connected to its server, so that strangers
//! do not reach it and a server that is not there is noticed.
//!
//! What a stream does by itself is kept here: where datagrams end ([`Packing`]), what an address that has not
//! proved itself may still be sent.

mod loops;
mod packing;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tidewire_io::datagram::DatagramSocket;
use tidewire_io::poller::{Interest, Poller, RegisterError, Token};
use tidewire_io::socket::StreamConnectError;
use tidewire_proto::correlate::Arrivals;

pub(crate) use loops::LoopWatch;
pub(crate) use packing::Packing;

use super::Transport;

/// The peer of a session over UDP.
#[derive(Debug)]
pub(crate) struct DatagramPeer {
    pub(crate) socket: Arc<DatagramSocket>,
    pub(crate) address: SocketAddr,
    /// Which of this machine's addresses the peer knows.
    local: Option<IpAddr>,
    /// The lane's socket that it shares, if it has none of its own.
    pub(crate) port: Option<usize>,
    /// Bytes that may still be sent to an address that has not proved itself.
    pub(crate) budget: Option<u64>,
    pub(crate) standing: Standing,
    pub(crate) loop_watch: LoopWatch,
    pub(crate) arrivals: Arrivals,
    /// What the kernel threw away at a socket of its own.
    pub(crate) kernel_drops: KernelDrops,
}

/// How far the address of a session over UDP is validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It has answered a challenge, or is trusted, or the session's socket is its own.
    Validated,
    /// It has been heard since then, on the lane's clock.
    Unvalidated { since_ns: u64 },
    /// It goes on talking.
    Established,
}

/// The drops of one socket, as far as they were counted.
#[derive(Debug, Default)]
pub(crate) struct KernelDrops {
    /// What the kernel had dropped when it was last asked.
    counted: u32,
    pub(crate) is_planned: bool,
}

impl DatagramPeer {
    /// A peer that sent something to a lane's socket.
    pub(crate) fn at_port(
        socket: Arc<DatagramSocket>,
        port: usize,
        address: SocketAddr,
        local: Option<IpAddr>,
    ) -> Self {
        Self {
            local,
            port: Some(port),
            ..Self::connected(socket, address)
        }
    }

    /// A server that the socket is connected to.
    pub(crate) fn connected(socket: Arc<DatagramSocket>, address: SocketAddr) -> Self {
        Self {
            socket,
            address,
            local: None,
            port: None,
            budget: None,
            standing: Standing::Validated,
            loop_watch: LoopWatch::default(),
            arrivals: Arrivals::default(),
            kernel_drops: KernelDrops::default(),
        }
    }

    /// Sends datagrams of one size. Returns how many were taken.
    pub(crate) fn send(&self, segment_bytes: usize, bytes: &[u8]) -> io::Result<usize> {
        self.socket
            .send_from(self.local, self.address, segment_bytes, bytes)
    }
}

impl KernelDrops {
    /// Drops since the kernel was last asked.
    pub(crate) fn take(&mut self, socket: &DatagramSocket) -> u64 {
        self.is_planned = false;
        let Ok(drops) = socket.kernel_drops() else {
            return 0;
        };
        let more = drops.wrapping_sub(self.counted);
        self.counted = drops;
        u64::from(more)
    }
}

impl Transport for DatagramPeer {
    /// Nothing: the lane takes datagrams in batches, for all peers of a socket at once.
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Sends one datagram.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes.len().max(1), bytes).map(|_| bytes.len())
    }

    /// Sends the first piece as one datagram. The lane packs datagrams itself, so that there is one piece only.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        pieces.first().map_or(Ok(0), |piece| self.write(piece))
    }

    /// Tells the peer that nothing follows, with an empty datagram.
    fn shutdown_write(&mut self) -> io::Result<()> {
        self.send(1, &[]).map(drop)
    }

    fn finish_connect(&self) -> Result<bool, StreamConnectError> {
        Ok(true)
    }

    fn add(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), RegisterError> {
        match self.port {
            // The lane watches it already.
            Some(_) => Ok(()),
            None => poller.add(self.as_fd(), token, interest),
        }
    }

    fn watch(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), RegisterError> {
        match self.port {
            Some(_) => Ok(()),
            None => poller.modify(self.as_fd(), token, interest),
        }
    }

    fn remove(&self, poller: &mut dyn Poller) -> Result<(), RegisterError> {
        match self.port {
            Some(_) => Ok(()),
            None => poller.remove(self.as_fd()),
        }
    }
}

impl AsFd for DatagramPeer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
