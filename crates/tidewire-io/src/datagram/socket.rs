//! The UDP socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quinn_udp::{Transmit, UdpSockRef, UdpSocketState};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with, sockopt,
};

use super::batch::DatagramBatch;
use super::option;
use super::run::Runs;
use crate::socket::{AnySocketAddress, PassedSocket, SocketError};

/// A non-blocking UDP socket for any number of peers, or for one peer after a connect.
///
/// Sending and receiving take it by reference, so that the sessions of a lane can share it.
#[derive(Debug)]
pub struct DatagramSocket {
    socket: OwnedFd,
    state: UdpSocketState,
    local: SocketAddr,
    runs: Runs,
}

/// How to open a datagram socket.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatagramOptions {
    /// Whether the kernel gets runs of equal datagrams in one piece (GSO). On by default. Without runs, each datagram
    /// costs a system call. The socket falls back to single datagrams when the kernel refuses runs.
    pub segmentation_offload: bool,
    /// The size of the kernel's receive buffer in bytes. The size decides how long a burst may be before datagrams are
    /// lost. The kernel doubles the size for its bookkeeping, which takes many times the bytes of a small datagram, and
    /// cuts it to `net.core.rmem_max`: see [`receive_buffer_bytes`](DatagramSocket::receive_buffer_bytes). `None` keeps
    /// the system's default.
    pub receive_buffer_bytes: Option<usize>,
    /// The size of the kernel's send buffer in bytes, cut to `net.core.wmem_max`. `None` keeps the system's default.
    pub send_buffer_bytes: Option<usize>,
    /// Whether several sockets, such as one for each lane, may be bound to the same address. The kernel then spreads
    /// the peers over them. All of them must set it. Off by default.
    pub reuse_port: bool,
    /// Whether a socket at `[::]` leaves IPv4 to another socket at the same port. Off by default: the socket receives
    /// over IPv4, too, whatever the system's `net.ipv6.bindv6only` is.
    pub ipv6_only: bool,
}

impl Default for DatagramOptions {
    fn default() -> Self {
        Self {
            segmentation_offload: true,
            receive_buffer_bytes: None,
            send_buffer_bytes: None,
            reuse_port: false,
            ipv6_only: false,
        }
    }
}

impl DatagramSocket {
    /// Opens a socket at an address; port 0 lets the system choose. A client binds to the unspecified
    /// address of its server's family and port 0.
    ///
    /// # Errors
    ///
    /// [`SocketError`], each variant with its remedy.
    pub fn bind(address: &SocketAddr, options: &DatagramOptions) -> Result<Self, SocketError> {
        Self::open(address, options).map_err(|cause| SocketError::receiving(*address, cause))
    }

