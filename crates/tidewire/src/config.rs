//! The settings of a server, which all its lanes share and none of them changes.

use tidewire_io::datagram::DatagramOptions;
use tidewire_io::socket::SocketOptions;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::connection::Rules;

use crate::limits::{Limits, RoomDefaults};

/// See the module.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) codec: AnyCodec,
    pub(crate) limits: Limits,
    /// Largest frame of a room or topic, in bytes: with the header of a subscriber it is a whole frame.
    pub(crate) shared_frame_bytes_max: usize,
    /// Settings of all connections.
    pub(crate) rules: Rules,
    pub(crate) room_defaults: RoomDefaults,
    /// How the server names itself in its welcome.
    pub(crate) agent: String,
    /// Addresses over UDP that cannot prove themselves may be sent more than they sent.
    pub(crate) trusts_datagram_peers: bool,
    /// Options of the connections that lanes make.
    pub(crate) socket_options: SocketOptions,
    /// Options of the server's UDP sockets and of those that lanes open.
    pub(crate) datagram_options: DatagramOptions,
}
