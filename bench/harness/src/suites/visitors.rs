//! Bare clients on one thread: each makes a connection, says one message, and checks that it comes back.

use std::io::{self, ErrorKind};

use tidewire_io::clock::now_ns;
use tidewire_io::socket::{SocketAddress, Stream};

use crate::probes::wait::WaitSet;
use crate::probes::{Link, received};

/// The clients, by the numbers of their slots.
pub(super) struct Visitors<L> {
    server: SocketAddress,
    /// Makes the link of a slot.
    dial: Box<Dial<L>>,
    set: WaitSet,
    slots: Vec<Option<Visitor<L>>>,
    ready: Vec<usize>,
    buffer: Vec<u8>,
}

/// Makes the link of the slot with this number.
type Dial<L> = dyn Fn(usize, Stream) -> io::Result<L>;

/// One connection.
struct Visitor<L> {
    link: L,
    is_connected: bool,
    /// When it began to connect, or spoke last.
    began_ns: u64,
    /// Bytes of the reply that have come.
    reply: Vec<u8>,
}

/// An event of the connection of a slot: its whole and right reply came, so many nanoseconds after it began; or,
/// without a number, it failed, ended or had a wrong reply, and the slot is free.
pub(super) type Event = (usize, Option<u64>);

impl<L: Link> Visitors<L> {
    /// Creates visitors of `server` with this number of free slots.
    pub(super) fn new(
        server: SocketAddress,
        slots: usize,
        dial: impl Fn(usize, Stream) -> io::Result<L> + 'static,
    ) -> io::Result<Self> {
        Ok(Self {
            server,
            dial: Box::new(dial),
            set: WaitSet::new()?,
            slots: (0..slots).map(|_| None).collect(),
            ready: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
        })
    }

    /// Begins to connect. The visitor sends its first message as soon as the handshake is over.
    pub(super) fn begin(&mut self, slot: usize) -> io::Result<()> {
        let stream = Stream::connect(&self.server).map_err(io::Error::other)?;
        let link = (self.dial)(slot, stream)?;
        self.set.add(link.as_fd(), slot)?;
        self.set.watch_output(link.as_fd(), slot, true)?;
        self.slots[slot] = Some(Visitor {
            link,
            is_connected: false,
            began_ns: now_ns(),
            reply: Vec::with_capacity(MESSAGE_BYTES),
        });
        Ok(())
    }

    /// Says the message once more.
    pub(super) fn say(&mut self, slot: usize) -> io::Result<()> {
        self.send(slot, &MESSAGE)
    }

    /// Asks the server for its resident memory, and waits for the answer.
    pub(super) fn ask_memory(&mut self, slot: usize) -> io::Result<u64> {
        let mut question = MESSAGE;
        question[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&QUESTION);
        self.send(slot, &question)?;
        loop {
            match &self.slots[slot] {
                Some(visitor) if visitor.reply.len() >= MESSAGE_BYTES => {
                    let told = visitor.reply[HEADER_BYTES..].first_chunk();
                    return Ok(told.map_or(0, |bytes| u64::from_le_bytes(*bytes)));
                }
                Some(_) => {}
                None => return Err(ErrorKind::ConnectionReset.into()),
            }
            self.turn()?;
        }
    }

    /// Ends a connection at once, as if its client had lost power. Without a reset, tens of thousands of ports would be
    /// in use for a minute. Returns its link.
    pub(super) fn end(&mut self, slot: usize) -> Option<L> {
        let visitor = self.slots[slot].take()?;
        // If it fails, the connection ends in the usual way.
        let _ = visitor.link.stream().reset_on_close();
        Some(visitor.link)
    }

    /// Waits for events, at most a tenth of a second.
    pub(super) fn turn(&mut self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        self.set.wait(&mut self.ready)?;
        for index in 0..self.ready.len() {
            let slot = self.ready[index];
            match self.step(slot) {
                Ok(Some(ns)) => events.push((slot, Some(ns))),
                Ok(None) => {}
                Err(_) => {
                    self.slots[slot] = None;
                    events.push((slot, None));
                }
            }
        }
        Ok(events)
    }

    fn send(&mut self, slot: usize, message: &[u8]) -> io::Result<()> {
        let visitor = self.slots[slot].as_mut();
        let visitor = visitor.ok_or(ErrorKind::NotConnected)?;
        visitor.began_ns = now_ns();
        visitor.reply.clear();
        visitor.link.write(message).map(drop)
    }

    /// Goes on with a connection. Returns how long it took if its reply is there.
    fn step(&mut self, slot: usize) -> io::Result<Option<u64>> {
        let Some(visitor) = self.slots[slot].as_mut() else {
            return Ok(None);
        };
        if !visitor.is_connected {
            let finished = visitor.link.stream().finish_connect();
            finished.map_err(io::Error::other)?;
            visitor.is_connected = true;
            self.set.watch_output(visitor.link.as_fd(), slot, false)?;
            // The link keeps it until the end of the handshake.
            visitor.link.write(&MESSAGE)?;
            return Ok(None);
        }
        let Some(count) = received(visitor.link.read(&mut self.buffer))? else {
            return Ok(None);
        };
        visitor.reply.extend_from_slice(&self.buffer[..count]);
        match visitor.reply.len() {
            0..MESSAGE_BYTES => Ok(None),
            _ if visitor.reply == MESSAGE => Ok(Some(now_ns() - visitor.began_ns)),
            // The answer to a question, which its asker looks at.
            _ if visitor.reply.len() == MESSAGE_BYTES => Ok(None),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// Bytes of a message with its length.
pub(super) const MESSAGE_BYTES: usize = 32;

/// Bytes of the length before the payload.
pub(super) const HEADER_BYTES: usize = 2;

/// The beginning of a payload that asks for the server's memory.
pub(super) const QUESTION: [u8; 8] = *b"memory??";

/// A message of the codec `length-field`.
const MESSAGE: [u8; MESSAGE_BYTES] = {
    let mut message = [b'.'; MESSAGE_BYTES];
    message[0] = (MESSAGE_BYTES - HEADER_BYTES) as u8;
    message[1] = 0;
    message
};

/// More than a flight of the server, with room for a record before it.
const BUFFER_BYTES: usize = 64 << 10;
