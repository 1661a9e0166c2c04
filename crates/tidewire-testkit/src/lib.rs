//! What Tidewire's own tests share: raw peers, servers to test against, and the conformance suite.
//!
//! Problem: a client and a server written by the same people agree on their mistakes. Approach: [`Peer`] speaks
//! the wire formats over blocking sockets of the standard library, with nothing of the library but its codecs, so
//! that what the suite sees is what a stranger's program sees. Rejected: simulated sockets (the four pollers are
//! what is to be compared), and sleeping to let things happen: every wait here is for a fact, with a deadline
//! that fails with words.

pub mod conformance;
mod datagram_wire;
pub mod descriptors;
pub mod fault_server;
pub mod fixtures;
mod harness;
mod layered_wire;
pub mod logs;
mod peer;
mod ring_wire;
mod terminal;
mod wait;
mod wire;
mod xor_layer;

pub use datagram_wire::DatagramWire;
pub use harness::{TestServer, assert_conserved};
pub use layered_wire::LayeredWire;
pub use peer::{Heard, Peer, challenge_answer, hello_frame};
pub use ring_wire::RingWire;
pub use terminal::open_terminal;
pub use wait::{DEADLINE, block_on, wait_until};
pub use wire::Wire;
pub use xor_layer::{XorLayer, layers_of};
