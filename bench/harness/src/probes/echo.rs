//! Echo, bare: the server sends back what it reads; the client keeps a number of frames in flight on each connection
//! and compares every byte of every reply.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidewire::Kind;
use tidewire_io::allocation::thread_allocations;
use tidewire_io::clock::now_ns;
use tidewire_io::socket::{Listener, SocketAddress, Stream};
use tidewire_proto::codec::{Codec, Decoded, Tw1};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_proto::limits::FRAME_BYTES_MAX;

use super::flight::{Flight, Replies};
use super::wait::{AcceptSet, TIMEOUT, WaitSet};
use super::{BLOCK_BYTES, Frame, Link, PartialFrame, or_none, received};
use crate::contract::{Measured, Work};
use crate::stage::Stage;

/// The load of the client: connections, messages in flight and times are those of the work.
#[derive(Debug)]
pub(crate) struct EchoLoad<'a> {
    pub(crate) work: &'a Work,
    pub(crate) frame: Frame,
    /// Whether the server speaks TW1 and must be greeted first; a bare one is not.
    pub(crate) greets: bool,
}

/// A connection of the server.
#[derive(Debug)]
struct Connection<L> {
    stream: L,
    /// Bytes that are not yet written.
    rest: Vec<u8>,
    blocked: bool,
}

/// A connection of the client.
struct Caller<L> {
    stream: L,
    unfinished: PartialFrame,
}

/// Serves until `stop` is set. Puts the bytes that its thread has asked its allocator for into `allocated_bytes` once a
/// turn, where they are counted.
pub(crate) fn serve<L: Link>(
    listener: &Listener,
    stop: &AtomicBool,
    allocated_bytes: &AtomicU64,
) -> io::Result<()> {
    serve_with(listener, L::accept, |_| {}, stop, allocated_bytes)
}

/// The same with another way to make connections, and with a function that may change what came before it goes back.
pub(crate) fn serve_with<L: Link>(
    listener: &Listener,
    accept: impl Fn(Stream) -> io::Result<L>,
    answer: impl Fn(&mut [u8]),
    stop: &AtomicBool,
    allocated_bytes: &AtomicU64,
) -> io::Result<()> {
    let mut set = AcceptSet::new(listener)?;
    let mut connections: Vec<Option<Connection<L>>> = Vec::new();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut ready = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        set.wait_for(&mut ready, TIMEOUT, |stream| {
            connections.push(accept(stream).ok().map(Connection::new));
        })?;
        for &number in &ready {
            let Some(connection) = connections[number].as_mut() else {
                continue;
            };
            let was_blocked = connection.blocked;
            if connection.echo(&mut buffer, &answer).is_err() {
                connections[number] = None;
            } else if connection.blocked != was_blocked {
                set.set()
                    .watch_output(connection.stream.as_fd(), number, connection.blocked)?;
            }
        }
        publish_allocations(allocated_bytes);
    }
    Ok(())
}

/// Connects, offers the load, and waits for the last replies.
pub(crate) fn drive<L: Link>(
    address: &SocketAddress,
    load: &EchoLoad<'_>,
    stage: &mut Stage,
) -> io::Result<Measured> {
    let connect = || {
        Ok(Caller::<L> {
            stream: connect(address, load.greets)?,
            unfinished: PartialFrame::default(),
        })
    };
    Client::new(load, vec![0; BLOCK_BYTES], connect)?.measure(load.work, stage)
}

/// One connection of a client, or a socket for datagrams.
pub(super) trait EchoConnection: AsFd {
    /// The buffer that all connections of a client read into.
    type Buffer;

    /// Writes frames of so many bytes each.
    fn write(&mut self, frames: &[u8], frame_bytes: usize) -> io::Result<()>;

    /// Reads replies and checks that they are those that are due. Returns how many came.
    fn receive(
        &mut self,
        frame: &Frame,
        buffer: &mut Self::Buffer,
        flight: &mut Flight,
    ) -> io::Result<u64>;
}

/// The client's connections and what it needs to serve them.
pub(super) struct Client<'a, C: EchoConnection> {
    frame: &'a Frame,
    set: WaitSet,
    connections: Vec<(C, Flight)>,
    ready: Vec<usize>,
    buffer: C::Buffer,
    block: Vec<u8>,
}

