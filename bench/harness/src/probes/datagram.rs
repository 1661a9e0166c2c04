//! Echo over UDP, bare: with segmentation offload on both sides, which is what makes small datagrams cheap.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidewire_io::datagram::{DatagramBatch, DatagramOptions, DatagramSocket};

use super::echo::{Client, EchoConnection, EchoLoad, publish_allocations};
use super::flight::Flight;
use super::wait::WaitSet;
use super::{Frame, or_none};
use crate::contract::Measured;
use crate::stage::Stage;

/// A socket on a free port of the loopback interface, which hands runs of datagrams over in one call, or each by
/// itself.
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
        while or_none(socket.receive(&mut batch))? > 0 {
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
    load: &EchoLoad<'_>,
    stage: &mut Stage,
) -> io::Result<Measured> {
    let connect = || {
        Ok(Peer {
            server,
            socket: bind(true)?,
        })
    };
    let batch = DatagramBatch::new(DatagramBatch::SLOTS_MAX);
    Client::new(load, batch, connect)?.measure(load.work, stage)
}

struct Peer {
    server: SocketAddr,
    socket: DatagramSocket,
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl EchoConnection for Peer {
    type Buffer = DatagramBatch;

    fn write(&mut self, frames: &[u8], frame_bytes: usize) -> io::Result<()> {
        for run in frames.chunks(RUN_BYTES_MAX / frame_bytes * frame_bytes) {
            send_all(&self.socket, self.server, frame_bytes, run)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        frame: &Frame,
        batch: &mut DatagramBatch,
        flight: &mut Flight,
    ) -> io::Result<u64> {
        let mut replies = 0;
        if or_none(self.socket.receive(batch))? == 0 {
            return Ok(replies);
        }
        // A server may put several replies into a datagram.
        let bytes = batch.iter().map(|datagram| datagram.bytes);
        for reply in bytes.flat_map(|bytes| bytes.chunks(frame.reply_bytes())) {
            let due = flight.expected..flight.next;
            let Some(number) = frame.number_of(reply).filter(|number| due.contains(number)) else {
                return Err(io::Error::other("a reply that is not due"));
            };
            // Loopback keeps the order, so what was overtaken will not come.
            flight.lost += number - flight.expected;
            flight.expected = number + 1;
            replies += 1;
        }
        Ok(replies)
    }
}

/// Sends equal datagrams, in as many system calls as it takes. A datagram for which the socket has no room is lost; the
/// receiver notices that it is missing.
pub(super) fn send_all(
    socket: &DatagramSocket,
    peer: SocketAddr,
    datagram_bytes: usize,
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        match or_none(socket.send(peer, datagram_bytes, bytes))? {
            0 => return Ok(()),
            count => bytes = bytes.get(count * datagram_bytes..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Size of the send buffer and of the receive buffer of each socket. No datagram is lost because a buffer is full.
const BUFFER_BYTES: usize = 4 << 20;

/// Bytes sent in one call: below the largest IP packet, as offload demands.
pub(crate) const RUN_BYTES_MAX: usize = 64 * 1_000;

#[cfg(test)]
mod tests {
    use super::super::echo::short_and_lossless;
    use super::*;

    #[test]
    fn every_datagram_comes_back() {
        let socket = bind(true).unwrap();
        let address = socket.local_address();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&socket, &stop, &AtomicU64::new(0)).unwrap());
            for (connections, in_flight) in [(1, 1), (3, 64)] {
                short_and_lossless(connections, in_flight, |load, stage| {
                    drive(address, load, stage)
                });
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
