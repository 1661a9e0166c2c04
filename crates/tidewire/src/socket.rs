//! Settings of sockets and pollers, for those who need other ones than the defaults, and the failures of in-process
//! addresses.

pub use crate::limits::DATAGRAM_FRAME_BYTES_MAX;
pub use crate::transport::inproc::{InprocBindError, InprocConnectError};
pub use tidewire_io::datagram::DatagramOptions;
pub use tidewire_io::poller::{PollerChoice, PollerKind};
pub use tidewire_io::socket::{
    KeepAlive, PassedAddress, PassedSocket, PassedSocketError, PeerCredentials, SocketAddress,
    SocketOptions,
};
