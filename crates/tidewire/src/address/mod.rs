//! Addresses: one string picks the transport.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use tidewire_io::socket::SocketAddress;
use tidewire_proto::codec::{AnyCodec, StreamFraming};

mod endpoint;
mod error;
mod inproc_name;
mod parameters;
mod successor;
mod websocket;

pub use endpoint::Endpoint;
pub use error::AddressError;
pub use inproc_name::InprocName;
pub(crate) use inproc_name::NAME_BYTES_MAX;
use parameters::Parameters;
pub use successor::Successor;
pub use websocket::WebSocketEndpoint;
use websocket::{WebPath, parse_path};

/// Where to listen or connect: `tcp://HOST:PORT`, `tls://HOST:PORT`, `ws://HOST:PORT/PATH`, `wss://HOST:PORT/PATH`,
/// `udp://HOST:PORT`, `ipc://PATH` or `inproc://NAME`. `HOST:PORT` alone means TCP. `tls://` means TLS over TCP,
/// `ws://` WebSocket over TCP, and `wss://` WebSocket over TLS. A WebSocket without a path has the path `/`.
///
/// The host `*` listens on every IPv4 address, and `[::]` on every IPv6 address too, unless the same server listens on
/// every IPv4 address at the same port. Port 0 asks the system for a free port. A host name may have several addresses:
/// a server takes the first that this machine has, and at `localhost` both loopback addresses; a client keeps the first
/// that accepts. A path that begins with `@` is a name in Linux's abstract namespace: it has no file, and every user of
/// the machine may connect to it. An in-process name is known in its own process only.
///
/// A tcp, tls or ipc address may end with `?framing=none` or `?framing=length`. It says how a stream separates frames,
/// for a codec that leaves the choice. For example, the original implementation of UVRPC writes a length in front of
/// each frame over TCP, and none over Unix sockets. Each address that a server listens on may have its own setting.
/// Without one, the codec's setting holds. An [`Endpoint`] does not keep it.
///
/// Each address but `inproc://` may also end with `?codec=NAME`, or `?codec=NAME&framing=none`, with a name that
/// [`AnyCodec::by_name`] knows. A server then speaks this codec there, and a client with this server. A server may have
/// several codecs at a WebSocket address, as `?codec=json&codec=tw1`, of which each client chooses one by its
/// subprotocol.
///
/// ```
/// use tidewire::address::{Address, AddressError};
/// use tidewire::Endpoint;
///
/// let address: Address = "127.0.0.1:8080".parse()?;
/// assert_eq!(address.to_string(), "tcp://127.0.0.1:8080");
/// assert!(matches!(address.resolve()?, Endpoint::Tcp(_)));
/// let error = "tcp://127.0.0.1".parse::<Address>().unwrap_err();
/// assert!(matches!(error, AddressError::BadPort { .. }));
/// # Ok::<(), AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    kind: AddressKind,
    parameters: Parameters,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AddressKind {
    Tcp {
        host: String,
        port: u16,
    },
    Tls {
        host: String,
        port: u16,
    },
    WebSocket {
        host: String,
        port: u16,
        path: WebPath,
        is_tls: bool,
    },
    Udp {
        host: String,
        port: u16,
    },
    Ipc(PathBuf),
    Inproc(InprocName),
}

impl Address {
    /// Resolves the address to the first endpoint of [`resolve_all`](Self::resolve_all). Blocks while it resolves a
    /// host name.
    ///
    /// # Errors
    /// [`AddressError::Unresolved`] if the host is unknown, and [`AddressError::NoZone`] if it is a link-local address
    /// of IPv6 without an interface.
    pub fn resolve(&self) -> Result<Endpoint, AddressError> {
        // `resolve_all` never returns an empty list.
        Ok(self.resolve_all()?.swap_remove(0))
    }

    /// Resolves the address to all its endpoints, in the order in which to try them: one or more. Only a host name may
    /// have several. Blocks while it resolves a host name.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve).
    pub fn resolve_all(&self) -> Result<Vec<Endpoint>, AddressError> {
        Ok(vec![match &self.kind {
            AddressKind::Inproc(name) => Endpoint::Inproc(name.clone()),
            AddressKind::Ipc(path) => Endpoint::Unix(path.clone()),
            AddressKind::Tcp { host, port } => return resolve_host(host, *port, Endpoint::from),
            AddressKind::Tls { host, port } => return resolve_host(host, *port, Endpoint::Tls),
            AddressKind::WebSocket {
                host,
                port,
                path,
                is_tls,
            } => {
                let at = |address| WebSocketEndpoint::new(address, path, *is_tls).into();
                return resolve_host(host, *port, at);
            }
            AddressKind::Udp { host, port } => return resolve_host(host, *port, Endpoint::Udp),
        }])
    }
}

