//! The select backend: for comparison, and for machines that permit nothing else.
//!
//! Linux itself does not limit select to 1,024 descriptors; only the C library's fixed `fd_set` does. The sets here are
//! slices that grow with the highest registered descriptor number, so any number works. **Every wait costs time
//! proportional to the highest number**, ready or not: the wait copies both sets (one bit per number each), the kernel
//! walks over the copies, and the collection walks over the result. For 10,000 descriptors this is about 2.5 KB of bits
//! and a kernel check for each registered one.
//!
//! The kernel overwrites its sets with the answer, so the kernel gets copies. The collection starts at a number that
//! moves on with every full batch, because low numbers would otherwise starve high numbers. Descriptors beyond a full
//! batch are kept for the next wait, which then makes no system call, as with poll. A registration with
//! [`Interest::NONE`] is in neither set and therefore silent.
//!
//! select does not report hang-ups separately: a hang-up makes a descriptor readable, and writable only if a write
//! would fail at once. Sockets, both ends of pipes in their usual direction, and eventfds meet the contract that way,
//! as the tests show for sockets. The read end of a pipe watched for writing would not.
#![expect(unsafe_code, reason = "select(2) takes bare descriptor numbers")]

use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{FdSetElement, FdSetIter, fd_set_insert, fd_set_remove, select};
use rustix::io::Errno;

use super::table::{DescriptorTable, index_of};
use super::{Event, Events, Interest, Poller, PollerError, PollerKind, Token, timespec};

pub(super) struct SelectPoller {
    registered: DescriptorTable<Token>,
    wanted: Sets,
    /// The copy that the kernel overwrites.
    answer: Sets,
    /// One more than the highest number that may be in `wanted`.
    bound: usize,
    /// The number at which the collection of the next answer starts.
    cursor: usize,
    /// The numbers of the answer that were not collected yet: those from the cursor up, then those below it.
    uncollected: [Range<usize>; 2],
}

#[derive(Default)]
struct Sets {
    read: Vec<FdSetElement>,
    write: Vec<FdSetElement>,
}

impl SelectPoller {
    pub(super) fn open() -> Self {
        Self {
            registered: DescriptorTable::new(),
            wanted: Sets::default(),
            answer: Sets::default(),
            bound: 0,
            cursor: 0,
            uncollected: [0..0, 0..0],
        }
    }

    fn set(&mut self, number: usize, interest: Interest) {
        let elements = number / BITS + 1;
        if self.wanted.read.len() < elements {
            self.wanted.read.resize(elements, FdSetElement::default());
            self.wanted.write.resize(elements, FdSetElement::default());
        }
        self.bound = self.bound.max(number + 1);
        change(&mut self.wanted.read, number, interest.is_readable());
        change(&mut self.wanted.write, number, interest.is_writable());
        // The kernel's earlier answer for this descriptor must not be reported any more.
        if number / BITS < self.answer.read.len() {
            change(&mut self.answer.read, number, false);
            change(&mut self.answer.write, number, false);
        }
    }

    /// Queries the kernel with a copy of the wanted sets.
    fn ask(&mut self, timeout: Option<Duration>) -> Result<(), Errno> {
        let elements = self.bound.div_ceil(BITS);
        self.answer.read.clear();
        self.answer.write.clear();
        self.answer
            .read
            .extend_from_slice(&self.wanted.read[..elements]);
        self.answer
            .write
            .extend_from_slice(&self.wanted.write[..elements]);
        let timeout = timeout.map(timespec);
        // SAFETY: `select` has two requirements. Each slice must cover `bound` bits: both were just filled with `bound`
        // rounded up to whole elements. Every number in the sets must be an open descriptor: by the contract of
        // `Poller` a descriptor is removed, which clears its bits, before it is closed. If a caller breaks the
        // contract, the kernel answers EBADF and touches nothing.
        unsafe {
            select(
                raw(self.bound),
                Some(&mut self.answer.read),
                Some(&mut self.answer.write),
                None,
                timeout.as_ref(),
            )
        }?;
        let start = self.cursor.min(self.bound);
        self.uncollected = [start..self.bound, 0..start];
        Ok(())
    }

    /// Turns the answer into events, as many as there is room for.
    fn collect(&mut self, events: &mut Events) {
        for range in &mut self.uncollected {
            let first = range.start;
            let ready = Ready::new(&self.answer, first / BITS)
                .skip_while(|ready| ready.number < first)
                .take_while(|ready| ready.number < range.end);
            for ready in ready {
                if events.is_full() {
                    return;
                }
                range.start = ready.number + 1;
                let Some(&token) = self.registered.find(ready.number) else {
                    continue;
                };
                events.push(Event {
                    token,
                    readable: ready.readable,
                    writable: ready.writable,
                });
                self.cursor = ready.number + 1;
            }
            *range = 0..0;
        }
    }
}

impl Poller for SelectPoller {
    fn kind(&self) -> PollerKind {
        PollerKind::Select
    }

    fn add(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        self.registered.insert(descriptor, token)?;
        self.set(index_of(descriptor), interest);
        Ok(())
    }

