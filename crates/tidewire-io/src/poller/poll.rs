//! The poll backend: the portable one, and the fallback of the automatic choice.
//!
//! The kernel walks the whole list at every wait, so the cost grows with the number of watched descriptors. The list is
//! therefore kept dense, and a registration with [`Interest::NONE`] is not on it (poll would report its hang-ups). An
//! index by descriptor number makes adding, changing and removing O(1): removal swaps the last entry into the gap.
//!
//! The collection starts at a point that moves on with every full batch: the list has a fixed order, and its front
//! would otherwise starve its end. Entries beyond a full batch are kept for the next wait, which then makes no system
//! call. A call for every batch would walk ten thousand ready descriptors for each hundred that are reported. The next
//! call queries an entry that was changed or removed before.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::PollFlags;

use super::list::{BROKEN, PollList};
use super::table::{DescriptorTable, index_of};
use super::{Events, Interest, Poller, PollerError, PollerKind, Token};

#[derive(Debug)]
pub(super) struct PollPoller {
    /// The kernel's list, and for each entry the number of its descriptor.
    watched: PollList,
    owners: Vec<usize>,
    registered: DescriptorTable<Registration>,
    /// The index at which the next collection starts.
    cursor: usize,
    /// An upper bound of the entries of the kernel's last answer that were not collected yet.
    uncollected: usize,
}

#[derive(Copy, Clone, Debug)]
struct Registration {
    token: Token,
    interest: Interest,
    /// The index in `watched`; `None` while silent.
    index: Option<usize>,
}

impl PollPoller {
    pub(super) const fn open() -> Self {
        Self {
            watched: PollList::new(),
            owners: Vec::new(),
            registered: DescriptorTable::new(),
            cursor: 0,
            uncollected: 0,
        }
    }

    /// Puts a descriptor on the kernel's list and returns its index.
    fn watch(&mut self, descriptor: RawFd, owner: usize, interest: Interest) -> usize {
        self.watched.push(descriptor, interest);
        self.owners.push(owner);
        self.watched.len() - 1
    }

    /// Takes an entry off the kernel's list. The last entry moves into its place.
    fn unwatch(&mut self, index: usize) {
        self.watched.swap_remove(index);
        self.owners.swap_remove(index);
        if let Some(&moved) = self.owners.get(index)
            && let Some(registration) = self.registered.find_mut(moved)
        {
            registration.index = Some(index);
        }
    }

    /// Moves the kernel's answer into `events`, as much as there is room for.
    fn collect(&mut self, events: &mut Events) {
        let length = self.watched.len();
        if self.cursor >= length {
            self.cursor = 0;
        }
        let start = self.cursor;
        for step in 0..length {
            if self.uncollected == 0 || events.is_full() {
                return;
            }
            let index = if start + step < length {
                start + step
            } else {
                start + step - length
            };
            let seen = self.watched.take_answer(index);
            if seen.is_empty() {
                continue;
            }
            self.uncollected -= 1;
            let Some(registration) = self.registered.find(self.owners[index]) else {
                continue;
            };
            let event = registration.interest.event(
                registration.token,
                seen.contains(PollFlags::IN),
                seen.contains(PollFlags::OUT),
                seen.intersects(BROKEN),
            );
            if let Some(event) = event {
                events.push(event);
                self.cursor = index + 1;
            }
        }
        // Some entries were changed or taken off the list since.
        self.uncollected = 0;
    }
}

impl Poller for PollPoller {
    fn kind(&self) -> PollerKind {
        PollerKind::Poll
    }

    fn add(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        self.registered.insert(
            descriptor,
            Registration {
                token,
                interest: Interest::NONE,
                index: None,
            },
        )?;
        self.modify(descriptor, token, interest)
    }

    fn modify(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        let before = self.registered.require(descriptor)?.index;
        let index = match (before, interest) {
            (None, Interest::NONE) => None,
            (Some(index), Interest::NONE) => {
                self.unwatch(index);
                None
            }
            (None, _) => Some(self.watch(descriptor.as_raw_fd(), index_of(descriptor), interest)),
            (Some(index), _) => {
                self.watched.set(index, descriptor.as_raw_fd(), interest);
                Some(index)
            }
        };
        *self.registered.require(descriptor)? = Registration {
            token,
            interest,
            index,
        };
        Ok(())
    }

    fn remove(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), PollerError> {
        if let Some(index) = self.registered.remove(descriptor)?.index {
            self.unwatch(index);
        }
        Ok(())
    }

    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> Result<(), PollerError> {
        events.clear();
        self.collect(events);
        if !events.is_empty() {
            return Ok(());
        }
        match self.watched.wait(timeout) {
            Ok(ready) => {
                self.uncollected = ready;
                self.collect(events);
                Ok(())
            }
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(source) => Err(PollerError::Wait { source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Stream;
    use std::os::fd::AsFd;

    #[test]
    fn removal_leaves_no_entry_behind() {
        let mut poller = PollPoller::open();
        let pairs: Vec<_> = (0..5).map(|_| Stream::pair().unwrap()).collect();
        for (index, (near, _)) in pairs.iter().enumerate() {
            poller
                .add(near.as_fd(), Token(index), Interest::READ)
                .unwrap();
        }
        for index in [1, 4, 0] {
            poller.remove(pairs[index].0.as_fd()).unwrap();
            let removed = index_of(pairs[index].0.as_fd());
            assert!(!poller.owners.contains(&removed));
            assert_eq!(poller.watched.len(), poller.owners.len());
            for (index, &owner) in poller.owners.iter().enumerate() {
                assert_eq!(poller.registered.find(owner).unwrap().index, Some(index));
            }
        }
    }
}
