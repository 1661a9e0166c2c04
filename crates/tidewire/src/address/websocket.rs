//! The part of a WebSocket address that other addresses do not have: its path.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::AddressError;

/// A TCP port with WebSocket at a path.
///
/// ```
/// use tidewire::address::Address;
/// use tidewire::Endpoint;
///
/// let address: Address = "wss://127.0.0.1:8443/chat".parse()?;
/// let Endpoint::WebSocket(endpoint) = address.resolve()? else { panic!("{address}") };
/// assert_eq!((endpoint.path(), endpoint.is_tls()), ("/chat", true));
/// # Ok::<(), tidewire::address::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WebSocketEndpoint {
    address: SocketAddr,
    path: WebPath,
    is_tls: bool,
}

/// The path of a WebSocket. It begins with a slash, and has nothing to resolve or to escape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WebPath(Arc<str>);

impl WebSocketEndpoint {
    pub(super) fn new(address: SocketAddr, path: &WebPath, is_tls: bool) -> Self {
        Self {
            address,
            path: path.clone(),
            is_tls,
        }
    }

    /// The address of the TCP port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path, which begins with a slash.
    #[must_use]
    pub fn path(&self) -> &str {
        self.path.as_str()
    }

    /// Whether TLS is beneath it: `wss://`.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    pub(super) fn with_port(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }

    pub(super) fn web_path(&self) -> &WebPath {
        &self.path
    }
}

impl WebPath {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WebPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Display for WebSocketEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = if self.is_tls { "wss" } else { "ws" };
        write!(formatter, "{transport}://{}{}", self.address, self.path)
    }
}

/// Splits `HOST:PORT/PATH`. The host becomes a header of a request, so it has the characters of a host only.
pub(super) fn parse_path<'a>(
    text: &str,
    rest: &'a str,
) -> Result<(&'a str, WebPath), AddressError> {
    let (place, path) = match rest.find(['/', '?', '#']) {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || PATH_MARKS.contains(&byte);
    let is_resolved = !path.split('/').any(|part| matches!(part, "." | ".."));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]%*".contains(&byte);
    let is_valid = path.starts_with('/')
        && path.bytes().all(is_known)
        && is_resolved
        && place.bytes().all(is_host);
    match is_valid {
        true => Ok((place, WebPath(path.into()))),
        false => Err(AddressError::BadPath {
            text: text.to_owned(),
        }),
    }
}

/// The characters of a path in RFC 3986 beside letters and digits.
const PATH_MARKS: &[u8] = b"-._~!$&'()*+,;=:@%/";
