//! Types of the layer over the operating system that addresses and errors name, and two helpers for whole programs.
//!
//! The errors are causes of [`ServeError`](crate::ServeError), [`ConnectFailure`](crate::ConnectFailure) and
//! [`LaneError`](crate::LaneError). [`InprocName::connect`](crate::InprocName::connect) returns a [`RingStream`].
//! [`raise_descriptor_limit`] lets a server hold more than the usual 1,024 connections. A [`CountingAllocator`] makes
//! [`Metrics::allocations`](crate::Metrics::allocations) count:
//!
//! ```
//! use tidewire::system::CountingAllocator;
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator::new();
//! # assert!(tidewire::system::is_counting());
//! ```

pub use tidewire_io::allocation::{CountingAllocator, is_counting};
pub use tidewire_io::datagram::{DatagramBindError, DatagramConnectError};
pub use tidewire_io::descriptors::{DescriptorLimit, raise_descriptor_limit};
pub use tidewire_io::poller::{
    Interest, ParsePollerError, PollerError, PollerVariableError, RegisterError, WaitError,
};
pub use tidewire_io::ring::{Readiness, RingStream};
pub use tidewire_io::socket::{BindError, SocketOptionsError, StreamConnectError};
