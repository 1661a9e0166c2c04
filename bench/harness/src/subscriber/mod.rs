//! One raw subscriber for all publishers: Tidewire, the bare loop, and every rival that can be spoken to.
//!
//! Problem: the reader limits fan-out to hundreds of connections. With a client of its own for each rival, the benchmark
//! would compare the clients. Approach: one thread, one epoll set, and a small dialect for each protocol;
//! every message of every connection is checked for its number and timed by what its publisher wrote into it
//! ([`Publication`](super::publication::Publication)). Brokers get their publications over a further connection of the
//! same kind; everybody else publishes by himself when all have subscribed.
//!
//! A message belongs to the time at which its rate made it due, so that no publisher gains by publishing late. After
//! the window the subscriber waits for the messages that were due within the window. The wait ends when every
//! connection has a message that was due later, or when no message comes any more. The rate shows how long the wait
//! was. A message counts as lost if it was sent and did not come, came twice, came out of order or was changed.

mod centrifuge;
mod connection;
mod dialect;
mod length;
mod nats;
mod redis;
mod sp;
mod tw1;
mod websocket;
mod zmtp;

use std::io;
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_io::socket::SocketAddress;

pub(crate) use dialect::TOPIC;

use self::connection::{Connection, Tally};
use self::dialect::{Dialect, DialectError, Role};
use super::contract::{Measured, Work};
use super::pace::{Pace, TICK_NS};
use super::stage::Stage;
use crate::probes::wait::WaitSet;
use crate::probes::{Link, echo, with_link};

/// The result of listening.
#[derive(Debug)]
pub(crate) struct ListenResult {
    /// The messages of all connections that were due within the window and came, each the expected one or a later one;
    /// and those that were due by its end and did not come as they should, from the first one on. The time is that of
    /// the window, and by how much later messages were at its end than at its beginning. A publisher that holds its
    /// rate is late by the same time at both.
    pub(crate) measured: Measured,
    /// Messages that were due by the end of the window and sent, from the first one on: each of them once for every
    /// connection.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "tests compare what was lost with it")
    )]
    pub(crate) sent: u64,
    /// Connections that the server ended.
    pub(crate) closed: usize,
}

/// Subscribes over all connections of the work, which are spread over these addresses, counts for a while, and waits
/// for what is under way. Lost messages are no error, they are counted; nor are connections that the server ends.
pub(crate) type Listen = fn(&[SocketAddress], &Work, &mut Stage) -> io::Result<ListenResult>;

/// How to listen to a server of ours: in TW1 with its handshake.
pub(crate) fn tw1() -> Listen {
    listen_in::<tw1::Tw1>
}

/// How to listen to other servers, by the name of their protocol in [`Work::codec`](crate::contract::Work::codec). TW1
/// is here without its handshake, and `length` is u32, big-endian, before every payload. NATS and Redis are brokers.
pub(crate) fn dialect(name: &str) -> Option<Listen> {
    Some(match name {
        "tw1" => listen_in::<tw1::BareTw1>,
        "length" => listen_in::<length::Length>,
        "centrifuge" => listen_in::<centrifuge::Centrifuge>,
        "websocket" => listen_in::<websocket::WebSocket>,
        "nats" => listen_in::<nats::Nats>,
        "redis" => listen_in::<redis::Redis>,
        "zmtp" => listen_in::<zmtp::Zmtp>,
        "sp" => listen_in::<sp::Sp>,
        _ => return None,
    })
}

