//! UDP datagrams, many for each system call.
//!
//! A datagram socket is not a stream: it talks to any number of peers, preserves message boundaries, and loses
//! datagrams when a buffer is full. One socket therefore serves all UDP sessions of a lane, and reports the sender of
//! each datagram.
//!
//! The cost of small datagrams is the system call and the path through the network stack, not the bytes. Many datagrams
//! share both in a segment run, which is a run of datagrams of equal size. The sender passes a run in one call
//! (segmentation offload, GSO). The receiver takes a run of one peer in one piece (GRO), and several runs in one call
//! (`recvmmsg`). Measured with 32 bytes over loopback, this raises a third of a million datagrams a second to many
//! millions. The two belong together, because a sender with GSO overruns a receiver without GRO. A [`DatagramSocket`]
//! therefore always takes runs, and a [`DatagramBatch`] splits them into their datagrams.
//!
//! The system calls are those of `quinn-udp`, which has years of experience with network cards that promise offload and
//! then fail. Some of its choices for QUIC are undone, because they do not suit a plain datagram service. It forbids
//! fragmentation, so anything larger than the path's packets would be refused. It requests a time stamp and the
//! congestion bits of every datagram, which are not used here. Rejected: `std::net::UdpSocket`, because it moves one
//! datagram a call. Rejected: a new implementation of the offload, because the fallbacks are the hard part.
//!
//! No loss is silent. The kernel's receive buffer may overflow, which is UDP's nature, and
//! [`DatagramSocket::kernel_drops`] counts it.

mod batch;
mod error;
mod option;
mod run;
mod socket;

pub use batch::{Datagram, DatagramBatch, Datagrams};
pub use error::{DatagramBindError, DatagramConnectError};
pub use socket::{DatagramOptions, DatagramSocket};

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

/// Whether an address is one of this machine's, whatever its port: the system binds a socket only to those. This
/// includes all of `127.0.0.0/8`, although the list of interfaces has only one of its addresses. When the system
/// refuses for another reason, for example because no descriptor is left, the answer is yes.
#[must_use]
pub fn is_own_address(address: SocketAddr) -> bool {
    let mut anywhere = address;
    anywhere.set_port(0);
    if let SocketAddr::V6(_) = address {
        let canonical = address.ip().to_canonical();
        if canonical.is_ipv4() {
            anywhere.set_ip(canonical);
        }
    }
    match UdpSocket::bind(anywhere) {
        Ok(_) => true,
        Err(error) => error.kind() != ErrorKind::AddrNotAvailable,
    }
}
