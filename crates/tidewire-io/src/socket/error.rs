//! Errors of sockets with their remedies: of listening, receiving, accepting and connecting, over streams and
//! datagrams.

use std::io;
use std::net::SocketAddr;

use rustix::io::Errno;

use super::{AnySocketAddress, SocketAddress, io_error};
use crate::descriptors::{DescriptorLimit, descriptor_limit};

/// A socket cannot be used: it cannot listen, receive or connect, or another program passed a descriptor that is none.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each `address` is the one that was asked for")]
pub enum SocketError {
    /// Another socket has this address already.
    #[error(
        "cannot {operation} {address}: it is in use; choose another {}",
        in_use_remedy(address)
    )]
    InUse {
        /// `listen on` or `receive on`.
        operation: &'static str,
        address: AnySocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// This process may not do that: a port below 1,024, a directory without write permission, the mode of a socket
    /// file, or a rule of the local firewall.
    #[error(
        "cannot {operation} {address}: permission denied; {}",
        permission_remedy(operation, address)
    )]
    PermissionDenied {
        /// `listen on`, `receive on` or `connect to`.
        operation: &'static str,
        address: AnySocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The IP address belongs to no interface of this machine.
    #[error(
        "cannot {operation} {address}: it is no address of this machine; list them with `ip address`, or bind to \
         0.0.0.0 or [::]"
    )]
    AddressNotAvailable {
        /// `listen on` or `receive on`.
        operation: &'static str,
        address: AnySocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The path names a file that is not a socket. The file is left alone.
    #[error(
        "cannot listen on {address}: the file is not a socket; choose another path or remove the file yourself"
    )]
    NotASocket { address: AnySocketAddress },
    /// The directory of the path does not exist.
    #[error("cannot listen on {address}: its directory does not exist; create it first")]
    NoDirectory {
        address: AnySocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The path is longer than a socket's address can hold.
    #[error("cannot listen on {address}: the path is longer than 107 bytes; choose a shorter one")]
    PathTooLong { address: AnySocketAddress },
    /// The machine answered that no server listens, or receives, there.
    #[error(
        "cannot connect to {address}: {}; is the server running?",
        if address.is_datagram() { "no socket receives there" } else { "connection refused" }
    )]
    Refused { address: AnySocketAddress },
    /// The path of a Unix socket does not exist.
    #[error(
        "cannot connect to {address}: the socket does not exist; is the server running, and is the path right?"
    )]
    NotFound { address: AnySocketAddress },
    /// The peer did not answer.
    #[error(
        "cannot connect to {address}: no answer in time; is the address right, and does a firewall drop the packets?"
    )]
    TimedOut {
        address: AnySocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The machine is not reachable.
    #[error(
        "cannot connect to {address}: there is no route; check the address, the network and the routes (ip route)"
    )]
    Unreachable {
        address: AnySocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The queue of a Unix listener is full; unlike TCP, the kernel does not wait for room. Try again shortly.
    #[error(
        "cannot connect to {address}: more connections wait than its backlog holds; try again shortly"
    )]
    Busy { address: AnySocketAddress },
    /// Every local port is used up for this peer.
    #[error(
        "cannot connect to {address}: no local port is left; widen net.ipv4.ip_local_port_range \
         or let the server listen on several addresses"
    )]
    PortsExhausted {
        address: AnySocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The connection is still being made: wait until the stream is writable and call again. Only
    /// [`finish_connect`](super::Stream::finish_connect) returns this.
    #[error("the connection to {address} is still being made")]
    InProgress { address: AnySocketAddress },
    /// The process has no descriptor left.
    #[error(
        "cannot {operation} {address}: no descriptor is left (limit {soft}, hard limit {hard}); raise it with `ulimit \
         -n`"
    )]
    DescriptorsExhausted {
        /// `listen on`, `receive on` or `connect to`.
        operation: &'static str,
        address: AnySocketAddress,
        /// The limit in force.
        soft: u64,
        /// The limit up to which it may be raised.
        hard: u64,
    },
    /// The socket options are invalid.
    #[error("cannot {operation} {address} with these socket options: {source}")]
    Options {
        /// `listen on` or `connect to`.
        operation: &'static str,
        address: AnySocketAddress,
        /// The option, and its valid values.
        source: io::Error,
    },
    /// The descriptor of a passed socket is connected, or was bound and does not listen. A socket unit of systemd needs
    /// `Accept=no`, which is its default.
    #[error("the passed socket does not listen; give its socket unit Accept=no")]
    PassedNotListening,
    /// The passed descriptor is neither a TCP or Unix stream socket nor a UDP socket.
    #[error(
        "the passed socket is of another kind; use ListenStream= for TCP and Unix sockets, and ListenDatagram= with a \
         port for UDP"
    )]
    PassedUnsupported,
    /// The passed descriptor is no socket, or the kernel refused a question about it.
    #[error("the passed descriptor cannot be used: {0}")]
    Passed(#[source] io::Error),
    /// Any other error.
    #[error("cannot {operation} {address}: {source}")]
    Io {
        /// `listen on`, `receive on`, `connect to` or `send to`.
        operation: &'static str,
        address: AnySocketAddress,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl SocketError {
    /// Classifies the kernel's answer to listening.
    pub(super) fn listening(address: &SocketAddress, cause: Errno) -> Self {
        let at = address.to_any();
        match cause {
            Errno::ROFS => Self::denied(LISTEN, at, cause),
            Errno::NOENT | Errno::NOTDIR => Self::NoDirectory {
                address: at,
                source: io_error(cause),
            },
            Errno::NAMETOOLONG => Self::PathTooLong { address: at },
            _ => Self::binding(LISTEN, at, io_error(cause)),
        }
    }

    /// Classifies the kernel's answer to opening a socket for datagrams.
    pub(crate) fn receiving(address: SocketAddr, source: io::Error) -> Self {
        Self::binding("receive on", AnySocketAddress::Udp(address), source)
    }

    fn binding(operation: &'static str, address: AnySocketAddress, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::ADDRINUSE) => Self::InUse {
                operation,
                address,
                source,
            },
            Some(cause @ (Errno::ACCESS | Errno::PERM)) => Self::denied(operation, address, cause),
            // A kernel without IPv6 has no socket of that family.
            Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => Self::AddressNotAvailable {
                operation,
                address,
                source,
            },
            _ => Self::other(operation, address, source),
        }
    }

    /// Classifies the kernel's answer to connecting a stream.
    pub(super) fn connecting(address: &SocketAddress, cause: Errno) -> Self {
        let address = address.to_any();
        let source = io_error(cause);
        match cause {
            Errno::CONNREFUSED | Errno::CONNRESET => Self::Refused { address },
            Errno::NOENT | Errno::NOTDIR => Self::NotFound { address },
            Errno::TIMEDOUT => Self::TimedOut { address, source },
            Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::HOSTDOWN | Errno::NETDOWN => {
                Self::Unreachable { address, source }
            }
            Errno::ACCESS | Errno::PERM => Self::denied(CONNECT, address, cause),
            Errno::AGAIN => Self::Busy { address },
            Errno::ADDRNOTAVAIL => Self::PortsExhausted { address, source },
            _ => Self::other(CONNECT, address, source),
        }
    }

    /// Classifies the kernel's answer to exchanging datagrams with a peer: opening, sending or receiving.
    #[must_use]
    pub fn exchanging(peer: SocketAddr, source: io::Error) -> Self {
        let address = AnySocketAddress::Udp(peer);
        match Errno::from_io_error(&source) {
            Some(Errno::CONNREFUSED) => Self::Refused { address },
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH) => Self::Unreachable { address, source },
            Some(Errno::MFILE | Errno::NFILE) => Self::other(CONNECT, address, source),
            _ => Self::other("send to", address, source),
        }
    }

    /// The options of a socket for this address are invalid.
    pub(super) fn options(
        operation: &'static str,
        address: &SocketAddress,
        source: io::Error,
    ) -> Self {
        Self::Options {
            operation,
            address: address.to_any(),
            source,
        }
    }

    fn denied(operation: &'static str, address: AnySocketAddress, cause: Errno) -> Self {
        Self::PermissionDenied {
            operation,
            address,
            source: io_error(cause),
        }
    }

    pub(super) fn other(
        operation: &'static str,
        address: AnySocketAddress,
        source: io::Error,
    ) -> Self {
        if let Some(Errno::MFILE | Errno::NFILE) = Errno::from_io_error(&source) {
            let DescriptorLimit { soft, hard } = descriptor_limit();
            return Self::DescriptorsExhausted {
                operation,
                address,
                soft,
                hard,
            };
        }
        Self::Io {
            operation,
            address,
            source,
        }
    }
}

