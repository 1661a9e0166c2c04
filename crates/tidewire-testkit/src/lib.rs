//! Shared code of Tidewire's own tests: raw peers, servers under test, and the conformance suite.
//!
//! Problem: a client and a server by the same authors can share the same mistakes. Approach: [`Peer`] speaks the wire
//! formats over blocking sockets of the standard library and uses only the codecs of the library, so the suite has the
//! view of a foreign program. Rejected: simulated sockets, because the suite compares the four pollers; and sleeping:
//! every wait is for a condition, with a deadline that fails with the condition's description.
//!
//! A function that cannot do its work, or that finds another behaviour than it checks, panics: it fails the test.

pub mod backplane;
pub mod certificates;
pub mod conformance;
mod datagram_wire;
pub mod descriptors;
pub mod fault_server;
pub mod fixtures;
mod harness;
pub mod identities;
pub mod jwt;
mod layered_wire;
pub mod logs;
mod nats;
pub mod page;
mod peer;
mod relay;
mod ring_wire;
mod script;
pub mod stacks;
mod terminal;
mod wait;
mod wire;
mod xor_layer;

pub use datagram_wire::DatagramWire;
pub use harness::{TestServer, assert_conserved};
pub use layered_wire::LayeredWire;
pub use nats::NatsServer;
pub use peer::{Peer, RoomEvent, challenge_answer, hello_frame};
pub use relay::{Disorder, UdpRelay};
pub use ring_wire::RingWire;
pub use script::write_script;
pub use terminal::open_terminal;
pub use wait::{DEADLINE, block_on, wait_until};
pub use wire::{Wire, connect_from};
pub use xor_layer::{XorLayer, layers_of};
