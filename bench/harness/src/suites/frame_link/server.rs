//! The server's side: all its ends on one thread.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tidewire::Endpoint;
use tidewire_io::affinity::pin_to_core;
use tidewire_io::datagram::{DatagramBatch, DatagramSocket};
use tidewire_io::poller::Interest;
use tidewire_io::ring::RingStream;
use tidewire_io::socket::Listener;

use super::client::Way;
use super::rest::Rest;
use super::{Datagrams, FrameLink, GREETING, RING_BYTES, Strategy, Wire, buffer};
use crate::contract::{Account, Work};
use crate::plan::RoleError;
use crate::probes::wait::{AcceptSet, TIMEOUT, WaitSet};
use crate::probes::{datagram, or_none};
use crate::stage::{OrFailed, Stage};
use crate::suites;

/// A server that is bound, so that its address is known, and does not serve yet.
pub(in super::super) enum Server {
    Sockets(Listener),
    Datagrams(DatagramSocket),
    /// Within a process both ends are made at once.
    Rings(Vec<RingStream>, Rest),
}

/// Plays a bare server whose frames `answer` serves until the process ends, which is when the runner ends its input.
pub(in super::super) fn serve(
    work: &Work,
    stage: &mut Stage,
    answer: impl FnOnce(Server) -> io::Result<()> + Send + 'static,
) -> Result<(), RoleError> {
    let (server, _) = Server::bind(work, 0)?;
    let address = server.address();
    thread::spawn(move || answer(server));
    stage.serve(&address, Account::default)
}

/// The way to a bare server. That of work within a process starts here, for so many connections.
pub(in super::super) fn way(
    work: &Work,
    address: &str,
    connections: usize,
    answer: impl FnOnce(Server) -> io::Result<()> + Send + 'static,
) -> Result<Way, RoleError> {
    if work.transport != "inproc" {
        return Way::to(suites::endpoint(&suites::full_address(work, address))?);
    }
    let (server, way) = Server::bind(work, connections)?;
    let core = work.cores.get(1).copied();
    thread::spawn(move || {
        core.map_or(Ok(()), pin_to_core)?;
        answer(server)
    });
    Ok(way)
}

/// The ends of its connections, in the order in which they came. One that has ended is gone.
type Links<const FRAME_BYTES: usize> = Vec<Option<FrameLink<FRAME_BYTES>>>;

impl Server {
    /// Binds what the work asks for, and says how to get there; within a process for so many connections.
    pub(in super::super) fn bind(
        work: &Work,
        connections: usize,
    ) -> Result<(Self, Way), RoleError> {
        match suites::endpoint(&suites::bind_address(work))? {
            Endpoint::Tcp(_) | Endpoint::Unix(_) => {
                let (listener, _) = suites::listen(work)?;
                let way = Way::Socket(listener.local_address().clone());
                Ok((Self::Sockets(listener), way))
            }
            Endpoint::Udp(_) => {
                let socket = datagram::bind(true).or_failed("listen")?;
                let way = Way::Udp(socket.local_address());
                Ok((Self::Datagrams(socket), way))
            }
            _ => {
                let (mut near, mut far) = (Vec::new(), Vec::new());
                for _ in 0..connections {
                    let pair = RingStream::pair(RING_BYTES);
                    let (mut one, mut other) = pair.or_failed("make a ring")?;
                    // Both ends poll, so neither is ever woken.
                    one.set_interest(Interest::NONE);
                    other.set_interest(Interest::NONE);
                    near.push(one);
                    far.push(other);
                }
                // The clients have the other core, or there is none.
                let rest = Rest::new(work.cores.len() < 2);
                Ok((Self::Rings(far, rest), Way::rings(near)))
            }
        }
    }

    /// Its address, as the runner hears it.
    pub(in super::super) fn address(&self) -> String {
        match self {
            Self::Sockets(listener) => listener.local_address().to_string(),
            Self::Datagrams(socket) => format!("udp://{}", socket.local_address()),
            Self::Rings(..) => "-".to_owned(),
        }
    }