pub(super) const LISTEN: &str = "listen on";

pub(super) const CONNECT: &str = "connect to";

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
         with `ulimit -n`, or `fs.file-max` if the whole machine has none left"
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

fn in_use_remedy(address: &AnySocketAddress) -> &'static str {
    match address {
        AnySocketAddress::Tcp(_) => "port or stop the process that holds it (ss -ltnp)",
        AnySocketAddress::Unix(_) => "path or stop the process that holds it (ss -lxp)",
        AnySocketAddress::Udp(_) => "port or stop the process that holds it (ss -lunp)",
    }
}

fn permission_remedy(operation: &str, address: &AnySocketAddress) -> &'static str {
    match address {
        _ if operation == CONNECT => "check the socket file's mode or the local firewall",
        AnySocketAddress::Unix(_) => "choose a directory this user may write to",
        _ => "choose a port from 1024 up, or grant the capability CAP_NET_BIND_SERVICE",
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
        let in_use = SocketError::listening(&tcp(), Errno::ADDRINUSE);
        assert_eq!(
            in_use.to_string(),
            "cannot listen on tcp://127.0.0.1:80: it is in use; choose another port or stop the process that holds it \
             (ss -ltnp)"
        );
        assert!(in_use.source().is_some());
        let denied = SocketError::listening(&tcp(), Errno::ACCESS);
        assert!(denied.to_string().contains("CAP_NET_BIND_SERVICE"));
        let refused = SocketError::connecting(&tcp(), Errno::CONNREFUSED);
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
        let exhausted = SocketError::connecting(&tcp(), Errno::MFILE);
        assert!(matches!(
            exhausted,
            SocketError::DescriptorsExhausted { soft, .. } if soft == limit.soft
        ));
    }

    #[test]
    fn errors_of_a_connection_are_not_errors_of_its_listener() {
        for cause in [Errno::CONNABORTED, Errno::PROTO, Errno::HOSTUNREACH] {
            assert!(matches!(AcceptError::new(cause), AcceptError::Aborted));
        }
        assert!(matches!(AcceptError::new(Errno::INVAL), AcceptError::Io(_)));
    }

    #[test]
    fn a_server_that_is_not_there_is_told_from_a_way_that_is_not() {
        let peer: SocketAddr = "127.0.0.1:53".parse().unwrap();
        let refused = SocketError::exchanging(peer, Errno::CONNREFUSED.into());
        assert_eq!(
            refused.to_string(),
            "cannot connect to udp://127.0.0.1:53: no socket receives there; is the server running?"
        );
        let lost = SocketError::exchanging(peer, Errno::NETUNREACH.into());
        assert!(lost.to_string().contains("ip route"));
        let other = SocketError::exchanging(peer, Errno::NOBUFS.into());
        assert!(matches!(other, SocketError::Io { .. }));
    }

    #[test]
    fn messages_name_the_cause_and_the_remedy_and_leave_the_source_to_source() {
        let address: SocketAddr = "127.0.0.1:53".parse().unwrap();
        let shown = |cause: Errno| SocketError::receiving(address, cause.into());
        let in_use = shown(Errno::ADDRINUSE);
        assert_eq!(
            in_use.to_string(),
            "cannot receive on udp://127.0.0.1:53: it is in use; choose another port or stop the process that holds it \
             (ss -lunp)"
        );
        assert!(in_use.source().is_some());
        assert!(
            shown(Errno::ACCESS)
                .to_string()
                .contains("CAP_NET_BIND_SERVICE")
        );
        assert!(
            shown(Errno::ADDRNOTAVAIL)
                .to_string()
                .contains("ip address")
        );
        let exhausted = [
            shown(Errno::MFILE).to_string(),
            SocketError::exchanging(address, Errno::MFILE.into()).to_string(),
        ];
        for (said, verb) in exhausted.iter().zip(["receive on", "connect to"]) {
            let begin = format!("cannot {verb} udp://127.0.0.1:53: no descriptor is left");
            assert!(
                said.starts_with(&begin) && said.contains("ulimit -n"),
                "{said}"
            );
        }
        assert!(matches!(shown(Errno::NOBUFS), SocketError::Io { .. }));
    }
}
