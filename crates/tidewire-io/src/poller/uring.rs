//! The `io_uring` backend: readiness through multishot poll requests.
//!
//! A multishot request costs one submission for the life of a registration and completes each time the descriptor
//! *becomes* ready, which is edge-triggered. The contract requires levels, so every descriptor that a wait reports
//! stays on a short list. The next wait first queries poll(2), with a timeout of zero, about just that list. A
//! descriptor that is still ready is reported again. A descriptor that is not ready leaves the list. Its request is
//! still armed, and completes when the descriptor becomes ready again. A completion that arrived while the lane was
//! working goes through that check, too, because the lane may have used the readiness up. A completion that arrives
//! while the poller itself waits is reported without a check.
//!
//! The alternative is one-shot requests that are armed again after each report. They are level-triggered and need
//! neither list nor poll(2). But each event costs a submission entry, a file look-up and a wait-queue insertion, while
//! poll(2) is one system call for all events. Time inside `wait`, TCP over loopback, 2.5 GHz Xeon, Linux 6.18, in ns
//! per event, as connections / active at once:
//!
//! | | 1/1 | 16/1 | 16/16 | 256/1 | 256/16 | 256/256 |
//! |---|---|---|---|---|---|---|
//! | multishot and poll(2) | 165 | 194 | 47 | 197 | 92 | 52 |
//! | one-shot, armed again | 253 | 218 | 118 | 220 | 99 | 126 |
//! | epoll, for comparison | 144 | 177 | 48 | 182 | 90 | 54 |
//!
//! ```text
//!  add/modify ─▶ submission queue ─▶ kernel ─▶ completion queue ─▶ list ─▶ poll(2) ─▶ events
//!                                                     └── fresh, while waiting ───────▶ events
//! ```
//!
//! Each request carries the descriptor's number and a generation, so that completions of a cancelled request, or of an
//! earlier descriptor with the same number, are recognised and dropped. The kernel ends a multishot request when the
//! completion queue overflows or when the submitting thread exits. The poller then arms the request again as soon as
//! the descriptor is not ready. The kernel keeps the file of an armed request open. `remove` therefore submits its
//! cancellation at once rather than at the next wait; otherwise closing the descriptor would not end the connection.
#![expect(
    unsafe_code,
    reason = "submission entries outlive the borrows they were made from"
)]

mod refusal;
mod registration;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;

use self::refusal::unavailable;
use self::registration::{Registration, RequestId};
use super::list::{BROKEN, PollList, poll_flags};
use super::table::DescriptorTable;
use super::{Events, Interest, Poller, PollerError, PollerKind, Token, timespec};
use crate::clock::now_ns;

pub(super) struct UringPoller {
    ring: IoUring,
    registered: DescriptorTable<Registration>,
    /// The generation of the request armed last. Zero is never used: it marks cancellations.
    generation: u32,
    /// Descriptors to query with poll(2) at the next wait, longest waiting first.
    listed: VecDeque<RequestId>,
    /// Scratch lists for that query, and the request of each entry.
    asked: PollList,
    asking: Vec<RequestId>,
    /// The number of this wait, so that two completions for one descriptor make one event.
    wait_number: u64,
}

impl UringPoller {
    pub(super) fn open() -> Result<Self, PollerError> {
        Self::with_entries(SUBMISSIONS, COMPLETIONS).map_err(unavailable)
    }

    fn with_entries(submissions: u32, completions: u32) -> io::Result<Self> {
        // Cooperative task running saves an interrupt for every completion while the lane computes. It came with Linux
        // 5.19; older kernels answer EINVAL.
        let mut builder = IoUring::builder();
        builder.setup_clamp().setup_cqsize(completions);
        let ring = match builder
            .clone()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(submissions)
        {
            Err(cause) if is(&cause, Errno::INVAL) => builder.build(submissions)?,
            other => other?,
        };
        let parameters = ring.params();
        // These three features came with or before multishot poll, which has no flag of its own.
        if !(parameters.is_feature_nodrop()
            && parameters.is_feature_ext_arg()
            && parameters.is_feature_resource_tagging())
        {
            return Err(io::Error::from(Errno::OPNOTSUPP));
        }
        Ok(Self {
            ring,
            registered: DescriptorTable::new(),
            generation: 0,
            listed: VecDeque::new(),
            asked: PollList::new(),
            asking: Vec::new(),
            wait_number: 0,
        })
    }

    /// Queues the multishot request for a registration and notes it in the table. A silent registration has no request.
    fn arm(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        let number = descriptor.as_raw_fd();
        let mut request = RequestId {
            number: number.cast_unsigned(),
            generation: 0,
        };
        if interest != Interest::NONE {
            self.generation = self.generation.wrapping_add(1).max(1);
            request.generation = self.generation;
        }
        *self.registered.require(descriptor)? = Registration {
            token,
            interest,
            generation: request.generation,
            is_armed: request.generation != 0,
            is_listed: false,
            is_broken: false,
            reported: (0, 0),
        };
        if request.generation == 0 {
            return Ok(());
        }
        self.request_poll(request, interest)
            .map_err(|source| refused(number, source))
    }

