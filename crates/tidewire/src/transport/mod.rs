//! The transports of sessions, in one type that a session holds.
//!
//! # The contract
//!
//! A [`Transport`] is one end of a connection, owned by one lane and used on its thread only. An implementation
//! supplies a descriptor that the lane's poller can watch, and the calls below. No call blocks: it answers
//! `WouldBlock`, and the poller reports when it can go on. No byte is lost or reordered before the connection ends, and
//! everything that the peer wrote before its end can be read.
//!
//! - [`read`](Transport::read) answers 0 when the peer has ended its output, and `ConnectionReset` when the peer
//!   vanished.
//! - [`write`](Transport::write) and [`write_vectored`](Transport::write_vectored) accept the bytes for which there is
//!   room. If that is less than was offered, the lane waits for writability. `BrokenPipe` or `ConnectionReset` mean
//!   that the peer does not read.
//! - [`add`](Transport::add) and [`watch`](Transport::watch) set the events that the lane waits for.
//!   [`admit`](Transport::admit) translates an event of the poller. A socket needs no translation.
//! - [`is_dry_after_short_read`](Transport::is_dry_after_short_read): after a short read of a socket the lane skips the
//!   read that would answer `WouldBlock`. Where reading costs no system call, the lane reads until `WouldBlock`.
//! - [`step_bytes`](Transport::step_bytes): where writing costs no system call, the lane reads in small steps and
//!   writes after each, so that the peer handles the first replies while the lane handles the next requests.
//! - A transport whose reports cost its peer something may ask, by [`is_awake`](Transport::is_awake), to be called with
//!   [`finish_turn`](Transport::finish_turn) at the end of every turn, and do without reports until the lane sleeps.
//!
//! - If a socket has layers over it ([`layer`]), [`secure`](Transport::secure) runs their handshakes until the
//!   transport [is secured](Transport::is_secured). Before that, no frame is read or written. A write may accept more
//!   than the socket does: the rest is [pending](Transport::pending_bytes), counts as output, and
//!   [`flush`](Transport::flush) writes it.
//!
//! Datagrams are the exception in the contract: they may be lost and reordered, and they preserve boundaries. So the
//! lane receives and sends them itself ([`datagram`]), and uses such a transport only for the other calls.
//!
//! Listening is not part of the contract: the lane that watches a listener accepts its sockets, and an in-process
//! connection is posted to that lane. After that, both are counted and placed on lanes in the same way.
//!
//! The set of transports is closed and known, so [`AnyTransport`] is an enum: it costs one branch for each read or
//! write, and a read or write serves hundreds of messages. Rejected: a boxed trait object, which costs as much and
//! gains nothing, and a lane that is generic over its transport, because one lane serves several.

mod connect_error;
pub(crate) mod datagram;
pub(crate) mod inproc;
mod kernel;
mod layer;
mod listener;
mod socket;

use std::fmt;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use tidewire_io::poller::{Event, Interest, Poller, PollerError, Token};
use tidewire_io::ring::RingStream;
use tidewire_io::socket::{PeerCredentials, SocketError, Stream};
use tidewire_proto::connection::Delivery;
use tidewire_proto::layer::{CertificateNames, Encryption, Ending};

pub use connect_error::ConnectError;
use datagram::{DatagramPeer, Standing};
use inproc::{InprocStream, WaitingEnd};
use layer::LayeredStream;
pub(crate) use layer::{LayerFactory, Layers};
pub(crate) use listener::{Arrival, ListenerTerms, Proxies, StreamListener};

/// The transport of a session, for example by [`SessionView::transport`](crate::SessionView::transport).
///
/// ```
/// use tidewire::{Client, TransportKind};
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, _| {
///     match cx.session().transport() {
///         Some(TransportKind::Ipc | TransportKind::Inproc) => cx.reply(b"the same machine"),
///         _ => cx.reply(b"perhaps another machine"),
///     }
/// })?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"where am I?").wait()?.payload(), b"perhaps another machine");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportKind {
    /// TCP.
    Tcp,
    /// A Unix socket.
    Ipc,
    /// Byte rings within the process.
    Inproc,
    /// UDP.
    Udp,
}

