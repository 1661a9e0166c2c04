//! UDP: one peer's share of a socket that many peers use, or a client's own socket.
//!
//! All sessions of a server's lane send over the lane's socket, so none has a descriptor of its own to watch. The lane
//! watches the socket, receives datagrams in batches, and finds the session by the peer's address. A client's session
//! has a socket of its own, connected to its server. So it receives datagrams of its server only, and the system
//! reports a missing server.
//!
//! A session over UDP has state that a stream does not need: the ends of datagrams ([`Packing`]), and the bytes that an
//! unvalidated address may still be sent.

mod loops;
mod packing;

use std::io::{self, IoSlice};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tidewire_io::datagram::DatagramSocket;
use tidewire_io::poller::{Interest, Poller, PollerError, Token};
use tidewire_io::socket::SocketError;
use tidewire_proto::codec::{Codec, RequestIds};
use tidewire_proto::correlate::{Arrival, Arrivals, RecentIds};

use loops::LoopWatch;
pub(crate) use packing::Packing;

use super::Transport;
use crate::config::CodecNumber;

/// A UDP socket of a server, and the codec of its peers.
#[derive(Debug)]
pub(crate) struct BoundPort {
    socket: DatagramSocket,
    codec: CodecNumber,
}

impl BoundPort {
    pub(crate) fn new(socket: DatagramSocket, codec: CodecNumber) -> Self {
        Self { socket, codec }
    }

    pub(crate) fn into_parts(self) -> (DatagramSocket, CodecNumber) {
        (self.socket, self.codec)
    }
}

/// The peer of a session over UDP.
#[derive(Debug)]
pub(crate) struct DatagramPeer {
    socket: Arc<DatagramSocket>,
    address: SocketAddr,
    /// The address of this machine to which the peer sends.
    local: Option<IpAddr>,
    /// The index of the lane's socket. `None` if the session has a socket of its own.
    port: Option<usize>,
    /// Bytes that may still be sent to an unvalidated address.
    budget: Option<u64>,
    standing: Standing,
    loop_watch: LoopWatch,
    arrivals: Arrivals,
    /// The ids of its last requests. `None` before the first.
    recent: Option<Box<RecentIds>>,
    /// Datagrams that the kernel dropped at the session's own socket.
    kernel_drops: KernelDrops,
}

/// The validation of a peer's address over UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The address has answered a challenge, or is trusted, or the session has a socket of its own.
    Validated,
    /// The first datagram came at this time on the lane's clock.
    Unvalidated { since_ns: u64 },
    /// The address is not validated, but its peer has been sending for long.
    Established,
}

/// Counts the datagrams that the kernel dropped at one socket.
#[derive(Debug, Default)]
pub(crate) struct KernelDrops {
    /// The kernel's counter when it was last read.
    counted: u32,
    is_planned: bool,
}

impl DatagramPeer {
    /// A peer that has sent a datagram to a lane's socket.
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
            recent: None,
            kernel_drops: KernelDrops::default(),
        }
    }

    /// Limits what is sent to the peer to as many bytes as come from it, because its address is not validated.
    pub(crate) fn begin_unproven(&mut self) {
        self.budget = Some(0);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The index of the lane's socket. `None` if the session has a socket of its own.
    pub(crate) fn port(&self) -> Option<usize> {
        self.port
    }

    /// The socket that only this session has.
    pub(crate) fn own_socket(&self) -> Option<Arc<DatagramSocket>> {
        self.port.is_none().then(|| Arc::clone(&self.socket))
    }

    pub(crate) fn standing(&self) -> Standing {
        self.standing
    }

    /// Sets the standing. Returns the one before.
    pub(crate) fn set_standing(&mut self, standing: Standing) -> Standing {
        mem::replace(&mut self.standing, standing)
    }

    /// Whether the peer may be sent no more bytes than came from it.
    #[inline]
    pub(crate) fn is_unproven(&self) -> bool {
        self.budget.is_some()
    }

    /// Lets an unproven peer be sent as many bytes more as came from it.
    #[inline]
    pub(crate) fn allow(&mut self, bytes: usize) {
        if let Some(budget) = &mut self.budget {
            *budget = budget.saturating_add(bytes as u64);
        }
    }

    /// The part of `bytes` that may be sent now, in whole datagrams of `segment_bytes`.
    pub(crate) fn allowed(&self, segment_bytes: usize, bytes: usize) -> usize {
        self.budget.map_or(bytes, |budget| {
            let whole = budget - budget % segment_bytes as u64;
            usize::try_from(whole).unwrap_or(usize::MAX).min(bytes)
        })
    }

    pub(crate) fn note_sent(&mut self, bytes: u64) {
        if let Some(budget) = &mut self.budget {
            *budget -= bytes;
            self.loop_watch.note_answered();
        }
    }

    /// Checks a datagram of an unproven peer for a loop. Returns whether to drop the datagram.
    #[inline]
    pub(crate) fn is_looping<C: Codec + ?Sized>(&mut self, bytes: &[u8], codec: &C) -> bool {
        self.loop_watch.look(bytes, codec)
    }

    /// Notes the id of a request, which may be pending. Returns `None` for a copy of an earlier request.
    pub(crate) fn note_request(
        &mut self,
        ids: RequestIds,
        id: u32,
        is_pending: bool,
    ) -> Option<Arrival> {
        // A session that is never asked anything keeps no ids.
        let is_recent = ids == RequestIds::Bits32 && self.recent.get_or_insert_default().note(id);
        (!is_recent && !is_pending).then(|| self.arrivals.note(ids, id))
    }

    /// Plans a count of the drops at the session's own socket. Returns false if one is planned already.
    pub(crate) fn plan_drops(&mut self) -> bool {
        self.kernel_drops.plan()
    }

    /// Returns the drops at the session's own socket since the last call.
    pub(crate) fn take_drops(&mut self) -> u64 {
        self.kernel_drops.take(&self.socket)
    }

    /// Sends datagrams of one size. Returns the number of datagrams that the system accepted.
    pub(crate) fn send(&self, segment_bytes: usize, bytes: &[u8]) -> io::Result<usize> {
        self.socket
            .send_from(self.local, self.address, segment_bytes, bytes)
    }
}

impl KernelDrops {
    /// Plans a count of the drops. Returns false if one is planned already.
    pub(crate) fn plan(&mut self) -> bool {
        !mem::replace(&mut self.is_planned, true)
    }

    /// Returns the drops since the last call.
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
    /// Reads nothing: the lane receives datagrams in batches, for all peers of a socket at once.
    fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes.len().max(1), bytes).map(|_| bytes.len())
    }

    /// Sends the first piece as one datagram. The lane packs datagrams itself, so there is only one piece.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        pieces.first().map_or(Ok(0), |piece| self.write(piece))
    }

    /// Tells the peer the end of the output by an empty datagram.
    fn shutdown_write(&mut self) -> io::Result<()> {
        self.send(1, &[]).map(drop)
    }

    fn finish_connect(&self) -> Result<bool, SocketError> {
        Ok(true)
    }

    fn add(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
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
    ) -> Result<(), PollerError> {
        match self.port {
            Some(_) => Ok(()),
            None => poller.modify(self.as_fd(), token, interest),
        }
    }

    fn remove(&self, poller: &mut dyn Poller) -> Result<(), PollerError> {
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