impl<'a, C: EchoConnection> Client<'a, C> {
    /// Connects all and sends what is to be in flight.
    pub(super) fn new(
        load: &'a EchoLoad<'_>,
        buffer: C::Buffer,
        connect: impl Fn() -> io::Result<C>,
    ) -> io::Result<Self> {
        let mut client = Self {
            frame: &load.frame,
            set: WaitSet::new()?,
            connections: Vec::with_capacity(load.work.connections),
            ready: Vec::new(),
            buffer,
            block: Vec::with_capacity(BLOCK_BYTES),
        };
        for number in 0..load.work.connections {
            let connection = connect()?;
            client.set.add(&connection, number)?;
            client.connections.push((connection, Flight::default()));
        }
        for number in 0..load.work.connections {
            client.send(number, load.work.in_flight as u64, now_ns())?;
        }
        Ok(client)
    }

    /// Warms up, counts for as long as the work says, and waits for what is on its way.
    pub(super) fn measure(&mut self, work: &Work, stage: &mut Stage) -> io::Result<Measured> {
        let warm_ns = now_ns() + work.warm_up_ms * 1_000_000;
        while now_ns() < warm_ns {
            self.turn(None, true)?;
        }
        let mut replies = Replies::default();
        let window = stage.begin()?;
        let from_ns = now_ns();
        let until_ns = from_ns + work.measure_ms * 1_000_000;
        while now_ns() < until_ns {
            self.turn(Some(&mut replies), true)?;
        }
        let seconds = (now_ns() - from_ns) as f64 / 1e9;
        let allocated_bytes = window.end()?;
        let drained_ns = now_ns() + DRAIN.as_nanos() as u64;
        while self.unanswered() > 0 && now_ns() < drained_ns {
            self.turn(None, false)?;
        }
        let flights = self.connections.iter().map(|(_, flight)| flight);
        let lost = flights.map(|flight| flight.lost + flight.under_way()).sum();
        Ok(Measured {
            allocated_bytes,
            ..Measured::verified(replies.count, seconds, lost).with_times(&replies.latency)
        })
    }

    /// Waits for what is ready and reads it; sends again what came if it `goes_on`.
    fn turn(&mut self, mut counted: Option<&mut Replies>, goes_on: bool) -> io::Result<()> {
        self.set.wait(&mut self.ready)?;
        for index in 0..self.ready.len() {
            let number = self.ready[index];
            let (connection, flight) = &mut self.connections[number];
            let first = flight.expected;
            let replies = connection.receive(self.frame, &mut self.buffer, flight)?;
            let now = now_ns();
            flight.answered(now, replies, counted.as_deref_mut());
            // A frame that was overtaken frees its place as well.
            let free = flight.expected - first;
            if goes_on && free > 0 {
                self.send(number, free, now)?;
            }
        }
        Ok(())
    }

    /// Sends `count` frames with the next numbers.
    fn send(&mut self, number: usize, count: u64, now_ns: u64) -> io::Result<()> {
        let (connection, flight) = &mut self.connections[number];
        self.block.clear();
        self.frame.append(&mut self.block, flight.next, count);
        flight.send(count, now_ns);
        connection.write(&self.block, self.frame.bytes())
    }

    fn unanswered(&self) -> u64 {
        let flights = self.connections.iter().map(|(_, flight)| flight);
        flights.map(Flight::under_way).sum()
    }
}

/// A connection that is made when this returns, and welcomed if it is to greet.
pub(crate) fn connect<L: Link>(address: &SocketAddress, greets: bool) -> io::Result<L> {
    let stream = Stream::connect(address).map_err(io::Error::other)?;
    let mut set = WaitSet::new()?;
    set.add(stream.as_fd(), 0)?;
    set.watch_output(stream.as_fd(), 0, true)?;
    let mut ready = Vec::new();
    while ready.is_empty() {
        set.wait(&mut ready)?;
    }
    stream.finish_connect().map_err(io::Error::other)?;
    set.watch_output(stream.as_fd(), 0, false)?;
    let mut link = L::dial(stream)?;
    link.finish_handshake()?;
    if greets {
        greet(&mut link, &mut set)?;
    }
    Ok(link)
}

/// Appends a hello in TW1.
pub(crate) fn push_hello(agent: &str, out: &mut Vec<u8>) {
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: FRAME_BYTES_MAX as u32,
        credentials: &[],
        agent,
    };
    // It holds nothing of variable length that could be too long.
    let _ = hello.encode_frame(out);
}

