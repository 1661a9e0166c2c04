//! How a connection to a server is made and made again: the part that clients and upstreams share. No I/O but in
//! [`Lookup`], which runs on a thread of its own.
//!
//! One attempt to connect is a [`Lookup`], if something must be looked up, and then a [`Race`] of the addresses. A
//! [`Pace`] says when the next attempt may begin.

mod lookup;
mod pace;
mod race;

pub(crate) use lookup::{Found, Lookup, Target};
pub use pace::Backoff;
pub(crate) use pace::Pace;
pub(crate) use race::{Race, Step};