    fn open(address: &SocketAddr, options: &DatagramOptions) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::DGRAM, FLAGS, None)?;
        if options.reuse_port {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, options.ipv6_only)?;
        }
        bind(&socket, address)?;
        Self::prepared(socket, options)
    }

    fn prepared(socket: OwnedFd, options: &DatagramOptions) -> io::Result<Self> {
        if let Some(bytes) = options.receive_buffer_bytes {
            sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
        }
        if let Some(bytes) = options.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size(&socket, bytes)?;
        }
        let local = SocketAddr::try_from(getsockname(&socket)?)?;
        let state = prepare(&socket, &local)?;
        let datagrams_max = if options.segmentation_offload {
            state.max_gso_segments()
        } else {
            1
        };
        Ok(Self {
            socket,
            state,
            local,
            runs: Runs::new(datagrams_max),
        })
    }

    /// Takes up a socket of another program, and sets these options. `reuse_port` and `ipv6_only` are as the other
    /// program set them.
    ///
    /// # Errors
    ///
    /// [`SocketError`], each variant with its remedy.
    pub fn adopt(passed: &PassedSocket, options: &DatagramOptions) -> Result<Self, SocketError> {
        let AnySocketAddress::Udp(address) = passed.address() else {
            let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
            let cause = io::Error::from(rustix::io::Errno::PROTOTYPE);
            return Err(SocketError::receiving(nowhere, cause));
        };
        let socket = passed.descriptor();
        let opened = socket.and_then(|socket| Self::prepared(socket, options));
        opened.map_err(|cause| SocketError::receiving(*address, cause))
    }

    /// Opens a socket that talks to this peer only: datagrams of others do not arrive. When no socket receives at the
    /// peer's address, a later send or receive reports it as `ConnectionRefused`.
    ///
    /// # Errors
    ///
    /// [`SocketError`], each variant with its remedy.
    pub fn connect(peer: &SocketAddr, options: &DatagramOptions) -> Result<Self, SocketError> {
        let failed = |cause| SocketError::exchanging(*peer, cause);
        let anywhere: IpAddr = match peer {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let mut socket = Self::open(&SocketAddr::new(anywhere, 0), options).map_err(failed)?;
        connect(&socket.socket, peer).map_err(|cause| failed(cause.into()))?;
        let local = getsockname(&socket.socket).map_err(|cause| failed(cause.into()))?;
        socket.local = SocketAddr::try_from(local).map_err(|cause| failed(cause.into()))?;
        Ok(socket)
    }

    /// The address in force, with the port that the system chose in place of 0.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Takes the datagrams that have arrived, as many as the batch holds, in place of its former content. Returns the
    /// number of datagrams.
    ///
    /// When all slots were used, more may be waiting; the pollers then report the socket again.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when none has arrived; the batch is then empty.
    #[inline]
    pub fn receive(&self, batch: &mut DatagramBatch) -> io::Result<usize> {
        let socket = UdpSockRef::from(&self.socket);
        batch.fill(|slices, metas| self.state.recv(socket, slices, metas))
    }

    /// Sends `bytes` to a peer as datagrams of `segment_bytes` bytes each; the last one has the rest. Returns the
    /// number of datagrams that the kernel took. Empty `bytes` are one empty datagram.
    ///
    /// When the kernel took fewer, send the rest from `number * segment_bytes` on once the socket is writable.
    ///
    /// # Errors
    ///
    /// When the kernel took none: `WouldBlock` when there is no room, `InvalidInput` for segments of no bytes,
    /// `EMSGSIZE` for more than a datagram can have (65,507 bytes over IPv4), otherwise the kernel's refusal. A
    /// datagram that the kernel took may still be lost.
    #[inline]
    pub fn send(&self, peer: SocketAddr, segment_bytes: usize, bytes: &[u8]) -> io::Result<usize> {
        self.send_from(None, peer, segment_bytes, bytes)
    }

    /// Sends like [`send`](Self::send), from one of several addresses of this machine. A socket that is bound to all of
    /// them should answer from the address that the request came to, [`Datagram::local`](super::Datagram::local).
    /// Otherwise the peer may not recognise the answer.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_from(
        &self,
        local: Option<IpAddr>,
        peer: SocketAddr,
        segment_bytes: usize,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let Self {
            socket,
            state,
            runs,
            ..
        } = self;
        runs.send(segment_bytes, bytes, |run| {
            let transmit = Transmit {
                destination: peer,
                ecn: None,
                contents: run,
                segment_size: (run.len() > segment_bytes).then_some(segment_bytes),
                src_ip: local,
            };
            state.try_send(UdpSockRef::from(&*socket), &transmit)
        })
    }

    /// Whether the kernel gets runs of datagrams of this size in one piece.
    #[must_use]
    pub fn offloads(&self, segment_bytes: usize) -> bool {
        self.runs.run_bytes(segment_bytes) > segment_bytes
    }

    /// Returns the number of datagrams that reached this machine and were dropped because the receive buffer was full.
    /// A run from the same machine counts as one datagram. The number wraps around at 2³².
    ///
    /// # Errors
    ///
    /// `Unsupported` or the kernel's refusal when it does not count.
    pub fn kernel_drops(&self) -> io::Result<u32> {
        option::drops(&self.socket)
    }

    /// Returns the size in force of the kernel's receive buffer, which includes the kernel's bookkeeping.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn receive_buffer_bytes(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(&self.socket)?)
    }

    /// Returns the size in force of the kernel's send buffer, like
    /// [`receive_buffer_bytes`](Self::receive_buffer_bytes).
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn send_buffer_bytes(&self) -> io::Result<usize> {
        Ok(sockopt::socket_send_buffer_size(&self.socket)?)
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Switches on the options for speed, and switches off those that only QUIC needs.
fn prepare(socket: &OwnedFd, local: &SocketAddr) -> io::Result<UdpSocketState> {
    let ipv4_discovery = sockopt::ip_mtu_discover(socket)?;
    let state = UdpSocketState::new(UdpSockRef::from(socket))?;
    sockopt::set_ip_mtu_discover(socket, ipv4_discovery)?;
    option::set_integer(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0)?;
    sockopt::set_ip_recvtos(socket, false)?;
    // The destination of a datagram matters only to a socket with several addresses.
    let is_anywhere = local.ip().is_unspecified();
    if local.is_ipv4() {
        if !is_anywhere {
            option::set_integer(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 0)?;
        }
    } else {
        sockopt::set_ipv6_recvtclass(socket, false)?;
        sockopt::set_ipv6_mtu_discover(socket, sockopt::Ipv6PathMtuDiscovery::WANT)?;
        option::set_integer(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0)?;
        if !is_anywhere {
            option::set_integer(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 0)?;
        }
    }
    Ok(state)
}

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    fn open() -> DatagramSocket {
        let any_port = "127.0.0.1:0".parse().unwrap();
        DatagramSocket::bind(&any_port, &DatagramOptions::default()).unwrap()
    }

    /// Takes the datagrams that arrived, without waiting: over loopback, a send returns after the delivery.
    fn received(socket: &DatagramSocket) -> Vec<Vec<u8>> {
        let mut batch = DatagramBatch::new(4);
        let mut all = Vec::new();
        while socket.receive(&mut batch).is_ok() {
            all.extend(batch.iter().map(|datagram| datagram.bytes.to_vec()));
        }
        all
    }

    #[test]
    fn where_the_kernel_refuses_runs_datagrams_are_sent_one_by_one() {
        let (sender, receiver) = (open(), open());
        // This is a real refusal: the kernel makes no runs of datagrams without checksums.
        option::set_integer(&sender, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        assert!(sender.offloads(100));
        let bytes: Vec<u8> = (0..1_050_u32).map(|index| index as u8).collect();
        let count = sender.send(receiver.local_address(), 100, &bytes).unwrap();
        assert_eq!(
            count, 11,
            "nothing is lost by the refusal, and nothing sent twice"
        );
        let expected: Vec<_> = bytes.chunks(100).map(<[u8]>::to_vec).collect();
        assert_eq!(received(&receiver), expected);
        assert!(!sender.offloads(100) && !sender.offloads(101));
        assert!(sender.offloads(99), "smaller ones have not been refused");
        assert_eq!(
            sender
                .send(receiver.local_address(), 100, &bytes[..300])
                .unwrap(),
            3
        );
        assert_eq!(received(&receiver).len(), 3);
    }

    #[test]
    fn a_bad_peer_is_no_reason_to_give_up_runs() {
        let sender = open();
        let nowhere = "127.0.0.1:0".parse().unwrap();
        let refused = sender.send(nowhere, 10, &[0; 100]).unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::INVAL));
        assert!(sender.offloads(10));
    }

    #[test]
    fn options_for_quic_only_are_off() {
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let address = address.parse().unwrap();
            let socket = DatagramSocket::bind(&address, &DatagramOptions::default()).unwrap();
            // Datagrams larger than the path's packets are fragmented rather than refused.
            assert_eq!(
                sockopt::ip_mtu_discover(&socket).unwrap(),
                sockopt::Ipv4PathMtuDiscovery::WANT
            );
            if address.is_ipv6() {
                assert_eq!(
                    sockopt::ipv6_mtu_discover(&socket).unwrap(),
                    sockopt::Ipv6PathMtuDiscovery::WANT
                );
            }
        }
    }
}
