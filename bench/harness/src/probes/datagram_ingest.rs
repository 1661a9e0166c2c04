//! Ingest over UDP, bare: a sender of datagrams, and a receiver that counts the frames in them.
//!
//! Nothing waits over UDP, so a sender that goes as fast as it can measures how much is thrown away. This one keeps to
//! a number of frames that are on their way, of which the receiver tells it now and then. Rejected: offering a rate,
//! which is either below what the two can do or above it.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_io::datagram::{DatagramBatch, DatagramSocket};

use super::datagram::{RUN_BYTES_MAX, bind, send_all};
use super::ingest::ReceiverCounts;
use super::wait::WaitSet;
use super::{Frame, Parse, or_none};
use crate::contract::Work;

/// Sockets that send.
#[derive(Debug)]
pub(crate) struct DatagramSender {
    server: SocketAddr,
    frame: Frame,
    in_flight: u64,
    /// Frames of a datagram.
    each: u64,
    set: WaitSet,
    peers: Vec<Peer>,
    batch: DatagramBatch,
    block: Vec<u8>,
    ready: Vec<usize>,
}

#[derive(Debug)]
struct Peer {
    socket: DatagramSocket,
    sent: u64,
    /// Of these, the receiver has told of so many.
    told: u64,
}

/// Counts what arrives until `stop` is set. Tells each sender how much that was whenever it is another `tells_every`
/// frames.
pub(crate) fn serve(
    socket: &DatagramSocket,
    (parse, frame_bytes): (Parse, usize),
    tells_every: u64,
    stop: &AtomicBool,
    received: &ReceiverCounts,
) -> io::Result<()> {
    let mut set = WaitSet::new()?;
    set.add(socket.as_fd(), 0)?;
    let mut ready = Vec::new();
    let mut batch = DatagramBatch::new(DatagramBatch::SLOTS_MAX);
    let mut counts: HashMap<SocketAddr, u64> = HashMap::new();
    let mut frames = 0;
    while !stop.load(Ordering::Relaxed) {
        set.wait(&mut ready)?;
        while or_none(socket.receive(&mut batch))? > 0 {
            // Datagrams of one sender come in runs, each of which is looked up once.
            let mut datagrams = batch.iter().peekable();
            while let Some(datagram) = datagrams.next() {
                let peer = datagram.peer;
                let mut run = count(parse, frame_bytes, datagram.bytes);
                while let Some(next) = datagrams.next_if(|next| next.peer == peer) {
                    run += count(parse, frame_bytes, next.bytes);
                }
                let total = counts.entry(peer).or_default();
                let before = *total / tells_every;
                *total += run;
                frames += run;
                if *total / tells_every > before {
                    send_all(socket, peer, 8, &total.to_le_bytes())?;
                }
            }
        }
        received.frames.store(frames, Ordering::Relaxed);
        received
            .bytes
            .store(frames * frame_bytes as u64, Ordering::Relaxed);
        super::echo::publish_allocations(&received.allocated_bytes);
    }
    Ok(())
}

/// Whole frames of a datagram.
#[inline]
fn count(parse: Parse, frame_bytes: usize, datagram: &[u8]) -> u64 {
    match parse {
        Parse::Bytes => (datagram.len() / frame_bytes) as u64,
        _ => parse.count(datagram).0,
    }
}

impl DatagramSender {
    /// A socket for each connection of the work, of which so many frames may be on their way. A datagram has as many
    /// whole frames as fit into the bytes of a write, at least one. With `offload` runs of datagrams are handed over in
    /// one call.
    pub(crate) fn open(
        server: SocketAddr,
        work: &Work,
        frame: Frame,
        offload: bool,
    ) -> io::Result<Self> {
        let set = WaitSet::new()?;
        let mut peers = Vec::with_capacity(work.connections);
        for number in 0..work.connections {
            let socket = bind(offload)?;
            set.add(socket.as_fd(), number)?;
            peers.push(Peer {
                socket,
                sent: 0,
                told: 0,
            });
        }
        Ok(Self {
            server,
            in_flight: work.in_flight as u64,
            each: (work.write_bytes / frame.bytes()).max(1) as u64,
            frame,
            set,
            peers,
            batch: DatagramBatch::new(1),
            block: Vec::new(),
            ready: Vec::new(),
        })
    }

    /// Sends as fast as it may, for this long.
    pub(crate) fn send_for(&mut self, duration: Duration) -> io::Result<()> {
        let until_ns = now_ns() + duration.as_nanos() as u64;
        while now_ns() < until_ns {
            for number in 0..self.peers.len() {
                self.fill(number)?;
            }
            // Everything that may be on its way is.
            self.set.wait(&mut self.ready)?;
            for &number in &self.ready {
                let peer = &mut self.peers[number];
                or_none(peer.socket.receive(&mut self.batch))?;
                for told in &self.batch {
                    let told = told.bytes.first_chunk().copied().map(u64::from_le_bytes);
                    peer.told = peer.told.max(told.unwrap_or_default());
                }
            }
        }
        Ok(())
    }

    /// Sends what may still be on its way, in whole datagrams.
    fn fill(&mut self, number: usize) -> io::Result<()> {
        let peer = &mut self.peers[number];
        let free = self.in_flight - (peer.sent - peer.told);
        let frames = free / self.each * self.each;
        self.block.clear();
        self.frame.append(&mut self.block, peer.sent, frames);
        peer.sent += frames;
        let datagram_bytes = self.each as usize * self.frame.bytes();
        let run_bytes = RUN_BYTES_MAX / datagram_bytes * datagram_bytes;
        for run in self.block.chunks(run_bytes) {
            send_all(&peer.socket, self.server, datagram_bytes, run)?;
        }
        Ok(())
    }

    /// Frames that were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.peers.iter().map(|peer| peer.sent).sum()
    }
}

/// Bytes of a datagram that fits every Ethernet.
pub(crate) const PACKED_BYTES: usize = 1_472;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_that_is_sent_is_received_with_offload_and_without() {
        for (parse, datagram_bytes, offload) in [
            (Parse::Tw1, PACKED_BYTES, true),
            (Parse::Bytes, 32, true),
            (Parse::Srmp, 32, false),
        ] {
            let socket = bind(offload).unwrap();
            let address = socket.local_address();
            let (stop, received) = (AtomicBool::new(false), ReceiverCounts::default());
            std::thread::scope(|scope| {
                scope.spawn(|| serve(&socket, (parse, 32), 64, &stop, &received).unwrap());
                let work = Work {
                    connections: 2,
                    in_flight: 512,
                    write_bytes: datagram_bytes,
                    ..Work::default()
                };
                let frame = Frame::one_way(parse, 32);
                let mut sender = DatagramSender::open(address, &work, frame, offload).unwrap();
                let mut sent = 0;
                while sent < 2_000 {
                    sender.send_for(Duration::from_millis(5)).unwrap();
                    sent = sender.sent();
                }
                // Loopback with room for all that is on its way loses nothing.
                while received.frames.load(Ordering::Relaxed) < sent {
                    std::thread::yield_now();
                }
                assert_eq!(received.frames.load(Ordering::Relaxed), sent);
                stop.store(true, Ordering::Relaxed);
            });
        }
    }
}
