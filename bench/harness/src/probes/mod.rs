//! Bare loops that do the same bytes as Tidewire and nothing else: what "100 %" means on the machine at hand.
//!
//! A throughput alone says little: on a shared virtual machine the same program is twice as fast an hour later. So
//! every benchmark runs one of these in the same run, interleaved, and quotes the ratio. They are as short as they can
//! be: no sessions, no limits, no codec beyond finding where a frame ends, one thread and one epoll set. What they
//! leave out is what a library costs.
//!
//! They speak the wire formats of Tidewire's codecs ([`Frame`]), so that a probe's client can also drive a Tidewire
//! server, or a rival's, and measure all of them with the same ruler.
//!
//! - [`echo`]: a server that sends everything back, and a client with any number of connections and frames in flight
//!   that checks every reply.
//! - [`ingest`]: a sender of blocks, and a receiver that counts bytes or finds the frames.
//! - [`datagram`], [`datagram_ingest`]: both over UDP, with segmentation offload, and one way without it as well.
//! - [`websocket`]: WebSocket by hand, beneath echo and fan-out.
//! - [`ring`]: the same and one way within a process, over the byte ring.

pub(crate) mod datagram;
pub(crate) mod datagram_ingest;
pub(crate) mod echo;
mod flight;
mod frame;
pub(crate) mod ingest;
mod link;
pub(crate) mod ring;
pub(crate) mod wait;
pub(crate) mod websocket;

pub(crate) use frame::{Frame, Parse};
pub(crate) use link::{Link, PartialFrame, TlsLink, or_none, received};
pub(crate) use websocket::WebSocketLink;

/// Returns the function for the link of a work's connections.
macro_rules! with_link {
    ($work:expr, $($function:ident)::+) => {{
        use tidewire_io::socket::Stream;
        use $crate::probes::{EACH, EACH_BYTES, TlsLink, WebSocketLink};
        match ($work.transport.as_str(), $work.mode.as_str()) {
            ("tls", _) => $($function)::+::<TlsLink>,
            ("ws", EACH) => $($function)::+::<WebSocketLink<Stream, EACH_BYTES>>,
            ("ws", _) => $($function)::+::<WebSocketLink<Stream, 0>>,
            ("wss", _) => $($function)::+::<WebSocketLink<TlsLink, 0>>,
            _ => $($function)::+::<Stream>,
        }
    }};
}
pub(crate) use with_link;

/// The mode in which every message is a WebSocket message of its own, and not every write.
pub(crate) const EACH: &str = "each";

/// Bytes of a message in this mode.
pub(crate) const EACH_BYTES: usize = 32;

/// Size of one read or write of a probe in bytes: what a lane of Tidewire uses, and large enough that a system call
/// costs less than what it moves.
pub(crate) const BLOCK_BYTES: usize = 64 * 1024;
