//! The operating-system layer of Tidewire: every system call and all unsafe code of the workspace.
//!
//! A lane is built from these parts: a [`poller`] that says which descriptors are ready, [`socket`]s that never block,
//! a [`timer`] wheel for deadlines, one receive [`buffer`], and a [`waker`] with which other threads wake a sleeping
//! lane. None of them knows about messages, sessions or protocols, and none spawns a thread.
//!
//! Four modules make no system call: [`checksum`] uses an instruction of the processor, [`allocation`] counts
//! allocations, [`append`] appends small messages to a vector, and [`words`] passes a few bytes from one thread to
//! another.
//!
//! [`process`] tells a child of `fork` from its parent. [`trusted`] opens files that decide about access.
//!
//! [`memory`] reads from the system's files how much memory the process may use. A server derives its limit from it.
//!
//! For transports that are not streams of the kernel there are the in-process byte [`ring`] and UDP [`datagram`]s.
//!
//! This is the only crate of the workspace that holds unsafe code. Each unsafe block is in a small module, says why it
//! is sound, and has a test. System calls go through `rustix`, which is safe except where a kernel interface keeps a
//! descriptor number after the call returns.
//!
//! Linux only, from kernel 5.11 for epoll with sub-millisecond timeouts and 5.13 for `io_uring`; on older
//! kernels the poll and select backends remain.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "tidewire-io supports Linux only: it needs epoll, eventfd and accept4; build for a linux target"
);

pub mod affinity;
pub mod allocation;
pub mod append;
pub mod buffer;
pub mod checksum;
pub mod clock;
pub mod datagram;
pub mod descriptors;
pub mod memory;
pub mod poller;
pub mod process;
pub mod ring;
mod signal;
pub mod socket;
pub mod timer;
pub mod trusted;
pub mod waker;
pub mod words;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
