//! Types of the layer over the operating system that addresses and errors name, and helpers for whole programs.
//!
//! The errors are causes of [`ServeError`](crate::ServeError) and [`ConnectError`](crate::ConnectError).
//! [`raise_descriptor_limit`] lets a server hold more than the usual 1,024 connections. A [`CountingAllocator`] makes
//! [`Metrics::allocations`](crate::metrics::Metrics::allocations) count:
//!
//! ```
//! use tidewire::system::CountingAllocator;
//!
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator::new();
//! # assert!(tidewire::system::is_counting());
//! ```

#[cfg(feature = "http")]
mod http;

#[cfg(feature = "http")]
#[doc(hidden)]
pub use http::http_agent;

pub use tidewire_io::allocation::{CountingAllocator, is_counting};
pub use tidewire_io::descriptors::raise_descriptor_limit;
pub use tidewire_io::poller::PollerError;
pub use tidewire_io::socket::{SocketError, listen_tcp};
