//! The epoll backend: its cost grows only with the number of ready descriptors, so it is the default.
//!
//! epoll is level-triggered by default. Its ready list is a queue that puts a reported descriptor at the end, so it is
//! fair as the contract requires. But epoll reports hang-ups even without interest. A registration with
//! [`Interest::NONE`] is therefore taken out of the kernel's set and remembered only here.
//!
//! The event's data holds the descriptor's number and not the caller's token. Turning a hang-up into directions needs
//! the interest, and a look-up by number costs one load.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::table::{DescriptorTable, refused};
use super::{Events, Interest, Poller, PollerError, PollerKind, Token, timespec};

#[derive(Debug)]
pub(super) struct EpollPoller {
    epoll: Arc<OwnedFd>,
    registered: DescriptorTable<Registration>,
}

#[derive(Copy, Clone, Debug)]
struct Registration {
    token: Token,
    interest: Interest,
}

impl EpollPoller {
    pub(super) fn open() -> Result<Self, PollerError> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(unavailable)?;
        // This call detects a kernel or a sandbox without `epoll_pwait2`, so the automatic choice can still fall back.
        epoll::wait(
            &epoll,
            &mut [MaybeUninit::uninit()],
            Some(&timespec(Duration::ZERO)),
        )
        .map_err(unavailable)?;
        Ok(Self {
            epoll: Arc::new(epoll),
            registered: DescriptorTable::new(),
        })
    }

    fn change(
        &self,
        descriptor: BorrowedFd<'_>,
        before: Interest,
        after: Interest,
    ) -> Result<(), PollerError> {
        let number = descriptor.as_raw_fd();
        // The cast keeps the bits, and a descriptor's number is never negative.
        let data = EventData::new_u64(number as u64);
        match (before != Interest::NONE, after != Interest::NONE) {
            (false, false) => Ok(()),
            (false, true) => epoll::add(&self.epoll, descriptor, data, flags(after)),
            (true, true) if before == after => Ok(()),
            (true, true) => epoll::modify(&self.epoll, descriptor, data, flags(after)),
            (true, false) => epoll::delete(&self.epoll, descriptor),
        }
        .map_err(|cause| refused(number, cause))
    }
}

impl Poller for EpollPoller {
    fn kind(&self) -> PollerKind {
        PollerKind::Epoll
    }

    fn readiness(&self) -> Option<Arc<OwnedFd>> {
        Some(Arc::clone(&self.epoll))
    }

    fn add(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        self.registered
            .insert(descriptor, Registration { token, interest })?;
        let added = self.change(descriptor, Interest::NONE, interest);
        if added.is_err() {
            self.registered.remove(descriptor)?;
        }
        added
    }

    fn modify(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        let before = self.registered.require(descriptor)?.interest;
        self.change(descriptor, before, interest)?;
        *self.registered.require(descriptor)? = Registration { token, interest };
        Ok(())
    }

    fn remove(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), PollerError> {
        let removed = self.registered.remove(descriptor)?;
        self.change(descriptor, removed.interest, Interest::NONE)
    }

    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> Result<(), PollerError> {
        events.clear();
        // The kernel's records hold a union with a pointer, so they cannot move between threads with the poller. They
        // live on the stack instead, uninitialised, which costs nothing.
        let mut room = [const { MaybeUninit::uninit() }; BATCH];
        // The kernel gets no more room than the caller has: a descriptor that the kernel reports moves to the end of
        // its queue.
        let room = &mut room[..events.capacity().min(BATCH)];
        let timeout = timeout.map(timespec);
        let ready = match epoll::wait(&self.epoll, room, timeout.as_ref()) {
            Ok((ready, _)) => ready,
            Err(Errno::INTR) => return Ok(()),
            Err(cause) => {
                return Err(PollerError::Wait {
                    source: io::Error::from(cause),
                });
            }
        };
        for ready in ready {
            let (seen, data) = (ready.flags, ready.data);
            let Some(registration) = usize::try_from(data.u64())
                .ok()
                .and_then(|number| self.registered.find(number))
            else {
                continue;
            };
            let event = registration.interest.event(
                registration.token,
                seen.contains(EventFlags::IN),
                seen.contains(EventFlags::OUT),
                seen.intersects(EventFlags::ERR.union(EventFlags::HUP)),
            );
            if let Some(event) = event {
                events.push(event);
            }
        }
        Ok(())
    }
}

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, interest.is_readable());
    flags.set(EventFlags::OUT, interest.is_writable());
    flags
}

fn unavailable(cause: Errno) -> PollerError {
    let (what, remedy) = match cause {
        Errno::NOSYS => (
            "the kernel has no epoll_pwait2, which came with Linux 5.11",
            "use a newer kernel, or choose the poll poller",
        ),
        Errno::PERM | Errno::ACCESS => (
            "a sandbox forbids the epoll system calls",
            "allow epoll_create1, epoll_ctl and epoll_pwait2, or choose the poll poller",
        ),
        Errno::MFILE | Errno::NFILE => (
            "no descriptor is left for it",
            "raise the limit with `ulimit -n`",
        ),
        _ => ("the kernel refused to create it", "choose the poll poller"),
    };
    PollerError::Unavailable {
        kind: PollerKind::Epoll,
        cause: what,
        remedy,
        source: io::Error::from(cause),
    }
}

/// Maximum events per system call; 12 KiB. Further ready descriptors come with the next wait.
const BATCH: usize = 1_024;