/// The transport of one session.
#[derive(Debug)]
pub(crate) enum AnyTransport {
    /// TCP or a Unix socket.
    Socket(Stream),
    /// A socket with layers such as TLS over it.
    Layered(Box<LayeredStream>),
    /// A pair of rings within this process. Boxed, because a session of a socket needs a tenth of its size.
    Inproc(Box<InprocStream>),
    /// A peer's share of a UDP socket, or a UDP socket of its own. Boxed for the same reason.
    Datagram(Box<DatagramPeer>),
}

/// The calls that a lane makes on a transport. See the contract of the module.
pub(crate) trait Transport: AsFd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize>;

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize>;

    fn shutdown_write(&mut self) -> io::Result<()>;

    /// Whether the connection is made. The lane asks when the poller or another lane has reported it.
    fn finish_connect(&self) -> Result<bool, SocketError>;

    fn add(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        poller.add(self.as_fd(), token, interest)
    }

    /// Replaces the interest of the poller.
    fn watch(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        poller.modify(self.as_fd(), token, interest)
    }

    /// Removes the descriptor from the poller.
    fn remove(&self, poller: &mut dyn Poller) -> Result<(), PollerError> {
        poller.remove(self.as_fd())
    }

    /// Translates an event of the poller.
    fn admit(&mut self, event: Event) -> Event {
        event
    }

    fn is_dry_after_short_read(&self) -> bool {
        true
    }

    /// Bytes to read before the lane writes the replies to them.
    fn step_bytes(&self) -> usize {
        usize::MAX
    }

    /// Whether [`finish_turn`](Self::finish_turn) must be called at the end of the turn.
    fn is_awake(&self) -> bool {
        false
    }

    /// Handles the end of a turn. `sleeps` says whether the lane is about to sleep. Returns whether there are bytes to
    /// read first.
    fn finish_turn(&mut self, sleeps: bool) -> bool {
        let _ = sleeps;
        false
    }

    /// Whether there are layers between the network and the lane.
    fn has_layers(&self) -> bool {
        false
    }

    /// Marks the transport as awake if plaintext is left in the layers. Returns whether it was not awake before.
    fn wake(&mut self) -> bool {
        false
    }

    /// Whether the handshakes of all layers are over.
    fn is_secured(&self) -> bool {
        true
    }

    /// Continues the handshakes of the layers. Returns whether they are over. If not, call it again at the next event.
    fn secure(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Whether a layer has pings, which the peer answers.
    fn has_pings(&self) -> bool {
        false
    }

    /// Lets the layers ask the peer for an answer. The record is among the pending bytes.
    fn ping(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Whether bytes came from the network since the last call that need not be plaintext, such as the answer to a
    /// ping.
    fn take_heard(&mut self) -> bool {
        false
    }

    /// Bytes that wait for the socket: a write has accepted them, or the layers have made them.
    fn pending_bytes(&self) -> usize {
        0
    }

    /// The memory of the layers and of their buffers, in bytes.
    fn memory_bytes(&self) -> usize {
        0
    }

    /// The names in the peer's certificate, if a layer has verified one.
    fn certificate(&self) -> Option<&CertificateNames> {
        None
    }

    /// The client that proxies named in the peer's handshake, if a layer knows one.
    fn forwarded_client(&self, is_listed: &dyn Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let _ = is_listed;
        None
    }

    /// The place of the codec that the peer chose in the handshake of a layer, if that left a choice.
    fn chosen_protocol(&self) -> Option<usize> {
        None
    }

    /// How a layer encrypts the connection. `None` if none does.
    fn encryption(&self) -> Option<Encryption> {
        None
    }

    /// Writes the pending bytes. `WouldBlock` means that some of them still wait.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::Ipc => "ipc",
            Self::Inproc => "inproc",
            Self::Udp => "udp",
        })
    }
}

