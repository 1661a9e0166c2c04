//! Types of the layer over the operating system that addresses and errors name, and helpers for whole programs.
//!
//! The errors are causes of [`ServeError`](crate::ServeError) and [`ConnectError`](crate::ConnectError).
//! [`InprocName::connect`](crate::address::InprocName::connect) returns a [`RingStream`].
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
mod trusted;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[cfg(feature = "http")]
#[doc(hidden)]
pub use http::http_agent;
pub use trusted::{OpenError, Trust, check_trust, open_trusted};

pub use tidewire_io::allocation::{CountingAllocator, is_counting};
pub use tidewire_io::descriptors::raise_descriptor_limit;
pub use tidewire_io::poller::{Interest, PollerError};
pub use tidewire_io::ring::{Readiness, RingStream};
pub use tidewire_io::socket::{SocketError, listen_tcp};

/// The state of a file when it was read. Another state means that the file was changed or replaced.
///
/// ```
/// use tidewire::system::FileState;
///
/// let seen = FileState::of("Cargo.toml");
/// assert!(seen.is_some() && seen == FileState::of("Cargo.toml"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    identity: (u64, u64),
    bytes: u64,
    modified_ns: i128,
    /// The time of the last change of content, mode or owner. Mode and owner decide whether the file is trusted.
    changed_ns: i128,
}

impl FileState {
    /// The present state. `None` if the file does not exist.
    #[must_use]
    pub fn of(path: impl AsRef<Path>) -> Option<Self> {
        let metadata = path.as_ref().metadata().ok()?;
        let time = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        let modified_ns = time(metadata.mtime(), metadata.mtime_nsec());
        let changed_ns = time(metadata.ctime(), metadata.ctime_nsec());
        Some(Self {
            identity: (metadata.dev(), metadata.ino()),
            bytes: metadata.len(),
            modified_ns,
            changed_ns,
        })
    }
}
