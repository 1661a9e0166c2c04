//! The clients' side: some ends on one thread.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidewire::Endpoint;
use tidewire_io::affinity::pin_to_core;
use tidewire_io::datagram::DatagramBatch;
use tidewire_io::ring::RingStream;
use tidewire_io::socket::SocketAddress;

use super::rest::Rest;
use super::{Datagrams, FrameLink, GREETING, Strategy, Wire, buffer};
use crate::contract::Work;
use crate::plan::RoleError;
use crate::probes::wait::WaitSet;
use crate::probes::{datagram, echo};

/// How to get to a server.
#[derive(Clone)]
pub(in super::super) enum Way {
    Socket(SocketAddress),
    Udp(SocketAddr),
    /// The ends that nobody has taken yet.
    Rings(Arc<Mutex<Vec<RingStream>>>),
}

/// The ends of one thread.
pub(in super::super) struct Links<const FRAME_BYTES: usize> {
    pub(in super::super) all: Vec<FrameLink<FRAME_BYTES>>,
    waits: Waits,
    ready: Vec<usize>,
    buffer: Box<[u8]>,
}

/// The way to wait for frames.
enum Waits {
    In(WaitSet),
    /// Looking again and again.
    Looking(Rest),
}

impl Way {
    /// To a server of another process.
    pub(in super::super) fn to(endpoint: Endpoint) -> Result<Self, RoleError> {
        match endpoint {
            Endpoint::Tcp(address) => Ok(Self::Socket(address.into())),
            Endpoint::Unix(path) => Ok(Self::Socket(path.into())),
            Endpoint::Udp(address) => Ok(Self::Udp(address)),
            other => Err(RoleError::Unsupported(format!("no bare frames to {other}"))),
        }
    }

    /// To a server within this process, in this order.
    pub(super) fn rings(mut near: Vec<RingStream>) -> Self {
        near.reverse();
        Self::Rings(Arc::new(Mutex::new(near)))
    }
}

impl<const FRAME_BYTES: usize> Links<FRAME_BYTES> {
    /// Connects so many times, one after the other. Within a process the thread keeps to the first core of the work,
    /// and gives way to others at once where there are more of them than cores.
    pub(in super::super) fn connect(
        way: &Way,
        work: &Work,
        connections: usize,
    ) -> io::Result<Self> {
        let waits = match way {
            Way::Rings(_) => {
                work.cores.first().copied().map_or(Ok(()), pin_to_core)?;
                Waits::Looking(Rest::new(work.threads > 1 || work.cores.len() < 2))
            }
            _ => Waits::In(Strategy::of(work).wait_set()?),
        };
        let mut all = Vec::with_capacity(connections);
        for number in 0..connections {
            let wire = connect(way)?;
            match (&wire, &waits) {
                (Wire::Socket(stream), Waits::In(set)) => set.add(stream.as_fd(), number)?,
                (Wire::Datagrams(one), Waits::In(set)) => set.add(one.socket.as_fd(), number)?,
                _ => {}
            }
            all.push(FrameLink::new(wire));
        }
        Ok(Self {
            all,
            waits,
            ready: Vec::new(),
            buffer: buffer(),
        })
    }

    /// Waits for at most `timeout`, and lets `handle` take every frame that came, with the number of its link.
    pub(in super::super) fn turn(
        &mut self,
        timeout: Duration,
        strategy: Strategy,
        mut handle: impl FnMut(usize, &[u8; FRAME_BYTES], &mut Vec<u8>),
    ) -> io::Result<()> {
        match &mut self.waits {
            Waits::In(set) => set.wait_for(&mut self.ready, timeout)?,
            Waits::Looking(_) => {
                self.ready.clear();
                self.ready.extend(0..self.all.len());
            }
        }
        let mut heard = 0;
        for &number in &self.ready {
            heard += self.all[number].exchange(&mut self.buffer, strategy, |frame, out| {
                handle(number, frame, out);
            })?;
        }
        if strategy == Strategy::WriteTogether {
            for &number in &self.ready {
                self.all[number].flush()?;
            }
        }
        if let Waits::Looking(rest) = &mut self.waits {
            rest.after(heard);
        }
        Ok(())
    }
}

fn connect(way: &Way) -> io::Result<Wire> {
    match way {
        Way::Socket(address) => echo::connect(address, false).map(Wire::Socket),
        Way::Udp(peer) => greet(*peer).map(Wire::Datagrams),
        Way::Rings(near) => {
            let mut near = near.lock().unwrap_or_else(PoisonError::into_inner);
            let none = || io::Error::new(ErrorKind::NotFound, "all rings are taken");
            near.pop().map(Wire::Ring).ok_or_else(none)
        }
    }
}

/// A socket of which the server knows.
fn greet(peer: SocketAddr) -> io::Result<Datagrams> {
    let socket = datagram::bind(true)?;
    let mut set = WaitSet::new()?;
    set.add(socket.as_fd(), 0)?;
    let (mut ready, mut batch) = (Vec::new(), Box::new(DatagramBatch::new(1)));
    let until = Instant::now() + GREETING_MAX;
    while Instant::now() < until {
        socket.send(peer, GREETING.len(), &GREETING)?;
        set.wait(&mut ready)?;
        if !ready.is_empty() && socket.receive(&mut batch)? > 0 {
            return Ok(Datagrams {
                socket: Arc::new(socket),
                peer,
                batch: Some(batch),
            });
        }
    }
    Err(ErrorKind::TimedOut.into())
}

/// Longest wait for a server's answer to the first word.
const GREETING_MAX: Duration = Duration::from_secs(10);
