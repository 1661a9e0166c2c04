//! Readiness of descriptors: one contract, four backends, chosen at run time.
//!
//! # The contract
//!
//! **Readiness is level-triggered.** [`Poller::wait`] reports a descriptor that is ready in a direction it is
//! registered for. Every later wait reports it again until it is no longer ready, is modified, or is removed. A lane
//! may therefore stop in the middle of a read when its turn is used up, because the next wait reports the descriptor
//! again. Every backend keeps this, also when its kernel interface is edge-triggered.
//!
//! - A report is a hint: the descriptor *may* answer `WouldBlock`. Another event of this wait, or after a full batch of
//!   an earlier wait, may have used up the readiness. Descriptors should be non-blocking.
//! - An error or a hang-up sets every direction the descriptor is registered for, so that the next read or write meets
//!   the error itself. There is no separate error flag that could be forgotten.
//! - [`Interest::NONE`] keeps the registration and reports nothing, not even a hang-up: a paused session with a
//!   vanished peer must not turn its lane into a busy loop.
//! - When more descriptors are ready than [`Events`] has room for, the next waits report the rest, before any
//!   descriptor has a second turn. This holds while registrations do not change. A full batch never starves a
//!   descriptor.
//! - [`Poller::remove`] comes before the descriptor is closed. After the call, the poller holds nothing of the
//!   descriptor: closing the descriptor ends the connection at once, and its number may be registered again.
//! - A timeout of zero never blocks. Timeouts below a millisecond are honoured: they are never rounded to zero and
//!   never rounded up to a millisecond. A signal ends a wait early, with no events.
//! - Only [`Poller::wait`] blocks. One thread at a time uses a poller; it may be built on one thread and moved to
//!   another.
//! - Tokens belong to the caller: a poller stores and returns them, and never compares them. A collected event carries
//!   the token of its moment. A lane that closes one descriptor and opens another within a batch therefore checks that
//!   the token still means the same descriptor.
//!
//! ```
//! use std::os::fd::AsFd;
//! use tidewire_io::poller::{Events, Interest, PollerChoice, Token, open};
//! use tidewire_io::socket::Stream;
//!
//! let mut poller = open(PollerChoice::Auto)?;
//! let mut events = Events::with_capacity(1_024);
//! let (mut near, mut far) = Stream::pair()?;
//! poller.add(near.as_fd(), Token(7), Interest::READ)?;
//!
//! far.write(b"hello")?;
//! poller.wait(&mut events, None)?;
//! assert_eq!(events[0].token, Token(7));
//! assert_eq!(near.read(&mut [0; 64])?, 5);
//!
//! poller.remove(near.as_fd())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What was rejected
//!
//! Edge-triggering saves a system call per drained descriptor in theory, but obliges every consumer to drain until
//! `WouldBlock`, which defeats a fairness cap. A completion interface instead of readiness was measured slower for
//! small messages over loopback. A choice at compile time would prevent a comparison of the four on the machine that
//! matters.

mod epoll;
mod kind;
mod list;
mod poll;
mod select;
mod table;
mod uring;

use std::fmt::Debug;
use std::io;
use std::ops::Index;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use crate::descriptors::{timespec, wait_for};
pub use kind::{POLLER_VARIABLE, PollerChoice, PollerKind};

/// One readiness backend, used by one lane. The module documentation is its contract.
pub trait Poller: Send + Debug {
    /// The kind of this backend.
    fn kind(&self) -> PollerKind;

    /// A descriptor that is readable while a wait would return events at once. `None` if this backend has none.
    fn readiness(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Starts reporting a descriptor under a token.
    ///
    /// # Errors
    ///
    /// [`PollerError::AlreadyRegistered`] when this number is registered, which means that an earlier
    /// descriptor was closed without [`Poller::remove`]; [`PollerError::Register`] when the kernel refuses.
    fn add(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError>;

    /// Replaces the token and interest of a registered descriptor.
    ///
    /// # Errors
    ///
    /// [`PollerError::NotRegistered`], or [`PollerError::Register`] when the kernel refuses.
    fn modify(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError>;

    /// Stops reporting a descriptor. Call it before the descriptor is closed.
    ///
    /// # Errors
    ///
    /// [`PollerError::NotRegistered`], or [`PollerError::Register`] when the kernel refuses; either way
    /// the poller has forgotten the descriptor.
    fn remove(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), PollerError>;

    /// Clears `events`, then fills it with the ready descriptors. Without a ready descriptor the call blocks for at
    /// most `timeout`; `None` has no limit.
    ///
    /// It returns no events when the time is up or a signal arrived.
    ///
    /// # Errors
    ///
    /// [`PollerError::Wait`] or [`PollerError::ClosedDescriptor`] only when the poller itself failed. Readiness errors
    /// of single descriptors are reported as events.
    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> Result<(), PollerError>;
}

/// Opens a poller.
///
/// [`PollerChoice::Auto`] takes epoll, or poll if epoll does not work, and logs the choice with its reason.
///
/// # Errors
///
/// [`PollerError::Unavailable`] when the chosen backend does not work here, with cause and remedy. An explicit choice
/// is never replaced by another backend.
pub fn open(choice: PollerChoice) -> Result<Box<dyn Poller>, PollerError> {
    match choice {
        PollerChoice::Only(kind) => open_kind(kind),
        PollerChoice::Auto => match open_kind(PollerKind::Epoll) {
            Ok(poller) => {
                tracing::info!(
                    poller = %PollerKind::Epoll,
                    "poller chosen: epoll, the fastest of the four for small messages"
                );
                Ok(poller)
            }
            Err(cause) => {
                tracing::info!(
                    poller = %PollerKind::Poll,
                    cause = %cause,
                    "poller chosen: poll, because epoll does not work here"
                );
                open_kind(PollerKind::Poll)
            }
        },
    }
}

/// The caller's name for a registered descriptor.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Hash)]
pub struct Token(pub usize);

/// The directions in which a descriptor is watched.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Hash)]
pub struct Interest {
    readable: bool,
    writable: bool,
}

impl Interest {
    /// Registered but silent: nothing is reported, not even a hang-up.
    pub const NONE: Self = Self {
        readable: false,
        writable: false,
    };
    /// Report when a read would not block.
    pub const READ: Self = Self {
        readable: true,
        writable: false,
    };
    /// Report when a write would not block.
    pub const WRITE: Self = Self {
        readable: false,
        writable: true,
    };
    /// Report both directions.
    pub const READ_WRITE: Self = Self {
        readable: true,
        writable: true,
    };

    /// Whether reading is watched.
    #[inline]
    #[must_use]
    pub const fn is_readable(self) -> bool {
        self.readable
    }

    /// Whether writing is watched.
    #[inline]
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.writable
    }

    /// Turns the kernel's answer into an event of this interest, if any. `broken` stands for an error, a hang-up, or a
    /// descriptor that no longer exists.
    #[inline]
    fn event(self, token: Token, readable: bool, writable: bool, broken: bool) -> Option<Event> {
        let event = Event {
            token,
            readable: self.readable && (readable || broken),
            writable: self.writable && (writable || broken),
        };
        (event.readable || event.writable).then_some(event)
    }
}

/// One ready descriptor. At least one direction is set, and only registered directions are.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Event {
    /// The token the descriptor is registered under.
    pub token: Token,
    /// A read will not block: data, the end of the stream, a connection to accept, or an error.
    pub readable: bool,
    /// A write will not block: room, or an error.
    pub writable: bool,
}

/// A reusable batch of events. Its capacity is the maximum that one wait reports and never changes, so waiting
/// allocates nothing.
#[derive(Debug)]
pub struct Events {
    list: Vec<Event>,
    capacity: usize,
}

impl Events {
    /// Creates a batch with room for `capacity` events, at least one.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            list: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// The maximum number of events that one wait reports.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The events of the last wait, in no particular order.
    pub fn iter(&self) -> std::slice::Iter<'_, Event> {
        self.list.iter()
    }

