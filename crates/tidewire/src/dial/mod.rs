//! Connecting and reconnecting to a server: the part that clients and upstreams share. Only [`Lookup`] does I/O, on a
//! separate thread.
//!
//! A [`Dialer`] makes one connection, and makes it again. One attempt is a [`Lookup`], if something must be looked up,
//! and then a [`Race`](race::Race) of the addresses. A [`Pace`] says when the next attempt may begin.

mod dialer;
mod lookup;
mod pace;
mod race;

pub(crate) use dialer::{DialStep, Dialer};
pub(crate) use lookup::{Lookup, LookupResult, Target};
pub use pace::Backoff;
use pace::Pace;
