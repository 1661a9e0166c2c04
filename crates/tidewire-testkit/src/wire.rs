//! A blocking connection of any transport, with a deadline on every read: sockets from the standard library, or rings.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use std::sync::Arc;

use rustix::net::{self, AddressFamily, SocketType};
use tidewire::Endpoint;
use tidewire::address::WebSocketEndpoint;
use tidewire_io::socket::{SocketAddress, Stream};
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::layer::Layer;
use tidewire_proto::websocket::{ClientTerms, Masks, MessageKind, WebSocketLayer};

use crate::certificates;
use crate::datagram_wire::DatagramWire;
use crate::layered_wire::LayeredWire;
use crate::ring_wire::RingWire;
use crate::wait::DEADLINE;

/// One end of a connection, blocking.
#[derive(Debug)]
pub enum Wire {
    /// Over TCP, without Nagle's algorithm.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
    /// Within the process.
    Inproc(RingWire),
    /// Over UDP.
    Udp(DatagramWire),
    /// Any of them but UDP, with layers over it.
    Layered(Box<LayeredWire<Self>>),
}

impl Wire {
    /// Connects as a peer of this codec, which WebSocket names in its handshake.
    ///
    /// # Errors
    /// The errors of the system and of the handshakes.
    pub fn connect_as(endpoint: &Endpoint, codec: &AnyCodec) -> io::Result<Self> {
        match endpoint {
            Endpoint::WebSocket(at) => {
                let beneath = Endpoint::Tcp(at.address());
                Self::connect(&beneath)?.upgraded(at, codec)
            }
            endpoint => Self::connect(endpoint),
        }
    }

    /// Connects.
    ///
    /// # Errors
    /// The errors of the system. WebSocket is unsupported here.
    pub fn connect(endpoint: &Endpoint) -> io::Result<Self> {
        let wire = match endpoint {
            Endpoint::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
            Endpoint::Unix(path) => Self::Unix(UnixStream::connect(path)?),
            Endpoint::Inproc(name) => {
                Self::Inproc(RingWire::new(name.connect().map_err(io::Error::other)?))
            }
            Endpoint::Tls(address) => {
                return Self::connect(&Endpoint::Tcp(*address))?.sealed();
            }
            Endpoint::Udp(address) => Self::Udp(DatagramWire::connect(*address)?),
            other => return Err(unknown(other)),
        };
        wire.arm()
    }

    /// Whether each write is a separate message.
    #[must_use]
    pub fn preserves_boundaries(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    /// Connects with a receive buffer of this size, so that a peer that stops reading blocks the server soon.
    /// In-process rings have one size, which is small.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn connect_narrow(
        endpoint: &Endpoint,
        codec: &AnyCodec,
        receive_bytes: usize,
    ) -> io::Result<Self> {
        let address = match endpoint {
            Endpoint::Tcp(address) => SocketAddress::Tcp(*address),
            Endpoint::Unix(path) => SocketAddress::Unix(path.clone()),
            Endpoint::Tls(address) => {
                let beneath = Endpoint::Tcp(*address);
                return Self::connect_narrow(&beneath, codec, receive_bytes)?.sealed();
            }
            Endpoint::WebSocket(at) => {
                let beneath = Endpoint::Tcp(at.address());
                return Self::connect_narrow(&beneath, codec, receive_bytes)?.upgraded(at, codec);
            }
            Endpoint::Inproc(_) | Endpoint::Udp(_) => return Self::connect(endpoint),
            other => return Err(unknown(other)),
        };
        let stream = Stream::connect(&address).map_err(io::Error::other)?;
        stream.set_receive_buffer_bytes(receive_bytes)?;
        let descriptor = OwnedFd::from(stream);
        let wire = match address {
            SocketAddress::Tcp(_) => Self::Tcp(TcpStream::from(descriptor)),
            SocketAddress::Unix(_) => Self::Unix(UnixStream::from(descriptor)),
        };
        match &wire {
            Self::Tcp(stream) => stream.set_nonblocking(false)?,
            Self::Unix(stream) => stream.set_nonblocking(false)?,
            Self::Inproc(_) | Self::Udp(_) | Self::Layered(_) => {}
        }
        wire.arm()
    }

    /// Puts this many test layers over a new connection. With none it stays unchanged.
    ///
    /// # Errors
    /// The errors of the system and of the handshakes.
    pub fn layered(self, layers: u8) -> io::Result<Self> {
        match layers {
            0 => Ok(self),
            layers => Ok(Self::Layered(Box::new(LayeredWire::connect(self, layers)?))),
        }
    }

