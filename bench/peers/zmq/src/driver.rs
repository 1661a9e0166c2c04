//! The drivers: one thread with a socket, and so a connection, for each of the work's connections.

use anyhow::{Context as _, Result};
use peer_common::{Exchange, Flight, Measured, Meter, Source, Window, Work, now_ns, sent};
use zmq::{Context, DONTWAIT, Message, PollItem, Socket, SocketType};

use crate::socket;

/// Keeps requests in flight on every connection.
pub(crate) fn ask(address: &str, work: &Work) -> Result<Measured> {
    let exchange = Exchange::of(work)?;
    let sockets = connect(zmq::DEALER, address, work)?;
    let mut flights: Vec<Flight> = sockets.iter().map(|_| Flight::new(exchange)).collect();
    let mut meter = Meter::new(Window::begin(work));
    let mut items = poll_items(&sockets, zmq::POLLIN);
    let give_up_ns = meter.window().until_ns() + PATIENCE_NS;
    let mut reply = Message::new();
    loop {
        let now = now_ns();
        let is_over = meter.window().is_over(now);
        if !is_over {
            for (socket, flight) in sockets.iter().zip(&mut flights) {
                while flight.outstanding() < work.in_flight.max(1) {
                    socket.send(flight.request(now), 0).context("sending")?;
                }
            }
        }
        let outstanding: usize = flights.iter().map(Flight::outstanding).sum();
        if is_over && (outstanding == 0 || now > give_up_ns) {
            meter.count_lost(outstanding as u64);
            return Ok(meter.measured());
        }
        zmq::poll(&mut items, POLL_MS).context("waiting")?;
        for (item, (socket, flight)) in items.iter().zip(sockets.iter().zip(&mut flights)) {
            if item.is_readable() {
                let now = now_ns();
                while receive(socket, &mut reply)? {
                    flight.reply(&reply, now, &mut meter);
                }
            }
        }
    }
}

/// Sends one-way messages over all connections in turns.
pub(crate) fn push(address: &str, work: &Work) -> Result<Measured> {
    let sockets = connect(zmq::PUSH, address, work)?;
    let mut sources = (0..sockets.len())
        .map(|connection| Source::new(work, connection))
        .collect::<Result<Vec<_>>>()?;
    let window = Window::begin(work);
    let mut items = poll_items(&sockets, zmq::POLLOUT);
    while !window.is_over(now_ns()) {
        let mut is_full = true;
        for (socket, source) in sockets.iter().zip(&mut sources) {
            is_full &= send_some(socket, source)? == 0;
        }
        if is_full {
            zmq::poll(&mut items, POLL_MS).context("waiting")?;
        }
    }
    let messages = sources.iter().map(Source::sent).sum();
    drop(items);
    // Sockets stay open until the program ends, when the benchmark has received everything. Closing one would wait
    // until its queue is sent. But over `ipc` the other side stops reading a closed connection whose queue is full: the
    // system reports the end before it has read all bytes.
    std::mem::forget(sockets);
    Ok(sent(messages, &window))
}

/// Sends until the queue is full, or another connection has its turn. Returns the number of sent messages.
fn send_some(socket: &Socket, source: &mut Source) -> Result<usize> {
    for count in 0..TURN_MESSAGES {
        match socket.send(source.message(), DONTWAIT) {
            Ok(()) => {}
            Err(zmq::Error::EAGAIN) => {
                source.take_back();
                return Ok(count);
            }
            Err(error) => return Err(error).context("sending"),
        }
    }
    Ok(TURN_MESSAGES)
}

/// Receives all available messages. Returns whether there were any.
fn receive(socket: &Socket, message: &mut Message) -> Result<bool> {
    match socket.recv(message, DONTWAIT) {
        Ok(()) => Ok(true),
        Err(zmq::Error::EAGAIN) => Ok(false),
        Err(error) => Err(error).context("receiving"),
    }
}

/// Opens and connects the sockets. More sockets than a context takes by default get several contexts.
fn connect(kind: SocketType, address: &str, work: &Work) -> Result<Vec<Socket>> {
    let mut context = Context::new();
    (0..work.connections)
        .map(|number| {
            if number > 0 && number.is_multiple_of(CONTEXT_SOCKETS_MAX) {
                context = Context::new();
            }
            let socket = socket(&context, kind)?;
            let connected = socket.connect(address);
            connected.with_context(|| format!("connecting to {address}"))?;
            Ok(socket)
        })
        .collect()
}

fn poll_items(sockets: &[Socket], events: zmq::PollEvents) -> Vec<PollItem<'_>> {
    sockets
        .iter()
        .map(|socket| socket.as_poll_item(events))
        .collect()
}

/// Messages that one connection sends before the next one has its turn.
const TURN_MESSAGES: usize = 256;

/// Sockets of one context. The default limit is 1,023.
const CONTEXT_SOCKETS_MAX: usize = 1_000;

/// The longest wait between two readings of the clock, in milliseconds.
const POLL_MS: i64 = 100;

/// The longest wait for the last replies, in nanoseconds.
const PATIENCE_NS: u64 = 3_000_000_000;
