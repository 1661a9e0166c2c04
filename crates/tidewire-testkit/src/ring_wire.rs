//! A ring of the in-process transport as a blocking connection, for raw peers.
//!
//! Two threads may read and write at once, as with a cloned socket. A ring is for one thread, so a lock protects it,
//! which is never held while waiting. Its descriptor is watched for the directions in which a thread waits.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use tidewire_io::poller::Interest;
use tidewire_io::ring::RingStream;

use crate::wait::DEADLINE;

/// One end of an in-process connection, blocking. Clones are handles to the same end.
#[derive(Clone, Debug)]
pub struct RingWire {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    /// The ring's descriptor, so that a thread can wait for it without the lock.
    descriptor: OwnedFd,
}

#[derive(Debug)]
struct State {
    ring: RingStream,
    readers: usize,
    writers: usize,
}

impl RingWire {
    /// Takes one end.
    #[must_use]
    pub fn new(mut ring: RingStream) -> Self {
        ring.set_interest(Interest::NONE);
        let descriptor = ring.as_fd().try_clone_to_owned().expect("a descriptor");
        let state = Mutex::new(State {
            ring,
            readers: 0,
            writers: 0,
        });
        Self {
            inner: Arc::new(Inner { state, descriptor }),
        }
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.blocking(|state| &mut state.readers, |ring| ring.read(buffer))
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.blocking(|state| &mut state.writers, |ring| ring.write(bytes))
    }

    pub(crate) fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.blocking(
            |state| &mut state.writers,
            |ring| ring.write_vectored(pieces),
        )
    }

    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.lock().ring.shutdown_write()
    }

    /// Repeats until it would not block, or the deadline has passed.
    fn blocking(
        &self,
        waiting: impl Fn(&mut State) -> &mut usize,
        mut attempt: impl FnMut(&mut RingStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let deadline = Instant::now() + DEADLINE;
        let outcome = attempt(&mut self.lock().ring);
        if !matches!(&outcome, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            return outcome;
        }
        *waiting(&mut self.lock()) += 1;
        let outcome = loop {
            {
                let mut state = self.lock();
                state.announce();
                let outcome = attempt(&mut state.ring);
                let would_block =
                    matches!(&outcome, Err(error) if error.kind() == ErrorKind::WouldBlock);
                if !would_block || Instant::now() >= deadline {
                    break outcome;
                }
                // Clears a report without cause.
                state.ring.poll_ready();
            }
            let mut watched = [PollFd::new(&self.inner.descriptor, PollFlags::IN)];
            let left = deadline.saturating_duration_since(Instant::now());
            poll(&mut watched, Some(&left.try_into().unwrap_or_default()))?;
        };
        let mut state = self.lock();
        *waiting(&mut state) -= 1;
        state.announce();
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.inner.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn announce(&mut self) {
        self.ring
            .set_interest(match (self.readers > 0, self.writers > 0) {
                (true, true) => Interest::READ_WRITE,
                (true, false) => Interest::READ,
                (false, true) => Interest::WRITE,
                (false, false) => Interest::NONE,
            });
    }
}
