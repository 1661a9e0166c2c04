//! An address that is ready for use.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tidewire_io::socket::SocketAddress;

use super::{Address, AddressKind, InprocName, Parameters, WebSocketEndpoint};

/// An address that is ready for use: a host name is resolved, and port 0 is replaced by the real port of a listener.
/// [`Address`] has an example.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Endpoint {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port with TLS.
    Tls(SocketAddr),
    /// A TCP port with WebSocket, and maybe TLS beneath it.
    WebSocket(WebSocketEndpoint),
    /// A UDP port.
    Udp(SocketAddr),
    /// A name within this process.
    Inproc(InprocName),
}

impl Endpoint {
    /// The address of the socket over TCP or UDP. `None` for a Unix socket and a name within this process.
    #[must_use]
    pub fn socket_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) | Self::Tls(address) | Self::Udp(address) => Some(*address),
            Self::WebSocket(at) => Some(at.address()),
            Self::Unix(_) | Self::Inproc(_) => None,
        }
    }

    /// The scheme of the address: `tcp`, `tls`, `ws`, `wss`, `udp`, `ipc` or `inproc`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Unix(_) => "ipc",
            Self::Tls(_) => "tls",
            Self::WebSocket(at) if at.is_tls() => "wss",
            Self::WebSocket(_) => "ws",
            Self::Udp(_) => "udp",
            Self::Inproc(_) => "inproc",
        }
    }

    /// Whether only this machine is at the other end: a loopback address, a Unix socket or an in-process name.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let address = self.socket_address();
        address.is_none_or(|it| it.ip().to_canonical().is_loopback())
    }

    /// Whether two sockets cannot listen at these endpoints at the same time: they have the same port, and an address
    /// that both take. `[::]` takes the addresses of IPv4, too.
    ///
    /// ```
    /// use tidewire::address::Address;
    ///
    /// let at = |text: &str| text.parse::<Address>().unwrap().resolve().unwrap();
    /// assert!(at("tcp://127.0.0.1:80").excludes(&at("ws://0.0.0.0:80/")));
    /// assert!(!at("tcp://127.0.0.1:80").excludes(&at("udp://127.0.0.1:80")));
    /// ```
    #[must_use]
    pub fn excludes(&self, other: &Self) -> bool {
        let is_udp = |it: &Self| matches!(it, Self::Udp(_));
        let (Some(one), Some(two)) = (self.socket_address(), other.socket_address()) else {
            return self == other;
        };
        let takes =
            |one: IpAddr, two: IpAddr| one.is_unspecified() && (one.is_ipv6() || two.is_ipv4());
        let (port, one_ip, two_ip) = (one.port(), one.ip(), two.ip());
        let shares_address = one_ip == two_ip || takes(one_ip, two_ip) || takes(two_ip, one_ip);
        port != 0 && port == two.port() && is_udp(self) == is_udp(other) && shares_address
    }

    /// Whether a socket at this address, `[::]`, has to leave IPv4 to one at the other address, `0.0.0.0`, because both
    /// have the same port. Otherwise the two could not be bound, or only in one order.
    ///
    /// ```
    /// use tidewire::address::Address;
    ///
    /// let at = |text: &str| text.parse::<Address>().unwrap().resolve().unwrap();
    /// assert!(at("tcp://[::]:80").leaves_ipv4_to(&at("tcp://0.0.0.0:80")));
    /// assert!(!at("tcp://[::]:80").leaves_ipv4_to(&at("tcp://0.0.0.0:81")));
    /// ```
    #[must_use]
    pub fn leaves_ipv4_to(&self, other: &Self) -> bool {
        let is_everywhere = |it: &Self, is_family: fn(&SocketAddr) -> bool| {
            let address = it.socket_address();
            address.is_some_and(|it| is_family(&it) && it.ip().is_unspecified())
        };
        is_everywhere(self, SocketAddr::is_ipv6)
            && is_everywhere(other, SocketAddr::is_ipv4)
            && self.excludes(other)
    }

    pub(crate) fn of_stream(address: SocketAddress) -> Self {
        match address {
            SocketAddress::Tcp(address) => Self::Tcp(address),
            SocketAddress::Unix(path) => Self::Unix(path),
        }
    }

    pub(crate) fn with_port(self, port: u16) -> Self {
        let at = |mut address: SocketAddr| {
            address.set_port(port);
            address
        };
        match self {
            Self::Tcp(address) => Self::from(at(address)),
            Self::Tls(address) => Self::Tls(at(address)),
            Self::Udp(address) => Self::Udp(at(address)),
            Self::WebSocket(endpoint) => endpoint.with_port(port).into(),
            Self::Unix(_) | Self::Inproc(_) => self,
        }
    }

    /// Whether connections are encrypted by TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        match self {
            Self::Tls(_) => true,
            Self::WebSocket(at) => at.is_tls(),
            _ => false,
        }
    }
}

impl From<Endpoint> for Address {
    fn from(endpoint: Endpoint) -> Self {
        let kind = match endpoint {
            Endpoint::Tcp(address) => AddressKind::Tcp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            Endpoint::Tls(address) => AddressKind::Tls {
                host: address.ip().to_string(),
                port: address.port(),
            },
            Endpoint::WebSocket(at) => AddressKind::WebSocket {
                host: at.address().ip().to_string(),
                port: at.address().port(),
                path: at.web_path().clone(),
                is_tls: at.is_tls(),
            },
            Endpoint::Udp(address) => AddressKind::Udp {
                host: address.ip().to_string(),
                port: address.port(),
            },
            Endpoint::Unix(path) => AddressKind::Ipc(path),
            Endpoint::Inproc(name) => AddressKind::Inproc(name),
        };
        let parameters = Parameters::default();
        Self { kind, parameters }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<WebSocketEndpoint> for Endpoint {
    fn from(endpoint: WebSocketEndpoint) -> Self {
        Self::WebSocket(endpoint)
    }
}

impl From<PathBuf> for Endpoint {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl From<InprocName> for Endpoint {
    fn from(name: InprocName) -> Self {
        Self::Inproc(name)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "tcp://{address}"),
            Self::Unix(path) => write!(formatter, "ipc://{}", path.display()),
            Self::Tls(address) => write!(formatter, "tls://{address}"),
            Self::WebSocket(at) => at.fmt(formatter),
            Self::Udp(address) => write!(formatter, "udp://{address}"),
            Self::Inproc(name) => name.fmt(formatter),
        }
    }
}