    /// Puts TLS over a new connection, which trusts the [usual](certificates::usual) authority.
    fn sealed(self) -> io::Result<Self> {
        let layers = vec![tls()?];
        Ok(Self::Layered(Box::new(LayeredWire::begin(self, layers)?)))
    }

    /// Puts WebSocket over a new connection, and TLS beneath it if the address has it.
    fn upgraded(self, at: &WebSocketEndpoint, codec: &AnyCodec) -> io::Result<Self> {
        let kind = match codec.format().is_text() {
            true => MessageKind::Text,
            false => MessageKind::Binary,
        };
        let host = at.address().to_string();
        let terms = ClientTerms::new(host, at.path(), codec.name(), kind);
        let terms = Arc::new(terms.ok_or(io::ErrorKind::InvalidInput)?);
        let masks = Masks::new([fastrand::u64(..), fastrand::u64(..)]);
        let mut layers = Vec::new();
        if at.is_tls() {
            layers.push(tls()?);
        }
        layers.push(Box::new(WebSocketLayer::connecting(terms, masks)));
        Ok(Self::Layered(Box::new(LayeredWire::begin(self, layers)?)))
    }

    /// A second handle to the same connection, for another thread.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Inproc(ring) => Self::Inproc(ring.clone()),
            Self::Udp(socket) => Self::Udp(socket.clone()),
            Self::Layered(layered) => {
                let socket = layered.socket().try_clone()?;
                Self::Layered(Box::new(layered.handle(socket)))
            }
        })
    }

    /// Announces that nothing more will be written.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn finish_writing(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Inproc(ring) => ring.shutdown_write(),
            Self::Udp(socket) => socket.finish_writing(),
            Self::Layered(layered) => {
                let socket = layered.socket().try_clone()?;
                layered.handle(socket).close()?;
                layered.socket().finish_writing()
            }
        }
    }

    /// Disappears: over TCP with a reset, over a Unix socket by closing with unread input, within the process by
    /// dropping the end, because a cut is impossible there, and over UDP without an end.
    ///
    /// # Errors
    /// The system refused the option.
    pub fn vanish(self) -> io::Result<()> {
        let stream = match self {
            Self::Tcp(stream) => Stream::try_from(OwnedFd::from(stream))?,
            Self::Unix(stream) => Stream::try_from(OwnedFd::from(stream))?,
            Self::Inproc(_) => return Ok(()),
            Self::Udp(socket) => return socket.vanish(),
            Self::Layered(layered) => return layered.into_socket().vanish(),
        };
        stream.reset_on_close()
    }

    /// Sets a deadline: a peer that never answers must fail a test with a description instead of blocking it.
    fn arm(self) -> io::Result<Self> {
        match &self {
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(DEADLINE))?;
                stream.set_write_timeout(Some(DEADLINE))?;
            }
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(DEADLINE))?;
                stream.set_write_timeout(Some(DEADLINE))?;
            }
            // A ring has the deadline built in, and a datagram socket was made with it.
            Self::Inproc(_) | Self::Udp(_) | Self::Layered(_) => {}
        }
        Ok(self)
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
            Self::Inproc(ring) => ring.read(buffer),
            Self::Udp(socket) => socket.read(buffer),
            Self::Layered(layered) => layered.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Inproc(ring) => ring.write(bytes),
            Self::Udp(socket) => socket.write(bytes),
            Self::Layered(layered) => layered.write(bytes),
        }
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(pieces),
            Self::Unix(stream) => stream.write_vectored(pieces),
            Self::Inproc(ring) => ring.write_vectored(pieces),
            Self::Udp(socket) => socket.write_vectored(pieces),
            Self::Layered(layered) => layered.write_vectored(pieces),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn tls() -> io::Result<Box<dyn Layer>> {
    let (authority, _) = certificates::usual();
    let tls = authority.client().layer("localhost", None);
    tls.map_err(io::Error::other)
}

fn unknown(endpoint: &Endpoint) -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        format!("the test kit does not know {endpoint}"),
    )
}

/// Connects over TCP from another address of this machine, such as 127.0.0.2.
///
/// # Errors
/// The errors of the system.
pub fn connect_from(source: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    net::bind(&socket, &SocketAddr::new(source, 0))?;
    net::connect(&socket, &to)?;
    Ok(TcpStream::from(socket))
}