    fn request_poll(&mut self, request: RequestId, interest: Interest) -> io::Result<()> {
        let descriptor = Fd(request.number.cast_signed());
        let entry = opcode::PollAdd::new(descriptor, poll_flags(interest).bits().into())
            .multi(true)
            .build()
            .user_data(request.to_user_data());
        self.push(&entry)
    }

    /// Queues the cancellation of a request. Its outcome does not matter: completions of an old
    /// generation are dropped. (Not `PollRemove`, which gives up on a request that is just completing.)
    fn cancel(&mut self, descriptor: BorrowedFd<'_>, generation: u32) -> Result<(), PollerError> {
        if generation == 0 {
            return Ok(());
        }
        let number = descriptor.as_raw_fd();
        let request = RequestId {
            number: number.cast_unsigned(),
            generation,
        };
        let entry = opcode::AsyncCancel::new(request.to_user_data())
            .build()
            .user_data(CANCELLATION);
        self.push(&entry).map_err(|source| refused(number, source))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.submit()?;
        }
        // SAFETY: the kernel reads whatever an entry points to until the request completes. These two kinds of entry
        // hold a descriptor's number, poll flags and user data, and no pointer.
        unsafe { self.ring.submission().push(entry) }.map_err(|_full| io::Error::from(Errno::BUSY))
    }

    /// Submits the queued entries to the kernel.
    fn submit(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            match self.ring.submit() {
                Ok(_) => {}
                Err(cause) if is(&cause, Errno::INTR) => {}
                // The kernel has no room for more completions, so the queue is emptied first.
                Err(cause) if is(&cause, Errno::BUSY) => self.reap(None)?,
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    /// Takes every completion off the queue. With `fresh`, the completions arrived while the poller waited and become
    /// events. Otherwise they are put on the list for a check.
    fn reap(&mut self, mut fresh: Option<&mut Events>) -> io::Result<()> {
        loop {
            while let Some(completion) = self.next_completion() {
                self.take(&completion, fresh.as_deref_mut());
            }
            if !self.ring.submission().cq_overflow() {
                return Ok(());
            }
            // The kernel has more completions. One call moves them into the queue.
            match self.ring.submit() {
                Ok(_) => {}
                Err(cause) if is(&cause, Errno::INTR) || is(&cause, Errno::BUSY) => {}
                Err(cause) => return Err(cause),
            }
        }
    }

    fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }

    fn take(&mut self, completion: &cqueue::Entry, fresh: Option<&mut Events>) {
        let request = RequestId::from_user_data(completion.user_data());
        let Some(registration) = request.find(&mut self.registered) else {
            return;
        };
        let result = completion.result();
        let is_cancelled = result == -Errno::CANCELED.raw_os_error();
        registration.is_broken |= result < 0 && !is_cancelled;
        // The request is armed again only when the descriptor is not ready. A request for a ready descriptor completes
        // at once, and would do so without end while the queue overflows.
        registration.is_armed = cqueue::more(completion.flags());
        self.note(request, result, fresh.filter(|_| !is_cancelled));
    }

    /// Puts a descriptor on the list, and makes an event of it if the completion is fresh.
    fn note(&mut self, request: RequestId, result: i32, fresh: Option<&mut Events>) {
        let Some(registration) = request.find(&mut self.registered) else {
            return;
        };
        if !registration.is_listed {
            registration.is_listed = true;
            self.listed.push_back(request);
        }
        let Some(events) = fresh else {
            return;
        };
        let seen = u16::try_from(result).map_or(BROKEN, PollFlags::from_bits_retain);
        let Some(event) = registration.event(seen) else {
            return;
        };
        let (wait_number, index) = registration.reported;
        if wait_number == self.wait_number {
            let earlier = &mut events.list[index];
            earlier.readable |= event.readable;
            earlier.writable |= event.writable;
        } else if !events.is_full() {
            registration.reported = (self.wait_number, events.len());
            events.push(event);
        }
    }

    /// Queries poll(2) about the listed descriptors until the list or the room for events is used up.
    fn check_listed(&mut self, events: &mut Events) -> io::Result<()> {
        let mut unchecked = self.listed.len();
        while unchecked > 0 && !events.is_full() {
            self.asked.clear();
            self.asking.clear();
            for _ in 0..unchecked.min(events.capacity() - events.len()) {
                unchecked -= 1;
                let Some(request) = self.listed.pop_front() else {
                    break;
                };
                if let Some(registration) = request.find(&mut self.registered) {
                    let number = request.number.cast_signed();
                    self.asked.push(number, registration.interest);
                    self.asking.push(request);
                }
            }
            ask(&mut self.asked)?;
            for index in 0..self.asking.len() {
                let request = self.asking[index];
                let Some(registration) = request.find(&mut self.registered) else {
                    continue;
                };
                let seen = if registration.is_broken {
                    BROKEN
                } else {
                    self.asked.take_answer(index)
                };
                if let Some(event) = registration.event(seen) {
                    registration.reported = (self.wait_number, events.len());
                    events.push(event);
                    self.listed.push_back(request);
                    continue;
                }
                registration.is_listed = false;
                if !registration.is_armed {
                    registration.is_armed = true;
                    // Arming reports the present state, so no change since the query is missed. The generation stays:
                    // the request that had it completed for the last time.
                    let interest = registration.interest;
                    self.request_poll(request, interest)?;
                }
            }
        }
        Ok(())
    }

    /// Blocks until any completion arrives, relevant or not.
    fn block(&mut self, timeout: Option<Duration>) -> io::Result<Woken> {
        let outcome = match timeout {
            None => self.ring.submitter().submit_and_wait(1),
            // Any call of the kernel delivers completions that are due.
            Some(Duration::ZERO) => self.ring.submit().map(|_| 0),
            Some(timeout) => {
                let limit = timespec(timeout);
                let limit = io_uring::types::Timespec::new()
                    .sec(limit.tv_sec.cast_unsigned())
                    .nsec(timeout.subsec_nanos());
                let arguments = SubmitArgs::new().timespec(&limit);
                self.ring.submitter().submit_with_args(1, &arguments)
            }
        };
        match outcome {
            Ok(_) if timeout == Some(Duration::ZERO) => Ok(Woken::ForGood),
            Ok(_) => Ok(Woken::ByCompletion),
            Err(cause) if is(&cause, Errno::BUSY) => Ok(Woken::ByCompletion),
            Err(cause) if is(&cause, Errno::TIME) || is(&cause, Errno::INTR) => Ok(Woken::ForGood),
            Err(cause) => Err(cause),
        }
    }

    fn wait_for(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let started_ns = now_ns();
        let mut left = timeout;
        loop {
            self.submit()?;
            self.reap(None)?;
            self.check_listed(events)?;
            if !events.is_empty() {
                return Ok(());
            }
            let woken = self.block(left)?;
            self.reap(Some(events))?;
            if !events.is_empty() || woken == Woken::ForGood {
                return Ok(());
            }
            // All completions were of earlier generations or of unwanted directions: wait again.
            let waited = Duration::from_nanos(now_ns().saturating_sub(started_ns));
            left = timeout.map(|timeout| timeout.saturating_sub(waited));
        }
    }
}

