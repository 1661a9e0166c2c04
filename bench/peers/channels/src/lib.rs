//! Channels between two threads of one process, each a program of its own in `bin/`.
//!
//! They carry messages by value and follow the advice of their authors: bounded where a bound exists, and several
//! messages at once where an API for that exists (rtrb's chunks). Otherwise a receiver takes all waiting messages
//! before it waits again.

use anyhow::Result;
use peer_common::inproc::{self, Opening};
use peer_common::{
    Console, Description, Driver, Measured, Peer, Work, locked_version, not_offered, offer,
};

/// A kind of channel.
#[derive(Debug)]
pub struct Channel<E> {
    /// Name, as the tables show it.
    pub name: &'static str,
    /// The library's name in the lock file. `None` for the standard library.
    pub library: Option<&'static str>,
    /// Makes two ends that are connected both ways.
    pub connect: fn() -> (E, E),
}

impl<E: Opening> Peer for Channel<E> {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            name: self.name.to_owned(),
            version: self
                .library
                .map_or(Ok(STANDARD.to_owned()), locked_version)?,
            offers: vec![
                offer("echo", &["inproc"], "", Driver::Own),
                offer("ingest", &["inproc"], "", Driver::Own),
            ],
        })
    }

    fn serve(&self, work: &Work, _console: &Console) -> Result<()> {
        Err(not_offered(work))
    }

    fn drive(&self, _address: &str, work: &Work) -> Result<Measured> {
        inproc::drive(work, || Ok((self.connect)()))
    }
}

/// The standard library's version is that of the compiler.
const STANDARD: &str = env!("CARGO_PKG_RUST_VERSION");

/// Messages that a bounded channel holds: a power of two, several times the number in flight.
pub const CAPACITY: usize = 1_024;
