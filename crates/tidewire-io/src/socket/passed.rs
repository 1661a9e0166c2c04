//! Sockets that another program, such as systemd, has bound and passed to this one.
//!
//! The other program chose the socket's address, and owns the file of a Unix socket. So this program neither binds nor
//! removes a passed socket. The address identifies the socket, because descriptors have no other property that both
//! programs know.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix, SocketType, getsockname, sockopt};

use super::{SocketAddress, SocketError};

/// A bound socket of another program. Clones are handles to the same socket.
#[derive(Clone, Debug)]
pub struct PassedSocket {
    socket: Arc<OwnedFd>,
    address: AnySocketAddress,
}

/// The address of a socket for streams or datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnySocketAddress {
    /// Connections over TCP.
    Tcp(SocketAddr),
    /// Connections over a Unix socket.
    Unix(PathBuf),
    /// Datagrams at a UDP port.
    Udp(SocketAddr),
}

impl PassedSocket {
    /// Checks a descriptor, and makes it non-blocking and close-on-exec.
    ///
    /// # Errors
    /// [`SocketError`], each variant with its remedy.
    pub fn new(socket: impl Into<OwnedFd>) -> Result<Self, SocketError> {
        let socket = socket.into();
        let address = address(&socket)?;
        let flags = fcntl_getfl(&socket).map_err(failed)?;
        fcntl_setfl(&socket, flags | OFlags::NONBLOCK).map_err(failed)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(failed)?;
        Ok(Self {
            socket: Arc::new(socket),
            address,
        })
    }

    /// The address that it is bound to.
    #[must_use]
    pub fn address(&self) -> &AnySocketAddress {
        &self.address
    }

    /// Duplicates the descriptor.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }
}

impl AsFd for PassedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Display for AnySocketAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "tcp://{address}"),
            Self::Unix(path) => write!(formatter, "ipc://{}", path.display()),
            Self::Udp(address) => write!(formatter, "udp://{address}"),
        }
    }
}

impl AnySocketAddress {
    pub(super) fn is_datagram(&self) -> bool {
        matches!(self, Self::Udp(_))
    }

    pub(super) fn stream(&self) -> Option<SocketAddress> {
        match self {
            Self::Tcp(address) => Some(SocketAddress::Tcp(*address)),
            Self::Unix(path) => Some(SocketAddress::Unix(path.clone())),
            Self::Udp(_) => None,
        }
    }
}

impl SocketAddress {
    /// The same address among those of all sockets.
    #[must_use]
    pub fn to_any(&self) -> AnySocketAddress {
        match self {
            Self::Tcp(address) => AnySocketAddress::Tcp(*address),
            Self::Unix(path) => AnySocketAddress::Unix(path.clone()),
        }
    }
}

fn failed(cause: rustix::io::Errno) -> SocketError {
    SocketError::Passed(cause.into())
}

fn address(socket: &OwnedFd) -> Result<AnySocketAddress, SocketError> {
    let kind = sockopt::socket_type(socket).map_err(failed)?;
    let local = getsockname(socket).map_err(failed)?;
    let is_unix = local.address_family() == AddressFamily::UNIX;
    match kind {
        SocketType::STREAM => {
            if !sockopt::socket_acceptconn(socket).map_err(failed)? {
                return Err(SocketError::PassedNotListening);
            }
            match is_unix {
                true => Ok(AnySocketAddress::Unix(unix_path(local)?)),
                false => Ok(AnySocketAddress::Tcp(internet(local)?)),
            }
        }
        SocketType::DGRAM if !is_unix => Ok(AnySocketAddress::Udp(internet(local)?)),
        _ => Err(SocketError::PassedUnsupported),
    }
}

fn internet(address: SocketAddrAny) -> Result<SocketAddr, SocketError> {
    SocketAddr::try_from(address).map_err(|_| SocketError::PassedUnsupported)
}

fn unix_path(address: SocketAddrAny) -> Result<PathBuf, SocketError> {
    let address = SocketAddrUnix::try_from(address).map_err(|_| SocketError::PassedUnsupported)?;
    let bytes = match (address.abstract_name(), address.path_bytes()) {
        (Some(name), _) => [b"@", name].concat(),
        (None, Some(path)) => path.to_vec(),
        (None, None) => return Err(SocketError::PassedUnsupported),
    };
    Ok(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixListener};

    use super::*;

    #[test]
    fn a_socket_is_known_by_its_address() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("[::1]:0").unwrap();
        let directory =
            std::env::temp_dir().join(format!("tidewire-passed-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("a b.sock");
        let unix = UnixListener::bind(&path).unwrap();
        let expected = [
            format!("tcp://{}", tcp.local_addr().unwrap()),
            format!("udp://{}", udp.local_addr().unwrap()),
            format!("ipc://{}", path.display()),
        ];
        let passed = [
            PassedSocket::new(tcp),
            PassedSocket::new(udp),
            PassedSocket::new(unix),
        ];
        std::fs::remove_dir_all(&directory).unwrap();
        for (passed, expected) in passed.into_iter().zip(expected) {
            assert_eq!(passed.unwrap().address().to_string(), expected);
        }
    }

    #[test]
    fn sockets_that_no_server_can_use_are_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let failed = |socket: OwnedFd| PassedSocket::new(socket).unwrap_err();
        assert!(matches!(
            failed(connected.into()),
            SocketError::PassedNotListening
        ));
        let (datagrams, _) = UnixDatagram::pair().unwrap();
        assert!(matches!(
            failed(datagrams.into()),
            SocketError::PassedUnsupported
        ));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(failed(file.into()), SocketError::Passed(_)));
    }
}
