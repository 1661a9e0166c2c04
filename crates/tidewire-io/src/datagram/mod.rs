//! UDP datagrams, many for each system call.
//!
//! A datagram socket is not a stream: it talks to any number of peers, preserves message boundaries, and loses
//! datagrams when a buffer is full. One socket therefore serves all UDP sessions of a lane, and each datagram has its
//! sender.
//!
//! The cost of small datagrams is the system call and the path through the network stack, not the bytes. Many datagrams
//! share both in a segment run, which is a run of datagrams of equal size. The sender passes a run in one call
//! (segmentation offload, GSO). The receiver takes a run of one peer in one piece (GRO), and several runs in one call
//! (`recvmmsg`). Measured with 32 bytes over loopback, this raises a third of a million datagrams a second to many
//! millions. A sender with GSO overruns a receiver without GRO. A [`DatagramSocket`] therefore always takes runs, and a
//! [`DatagramBatch`] splits them into their datagrams.
//!
//! The system calls are those of `quinn-udp`, which has years of experience with network cards that promise offload and
//! then fail. Some of its choices for QUIC are undone, because they do not suit a plain datagram service. `quinn-udp`
//! forbids fragmentation, so the kernel would refuse datagrams larger than the path's packets. It requests a time stamp
//! and the congestion bits of every datagram, which this module does not use. Rejected: `std::net::UdpSocket`, which
//! moves one datagram a call. Rejected: a new implementation of the offload, because the fallbacks are the hard part.
//!
//! No loss is silent. The kernel's receive buffer may overflow, and [`DatagramSocket::kernel_drops`] counts the lost
//! datagrams.

mod batch;
mod option;
mod run;
mod socket;

pub use batch::{Datagram, DatagramBatch, Datagrams};
pub use socket::{DatagramOptions, DatagramSocket};

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

/// Whether an address is one of this machine's, with any port: the system binds a socket only to such addresses. They
/// include all of `127.0.0.0/8`, although the list of interfaces has only one of its addresses. When the system refuses
/// for another reason, for example because no descriptor is left, the answer is yes.
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
