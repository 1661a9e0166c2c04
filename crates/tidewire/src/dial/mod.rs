//! Connecting and reconnecting to a server: the part that clients and upstreams share. Only [`Lookup`] does I/O, on a
//! separate thread.
//!
//! One attempt to connect is a [`Lookup`], if something must be looked up, and then a [`Race`] of the addresses. A
//! [`Pace`] says when the next attempt may begin.

mod lookup;
mod pace;
mod race;

pub(crate) use lookup::{Lookup, LookupResult, Target};
pub use pace::Backoff;
pub(crate) use pace::Pace;
pub(crate) use race::{Race, Step};
