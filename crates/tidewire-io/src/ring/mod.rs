//! Bytes between two ends of one process, without the kernel.
//!
//! The in-process transport must look to a lane like a socket: bytes to read in place, room to write to, and readiness
//! from its poller. Rejected: a channel of messages, because every frame would cost an allocation and a transfer. The
//! decoder takes a hundred frames from one span. Rejected: a Unix socket pair, because it costs a system call and two
//! copies in the kernel for every write.
//!
//! ```text
//!  lane A                                                lane B
//!  RingStream ── Producer ══▶ [ mirrored memory ] ══▶ Consumer ── RingStream
//!             ── Consumer ◀══ [ mirrored memory ] ◀══ Producer ──
//!              ── eventfd  ◀── written by B, only when A sleeps on it
//! ```
//!
//! - [`ring`] makes one direction: a [`Producer`] and a [`Consumer`], each for one thread. They pass any number of
//!   bytes with one release store and one acquire load, without a lock or a system call. The memory is mapped twice in
//!   a row, so every span is contiguous.
//! - [`RingStream`] is one end of a pair of rings. It has a descriptor that the level-triggered pollers watch like a
//!   socket.

mod index;
mod mirror;
mod sleep;
mod spsc;
mod stream;
mod summons;

pub use spsc::{Consumer, Producer, ring};
pub use stream::{Readiness, RingStream, attend};
pub use summons::{Attendant, Summons};
