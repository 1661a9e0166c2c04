//! A list of descriptor numbers for poll(2).
//!
//! The list holds numbers and borrows no descriptor, because only the caller of the poller can promise that a
//! descriptor stays open. The kernel reports a number that is closed as [`PollFlags::NVAL`], and reads or writes
//! nothing through it.
#![expect(unsafe_code, reason = "the call takes a pointer to the list")]

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::time::Duration;

use rustix::event::PollFlags;

use super::{Interest, timespec};

#[derive(Debug, Default)]
pub(super) struct PollList(Vec<libc::pollfd>);

impl PollList {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn push(&mut self, number: RawFd, interest: Interest) {
        self.0.push(entry(number, interest));
    }

    pub(super) fn set(&mut self, index: usize, number: RawFd, interest: Interest) {
        self.0[index] = entry(number, interest);
    }

    /// Removes an entry. The last entry moves into its place.
    pub(super) fn swap_remove(&mut self, index: usize) {
        self.0.swap_remove(index);
    }

    /// Returns the kernel's answer for an entry, and clears it.
    pub(super) fn take_answer(&mut self, index: usize) -> PollFlags {
        PollFlags::from_bits_retain(std::mem::take(&mut self.0[index].revents).cast_unsigned())
    }

    /// Waits until a descriptor of the list is ready. Returns the number of entries with an answer.
    ///
    /// # Errors
    ///
    /// A signal came ([`io::ErrorKind::Interrupted`]), or the kernel refuses the list.
    #[inline]
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let limit = timeout.map(timespec).map(|limit| libc::timespec {
            tv_sec: limit.tv_sec,
            tv_nsec: limit.tv_nsec,
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        let count = self.0.len() as libc::nfds_t;
        // SAFETY: the first two arguments describe the entries of the list, which nothing else touches. The
        // limit is null or outlives the call, and no signal mask is given.
        let ready = unsafe { libc::ppoll(self.0.as_mut_ptr(), count, limit, ptr::null()) };
        usize::try_from(ready).map_err(|_| io::Error::last_os_error())
    }
}

fn entry(number: RawFd, interest: Interest) -> libc::pollfd {
    libc::pollfd {
        fd: number,
        events: poll_flags(interest).bits().cast_signed(),
        revents: 0,
    }
}

pub(super) fn poll_flags(interest: Interest) -> PollFlags {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, interest.is_readable());
    flags.set(PollFlags::OUT, interest.is_writable());
    flags
}

/// The flags that are reported in every registered direction.
pub(super) const BROKEN: PollFlags = PollFlags::ERR.union(PollFlags::HUP).union(PollFlags::NVAL);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Stream;
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn the_kernel_answers_for_each_entry_and_a_closed_number_is_an_answer() {
        let (near, far) = Stream::pair().unwrap();
        let (idle, _far) = Stream::pair().unwrap();
        drop(far);
        let mut list = PollList::new();
        list.push(near.as_fd().as_raw_fd(), Interest::READ);
        list.push(idle.as_fd().as_raw_fd(), Interest::READ);
        // A number that is never open in this process represents a descriptor closed too early.
        list.push(i32::MAX - 1, Interest::READ);
        assert_eq!(list.wait(Some(Duration::ZERO)).unwrap(), 2);
        assert!(list.take_answer(0).contains(PollFlags::IN));
        assert_eq!(list.take_answer(0), PollFlags::empty(), "taken once");
        assert_eq!(list.take_answer(1), PollFlags::empty());
        assert_eq!(list.take_answer(2), PollFlags::NVAL);
        list.clear();
        assert_eq!(list.wait(Some(Duration::ZERO)).unwrap(), 0);
    }
}