    /// The number of events of the last wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the last wait had no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Forgets the events of the last wait.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    fn is_full(&self) -> bool {
        self.list.len() >= self.capacity
    }

    #[inline]
    fn push(&mut self, event: Event) {
        debug_assert!(!self.is_full(), "a backend checks for room first");
        self.list.push(event);
    }
}

impl Index<usize> for Events {
    type Output = Event;

    fn index(&self, index: usize) -> &Event {
        &self.list[index]
    }
}

impl<'a> IntoIterator for &'a Events {
    type Item = &'a Event;
    type IntoIter = std::slice::Iter<'a, Event>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The error of choosing, opening or using a poller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are what their texts call them")]
pub enum PollerError {
    /// The text names no poller.
    #[error("{text:?} is not a poller; choose auto, epoll, poll, select or uring")]
    UnknownName { text: String },
    /// The environment variable [`POLLER_VARIABLE`] names no poller.
    #[error("the environment variable TIDEWIRE_POLLER cannot be used: {source}")]
    Variable { source: Box<PollerError> },
    /// The backend does not work on this machine or for this process. Apply the remedy, or choose another backend.
    #[error("the {kind} poller does not work here: {cause}; {remedy}")]
    Unavailable {
        kind: PollerKind,
        cause: &'static str,
        remedy: &'static str,
        source: io::Error,
    },
    /// The number is already registered: an earlier descriptor was closed without being removed. Remove it, or use
    /// `modify`.
    #[error(
        "descriptor {descriptor} is already registered; remove it before closing or adding it again"
    )]
    AlreadyRegistered { descriptor: RawFd },
    /// The number is not registered. Add it first.
    #[error("descriptor {descriptor} is not registered; add it first")]
    NotRegistered { descriptor: RawFd },
    /// The kernel refused. `ENOSPC` means that the number of `fs.epoll.max_user_watches` is reached. `EPERM` means that
    /// the descriptor is of a kind that cannot be polled, such as a regular file.
    #[error("the kernel refused to change the registration of descriptor {descriptor}: {source}")]
    Register {
        descriptor: RawFd,
        source: io::Error,
    },
    /// A registered descriptor was closed without being removed, and this backend cannot recover. Remove descriptors
    /// before closing them.
    #[error(
        "a registered descriptor was closed before it was removed from the poller; remove descriptors before closing \
         them"
    )]
    ClosedDescriptor { source: io::Error },
    /// The kernel refused to wait.
    #[error("the kernel refused to wait for readiness: {source}")]
    Wait { source: io::Error },
}

fn open_kind(kind: PollerKind) -> Result<Box<dyn Poller>, PollerError> {
    Ok(match kind {
        PollerKind::Epoll => Box::new(epoll::EpollPoller::open()?),
        PollerKind::Poll => Box::new(poll::PollPoller::open()),
        PollerKind::Select => Box::new(select::SelectPoller::open()),
        PollerKind::Uring => Box::new(uring::UringPoller::open()?),
    })
}

/// Blocks until a descriptor is readable, for at most `timeout`, or until a signal arrives.
///
/// # Errors
///
/// [`PollerError::Wait`] when the kernel refuses.
pub fn wait_readable(
    descriptor: BorrowedFd<'_>,
    timeout: Option<Duration>,
) -> Result<(), PollerError> {
    let waited = wait_for(descriptor, PollFlags::IN, timeout);
    waited
        .map(drop)
        .map_err(|source| PollerError::Wait { source })
}