impl Poller for UringPoller {
    fn kind(&self) -> PollerKind {
        PollerKind::Uring
    }

    fn add(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        self.registered.insert(descriptor, Registration::SILENT)?;
        let armed = self.arm(descriptor, token, interest);
        if armed.is_err() {
            self.registered.remove(descriptor)?;
        }
        armed
    }

    fn modify(
        &mut self,
        descriptor: BorrowedFd<'_>,
        token: Token,
        interest: Interest,
    ) -> Result<(), PollerError> {
        let registration = self.registered.require(descriptor)?;
        if registration.interest == interest {
            registration.token = token;
            return Ok(());
        }
        let generation = registration.generation;
        self.cancel(descriptor, generation)?;
        self.arm(descriptor, token, interest)
    }

    fn remove(&mut self, descriptor: BorrowedFd<'_>) -> Result<(), PollerError> {
        let generation = self.registered.remove(descriptor)?.generation;
        if generation == 0 {
            return Ok(());
        }
        self.cancel(descriptor, generation)?;
        self.submit()
            .map_err(|source| refused(descriptor.as_raw_fd(), source))
    }

    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> Result<(), PollerError> {
        events.clear();
        self.wait_number += 1;
        self.wait_for(events, timeout)
            .map_err(|source| PollerError::Wait { source })
    }
}

impl Drop for UringPoller {
    fn drop(&mut self) {
        // Without this call, closing the ring would cancel the requests in the background, and their connections would
        // stay open until then. A kernel before 6.0 lacks the call, so the outcome does not matter.
        let _ = self
            .ring
            .submitter()
            .register_sync_cancel(None, CancelBuilder::any());
    }
}

impl std::fmt::Debug for UringPoller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("UringPoller")
            .field("registered", &self.registered)
            .field("generation", &self.generation)
            .field("listed", &self.listed)
            .finish_non_exhaustive()
    }
}

/// The reason why a wait in the kernel ended.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
enum Woken {
    /// There may be completions, and there is time left.
    ByCompletion,
    /// The time is up or a signal arrived.
    ForGood,
}

/// Calls poll(2) without waiting, and repeats it when a signal interrupts it.
fn ask(asked: &mut PollList) -> io::Result<()> {
    if asked.is_empty() {
        return Ok(());
    }
    loop {
        match asked.wait(Some(Duration::ZERO)) {
            Ok(_) => return Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(cause),
        }
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn refused(descriptor: RawFd, source: io::Error) -> PollerError {
    PollerError::Register { descriptor, source }
}

/// The user data of cancellations. Generation zero belongs to no registration, so their outcomes find none.
const CANCELLATION: u64 = 0;

/// Submission entries. Registrations change in bursts of accepts; more than this in one turn costs only another
/// submission.
const SUBMISSIONS: u32 = 256;

/// Completion entries: a turn's worth for thousands of busy connections without overflow; 64 KiB. Overflow is handled,
/// but ends the multishot requests that meet it.
const COMPLETIONS: u32 = 4_096;

#[cfg(test)]
mod tests;
