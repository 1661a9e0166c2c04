//! Echo, bare: the server sends back what it reads; the client keeps a number of frames in flight on each connection
//! and checks the number of every reply.

use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidewire::Kind;
use tidewire_io::allocation::thread_allocations;
use tidewire_io::clock::now_ns;
use tidewire_io::socket::{Listener, SocketAddress, Stream};
use tidewire_load::statistics::LatencyHistogram;
use tidewire_proto::codec::{Codec, Decoded, Tw1};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_proto::limits::FRAME_BYTES_MAX;

use super::flight::Flight;
use super::wait::{AcceptSet, TIMEOUT, WaitSet};
use super::{AtEdge, BLOCK_BYTES, Edge, Frame, Link};

/// The load of the client.
#[derive(Clone, Debug)]
pub(crate) struct EchoLoad {
    pub(crate) connections: usize,
    /// Frames sent and not yet answered, for each connection.
    pub(crate) in_flight: u64,
    /// Time before it starts to count, in which connections and caches become warm.
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    pub(crate) frame: Frame,
    /// Whether the server speaks TW1 and must be greeted first; a bare one is not.
    pub(crate) greets: bool,
}

#[cfg(test)]
impl EchoLoad {
    /// A load of frames of 32 bytes for a bare server, over in 50 ms.
    pub(super) fn short(connections: usize, in_flight: u64) -> Self {
        Self {
            connections,
            in_flight,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(50),
            frame: Frame::one_way(super::Parse::Tw1, 32),
            greets: false,
        }
    }
}

/// The result of the client.
#[derive(Debug)]
pub(crate) struct EchoOutcome {
    /// Replies counted after the warm-up, every one of them with the number it should have.
    pub(crate) replies: u64,
    /// Frames sent since the beginning that were not answered within [`DRAIN`] after the end.
    pub(crate) lost: u64,
    /// How long they were counted, in seconds.
    pub(crate) seconds: f64,
    /// Time from sending a frame to its reply, in nanoseconds, of the counted replies.
    pub(crate) latency: LatencyHistogram,
}

#[derive(Debug)]
struct Connection<L> {
    stream: L,
    /// Bytes read that are not yet a whole frame, in the client; bytes not yet written, in the server.
    rest: Vec<u8>,
    blocked: bool,
    next_number: u64,
    expected: u64,
    flight: Flight,
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

/// Connects, offers the load, calls `at_edge` at both ends of its window, and waits for the last replies.
pub(crate) fn drive<L: Link>(
    address: &SocketAddress,
    load: &EchoLoad,
    at_edge: AtEdge<'_>,
) -> io::Result<EchoOutcome> {
    measure(&mut Client::<L>::connect(address, load)?, load, at_edge)
}

/// A client that goes round once when it is asked to.
pub(super) trait EchoClient {
    /// Waits for what is ready and reads it, into `counted` where it counts; sends again what came if it `goes_on`.
    fn turn(&mut self, counted: Option<&mut EchoOutcome>, goes_on: bool) -> io::Result<()>;

    /// Frames on their way.
    fn unanswered(&self) -> u64;

