//! Errors of binding, accepting and connecting, with their remedies.

use std::io;

use rustix::io::Errno;

use super::{SocketAddress, SocketOptionsError, io_error};
use crate::descriptors::{DescriptorLimit, descriptor_limit};

/// The error of opening a listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// Another socket listens at this address already.
    #[error(
        "cannot listen on {address}: it is in use; choose another {}",
        in_use_remedy(address)
    )]
    InUse {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// This process is not allowed to listen there: a port below 1,024, or a directory without write permission.
    #[error(
        "cannot listen on {address}: permission denied; {}",
        permission_remedy(address)
    )]
    PermissionDenied {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The IP address belongs to no interface of this machine.
    #[error(
        "cannot listen on {address}: it is no address of this machine; list them with `ip address`, or bind to 0.0.0.0 \
         or [::]"
    )]
    AddressNotAvailable {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The path names a file that is not a socket. The file is left alone.
    #[error(
        "cannot listen on {address}: the file is not a socket; choose another path or remove the file yourself"
    )]
    NotASocket {
        /// The address asked for.
        address: SocketAddress,
    },
    /// The directory of the path does not exist.
    #[error("cannot listen on {address}: its directory does not exist; create it first")]
    NoDirectory {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The path is longer than a socket's address can hold.
    #[error("cannot listen on {address}: the path is longer than 107 bytes; choose a shorter one")]
    PathTooLong {
        /// The address asked for.
        address: SocketAddress,
    },
    /// The process has no descriptor left.
    #[error(
        "cannot listen: no descriptor is left (limit {soft}, hard limit {hard}); raise it with `ulimit -n`"
    )]
    DescriptorsExhausted {
        /// The limit in force.
        soft: u64,
        /// The limit up to which it may be raised.
        hard: u64,
    },
    /// The socket options are invalid.
    #[error("cannot listen on {address} with these socket options: {source}")]
    Options {
        /// The address asked for.
        address: SocketAddress,
        /// The option, and its valid values.
        source: SocketOptionsError,
    },
    /// Any other error.
    #[error("cannot listen on {address}: {source}")]
    Io {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl BindError {
    pub(super) fn new(address: &SocketAddress, cause: Errno) -> Self {
        let address = address.clone();
        let source = io_error(cause);
        match cause {
            Errno::ADDRINUSE => Self::InUse { address, source },
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::PermissionDenied { address, source },
            // A kernel without IPv6 has no socket of that family.
            Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => {
                Self::AddressNotAvailable { address, source }
            }
            Errno::NOENT | Errno::NOTDIR => Self::NoDirectory { address, source },
            Errno::NAMETOOLONG => Self::PathTooLong { address },
            Errno::MFILE | Errno::NFILE => {
                let DescriptorLimit { soft, hard } = descriptor_limit();
                Self::DescriptorsExhausted { soft, hard }
            }
            _ => Self::Io { address, source },
        }
    }
}

/// The error of accepting a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// No connection is waiting. Wait until the listener is readable.
    #[error("no connection is waiting")]
    WouldBlock,
    /// The process or the machine has no descriptor left. The connection stays in the queue and the
    /// listener readable: stop watching it until a session closes.
    #[error(
        "no descriptor is left for another connection (limit {soft}, hard limit {hard}); raise it \
         with `ulimit -n`, or `fs.file-max` if the whole machine is out of them"
    )]
    DescriptorsExhausted {
        /// The limit in force.
        soft: u64,
        /// The limit up to which it may be raised.
        hard: u64,
    },
    /// The peer was gone before it was accepted. Try the next one.
    #[error("the peer was gone before its connection was accepted")]
    Aborted,
    /// Any other error: the listener can no longer be used.
    #[error("cannot accept connections: {0}; listen again")]
    Io(#[source] io::Error),
}

impl AcceptError {
    pub(super) fn new(cause: Errno) -> Self {
        match cause {
            Errno::AGAIN => Self::WouldBlock,
            Errno::MFILE | Errno::NFILE => {
                let DescriptorLimit { soft, hard } = descriptor_limit();
                Self::DescriptorsExhausted { soft, hard }
            }
            // Linux passes the errors of the new connection on through accept (see accept(2)).
            Errno::CONNABORTED
            | Errno::CONNRESET
            | Errno::NETDOWN
            | Errno::PROTO
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::NETUNREACH
            | Errno::TIMEDOUT => Self::Aborted,
            _ => Self::Io(io_error(cause)),
        }
    }
}

