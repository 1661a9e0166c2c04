//! Settings of sockets and pollers beside the defaults, and the failures of in-process addresses.

pub use tidewire_io::datagram::DatagramOptions;
pub use tidewire_io::poller::{PollerChoice, PollerKind};
pub use tidewire_io::socket::{
    AnySocketAddress, KeepAlive, PassedSocket, PeerCredentials, SocketOptions,
};
