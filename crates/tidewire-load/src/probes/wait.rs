//! epoll with nothing around it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

/// An epoll set whose members have the numbers of a table.
#[derive(Debug)]
pub(super) struct WaitSet {
    epoll: OwnedFd,
    events: Box<[MaybeUninit<Event>]>,
}

impl WaitSet {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: vec![MaybeUninit::uninit(); EVENTS].into_boxed_slice(),
        })
    }

    /// Watches for input, as long as the descriptor is open.
    pub(super) fn add(&self, descriptor: impl AsFd, number: usize) -> io::Result<()> {
        let data = EventData::new_u64(number as u64);
        Ok(epoll::add(&self.epoll, descriptor, data, EventFlags::IN)?)
    }

    /// Watches for output beside input, or no longer.
    pub(super) fn watch_output(
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

    /// Puts the numbers of what is ready into `ready`, after at most 100 ms also none.
    pub(super) fn wait(&mut self, ready: &mut Vec<usize>) -> io::Result<()> {
        ready.clear();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        match epoll::wait(&self.epoll, &mut self.events[..], Some(&timeout)) {
            Ok((events, _)) => ready.extend(events.iter().map(|event| event.data.u64() as usize)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Events taken in one call.
const EVENTS: usize = 256;
