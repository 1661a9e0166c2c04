//! Settings of sockets and pollers beside the defaults, and the failures of in-process addresses.

pub use crate::limits::DATAGRAM_FRAME_BYTES_MAX;
pub use tidewire_io::datagram::DatagramOptions;
pub use tidewire_io::poller::{PollerChoice, PollerKind};
pub use tidewire_io::socket::{
    AnySocketAddress, KeepAlive, PassedSocket, PeerCredentials, SocketOptions,
};