impl AnyTransport {
    /// The end of a ring, if it is one.
    pub(crate) fn as_inproc(&mut self) -> Option<&mut InprocStream> {
        match self {
            Self::Inproc(stream) => Some(stream),
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> TransportKind {
        match (self, self.socket()) {
            (Self::Inproc(_), _) => TransportKind::Inproc,
            (Self::Datagram(_), _) => TransportKind::Udp,
            (_, Some(stream)) if stream.is_tcp() => TransportKind::Tcp,
            _ => TransportKind::Ipc,
        }
    }

    /// The number of system calls that a read or write makes.
    #[inline]
    pub(crate) fn system_calls(&self) -> u64 {
        match self {
            Self::Socket(_) | Self::Layered(_) | Self::Datagram(_) => 1,
            Self::Inproc(_) => 0,
        }
    }

    /// The socket of this connection alone, if it has one.
    fn socket(&self) -> Option<&Stream> {
        match self {
            Self::Socket(stream) => Some(stream),
            Self::Layered(layered) => Some(layered.stream()),
            Self::Inproc(_) | Self::Datagram(_) => None,
        }
    }

    /// The process, user and group of the peer. Only Unix sockets have them, and reading them costs a system call.
    pub(crate) fn peer_credentials(&self) -> Option<PeerCredentials> {
        self.socket().and_then(Stream::peer_credentials)
    }

    /// Whether the next bytes of the peer may cost a signature or the like.
    pub(crate) fn awaits_costly_bytes(&self) -> bool {
        matches!(self, Self::Layered(layered) if layered.awaits_costly_bytes())
    }

    /// Returns the part that a layer refused of the peer's handshake, for the log.
    pub(crate) fn refused_part(&self) -> Option<&str> {
        match self {
            Self::Layered(layered) => layered.refused_part(),
            _ => None,
        }
    }

    /// The end that waits for a server of this process.
    pub(crate) fn waiting(&self) -> Option<&WaitingEnd> {
        match self {
            Self::Socket(_) | Self::Layered(_) | Self::Datagram(_) => None,
            Self::Inproc(stream) => stream.waiting(),
        }
    }

    /// Whether the transport may lose messages.
    #[inline]
    pub(crate) fn delivery(&self) -> Delivery {
        match self.datagram() {
            None => Delivery::Reliable,
            Some(_) => Delivery::Lossy,
        }
    }

    /// The peer, if messages travel as datagrams.
    #[inline]
    pub(crate) fn datagram(&self) -> Option<&DatagramPeer> {
        match self {
            Self::Datagram(peer) => Some(peer),
            Self::Socket(_) | Self::Layered(_) | Self::Inproc(_) => None,
        }
    }

    /// As [`Self::datagram`], by mutable reference.
    #[inline]
    pub(crate) fn datagram_mut(&mut self) -> Option<&mut DatagramPeer> {
        match self {
            Self::Datagram(peer) => Some(peer),
            Self::Socket(_) | Self::Layered(_) | Self::Inproc(_) => None,
        }
    }

    /// Whether messages travel whole, as datagrams, which may be lost and reordered.
    #[inline]
    pub(crate) fn preserves_boundaries(&self) -> bool {
        self.datagram().is_some()
    }

    /// Whether the peer's address may be sent no more bytes than came from it.
    pub(crate) fn is_unproven(&self) -> bool {
        let peer = self.datagram();
        peer.is_some_and(DatagramPeer::is_unproven)
    }

    /// Whether the peer's address is unvalidated.
    pub(crate) fn is_unvalidated(&self) -> bool {
        let peer = self.datagram();
        peer.is_some_and(|peer| matches!(peer.standing(), Standing::Unvalidated { .. }))
    }

    /// Notes that a server has taken the other end.
    pub(crate) fn set_placed(&mut self) {
        match self {
            Self::Socket(_) | Self::Layered(_) | Self::Datagram(_) => {}
            Self::Inproc(stream) => stream.set_placed(),
        }
    }
}

/// Calls the transport of a connection.
macro_rules! each {
    ($transport:expr, $stream:ident => $call:expr) => {
        match $transport {
            AnyTransport::Socket($stream) => $call,
            AnyTransport::Layered($stream) => $call,
            AnyTransport::Inproc($stream) => $call,
            AnyTransport::Datagram($stream) => $call,
        }
    };
}

impl AnyTransport {
    /// Ends this side's output. Layers tell the peer why.
    pub(crate) fn end_output(&mut self, why: Ending) -> io::Result<()> {
        if let Self::Layered(layered) = self {
            layered.set_ending(why);
        }
        self.shutdown_write()
    }
}

impl Transport for AnyTransport {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        each!(self, stream => stream.read(buffer))
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        each!(self, stream => stream.write(bytes))
    }

    #[inline]
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        each!(self, stream => stream.write_vectored(pieces))
    }