    /// Serves for good, or until both ends of all rings are gone: lets `hear` answer every frame, and calls `after`
    /// with all ends whenever it has looked for frames.
    pub(in super::super) fn serve<const FRAME_BYTES: usize>(
        self,
        strategy: Strategy,
        mut hear: impl FnMut(&[u8; FRAME_BYTES], &mut Vec<u8>),
        mut after: impl FnMut(&mut Links<FRAME_BYTES>),
    ) -> io::Result<()> {
        let mut buffer = buffer();
        let mut links: Links<FRAME_BYTES> = Vec::new();
        let mut ready = Vec::new();
        match self {
            Self::Sockets(listener) => {
                let mut set = AcceptSet::within(strategy.wait_set()?, &listener)?;
                loop {
                    set.wait_for(&mut ready, timeout(&links), |stream| {
                        links.push(Some(FrameLink::new(Wire::Socket(stream))));
                    })?;
                    for &number in &ready {
                        exchange(&mut links[number], &mut buffer, strategy, &mut hear);
                    }
                    flush_rest(&mut links, strategy);
                    after(&mut links);
                }
            }
            Self::Datagrams(socket) => {
                let mut port = Port::new(socket, strategy.wait_set()?)?;
                loop {
                    port.set.wait_for(&mut ready, timeout(&links))?;
                    port.hear(&mut links, &mut hear)?;
                    after(&mut links);
                }
            }
            Self::Rings(rings, mut rest) => {
                let wires = rings.into_iter().map(Wire::Ring);
                links.extend(wires.map(|wire| Some(FrameLink::new(wire))));
                while links.iter().any(Option::is_some) {
                    let links_now = links.iter_mut();
                    let heard = links_now
                        .map(|link| exchange(link, &mut buffer, strategy, &mut hear))
                        .sum();
                    flush_rest(&mut links, strategy);
                    after(&mut links);
                    rest.after(heard);
                }
                Ok(())
            }
        }
    }
}

/// Lets a link exchange what it has. One that fails has ended.
fn exchange<const FRAME_BYTES: usize>(
    link: &mut Option<FrameLink<FRAME_BYTES>>,
    buffer: &mut [u8],
    strategy: Strategy,
    hear: impl FnMut(&[u8; FRAME_BYTES], &mut Vec<u8>),
) -> usize {
    let Some(open) = link else { return 0 };
    open.exchange(buffer, strategy, hear).unwrap_or_else(|_| {
        *link = None;
        0
    })
}

/// Writes what was not written to each link at once. A link that fails has ended.
fn flush_rest<const FRAME_BYTES: usize>(links: &mut Links<FRAME_BYTES>, strategy: Strategy) {
    if strategy == Strategy::WriteTogether {
        for link in links {
            if link.as_mut().is_some_and(|open| open.flush().is_err()) {
                *link = None;
            }
        }
    }
}

/// How long to wait: not long where somebody took too little.
fn timeout<const FRAME_BYTES: usize>(links: &Links<FRAME_BYTES>) -> Duration {
    let is_behind = links.iter().flatten().any(|link| !link.output.is_empty());
    if is_behind { SOON } else { TIMEOUT }
}

/// The one socket of all peers.
struct Port {
    set: WaitSet,
    socket: Arc<DatagramSocket>,
    /// The numbers of their links.
    peers: HashMap<SocketAddr, usize>,
    batch: Box<DatagramBatch>,
}

impl Port {
    fn new(socket: DatagramSocket, set: WaitSet) -> io::Result<Self> {
        set.add(socket.as_fd(), 0)?;
        Ok(Self {
            set,
            socket: Arc::new(socket),
            peers: HashMap::new(),
            batch: Box::new(DatagramBatch::new(DatagramBatch::SLOTS_MAX)),
        })
    }

    /// Hears all that is there, and answers everybody once for each batch.
    fn hear<const FRAME_BYTES: usize>(
        &mut self,
        links: &mut Links<FRAME_BYTES>,
        hear: &mut impl FnMut(&[u8; FRAME_BYTES], &mut Vec<u8>),
    ) -> io::Result<()> {
        loop {
            if or_none(self.socket.receive(&mut self.batch))? == 0 {
                return Ok(());
            }
            for datagram in &*self.batch {
                let peer = datagram.peer;
                let number = *self.peers.entry(peer).or_insert_with(|| {
                    let wire = Wire::Datagrams(Datagrams {
                        socket: Arc::clone(&self.socket),
                        peer,
                        batch: None,
                    });
                    links.push(Some(FrameLink::new(wire)));
                    links.len() - 1
                });
                if datagram.bytes == GREETING {
                    // A client that gets no answer asks again.
                    or_none(self.socket.send(peer, GREETING.len(), &GREETING))?;
                } else if let Some(link) = &mut links[number] {
                    let (frames, _) = datagram.bytes.as_chunks();
                    frames
                        .iter()
                        .for_each(|frame| hear(frame, &mut link.output));
                }
            }
            for link in links.iter_mut().flatten() {
                link.flush()?;
            }
        }
    }
}

/// When somebody who took too little is tried again.
const SOON: Duration = Duration::from_micros(100);
