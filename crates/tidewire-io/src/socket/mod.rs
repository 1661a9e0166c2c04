//! Stream sockets that never block: one pair of types for TCP and Unix.
//!
//! A lane must not block on anything but its poller. Every descriptor made here is therefore non-blocking and
//! close-on-exec from the start. Every write is sent with `MSG_NOSIGNAL`, because a vanished peer is an error to handle
//! and no reason to end the process. Errors name the likely cause and the remedy.
//!
//! TCP and Unix sockets differ in how they are named, bound and refused, and not in how bytes move. Hence one
//! [`Stream`], one [`Listener`], and an address that distinguishes the two. `std::net` was rejected because it has no
//! gathered send without the signal, no non-blocking way to begin a connection, and separate types for the two
//! families.

mod credentials;
mod error;
mod listener;
mod options;
mod passed;
mod stream;
mod tcp;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, socket_with,
};
use std::os::fd::OwnedFd;

pub use credentials::PeerCredentials;
pub use error::{AcceptError, SocketError};
pub use listener::{Accepted, Listener, listen_tcp};
pub use options::{KeepAlive, SocketOptions};
pub use passed::{AnySocketAddress, PassedSocket};
pub use stream::{Presence, Stream};

/// The address at which a stream socket listens, or to which it connects.
#[derive(Clone, Eq, PartialEq, Debug, Hash)]
pub enum SocketAddress {
    /// An IP address and port; port 0 lets the system choose when binding.
    Tcp(SocketAddr),
    /// A path in the file system, at most 107 bytes long; or, beginning with `@`, a name of Linux's abstract
    /// namespace, which has no file and no permissions. Write `./@path` for a file of such a name.
    Unix(PathBuf),
}

impl SocketAddress {
    /// Creates a non-blocking socket of this family.
    fn socket(&self) -> Result<OwnedFd, Errno> {
        let family = match self {
            Self::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Self::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
            Self::Unix(_) => AddressFamily::UNIX,
        };
        socket_with(family, SocketType::STREAM, FLAGS, None)
    }

    /// Converts the address to the kernel's form.
    fn to_kernel(&self) -> Result<SocketAddrAny, Errno> {
        Ok(match self {
            Self::Tcp(address) => (*address).into(),
            Self::Unix(path) => match abstract_name(path) {
                Some(name) => SocketAddrUnix::new_abstract_name(name)?.into(),
                None => SocketAddrUnix::new(path)?.into(),
            },
        })
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "tcp://{address}"),
            Self::Unix(path) => write!(formatter, "ipc://{}", path.display()),
        }
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<PathBuf> for SocketAddress {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

/// Returns the name in the abstract namespace, if the path stands for one.
fn abstract_name(path: &Path) -> Option<&[u8]> {
    path.as_os_str().as_bytes().strip_prefix(b"@")
}

fn io_error(cause: Errno) -> io::Error {
    io::Error::from(cause)
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_with_their_transport() {
        let v4: SocketAddr = "127.0.0.1:7000".parse().unwrap();
        let v6: SocketAddr = "[::1]:7000".parse().unwrap();
        assert_eq!(SocketAddress::from(v4).to_string(), "tcp://127.0.0.1:7000");
        assert_eq!(SocketAddress::from(v6).to_string(), "tcp://[::1]:7000");
        let path = PathBuf::from("/run/chat.sock");
        assert_eq!(
            SocketAddress::from(path).to_string(),
            "ipc:///run/chat.sock"
        );
    }
}
