//! UDP datagrams, many for each system call.
//!
//! A datagram socket is not a stream: it talks to any number of peers, keeps the borders of what is sent,
//! and loses it when a buffer is full. One socket therefore serves all UDP sessions of a lane, and says
//! of each datagram where it came from.
//!
//! The cost of small datagrams is the system call and the way through the network stack, not the bytes.
//! Both are shared by many datagrams when the sender hands over a run of equal size in one call
//! (segmentation offload, GSO) and the receiver takes a run of one peer in one piece (GRO), several of
//! them in one call (`recvmmsg`). Measured with 32 bytes over loopback, that is the difference between
//! a third of a million and many millions a second. The two belong together: a receiver without GRO is
//! overrun by a sender with GSO; so a [`DatagramSocket`] always takes runs, and a
//! [`DatagramBatch`] gives them out as the datagrams they were.
//!
//! The system calls are `quinn-udp`'s, for its years of meeting network cards that promise offload and then
//! fail. Its choices for QUIC are undone where they do not suit a plain datagram service: it forbids
//! fragmentation, so that anything larger than the path's packets would be refused, and it asks for a
//! time stamp and the congestion bits of every datagram, which nobody here reads. `std::net::UdpSocket` was
//! rejected because it moves one datagram a call; writing the offload anew, because the fallbacks are the
//! hard part.
//!
//! Nothing is cut in silence. The kernel's receive buffer may overflow, which is UDP's nature, and is
//! counted: [`DatagramSocket::kernel_drops`].

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

/// Whether an address is one of this machine's, whatever its port: the system lets a socket be bound to those only. That
/// knows of all of `127.0.0.0/8`, of which the list of interfaces has one. When the system refuses for another reason, such
/// as descriptors that ran out, the answer is yes.
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
