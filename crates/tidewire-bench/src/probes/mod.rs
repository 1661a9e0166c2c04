//! Bare loops that do the same bytes as Tidewire and nothing else: what "100 %" means on the machine at hand.
//!
//! A throughput alone says little: on a shared virtual machine the same program is twice as fast an hour later. So every
//! benchmark runs one of these in the same run, interleaved, and quotes the ratio. They are as short as they can
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

pub(crate) use frame::{Frame, Parse};
pub(crate) use link::{Link, TlsLink, Unfinished, or_none, received};

/// Size of one read or write of a probe in bytes: what a lane of Tidewire uses, and large enough that a system call
/// costs less than what it moves.
pub(crate) const BLOCK_BYTES: usize = 64 * 1024;