fn listen_in<D: Dialect>(
    addresses: &[SocketAddress],
    work: &Work,
    stage: &mut Stage,
) -> io::Result<ListenResult> {
    let first = addresses.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut crowd = Crowd::<D>::connect(addresses, work)?;
    crowd.subscribe()?;
    crowd.begin(first)?;
    let first_ns = now_ns();
    while crowd.tally.messages == 0 {
        if now_ns() - first_ns > READY_TIMEOUT.as_nanos() as u64 {
            let secs = READY_TIMEOUT.as_secs();
            let text = format!("nothing was published within {secs} s of the last subscription");
            return Err(io::Error::other(text));
        }
        crowd.turn()?;
    }
    crowd.run_until(now_ns() + work.warm_up_ms * 1_000_000)?;
    let window = stage.begin()?;
    let from_ns = now_ns();
    let window_ns = work.measure_ms * 1_000_000;
    let until_ns = from_ns + window_ns;
    crowd.tally.begin(from_ns, until_ns);
    crowd.run_until(until_ns)?;
    let allocated_bytes = window.end()?;
    crowd.drain()?;
    let sent = crowd.sent();
    let connections = &crowd.connections;
    let seconds = (window_ns + crowd.tally.fell_behind_ns()) as f64 / 1e9;
    let lost = connections.iter().map(|one| one.sequence.lost(sent)).sum();
    let measured = Measured::verified(crowd.tally.messages, seconds, lost);
    Ok(ListenResult {
        measured: Measured {
            allocated_bytes,
            ..measured.with_times(&crowd.tally.latency)
        },
        sent,
        closed: connections.iter().filter(|one| one.is_closed).count(),
    })
}

/// All connections, on one thread.
struct Crowd<'a, D> {
    work: &'a Work,
    set: WaitSet,
    connections: Vec<Connection<D>>,
    /// To a broker, and how many messages are due there.
    publisher: Option<(Connection<D>, Pace)>,
    buffer: Vec<u8>,
    ready: Vec<usize>,
    tally: Tally,
}

impl<'a, D: Dialect> Crowd<'a, D> {
    fn connect(addresses: &[SocketAddress], work: &'a Work) -> io::Result<Self> {
        let set = WaitSet::new()?;
        let connections = work.subscribers;
        let connect = |number: usize| {
            let address = &addresses[number % addresses.len()];
            open(work, address, Role::Subscriber, &set, number).map_err(|error| {
                let number = number + 1;
                let advice = "is the server there, and `ulimit -n` large enough?";
                let text = format!("cannot make connection {number} of {connections}; {advice}");
                io::Error::other(format!("{text}: {error}"))
            })
        };
        Ok(Self {
            work,
            connections: (0..connections).map(connect).collect::<io::Result<_>>()?,
            set,
            publisher: None,
            buffer: vec![0; BUFFER_BYTES],
            ready: Vec::new(),
            tally: Tally::new(work.message_bytes),
        })
    }

    /// Waits until the server has taken all subscriptions.
    fn subscribe(&mut self) -> io::Result<()> {
        let until_ns = now_ns() + READY_TIMEOUT.as_nanos() as u64;
        loop {
            let connections = self.connections.len();
            let of = |one: &&Connection<D>| one.is_ready() && !one.is_closed;
            let ready = self.connections.iter().filter(of).count();
            if ready == connections {
                return Ok(());
            }
            if now_ns() > until_ns || self.connections.iter().any(|one| one.is_closed) {
                let secs = READY_TIMEOUT.as_secs();
                let text = format!(
                    "only {ready} of {connections} subscriptions were taken within {secs} s"
                );
                return Err(io::Error::other(text));
            }
            self.turn()?;
        }
    }

    /// Begins to publish, if that is ours to do.
    fn begin(&mut self, address: &SocketAddress) -> io::Result<()> {
        if D::PUBLISH.is_none() {
            return Ok(());
        }
        let connection = open(self.work, address, Role::Publisher, &self.set, PUBLISHER)?;
        self.publisher = Some((connection, Pace::new(self.work.rate_per_sec, now_ns())));
        Ok(())
    }

    /// Publishes what is due, and hears what is there.
    fn turn(&mut self) -> io::Result<()> {
        if let (Some((connection, pace)), Some(publish)) = (&mut self.publisher, D::PUBLISH) {
            connection.publish(pace, self.work.message_bytes, publish)?;
            if connection.waiting_bytes() > UNSENT_BYTES_MAX {
                let text = "the broker takes less than is published; ask for a lower rate";
                return Err(io::Error::other(text));
            }
        }
        self.hear()
    }