    fn modify(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        *self.registered.require(descriptor)? = token;
        self.set(index_of(descriptor), interest);
        Ok(())
    }

    fn remove(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), PollerError> {
        self.registered.remove(descriptor)?;
        let number = index_of(descriptor);
        self.set(number, Interest::NONE);
        if number + 1 == self.bound {
            self.bound = self.registered.bound_below(number);
        }
        Ok(())
    }

    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> Result<(), PollerError> {
        events.clear();
        self.collect(events);
        if !events.is_empty() {
            return Ok(());
        }
        match self.ask(timeout) {
            Ok(()) => {
                self.collect(events);
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(Errno::BADF) => Err(PollerError::ClosedDescriptor {
                source: io::Error::from(Errno::BADF),
            }),
            Err(cause) => Err(PollerError::Wait {
                source: io::Error::from(cause),
            }),
        }
    }
}

impl std::fmt::Debug for SelectPoller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The sets are left out: their elements cannot be shown, and the table says the same.
        formatter
            .debug_struct("SelectPoller")
            .field("registered", &self.registered)
            .field("bound", &self.bound)
            .field("cursor", &self.cursor)
            .finish_non_exhaustive()
    }
}

/// The ready descriptors of an answer in the order of their numbers. Both sets are merged, so a descriptor that is
/// ready in both directions is one event.
struct Ready<'a> {
    read: std::iter::Peekable<FdSetIter<'a>>,
    write: std::iter::Peekable<FdSetIter<'a>>,
    /// The number of the first bit of the slices.
    base: usize,
}

struct ReadyDescriptor {
    number: usize,
    readable: bool,
    writable: bool,
}

impl<'a> Ready<'a> {
    fn new(answer: &'a Sets, first_element: usize) -> Self {
        let first = first_element.min(answer.read.len());
        Self {
            read: FdSetIter::new(&answer.read[first..]).peekable(),
            write: FdSetIter::new(&answer.write[first..]).peekable(),
            base: first * BITS,
        }
    }
}

impl Iterator for Ready<'_> {
    type Item = ReadyDescriptor;

    fn next(&mut self) -> Option<ReadyDescriptor> {
        let (read, write) = (self.read.peek().copied(), self.write.peek().copied());
        let lowest = match (read, write) {
            (Some(read), Some(write)) => read.min(write),
            (one, other) => one.or(other)?,
        };
        let readable = self.read.next_if_eq(&lowest).is_some();
        let writable = self.write.next_if_eq(&lowest).is_some();
        Some(ReadyDescriptor {
            number: self.base + usize::try_from(lowest).unwrap_or_default(),
            readable,
            writable,
        })
    }
}

fn change(set: &mut [FdSetElement], number: usize, member: bool) {
    if member {
        fd_set_insert(set, raw(number));
    } else {
        fd_set_remove(set, raw(number));
    }
}

/// Converts a number back to a descriptor. Numbers come from descriptors, so they fit.
fn raw(number: usize) -> RawFd {
    RawFd::try_from(number).expect("a descriptor's number fits its own type")
}

const BITS: usize = size_of::<FdSetElement>() * 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Stream;
    use std::os::fd::{AsFd, AsRawFd};

    /// The unsafe block relies on two facts. The slices reach as far as `bound`, also when the highest number comes and
    /// goes. A removed number is in no set.
    #[test]
    fn the_sets_cover_the_bound_and_no_removed_number() {
        let mut poller = SelectPoller::open();
        let mut events = Events::with_capacity(8);
        let (low, _low_peer) = Stream::pair().unwrap();
        let high = rustix::io::fcntl_dupfd_cloexec(low.as_fd(), 1_500).unwrap();
        poller.add(low.as_fd(), Token(1), Interest::WRITE).unwrap();
        poller.add(high.as_fd(), Token(2), Interest::WRITE).unwrap();
        assert_eq!(poller.bound, index_of(high.as_fd()) + 1);
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.len(), 2);

        poller.remove(high.as_fd()).unwrap();
        assert_eq!(poller.bound, index_of(low.as_fd()) + 1);
        drop(high);
        poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
        assert_eq!(events.len(), 1, "a number still in a set would be EBADF");
        assert!(FdSetIter::new(&poller.wanted.write).eq([low.as_fd().as_raw_fd()]));
    }

    #[test]
    fn closing_a_registered_descriptor_is_a_named_error() {
        let mut poller = SelectPoller::open();
        let (near, _far) = Stream::pair().unwrap();
        // The number is far above the descriptors of all tests in this process, so it stays closed.
        let doomed = rustix::io::fcntl_dupfd_cloexec(near.as_fd(), 1_700).unwrap();
        poller.add(near.as_fd(), Token(0), Interest::READ).unwrap();
        poller
            .add(doomed.as_fd(), Token(1), Interest::READ)
            .unwrap();
        drop(doomed);
        let failed = poller.wait(&mut Events::with_capacity(1), Some(Duration::ZERO));
        assert!(matches!(failed, Err(PollerError::ClosedDescriptor { .. })));
    }
}