/// Says hello in TW1 and waits for the welcome, behind which nothing comes before something is sent.
fn greet(stream: &mut impl Link, set: &mut WaitSet) -> io::Result<()> {
    let mut frame = Vec::new();
    push_hello("probe", &mut frame);
    stream.write(&frame)?;
    let (mut answer, mut buffer) = (Vec::new(), vec![0; BLOCK_BYTES]);
    let mut ready = Vec::new();
    loop {
        match Tw1
            .decode(&answer, FRAME_BYTES_MAX)
            .map_err(io::Error::other)?
        {
            Decoded::Frame { message, .. } if message.kind == Kind::Welcome => return Ok(()),
            Decoded::Frame { message, .. } => {
                let kind = message.kind;
                return Err(io::Error::other(format!("{kind:?} in place of a welcome")));
            }
            Decoded::Incomplete { .. } => {}
        }
        set.wait(&mut ready)?;
        let count = received(stream.read(&mut buffer))?.unwrap_or_default();
        answer.extend_from_slice(&buffer[..count]);
    }
}

impl<L: Link> Connection<L> {
    fn new(stream: L) -> Self {
        Self {
            stream,
            rest: Vec::new(),
            blocked: false,
        }
    }

    /// Writes what waits, then reads and writes back until there is nothing more.
    fn echo(&mut self, buffer: &mut [u8], answer: &impl Fn(&mut [u8])) -> io::Result<()> {
        if self.blocked {
            let waiting = std::mem::take(&mut self.rest);
            self.write(&waiting)?;
        }
        while !self.blocked {
            let Some(count) = received(self.stream.read(buffer))? else {
                return Ok(());
            };
            answer(&mut buffer[..count]);
            self.write(&buffer[..count])?;
            if count < buffer.len() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let count = or_none(self.stream.write(bytes))?;
        self.rest.extend_from_slice(&bytes[count..]);
        self.blocked = count < bytes.len() || self.stream.is_blocked();
        Ok(())
    }
}

impl<L: AsFd> AsFd for Caller<L> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl<L: Link> EchoConnection for Caller<L> {
    type Buffer = Vec<u8>;

    /// Fails if the frames in flight do not fit the socket's buffer.
    fn write(&mut self, frames: &[u8], _: usize) -> io::Result<()> {
        let written = self.stream.write(frames)?;
        if written < frames.len() || self.stream.is_blocked() {
            return Err(io::Error::other(
                "more is in flight than the socket's buffer holds; ask for less",
            ));
        }
        Ok(())
    }

    fn receive(
        &mut self,
        frame: &Frame,
        buffer: &mut Vec<u8>,
        flight: &mut Flight,
    ) -> io::Result<u64> {
        let read = |room: &mut [u8]| self.stream.read(room);
        let Some(filled) = self.unfinished.fill(buffer, read)? else {
            return Ok(0);
        };
        let replies = buffer[..filled].chunks_exact(frame.reply_bytes());
        self.unfinished.keep(replies.remainder());
        let first = flight.expected;
        for reply in replies {
            if frame.number_of(reply) != Some(flight.expected) {
                return Err(io::Error::other(format!(
                    "a reply is not number {}, as it was sent: {reply:02x?}",
                    flight.expected
                )));
            }
            flight.expected += 1;
        }
        Ok(flight.expected - first)
    }
}

/// Lets other threads see what this one has allocated.
pub(super) fn publish_allocations(allocated_bytes: &AtomicU64) {
    if let Some(allocations) = thread_allocations() {
        allocated_bytes.store(allocations.bytes, Ordering::Relaxed);
    }
}

/// Longest wait for the replies that are due when the time is over.
pub(crate) const DRAIN: Duration = Duration::from_secs(2);

/// Drives a bare server for 50 ms with frames of 32 bytes, and expects that replies come and nothing is lost.
#[cfg(test)]
pub(super) fn short_and_lossless(
    connections: usize,
    in_flight: usize,
    drive: impl FnOnce(&EchoLoad<'_>, &mut Stage) -> io::Result<Measured>,
) {
    let work = Work {
        connections,
        in_flight,
        measure_ms: 50,
        ..Work::default()
    };
    let load = EchoLoad {
        work: &work,
        frame: Frame::one_way(super::Parse::Tw1, 32),
        greets: false,
    };
    let measured = drive(&load, &mut Stage::new(io::empty(), io::sink())).unwrap();
    assert!(measured.messages > 0 && measured.latency.unwrap().samples > 0);
    assert_eq!(measured.lost, 0);
}