    fn hear(&mut self) -> io::Result<()> {
        let tick = Duration::from_nanos(TICK_NS);
        match self.publisher {
            Some(_) => self.set.wait_for(&mut self.ready, tick)?,
            None => self.set.wait(&mut self.ready)?,
        }
        for index in 0..self.ready.len() {
            let number = self.ready[index];
            if number == PUBLISHER {
                if let Some((connection, _)) = &mut self.publisher {
                    // Its answers hold nothing to count.
                    connection.receive(&mut self.buffer, &mut self.tally)?;
                }
                continue;
            }
            let connection = &mut self.connections[number];
            match connection.receive(&mut self.buffer, &mut self.tally) {
                Err(error) if DialectError::of(&error).is_none() => {
                    // A closed connection receives no more; what it misses counts as lost.
                    connection.is_closed = true;
                    connection.forget(&self.set)?;
                }
                received => received?,
            }
        }
        Ok(())
    }

    fn run_until(&mut self, until_ns: u64) -> io::Result<()> {
        while now_ns() < until_ns {
            self.turn()?;
        }
        Ok(())
    }

    /// How many messages were due by the end of the window: all before the first that was due later. Where none such
    /// came, it is what we published, or else what was heard.
    fn sent(&self) -> u64 {
        let heard = self.connections.iter().map(|one| one.sequence.next);
        let heard = heard.max().unwrap_or_default();
        let published = self.publisher.as_ref();
        let behind = self.tally.behind;
        let sent = behind.or_else(|| Some(published?.1.due_by(self.tally.until_ns)));
        sent.unwrap_or_default().max(heard)
    }

    /// Waits until everybody has heard what was due within the window, or nothing of it comes any more. The publisher
    /// goes on, because what is due later tells that nothing is missing.
    fn drain(&mut self) -> io::Result<()> {
        let began_ns = now_ns();
        let (mut since_ns, mut heard) = (began_ns, self.heard());
        while self.is_awaiting()
            && now_ns() - since_ns < QUIET_MAX.as_nanos() as u64
            && now_ns() - began_ns < DRAIN_MAX.as_nanos() as u64
        {
            self.turn()?;
            let now_heard = self.heard();
            if now_heard > heard {
                (heard, since_ns) = (now_heard, now_ns());
            }
        }
        Ok(())
    }

    /// Whether something of the window may still come.
    fn is_awaiting(&self) -> bool {
        let is_awaiting = |one: &Connection<D>| !one.is_closed && !one.sequence.is_past;
        self.connections.iter().any(is_awaiting)
    }

    /// Grows as long as something of the window comes.
    fn heard(&self) -> u64 {
        self.connections.iter().map(|one| one.sequence.next).sum()
    }
}

/// Opens a connection that has this number in the set.
fn open<D: Dialect>(
    work: &Work,
    address: &SocketAddress,
    role: Role,
    set: &WaitSet,
    number: usize,
) -> io::Result<Connection<D>> {
    let link = with_link!(beneath_dialect(work), dial)(address)?;
    let connection = Connection::new(link, role)?;
    connection.watch(set, number)?;
    Ok(connection)
}

/// Connects a link. The subscriber uses it as a `dyn`, which costs an indirect call for each read. So the subscriber is
/// compiled once for each dialect, and not for each pair of a dialect and a link.
fn dial<L: Link>(address: &SocketAddress) -> io::Result<Box<dyn Link>> {
    Ok(Box::new(echo::connect::<L>(address, false)?))
}

/// The work with the transport that is beneath the dialect. The subscriber of rivals over WebSocket speaks it by
/// itself, because they send no stream of bytes but messages.
fn beneath_dialect(work: &Work) -> Work {
    let transport = match (work.codec.as_str(), work.transport.as_str()) {
        ("websocket", "ws") => "tcp",
        ("websocket", "wss") => "tls",
        (_, transport) => transport,
    };
    Work {
        transport: transport.to_owned(),
        ..work.clone()
    }
}

/// The publisher's number in the set, which no subscriber reaches.
const PUBLISHER: usize = usize::MAX;

/// How long a server may take to let everybody subscribe, and then to publish something.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// How long nothing must come for what is missing to be lost.
const QUIET_MAX: Duration = Duration::from_secs(5);

/// Longest wait for the window's messages: somebody so far behind will not hold the rate, and what it still owes is
/// lost.
const DRAIN_MAX: Duration = Duration::from_secs(15);

/// Size of the buffer all connections are read into: a frame and what one read of a busy connection brings.
const BUFFER_BYTES: usize = 256 * 1024;

/// Most bytes that wait for a broker.
const UNSENT_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests;
