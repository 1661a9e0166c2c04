//! The kernel's side of a connection: whether the peer is there, and the bytes that the peer does not take.

use std::io;
use std::time::Duration;

use tidewire_io::socket::{Presence, Stream};

use super::{AnyTransport, TransportKind};

impl AnyTransport {
    /// Sets how long the kernel keeps bytes for a peer that takes none, once the connection is closed.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.socket().map_or(Ok(()), |it| it.set_patience(patience))
    }

    /// The kernel's memory for output that the peer does not take, when it takes no more.
    pub(crate) fn kernel_bytes_max(&self) -> usize {
        match self.kind() {
            TransportKind::Tcp => TCP_KERNEL_BYTES_MAX,
            TransportKind::Ipc => IPC_KERNEL_BYTES_MAX,
            TransportKind::Inproc | TransportKind::Udp => 0,
        }
    }

    /// Looks whether the peer is still there. It may cost a system call. A transport that cannot tell says that the
    /// peer speaks.
    pub(crate) fn presence(&self) -> Presence {
        self.socket().map_or(Presence::Speaking, Stream::presence)
    }

    /// The time since the last bytes of the peer arrived at this machine, if the transport can tell. It may cost a
    /// system call.
    pub(crate) fn since_arrival(&self) -> Option<Duration> {
        self.socket().and_then(Stream::since_arrival)
    }
}

/// The kernel's memory for a TCP connection whose peer takes nothing: `SocketOptions::unsent_bytes_max` with its
/// default of 64 KiB, and an eighth for the records that hold the bytes. 41 KiB were measured for 32 KiB, and 143 KiB
/// for 128 KiB.
const TCP_KERNEL_BYTES_MAX: usize = 72 << 10;

/// The same for a Unix socket: the default of `net.core.wmem_default`.
const IPC_KERNEL_BYTES_MAX: usize = 208 << 10;
