//! Ingest, bare: a sender that writes blocks of frames as fast as its sockets take them, and a receiver that counts
//! bytes or finds the frames in them.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_io::socket::{Listener, SocketAddress};

use super::echo::{connect, publish_allocations};
use super::wait::{AcceptSet, TIMEOUT, WaitSet};
use super::{BLOCK_BYTES, Frame, Link, Parse, PartialFrame, or_none};
use crate::contract::Work;

/// Connections that are written to. They are closed when this is dropped, which should be after the receiver has taken
/// everything: a connection that is closed with bytes unread on its own side resets the other.
#[derive(Debug)]
pub(crate) struct Sender<L> {
    set: WaitSet,
    /// Each stream, and how much of its current block is written.
    streams: Vec<(L, usize)>,
    block: Vec<u8>,
    frame_bytes: usize,
    bytes: u64,
    ready: Vec<usize>,
}

/// The counts of a receiver up to now, to be read by another thread.
#[derive(Debug, Default)]
pub(crate) struct ReceiverCounts {
    /// Frames, unless only bytes are counted.
    pub(crate) frames: AtomicU64,
    /// Bytes of these frames, or all that were read.
    pub(crate) bytes: AtomicU64,
    /// Bytes that the receiving thread has asked its allocator for, where that counts them.
    pub(crate) allocated_bytes: AtomicU64,
}

/// Counts what arrives, in reads of at most `read_bytes`, until `stop` is set, or `connections` have come and gone. A
/// connection that breaks has gone.
pub(crate) fn serve<L: Link>(
    listener: &Listener,
    parse: Parse,
    read_bytes: usize,
    connections: usize,
    stop: &AtomicBool,
    received: &ReceiverCounts,
) -> io::Result<()> {
    let mut set = AcceptSet::new(listener)?;
    let mut open: Vec<Option<(L, PartialFrame)>> = Vec::new();
    let (mut frames, mut bytes) = (0, 0);
    let mut buffer = vec![0; read_bytes];
    let mut ready = Vec::new();
    let mut gone = 0;
    while !stop.load(Ordering::Relaxed) && gone < connections {
        set.wait_for(&mut ready, TIMEOUT, |stream| {
            open.push(
                L::accept(stream)
                    .ok()
                    .map(|link| (link, PartialFrame::default())),
            );
        })?;
        for &number in &ready {
            let Some((stream, unfinished)) = open[number].as_mut() else {
                continue;
            };
            let count = |(some, of_them): (u64, usize)| {
                frames += some;
                bytes += of_them as u64;
            };
            if drain(stream, unfinished, parse, &mut buffer, count).is_err() {
                open[number] = None;
                gone += 1;
            }
        }
        received.frames.store(frames, Ordering::Relaxed);
        received.bytes.store(bytes, Ordering::Relaxed);
        publish_allocations(&received.allocated_bytes);
    }
    Ok(())
}

/// Reads and counts until there is nothing more, or it is another connection's turn. It fails when the connection
/// ended.
fn drain(
    stream: &mut impl Link,
    unfinished: &mut PartialFrame,
    parse: Parse,
    buffer: &mut [u8],
    mut count: impl FnMut((u64, usize)),
) -> io::Result<()> {
    for _ in 0..READS_MAX {
        let Some(filled) = unfinished.fill(buffer, |room| stream.read(room))? else {
            break;
        };
        let (frames, used) = parse.count(&buffer[..filled]);
        count((frames, used));
        unfinished.keep(&buffer[used..filled]);
        if filled < buffer.len() {
            break;
        }
    }
    Ok(())
}

impl<L: Link> Sender<L> {
    /// As many connections as the work has, which are greeted where the server speaks TW1. A block has as many whole
    /// frames as fit into the bytes of a write, at least one.
    pub(crate) fn connect(
        address: &SocketAddress,
        work: &Work,
        frame: &Frame,
        greets: bool,
    ) -> io::Result<Self> {
        let set = WaitSet::new()?;
        let mut streams = Vec::with_capacity(work.connections);
        for number in 0..work.connections {
            let stream: L = connect(address, greets)?;
            set.add(stream.as_fd(), number)?;
            set.watch_output(stream.as_fd(), number, true)?;
            streams.push((stream, 0));
        }
        let mut block = Vec::new();
        let frames = (work.write_bytes / frame.bytes()).max(1) as u64;
        frame.append(&mut block, 0, frames);
        Ok(Self {
            set,
            streams,
            block,
            frame_bytes: frame.bytes(),
            bytes: 0,
            ready: Vec::new(),
        })
    }

