//! Echo over UDP, bare: with segmentation offload on both sides, which is what makes small datagrams cheap.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidewire_io::clock::now_ns;
use tidewire_io::datagram::{DatagramBatch, DatagramOptions, DatagramSocket};

use super::echo::{EchoClient, EchoLoad, EchoOutcome, measure, publish_allocations};
use super::flight::Flight;
use super::wait::WaitSet;
use super::{AtEdge, Frame};

/// A socket on a free port of the loopback interface, which hands runs of datagrams over in one call, or each by itself.
pub(crate) fn bind(offload: bool) -> io::Result<DatagramSocket> {
    let mut options = DatagramOptions::default();
    options.segmentation_offload = offload;
    options.receive_buffer_bytes = Some(BUFFER_BYTES);
    options.send_buffer_bytes = Some(BUFFER_BYTES);
    DatagramSocket::bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &options)
        .map_err(io::Error::other)
}

/// Sends back what comes until `stop` is set. The bytes it allocates are published as by [`super::echo::serve`].
pub(crate) fn serve(
    socket: &DatagramSocket,
    stop: &AtomicBool,
    allocated_bytes: &AtomicU64,
) -> io::Result<()> {
    let mut set = WaitSet::new()?;
    set.add(socket.as_fd(), 0)?;
    let mut ready = Vec::new();
    let mut batch = DatagramBatch::new(DatagramBatch::SLOTS_MAX);
    let mut answers = Vec::with_capacity(RUN_BYTES_MAX);
    while !stop.load(Ordering::Relaxed) {
        set.wait(&mut ready)?;
        while receive(socket, &mut batch)? > 0 {
            let mut run: Option<(SocketAddr, usize)> = None;
            for datagram in &batch {
                let this = (datagram.peer, datagram.bytes.len());
                let fits = answers.len() + datagram.bytes.len() <= RUN_BYTES_MAX;
                if let Some((peer, bytes)) = run
                    && (run != Some(this) || !fits)
                {
                    send_all(socket, peer, bytes, &answers)?;
                    answers.clear();
                }
                run = Some(this);
                answers.extend_from_slice(datagram.bytes);
            }
            if let Some((peer, bytes)) = run {
                send_all(socket, peer, bytes, &answers)?;
                answers.clear();
            }
        }
        publish_allocations(allocated_bytes);
    }
    Ok(())
}

/// Offers the load to `server`, from a socket for each connection, as [`super::echo::drive`] does.
pub(crate) fn drive(
    server: SocketAddr,
    load: &EchoLoad,
    at_edge: AtEdge<'_>,
) -> io::Result<EchoOutcome> {
    measure(&mut Client::new(server, load)?, load, at_edge)
}

struct Client {
    server: SocketAddr,
    frame: Frame,
    in_flight: u64,
    set: WaitSet,
    peers: Vec<Peer>,
    batch: DatagramBatch,
    block: Vec<u8>,
    ready: Vec<usize>,
    lost: u64,
}

struct Peer {
    socket: DatagramSocket,
    next: u64,
    expected: u64,
    flight: Flight,
}

impl Client {
    fn new(server: SocketAddr, load: &EchoLoad) -> io::Result<Self> {
        let set = WaitSet::new()?;
        let mut peers = Vec::with_capacity(load.connections);
        for number in 0..load.connections {
            let socket = bind(true)?;
            set.add(socket.as_fd(), number)?;
            peers.push(Peer {
                socket,
                next: 0,
                expected: 0,
                flight: Flight::default(),
            });
        }
        let mut client = Self {
            server,
            frame: load.frame.clone(),
            in_flight: load.in_flight,
            set,
            peers,
            batch: DatagramBatch::new(DatagramBatch::SLOTS_MAX),
            block: Vec::new(),
            ready: Vec::new(),
            lost: 0,
        };
        for number in 0..load.connections {
            client.fill(number)?;
        }
        Ok(client)
    }

    /// Sends what is missing from the number in flight.
    fn fill(&mut self, number: usize) -> io::Result<()> {
        let peer = &mut self.peers[number];
        let missing = self.in_flight - (peer.next - peer.expected);
        if missing == 0 {
            return Ok(());
        }
        self.block.clear();
        self.frame.append(&mut self.block, peer.next, missing);
        peer.next += missing;
        peer.flight.sent(peer.next, now_ns());
        let bytes = self.frame.bytes();
        for run in self.block.chunks(RUN_BYTES_MAX / bytes * bytes) {
            send_all(&peer.socket, self.server, bytes, run)?;
        }
        Ok(())
    }
}

impl EchoClient for Client {
    fn turn(&mut self, mut counted: Option<&mut EchoOutcome>, goes_on: bool) -> io::Result<()> {
        self.set.wait(&mut self.ready)?;
        for index in 0..self.ready.len() {
            let number = self.ready[index];
            let peer = &mut self.peers[number];
            if receive(&peer.socket, &mut self.batch)? == 0 {
                continue;
            }
            let mut replies = 0;
            let datagrams = self.batch.iter();
            // A server may put several replies into a datagram.
            for reply in datagrams.flat_map(|one| one.bytes.chunks(self.frame.reply_bytes())) {
                let reply = self.frame.number_of(reply);
                let expected = peer.expected..peer.next;
                let Some(reply) = reply.filter(|reply| expected.contains(reply)) else {
                    return Err(io::Error::other("a reply that is not due"));
                };
                // Loopback keeps the order, so what was overtaken will not come.
                self.lost += reply - peer.expected;
                peer.expected = reply + 1;
                replies += 1;
            }
            let now = now_ns();
            let latency = counted.as_deref_mut().map(|outcome| &mut outcome.latency);
            peer.flight.answered(peer.expected, now, latency);
            if let Some(outcome) = counted.as_deref_mut() {
                outcome.replies += replies;
            }
            if goes_on {
                self.fill(number)?;
            }
        }
        Ok(())
    }

    fn unanswered(&self) -> u64 {
        self.peers
            .iter()
            .map(|peer| peer.next - peer.expected)
            .sum()
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}

pub(super) fn receive(socket: &DatagramSocket, batch: &mut DatagramBatch) -> io::Result<usize> {
    match socket.receive(batch) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

/// Sends equal datagrams, however often the system has to be asked. What it does not take for want of room is lost, as
/// datagrams are, and found missing by whoever waits for it.
pub(super) fn send_all(
    socket: &DatagramSocket,
    peer: SocketAddr,
    datagram_bytes: usize,
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.send(peer, datagram_bytes, bytes) {
            Ok(count) => bytes = bytes.get(count * datagram_bytes..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Of each socket, in either direction, so that nothing is lost for want of room.
const BUFFER_BYTES: usize = 4 << 20;

/// Bytes sent in one call: below the largest IP packet, as offload demands.
pub(crate) const RUN_BYTES_MAX: usize = 64 * 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datagram_comes_back() {
        let socket = bind(true).unwrap();
        let address = socket.local_address();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&socket, &stop, &AtomicU64::new(0)).unwrap());
            for (connections, in_flight) in [(1, 1), (3, 64)] {
                let load = EchoLoad::short(connections, in_flight);
                let outcome = drive(address, &load, &mut |_| Ok(())).unwrap();
                assert!(outcome.replies > 0 && outcome.latency.count() > 0);
                assert_eq!(outcome.lost, 0);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