impl Address {
    /// The endpoints for a server, in the order of attempts, and whether the server listens at all of the machine's
    /// endpoints or only at the first. Blocks as [`resolve_all`](Self::resolve_all).
    pub(crate) fn resolve_to_listen(&self) -> Result<(Vec<Endpoint>, bool), AddressError> {
        let is_localhost = self
            .host()
            .is_some_and(|it| it.eq_ignore_ascii_case("localhost"));
        if !is_localhost {
            return Ok((self.resolve_all()?, false));
        }
        // The name may have one of the two only, and its clients on this machine try both.
        let mut endpoints = Vec::new();
        for loopback in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()] {
            let mut address = self.clone();
            address.set_host(loopback);
            endpoints.extend(address.resolve_all()?);
        }
        Ok((endpoints, true))
    }

    fn set_host(&mut self, address: IpAddr) {
        match &mut self.kind {
            AddressKind::Tcp { host, .. }
            | AddressKind::Tls { host, .. }
            | AddressKind::WebSocket { host, .. }
            | AddressKind::Udp { host, .. } => *host = address.to_string(),
            AddressKind::Ipc(_) | AddressKind::Inproc(_) => {}
        }
    }

    /// The host as it was written, a name or a number. A layer such as TLS compares it with a certificate. `None` for a
    /// transport without hosts.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match &self.kind {
            AddressKind::Tcp { host, .. }
            | AddressKind::Tls { host, .. }
            | AddressKind::WebSocket { host, .. }
            | AddressKind::Udp { host, .. } => Some(host),
            AddressKind::Ipc(_) | AddressKind::Inproc(_) => None,
        }
    }

    /// The value of `?framing=`, if any.
    #[must_use]
    pub fn framing(&self) -> Option<StreamFraming> {
        self.parameters.framing
    }

    /// The codec of the first `?codec=`, if any.
    #[must_use]
    pub fn codec(&self) -> Option<AnyCodec> {
        self.codecs().next()
    }

    /// The codecs of `?codec=`. Only a WebSocket address may have several, of which a client chooses one by its
    /// subprotocol.
    pub fn codecs(&self) -> impl Iterator<Item = AnyCodec> {
        self.parameters.codecs()
    }

    /// The text that follows the place: `?codec=...`, `?framing=...`, both, or nothing.
    #[must_use]
    pub fn parameters(&self) -> impl fmt::Display {
        &self.parameters
    }

    pub(crate) fn is_stream_socket(&self) -> bool {
        matches!(
            self.kind,
            AddressKind::Tcp { .. }
                | AddressKind::Tls { .. }
                | AddressKind::WebSocket { .. }
                | AddressKind::Ipc(_)
        )
    }

    /// Whether the connection is encrypted by TLS: at `tls://` and `wss://`.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(
            self.kind,
            AddressKind::Tls { .. } | AddressKind::WebSocket { is_tls: true, .. }
        )
    }

    /// The path of a WebSocket address. `None` for other transports.
    #[must_use]
    pub fn websocket_path(&self) -> Option<&str> {
        match &self.kind {
            AddressKind::WebSocket { path, .. } => Some(path.as_str()),
            _ => None,
        }
    }

    /// Host and port as a request over HTTP names them. `None` if this is no WebSocket address.
    pub(crate) fn websocket_host(&self) -> Option<String> {
        match &self.kind {
            AddressKind::WebSocket { host, port, .. } if host.contains(':') => {
                // The zone of an address is known on this machine only.
                let address = host.split_once('%').map_or(&**host, |(address, _)| address);
                Some(format!("[{address}]:{port}"))
            }
            AddressKind::WebSocket { host, port, .. } => Some(format!("{host}:{port}")),
            _ => None,
        }
    }

    pub(crate) fn bound(&self, local: SocketAddress) -> Endpoint {
        match (&self.kind, local) {
            (AddressKind::Tls { .. }, SocketAddress::Tcp(at)) => Endpoint::Tls(at),
            (AddressKind::WebSocket { path, is_tls, .. }, SocketAddress::Tcp(at)) => {
                WebSocketEndpoint::new(at, path, *is_tls).into()
            }
            (_, local) => Endpoint::of_stream(local),
        }
    }

    pub(crate) fn is_udp(&self) -> bool {
        matches!(self.kind, AddressKind::Udp { .. })
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (transport, rest) = text.split_once("://").unwrap_or(("tcp", text));
        let (rest, parameters) = match transport {
            "tcp" | "tls" | "udp" | "ipc" | "inproc" => Parameters::split(rest, false)?,
            "ws" | "wss" if rest.contains("?codec=") => Parameters::split(rest, true)?,
            _ => (rest, Parameters::default()),
        };
        if parameters.framing.is_some() && !matches!(transport, "tcp" | "tls" | "ipc") {
            return Err(AddressError::NoStream {
                text: text.to_owned(),
            });
        }
        if transport == "inproc" && parameters != Parameters::default() {
            return Err(AddressError::InprocCodec {
                text: text.to_owned(),
            });
        }
        let kind = match transport {
            "tcp" => {
                let (host, port) = parse_host(text, rest)?;
                AddressKind::Tcp { host, port }
            }
            "tls" => {
                let (host, port) = parse_host(text, rest)?;
                AddressKind::Tls { host, port }
            }
            "ws" | "wss" => {
                let (place, path) = parse_path(text, rest)?;
                let (host, port) = parse_host(text, place)?;
                let is_tls = transport == "wss";
                AddressKind::WebSocket {
                    host,
                    port,
                    path,
                    is_tls,
                }
            }
            "udp" => {
                let (host, port) = parse_host(text, rest)?;
                AddressKind::Udp { host, port }
            }
            "ipc" => parse_ipc(text, rest)?,
            "inproc" => parse_inproc(text, rest)?,
            other => {
                return Err(AddressError::UnknownTransport {
                    transport: other.to_owned(),
                    text: text.to_owned(),
                });
            }
        };
        Ok(Self { kind, parameters })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            AddressKind::Tcp { host, port } => write_host(formatter, "tcp", host, *port)?,
            AddressKind::Tls { host, port } => write_host(formatter, "tls", host, *port)?,
            AddressKind::WebSocket {
                host,
                port,
                path,
                is_tls,
            } => {
                let transport = if *is_tls { "wss" } else { "ws" };
                write_host(formatter, transport, host, *port)?;
                path.fmt(formatter)?;
            }
            AddressKind::Udp { host, port } => write_host(formatter, "udp", host, *port)?,
            AddressKind::Ipc(path) => write!(formatter, "ipc://{}", path.display())?,
            AddressKind::Inproc(name) => name.fmt(formatter)?,
        }
        self.parameters.fmt(formatter)
    }
}