/// The error of making a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamConnectError {
    /// The machine answered that no server listens.
    #[error("cannot connect to {address}: connection refused; is the server running?")]
    Refused {
        /// The address asked for.
        address: SocketAddress,
    },
    /// The path of a Unix socket does not exist.
    #[error(
        "cannot connect to {address}: the socket does not exist; is the server running, and is the path right?"
    )]
    NotFound {
        /// The address asked for.
        address: SocketAddress,
    },
    /// The peer did not answer.
    #[error(
        "cannot connect to {address}: no answer in time; is the address right, and does a firewall drop the packets?"
    )]
    TimedOut {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The machine is not reachable.
    #[error("cannot connect to {address}: there is no route; check the address and the network")]
    Unreachable {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A firewall rule or the mode of the socket file forbids it.
    #[error(
        "cannot connect to {address}: permission denied; check the socket file's mode or the local firewall"
    )]
    PermissionDenied {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The queue of a Unix listener is full; unlike TCP, the kernel does not wait for room. Try again shortly.
    #[error(
        "cannot connect to {address}: more connections wait than its backlog holds; try again shortly"
    )]
    Busy {
        /// The address asked for.
        address: SocketAddress,
    },
    /// Every local port is used up for this peer.
    #[error(
        "cannot connect to {address}: no local port is left; widen net.ipv4.ip_local_port_range \
         or let the server listen on several addresses"
    )]
    PortsExhausted {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The process has no descriptor left.
    #[error(
        "cannot connect: no descriptor is left (limit {soft}, hard limit {hard}); raise it with `ulimit -n`"
    )]
    DescriptorsExhausted {
        /// The limit in force.
        soft: u64,
        /// The limit up to which it may be raised.
        hard: u64,
    },
    /// The connection is still being made: wait until the stream is writable and call again. Only
    /// [`finish_connect`](super::Stream::finish_connect) returns this.
    #[error("the connection to {address} is still being made")]
    InProgress {
        /// The address asked for.
        address: SocketAddress,
    },
    /// The socket options are invalid.
    #[error("cannot connect to {address} with these socket options: {source}")]
    Options {
        /// The address asked for.
        address: SocketAddress,
        /// The option, and its valid values.
        source: SocketOptionsError,
    },
    /// Any other error.
    #[error("cannot connect to {address}: {source}")]
    Io {
        /// The address asked for.
        address: SocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl StreamConnectError {
    pub(super) fn new(address: &SocketAddress, cause: Errno) -> Self {
        let address = address.clone();
        let source = io_error(cause);
        match cause {
            Errno::CONNREFUSED | Errno::CONNRESET => Self::Refused { address },
            Errno::NOENT | Errno::NOTDIR => Self::NotFound { address },
            Errno::TIMEDOUT => Self::TimedOut { address, source },
            Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::NETDOWN => {
                Self::Unreachable { address, source }
            }
            Errno::ACCESS | Errno::PERM => Self::PermissionDenied { address, source },
            Errno::AGAIN => Self::Busy { address },
            Errno::ADDRNOTAVAIL => Self::PortsExhausted { address, source },
            Errno::MFILE | Errno::NFILE => {
                let DescriptorLimit { soft, hard } = descriptor_limit();
                Self::DescriptorsExhausted { soft, hard }
            }
            _ => Self::Io { address, source },
        }
    }
}

fn in_use_remedy(address: &SocketAddress) -> &'static str {
    match address {
        SocketAddress::Tcp(_) => "port or stop the process that holds it (ss -ltnp)",
        SocketAddress::Unix(_) => "path or stop the process that holds it (ss -lxp)",
    }
}

fn permission_remedy(address: &SocketAddress) -> &'static str {
    match address {
        SocketAddress::Tcp(_) => {
            "choose a port from 1024 up, or grant the capability CAP_NET_BIND_SERVICE"
        }
        SocketAddress::Unix(_) => "choose a directory this user may write to",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    fn tcp() -> SocketAddress {
        SocketAddress::Tcp("127.0.0.1:80".parse().unwrap())
    }

    #[test]
    fn messages_name_what_failed_why_and_the_remedy() {
        let in_use = BindError::new(&tcp(), Errno::ADDRINUSE);
        assert_eq!(
            in_use.to_string(),
            "cannot listen on tcp://127.0.0.1:80: it is in use; choose another port or stop the process that holds it \
             (ss -ltnp)"
        );
        assert!(in_use.source().is_some());
        let denied = BindError::new(&tcp(), Errno::ACCESS);
        assert!(denied.to_string().contains("CAP_NET_BIND_SERVICE"));
        let refused = StreamConnectError::new(&tcp(), Errno::CONNREFUSED);
        assert_eq!(
            refused.to_string(),
            "cannot connect to tcp://127.0.0.1:80: connection refused; is the server running?"
        );
    }

    #[test]
    fn exhausted_descriptors_carry_the_limits() {
        let limit = descriptor_limit();
        let text = AcceptError::new(Errno::MFILE).to_string();
        assert!(text.contains("ulimit -n"));
        assert!(text.contains(&limit.soft.to_string()));
        let exhausted = StreamConnectError::new(&tcp(), Errno::MFILE);
        assert!(matches!(
            exhausted,
            StreamConnectError::DescriptorsExhausted { soft, .. } if soft == limit.soft
        ));
    }

    #[test]
    fn errors_of_a_connection_are_not_errors_of_its_listener() {
        for cause in [Errno::CONNABORTED, Errno::PROTO, Errno::HOSTUNREACH] {
            assert!(matches!(AcceptError::new(cause), AcceptError::Aborted));
        }
        assert!(matches!(AcceptError::new(Errno::INVAL), AcceptError::Io(_)));
    }
}