    fn shutdown_write(&mut self) -> io::Result<()> {
        each!(self, stream => stream.shutdown_write())
    }

    fn finish_connect(&self) -> Result<bool, SocketError> {
        match self {
            Self::Socket(stream) => Transport::finish_connect(stream),
            Self::Layered(layered) => layered.finish_connect(),
            Self::Inproc(stream) => stream.finish_connect(),
            Self::Datagram(peer) => peer.finish_connect(),
        }
    }

    fn add(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        each!(self, stream => stream.add(poller, token, interest))
    }

    fn watch(
        &mut self,
        poller: &mut dyn Poller,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        each!(self, stream => stream.watch(poller, token, interest))
    }

    fn remove(&self, poller: &mut dyn Poller) -> Result<(), PollerError> {
        each!(self, stream => stream.remove(poller))
    }

    #[inline]
    fn admit(&mut self, event: Event) -> Event {
        each!(self, stream => stream.admit(event))
    }

    #[inline]
    fn is_dry_after_short_read(&self) -> bool {
        match self {
            Self::Socket(_) | Self::Datagram(_) => true,
            Self::Layered(layered) => layered.is_dry_after_short_read(),
            Self::Inproc(stream) => stream.is_dry_after_short_read(),
        }
    }

    #[inline]
    fn step_bytes(&self) -> usize {
        each!(self, stream => stream.step_bytes())
    }

    #[inline]
    fn is_awake(&self) -> bool {
        match self {
            Self::Layered(layered) => layered.is_awake(),
            Self::Inproc(stream) => stream.is_awake(),
            Self::Socket(_) | Self::Datagram(_) => false,
        }
    }

    #[inline]
    fn finish_turn(&mut self, sleeps: bool) -> bool {
        each!(self, stream => stream.finish_turn(sleeps))
    }

    #[inline]
    fn has_layers(&self) -> bool {
        matches!(self, Self::Layered(_))
    }

    fn wake(&mut self) -> bool {
        each!(self, stream => stream.wake())
    }

    fn is_secured(&self) -> bool {
        each!(self, stream => stream.is_secured())
    }

    fn secure(&mut self) -> io::Result<bool> {
        each!(self, stream => stream.secure())
    }

    fn has_pings(&self) -> bool {
        each!(self, stream => stream.has_pings())
    }

    fn ping(&mut self) -> io::Result<()> {
        each!(self, stream => stream.ping())
    }

    #[inline]
    fn take_heard(&mut self) -> bool {
        match self {
            Self::Layered(layered) => layered.take_heard(),
            _ => false,
        }
    }

    #[inline]
    fn pending_bytes(&self) -> usize {
        match self {
            Self::Layered(layered) => layered.pending_bytes(),
            _ => 0,
        }
    }

    #[inline]
    fn memory_bytes(&self) -> usize {
        match self {
            Self::Layered(layered) => layered.memory_bytes(),
            _ => 0,
        }
    }

    fn certificate(&self) -> Option<&CertificateNames> {
        each!(self, stream => stream.certificate())
    }

    fn forwarded_client(&self, is_listed: &dyn Fn(IpAddr) -> bool) -> Option<IpAddr> {
        each!(self, stream => stream.forwarded_client(is_listed))
    }

    fn chosen_protocol(&self) -> Option<usize> {
        each!(self, stream => stream.chosen_protocol())
    }

    fn encryption(&self) -> Option<Encryption> {
        each!(self, stream => stream.encryption())
    }

    fn flush(&mut self) -> io::Result<()> {
        each!(self, stream => stream.flush())
    }
}

impl AsFd for AnyTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(self, stream => stream.as_fd())
    }
}

impl From<Stream> for AnyTransport {
    fn from(stream: Stream) -> Self {
        Self::Socket(stream)
    }
}

impl From<DatagramPeer> for AnyTransport {
    fn from(peer: DatagramPeer) -> Self {
        Self::Datagram(Box::new(peer))
    }
}

impl From<RingStream> for AnyTransport {
    fn from(ring: RingStream) -> Self {
        Self::Inproc(Box::new(ring.into()))
    }
}