/// The endpoints of a host, each once, in the resolver's order.
fn resolve_host(
    host: &str,
    port: u16,
    endpoint_of: impl Fn(SocketAddr) -> Endpoint,
) -> Result<Vec<Endpoint>, AddressError> {
    if host == "*" {
        let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        return Ok(vec![endpoint_of(anywhere)]);
    }
    if host
        .parse::<Ipv6Addr>()
        .is_ok_and(|it| it.is_unicast_link_local())
    {
        // The system would refuse it as an invalid argument, without a reason.
        let host = host.to_owned();
        return Err(AddressError::NoZone { host });
    }
    let unresolved = |detail: String| AddressError::Unresolved {
        host: host.to_owned(),
        detail,
    };
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| unresolved(error.to_string()))?;
    let mut found: Vec<Endpoint> = Vec::new();
    for endpoint in addresses.map(&endpoint_of) {
        // A resolver may list an address more than once.
        if !found.contains(&endpoint) {
            found.push(endpoint);
        }
    }
    if found.is_empty() {
        return Err(unresolved("no address".to_owned()));
    }
    Ok(found)
}

fn write_host(
    formatter: &mut fmt::Formatter<'_>,
    transport: &str,
    host: &str,
    port: u16,
) -> fmt::Result {
    if host.contains(':') {
        return write!(formatter, "{transport}://[{host}]:{port}");
    }
    write!(formatter, "{transport}://{host}:{port}")
}

fn parse_host(text: &str, rest: &str) -> Result<(String, u16), AddressError> {
    let Some((host, port)) = rest.rsplit_once(':') else {
        return Err(AddressError::BadPort {
            text: text.to_owned(),
        });
    };
    let host = host
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(host);
    if host.is_empty() {
        return Err(AddressError::Empty {
            text: text.to_owned(),
        });
    }
    let port = port.parse().map_err(|_| AddressError::BadPort {
        text: text.to_owned(),
    })?;
    Ok((host.to_owned(), port))
}

fn parse_ipc(text: &str, rest: &str) -> Result<AddressKind, AddressError> {
    if rest.is_empty() {
        return Err(AddressError::Empty {
            text: text.to_owned(),
        });
    }
    // The kernel gives an abstract socket without a name a random one, which no client knows.
    if rest == "@" {
        return Err(AddressError::Empty {
            text: text.to_owned(),
        });
    }
    if rest.len() > UNIX_PATH_BYTES_MAX {
        return Err(AddressError::PathTooLong {
            bytes: rest.len(),
            limit: UNIX_PATH_BYTES_MAX,
        });
    }
    Ok(AddressKind::Ipc(PathBuf::from(rest)))
}

fn parse_inproc(text: &str, rest: &str) -> Result<AddressKind, AddressError> {
    let name = InprocName::new(rest).ok_or_else(|| AddressError::BadName {
        text: text.to_owned(),
    })?;
    Ok(AddressKind::Inproc(name))
}

/// `sun_path` holds 108 bytes with its terminator.
const UNIX_PATH_BYTES_MAX: usize = 107;

#[cfg(test)]
mod tests;
