//! epoll with nothing around it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use tidewire_io::socket::{Listener, Stream};

/// An epoll set whose members have the numbers of a table.
#[derive(Debug)]
pub(crate) struct WaitSet {
    epoll: OwnedFd,
    events: Box<[MaybeUninit<Event>]>,
    /// How long a wait looks for events before it sleeps.
    spin: Duration,
}

impl WaitSet {
    pub(crate) fn new() -> io::Result<Self> {
        Self::taking(EVENTS)
    }

    /// A set that takes at most so many events in one call.
    pub(crate) fn taking(events: usize) -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: vec![MaybeUninit::uninit(); events].into_boxed_slice(),
            spin: Duration::ZERO,
        })
    }

    /// A set that looks for events again and again for so long before it sleeps.
    pub(crate) fn spinning(spin: Duration) -> io::Result<Self> {
        Ok(Self {
            spin,
            ..Self::new()?
        })
    }

    /// Watches for input, as long as the descriptor is open.
    pub(crate) fn add(&self, descriptor: impl AsFd, number: usize) -> io::Result<()> {
        let data = EventData::new_u64(number as u64);
        Ok(epoll::add(&self.epoll, descriptor, data, EventFlags::IN)?)
    }

    /// Watches for output beside input, or no longer.
    pub(crate) fn watch_output(
        &self,
        descriptor: impl AsFd,
        number: usize,
        output: bool,
    ) -> io::Result<()> {
        let data = EventData::new_u64(number as u64);
        let flags = if output {
            EventFlags::IN | EventFlags::OUT
        } else {
            EventFlags::IN
        };
        Ok(epoll::modify(&self.epoll, descriptor, data, flags)?)
    }

    /// Watches no longer.
    pub(crate) fn remove(&self, descriptor: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, descriptor)?)
    }

    /// Puts the numbers of what is ready into `ready`, after at most 100 ms also none.
    pub(crate) fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        self.wait_for(ready, TIMEOUT)
    }

    /// Puts the numbers of what is ready into `ready`, after at most `timeout`, which is less than a second, also none.
    pub(crate) fn wait_for(&mut self, ready: &mut Vec<usize>, timeout: Duration) -> io::Result<()> {
        if !self.spin.is_zero() {
            let end = Instant::now() + self.spin.min(timeout);
            while Instant::now() < end {
                self.poll(ready, Duration::ZERO)?;
                if !ready.is_empty() {
                    return Ok(());
                }
            }
        }
        self.poll(ready, timeout)
    }

    fn poll(&mut self, ready: &mut Vec<usize>, timeout: Duration) -> io::Result<()> {
        ready.clear();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        match epoll::wait(&self.epoll, &mut self.events[..], Some(&timeout)) {
            Ok((events, _)) => ready.extend(events.iter().map(|event| event.data.u64() as usize)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// A listener and what it accepts, which has numbers from 0 in the order in which it came.
#[derive(Debug)]
pub(crate) struct AcceptSet<'a> {
    set: WaitSet,
    listener: &'a Listener,
    accepted: usize,
}

impl<'a> AcceptSet<'a> {
    pub(crate) fn new(listener: &'a Listener) -> io::Result<Self> {
        Self::within(WaitSet::new()?, listener)
    }

    /// The listener and its connections are members of this set.
    pub(crate) fn within(set: WaitSet, listener: &'a Listener) -> io::Result<Self> {
        set.add(listener.as_fd(), LISTENER)?;
        Ok(Self {
            set,
            listener,
            accepted: 0,
        })
    }

    /// Hands what comes to `accept`, and puts the numbers of what is ready into `ready`, after at most `timeout` also
    /// none.
    pub(crate) fn wait_for(
        &mut self,
        ready: &mut Vec<usize>,
        timeout: Duration,
        mut accept: impl FnMut(Stream),
    ) -> io::Result<()> {
        self.set.wait_for(ready, timeout)?;
        let Some(place) = ready.iter().position(|&number| number == LISTENER) else {
            return Ok(());
        };
        ready.swap_remove(place);
        while let Ok(accepted) = self.listener.accept() {
            self.set.add(accepted.stream.as_fd(), self.accepted)?;
            self.accepted += 1;
            accept(accepted.stream);
        }
        Ok(())
    }

    /// The set, to watch an accepted connection in another way.
    pub(crate) fn set(&self) -> &WaitSet {
        &self.set
    }
}

/// The listener's number in a set, which no connection reaches.
const LISTENER: usize = usize::MAX;

/// Longest wait where nothing is due.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(100);

/// Events taken in one call where nothing else is asked for.
const EVENTS: usize = 256;
