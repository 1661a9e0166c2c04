//! The numbers of rooms and patterns, and how many of them the server and each address may have.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::limits::ALIASES_MAX;
use crate::session::{Shares, TableFull};

/// The aliases in use. Rooms and patterns share one range, so that a channel means one thing on a connection.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    used: HashSet<u16>,
    last: u16,
}

impl Aliases {
    /// Takes the next free alias. Aliases are used in turn, so that a room does not get an alias whose old frames are
    /// still on their way between lanes. Alias 0 means "none".
    pub(super) fn take(&mut self) -> Result<u16, TableFull> {
        if self.used.len() >= ALIASES_MAX {
            return Err(TableFull::Server);
        }
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && self.used.insert(self.last) {
                return Ok(self.last);
            }
        }
    }

    pub(super) fn release(&mut self, alias: u16) {
        self.used.remove(&alias);
    }
}

/// How many rooms, or patterns, a server and each address may have, and how many each address has.
#[derive(Debug)]
pub(super) struct Quota {
    shares: Shares,
    per_address: usize,
    total: usize,
}

impl Quota {
    pub(super) fn new(per_address: usize, total: usize) -> Self {
        Self {
            shares: Shares::default(),
            per_address,
            total,
        }
    }

    /// Checks whether an address may add an entry to the `count` that there are.
    pub(super) fn check(&self, owner: Option<IpAddr>, count: usize) -> Result<(), TableFull> {
        let (per_address, total) = (self.per_address, self.total);
        self.shares.check(owner, per_address, count, total)
    }

    pub(super) fn add(&mut self, owner: Option<IpAddr>) {
        self.shares.add(owner);
    }

    pub(super) fn remove(&mut self, owner: Option<IpAddr>) {
        self.shares.remove(owner);
    }
}