    /// Frames that are known never to come.
    fn lost(&self) -> u64 {
        0
    }
}

/// Warms up, counts for as long as the load says, and waits for what is on its way. Calls `at_edge` when it begins to count
/// and when it has counted.
pub(super) fn measure(
    client: &mut impl EchoClient,
    load: &EchoLoad,
    at_edge: AtEdge<'_>,
) -> io::Result<EchoOutcome> {
    let warm_ns = now_ns() + load.warm_up.as_nanos() as u64;
    while now_ns() < warm_ns {
        client.turn(None, true)?;
    }
    let mut outcome = EchoOutcome {
        replies: 0,
        lost: 0,
        seconds: 0.0,
        latency: LatencyHistogram::new(),
    };
    at_edge(Edge::Start)?;
    let from_ns = now_ns();
    let until_ns = from_ns + load.duration.as_nanos() as u64;
    while now_ns() < until_ns {
        client.turn(Some(&mut outcome), true)?;
    }
    outcome.seconds = (now_ns() - from_ns) as f64 / 1e9;
    at_edge(Edge::End)?;
    let drained_ns = now_ns() + DRAIN.as_nanos() as u64;
    while client.unanswered() > 0 && now_ns() < drained_ns {
        client.turn(None, false)?;
    }
    outcome.lost = client.lost() + client.unanswered();
    Ok(outcome)
}

/// The client's connections and what it needs to serve them.
struct Client<L> {
    frame: Frame,
    set: WaitSet,
    connections: Vec<Connection<L>>,
    ready: Vec<usize>,
    buffer: Vec<u8>,
    block: Vec<u8>,
}

impl<L: Link> Client<L> {
    /// Connects all and sends what is to be in flight.
    fn connect(address: &SocketAddress, load: &EchoLoad) -> io::Result<Self> {
        let mut client = Self {
            frame: load.frame.clone(),
            set: WaitSet::new()?,
            connections: Vec::with_capacity(load.connections),
            ready: Vec::new(),
            buffer: vec![0; BLOCK_BYTES],
            block: Vec::with_capacity(BLOCK_BYTES),
        };
        for number in 0..load.connections {
            let link: L = connect(address, load.greets)?;
            let connection = Connection::new(link);
            client.set.add(connection.stream.as_fd(), number)?;
            client.connections.push(connection);
        }
        for connection in &mut client.connections {
            connection.send(&client.frame, load.in_flight, now_ns(), &mut client.block)?;
        }
        Ok(client)
    }
}

impl<L: Link> EchoClient for Client<L> {
    fn turn(&mut self, mut counted: Option<&mut EchoOutcome>, goes_on: bool) -> io::Result<()> {
        self.set.wait(&mut self.ready)?;
        for &number in &self.ready {
            let connection = &mut self.connections[number];
            let counted = counted.as_deref_mut();
            let (replies, now) = connection.receive(&self.frame, &mut self.buffer, counted)?;
            if goes_on {
                connection.send(&self.frame, replies, now, &mut self.block)?;
            }
        }
        Ok(())
    }

    fn unanswered(&self) -> u64 {
        self.connections
            .iter()
            .map(|connection| connection.next_number - connection.expected)
            .sum()
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
    link.settle()?;
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
        match stream.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

impl<L: Link> Connection<L> {
    fn new(stream: L) -> Self {
        Self {
            stream,
            rest: Vec::new(),
            blocked: false,
            next_number: 0,
            expected: 0,
            flight: Flight::default(),
        }
    }

    /// Server: writes what waits, then reads and writes back until there is nothing more.
    fn echo(&mut self, buffer: &mut [u8], answer: &impl Fn(&mut [u8])) -> io::Result<()> {
        if self.blocked {
            let waiting = std::mem::take(&mut self.rest);
            self.write(&waiting)?;
        }
        while !self.blocked {
            let count = match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
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
        let count = match self.stream.write(bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        self.rest.extend_from_slice(&bytes[count..]);
        self.blocked = count < bytes.len() || self.stream.is_blocked();
        Ok(())
    }

    /// Client: sends `count` frames with the next numbers. What is in flight fits the socket's buffer, or this fails.
    fn send(
        &mut self,
        frame: &Frame,
        count: u64,
        now_ns: u64,
        block: &mut Vec<u8>,
    ) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        block.clear();
        frame.append(block, self.next_number, count);
        self.next_number += count;
        self.flight.sent(self.next_number, now_ns);
        let written = self.stream.write(block)?;
        if written < block.len() || self.stream.is_blocked() {
            return Err(io::Error::other(
                "more is in flight than the socket's buffer holds; ask for less",
            ));
        }
        Ok(())
    }

    /// Client: reads and checks replies. Returns how many, and when.
    fn receive(
        &mut self,
        frame: &Frame,
        buffer: &mut [u8],
        mut counted: Option<&mut EchoOutcome>,
    ) -> io::Result<(u64, u64)> {
        let kept = self.rest.len();
        buffer[..kept].copy_from_slice(&self.rest);
        let filled = match self.stream.read(&mut buffer[kept..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => kept + count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok((0, 0)),
            Err(error) => return Err(error),
        };
        let replies = buffer[..filled].chunks_exact(frame.reply_bytes());
        self.rest.clear();
        self.rest.extend_from_slice(replies.remainder());
        let mut count = 0;
        for reply in replies {
            if !frame.has_number(reply, self.expected) {
                return Err(io::Error::other(format!(
                    "a reply is not number {}: {reply:02x?}",
                    self.expected
                )));
            }
            self.expected += 1;
            count += 1;
        }
        let now = now_ns();
        let latency = counted.as_deref_mut().map(|outcome| &mut outcome.latency);
        self.flight.answered(self.expected, now, latency);
        if let Some(outcome) = counted {
            outcome.replies += count;
        }
        Ok((count, now))
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
