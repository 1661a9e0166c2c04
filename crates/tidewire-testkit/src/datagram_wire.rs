//! A UDP socket as a blocking connection, for raw peers: each write is a datagram, and each read takes one.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::sockopt;

use crate::wait::DEADLINE;

/// A socket connected to one server. When the last handle is dropped, it sends an empty datagram as its end.
#[derive(Clone, Debug)]
pub struct DatagramWire {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    socket: UdpSocket,
}

impl DatagramWire {
    /// Opens a socket for this server.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn connect(server: SocketAddr) -> io::Result<Self> {
        let local = match server {
            SocketAddr::V4(_) => IpAddr::V4(next_loopback()),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let socket = UdpSocket::bind((local, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(DEADLINE))?;
        // The largest size that the system allows, so that a test that is slow to read loses nothing.
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
        let inner = Arc::new(Inner { socket });
        Ok(Self { inner })
    }

    /// The socket.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.inner.socket
    }

    /// Announces that nothing more will be written: an empty datagram.
    ///
    /// # Errors
    /// The server is not there.
    pub fn finish_writing(&self) -> io::Result<()> {
        self.inner.socket.send(&[]).map(drop)
    }

    /// Disappears without an end.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn vanish(self) -> io::Result<()> {
        // The farewell reaches no server, because the socket is now connected to itself.
        self.inner.socket.connect(self.inner.socket.local_addr()?)
    }
}

/// Returns a loopback address that no other peer of this process has had.
///
/// The system may give a new socket the port of a peer that has just gone. At the same address, the new peer would then
/// receive the server's answer to the farewell of the old peer, and take it for its own end.
fn next_loopback() -> Ipv4Addr {
    static ISSUED: AtomicU32 = AtomicU32::new(0);
    let number = ISSUED.fetch_add(1, Ordering::Relaxed) % LOOPBACKS;
    Ipv4Addr::from_bits(FIRST_LOOPBACK.to_bits() + number)
}

/// The first address of a peer. Programs under test have 127.0.0.1.
const FIRST_LOOPBACK: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 1);

/// Number of addresses for peers. No test process has as many.
const LOOPBACKS: u32 = 1 << 20;

impl Read for DatagramWire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.inner.socket.recv(buffer) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(0),
            other => other,
        }
    }
}

impl Write for DatagramWire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.socket.send(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The send may fail: the server may be gone.
        let _ = self.socket.send(&[]);
    }
}

const BUFFER_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a new peer with the port of one that had just gone read the server's answer to that one's farewell.
    #[test]
    fn a_peer_has_the_address_of_no_earlier_peer() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = server.local_addr().unwrap();
        let address = || {
            let wire = DatagramWire::connect(server).unwrap();
            wire.socket().local_addr().unwrap().ip()
        };
        assert_ne!(address(), address());
    }
}
