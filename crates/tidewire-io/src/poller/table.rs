//! The registrations of a poller, by descriptor number.
//!
//! The kernel gives the smallest free number, so a vector indexed by it is dense, and a look-up costs one load. A hash
//! map was rejected for its cost per event. The vector grows with the highest number seen and is kept, because numbers
//! come back.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::PollerError;

/// A value per registered descriptor.
#[derive(Debug)]
pub(super) struct DescriptorTable<T> {
    slots: Vec<Option<T>>,
}

impl<T> DescriptorTable<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new() }
    }

    /// Adds a value. Fails if the number is taken.
    pub(super) fn insert(
        &mut self,
        descriptor: BorrowedFd<'_>,
        value: T,
    ) -> Result<(), PollerError> {
        let index = index_of(descriptor);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        let slot = &mut self.slots[index];
        if slot.is_some() {
            return Err(PollerError::AlreadyRegistered {
                descriptor: descriptor.as_raw_fd(),
            });
        }
        *slot = Some(value);
        Ok(())
    }

    /// Finds a value. Fails if the number is unknown.
    pub(super) fn require(&mut self, descriptor: BorrowedFd<'_>) -> Result<&mut T, PollerError> {
        self.slots
            .get_mut(index_of(descriptor))
            .and_then(Option::as_mut)
            .ok_or(PollerError::NotRegistered {
                descriptor: descriptor.as_raw_fd(),
            })
    }

    /// Removes a value. Fails if the number is unknown.
    pub(super) fn remove(&mut self, descriptor: BorrowedFd<'_>) -> Result<T, PollerError> {
        self.slots
            .get_mut(index_of(descriptor))
            .and_then(Option::take)
            .ok_or(PollerError::NotRegistered {
                descriptor: descriptor.as_raw_fd(),
            })
    }

    #[inline]
    pub(super) fn find(&self, number: usize) -> Option<&T> {
        self.slots.get(number).and_then(Option::as_ref)
    }

    #[inline]
    pub(super) fn find_mut(&mut self, number: usize) -> Option<&mut T> {
        self.slots.get_mut(number).and_then(Option::as_mut)
    }

    /// One more than the highest number registered below `number`.
    pub(super) fn bound_below(&self, number: usize) -> usize {
        self.slots[..number.min(self.slots.len())]
            .iter()
            .rposition(Option::is_some)
            .map_or(0, |highest| highest + 1)
    }
}

/// Converts the descriptor's number to an index.
pub(super) fn index_of(descriptor: BorrowedFd<'_>) -> usize {
    usize::try_from(descriptor.as_raw_fd()).expect("an open descriptor's number is not negative")
}

/// Makes the error of a registration that the kernel refused.
pub(super) fn refused(descriptor: RawFd, cause: rustix::io::Errno) -> PollerError {
    PollerError::Register {
        descriptor,
        source: io::Error::from(cause),
    }
}
