//! A UDP socket as a blocking connection, for raw peers: each write is a datagram, and each read takes one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

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
        let local: SocketAddr = if server.is_ipv4() {
            ([127, 0, 0, 1], 0).into()
        } else {
            ([0, 0, 0, 0, 0, 0, 0, 1], 0).into()
        };
        let socket = UdpSocket::bind(local)?;
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