    /// Writes as fast as the connections take it, for this long.
    pub(crate) fn write_for(&mut self, duration: Duration) -> io::Result<()> {
        let until_ns = now_ns() + duration.as_nanos() as u64;
        while now_ns() < until_ns {
            self.turn(true)?;
        }
        Ok(())
    }

    /// Writes the rest of blocks that were begun, so that only whole frames were sent. Returns how many since the
    /// connections were made.
    pub(crate) fn finish(&mut self) -> io::Result<u64> {
        while self
            .streams
            .iter()
            .any(|(stream, at)| *at > 0 || stream.is_blocked())
        {
            self.turn(false)?;
        }
        Ok(self.bytes / self.frame_bytes as u64)
    }

    /// Writes to whatever is ready; new blocks only if it is to go on.
    fn turn(&mut self, goes_on: bool) -> io::Result<()> {
        self.set.wait(&mut self.ready)?;
        for &number in &self.ready {
            let (stream, at) = &mut self.streams[number];
            let mut written = 0;
            // Small writes follow each other as blocks do: looking for readiness before each would be their cost.
            while written < BLOCK_BYTES && (goes_on || *at > 0) {
                match or_none(stream.write(&self.block[*at..]))? {
                    0 => break,
                    count => {
                        written += count;
                        *at = (*at + count) % self.block.len();
                    }
                }
            }
            self.bytes += written as u64;
            if !goes_on && stream.is_blocked() {
                stream.write(&[])?;
            }
            if !goes_on && *at == 0 && !stream.is_blocked() {
                self.set.watch_output(stream.as_fd(), number, false)?;
            }
        }
        Ok(())
    }
}

/// Full buffers taken from one connection before the next one: a fast sender would otherwise keep the receiver for
/// itself.
const READS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use tidewire_io::socket::Stream;

    use super::*;
    use crate::probes::echo::{self, EchoLoad, short_and_lossless};

    fn listener() -> Listener {
        let address = SocketAddress::Tcp(([127, 0, 0, 1], 0).into());
        Listener::bind(&address, &tidewire_io::socket::SocketOptions::default()).unwrap()
    }

    #[test]
    fn every_frame_that_is_sent_is_received() {
        for (parse, write_bytes) in [
            (Parse::Tw1, BLOCK_BYTES),
            (Parse::Srmp, 1_000),
            (Parse::LengthField, 32),
            (Parse::Bytes, BLOCK_BYTES),
        ] {
            let listener = listener();
            let address = listener.local_address().clone();
            let received = ReceiverCounts::default();
            let stop = AtomicBool::new(false);
            let sent = std::thread::scope(|scope| {
                scope.spawn(|| {
                    serve::<Stream>(&listener, parse, BLOCK_BYTES * 4, 3, &stop, &received)
                        .unwrap();
                });
                let work = Work {
                    connections: 3,
                    write_bytes,
                    ..Work::default()
                };
                let frame = Frame::one_way(parse, 32);
                let sender = Sender::<Stream>::connect(&address, &work, &frame, false);
                let mut sender = sender.unwrap();
                sender.write_for(Duration::from_millis(50)).unwrap();
                sender.finish().unwrap()
            });
            assert!(sent > 0);
            assert_eq!(received.bytes.into_inner(), sent * 32);
            if parse != Parse::Bytes {
                assert_eq!(received.frames.into_inner(), sent);
            }
        }
    }

    #[test]
    fn a_server_of_tidewire_is_greeted_and_driven_alike() {
        let server =
            tidewire::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload)).unwrap();
        let tidewire::Endpoint::Tcp(address) = server.addresses()[0] else {
            panic!("a socket was listened on");
        };
        short_and_lossless(2, 16, |load, stage| {
            let greets = true;
            let frame = load.frame.clone();
            let load = EchoLoad {
                frame,
                greets,
                ..*load
            };
            echo::drive::<Stream>(&address.into(), &load, stage)
        });
    }

    #[test]
    fn every_reply_is_the_expected_one() {
        let listener = listener();
        let address = listener.local_address().clone();
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let server = std::thread::spawn({
            let stop = std::sync::Arc::clone(&stop);
            move || echo::serve::<Stream>(&listener, &stop, &AtomicU64::new(0))
        });
        for (connections, in_flight) in [(1, 1), (3, 128)] {
            short_and_lossless(connections, in_flight, |load, stage| {
                echo::drive::<Stream>(&address, load, stage)
            });
        }
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap().unwrap();
    }
}
