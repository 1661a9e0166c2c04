//! Errors of opening and connecting a datagram socket, with their remedies.

use std::io;
use std::net::SocketAddr;

use crate::descriptors::{DescriptorLimit, descriptor_limit};
use rustix::io::Errno;

/// The error of binding a datagram socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramBindError {
    /// Another socket receives at this address already.
    #[error(
        "cannot receive on udp://{address}: it is in use; choose another port or stop the process that holds it \
         (ss -lunp)"
    )]
    InUse {
        /// The address asked for.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// This process is not allowed to receive there: the port is below 1,024.
    #[error(
        "cannot receive on udp://{address}: permission denied; choose a port from 1024 up, or grant the \
         capability CAP_NET_BIND_SERVICE"
    )]
    PermissionDenied {
        /// The address asked for.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The IP address belongs to no interface of this machine.
    #[error(
        "cannot receive on udp://{address}: it is no address of this machine; list them with `ip address`, or bind to \
         0.0.0.0 or [::]"
    )]
    AddressNotAvailable {
        /// The address asked for.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The process has no descriptor left.
    #[error(
        "cannot receive on udp://{address}: no descriptor is left (limit {soft}, hard limit {hard}); raise it with \
         `ulimit -n`"
    )]
    DescriptorsExhausted {
        /// The address asked for.
        address: SocketAddr,
        /// The limit in force.
        soft: u64,
        /// The limit up to which it may be raised.
        hard: u64,
    },
    /// Any other error.
    #[error("cannot receive on udp://{address}: {source}")]
    Io {
        /// The address asked for.
        address: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl DatagramBindError {
    pub(super) fn new(address: SocketAddr, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::ADDRINUSE) => Self::InUse { address, source },
            Some(Errno::ACCESS | Errno::PERM) => Self::PermissionDenied { address, source },
            // A kernel without IPv6 has no socket of that family.
            Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) => {
                Self::AddressNotAvailable { address, source }
            }
            Some(Errno::MFILE | Errno::NFILE) => {
                let DescriptorLimit { soft, hard } = descriptor_limit();
                Self::DescriptorsExhausted {
                    address,
                    soft,
                    hard,
                }
            }
            _ => Self::Io { address, source },
        }
    }
}

/// The error of exchanging datagrams with a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramConnectError {
    /// The peer's machine answers that no socket receives there.
    #[error("cannot connect to udp://{peer}: no socket receives there; is the server running?")]
    Refused {
        /// The peer asked for.
        peer: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The peer's network is not reachable.
    #[error(
        "cannot connect to udp://{peer}: there is no route; check the address and the routes (ip route)"
    )]
    Unreachable {
        /// The peer asked for.
        peer: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The process has no descriptor left.
    #[error(
        "cannot connect to udp://{peer}: no descriptor is left (limit {soft}, hard limit {hard}); raise it with \
         `ulimit -n`"
    )]
    DescriptorsExhausted {
        /// The peer asked for.
        peer: SocketAddr,
        /// The limit in force.
        soft: u64,
        /// The limit up to which it may be raised.
        hard: u64,
    },
    /// Any other error.
    #[error("cannot send to udp://{peer}: {source}")]
    Io {
        /// The peer asked for.
        peer: SocketAddr,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl DatagramConnectError {
    /// Classifies the kernel's answer to opening, sending or receiving.
    #[must_use]
    pub fn new(peer: SocketAddr, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::CONNREFUSED) => Self::Refused { peer, source },
            Some(Errno::NETUNREACH | Errno::HOSTUNREACH) => Self::Unreachable { peer, source },
            Some(Errno::MFILE | Errno::NFILE) => {
                let DescriptorLimit { soft, hard } = descriptor_limit();
                Self::DescriptorsExhausted { peer, soft, hard }
            }
            _ => Self::Io { peer, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn a_server_that_is_not_there_is_told_from_a_way_that_is_not() {
        let peer: SocketAddr = "127.0.0.1:53".parse().unwrap();
        let refused = DatagramConnectError::new(peer, Errno::CONNREFUSED.into());
        assert_eq!(
            refused.to_string(),
            "cannot connect to udp://127.0.0.1:53: no socket receives there; is the server running?"
        );
        assert!(refused.source().is_some());
        let lost = DatagramConnectError::new(peer, Errno::NETUNREACH.into());
        assert!(lost.to_string().contains("ip route"));
        let other = DatagramConnectError::new(peer, Errno::NOBUFS.into());
        assert!(matches!(other, DatagramConnectError::Io { .. }));
    }

    #[test]
    fn messages_name_the_cause_and_the_remedy_and_leave_the_source_to_source() {
        let address: SocketAddr = "127.0.0.1:53".parse().unwrap();
        let shown = |cause: Errno| DatagramBindError::new(address, cause.into());
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
            DatagramConnectError::new(address, Errno::MFILE.into()).to_string(),
        ];
        for (said, verb) in exhausted.iter().zip(["receive on", "connect to"]) {
            let begin = format!("cannot {verb} udp://127.0.0.1:53: no descriptor is left");
            assert!(
                said.starts_with(&begin) && said.contains("ulimit -n"),
                "{said}"
            );
        }
        assert!(matches!(shown(Errno::NOBUFS), DatagramBindError::Io { .. }));
    }
}
