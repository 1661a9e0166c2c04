//! Within one process: PAIR sockets of one context, without an I/O thread in between.

use anyhow::{Context as _, Result};
use peer_common::inproc::{self, BATCH_MESSAGES, End, ITEM_BYTES, Item};
use peer_common::{Measured, Work};
use zmq::{Context, DONTWAIT, Message, Socket};

use crate::socket;

pub(crate) fn drive(work: &Work) -> Result<Measured> {
    let context = Context::new();
    inproc::drive(work, || {
        let far = socket(&context, zmq::PAIR)?;
        far.bind(NAME)?;
        let near = socket(&context, zmq::PAIR)?;
        near.connect(NAME)?;
        Ok((Pair::new(near), Pair::new(far)))
    })
}

struct Pair {
    socket: Socket,
    message: Message,
}

impl Pair {
    fn new(socket: Socket) -> Self {
        let message = Message::new();
        Self { socket, message }
    }

    fn received(&self) -> Item {
        // A message of another size is wrong, and the check of its number will find that.
        self.message[..].try_into().unwrap_or([0xfe; ITEM_BYTES])
    }
}

impl End for Pair {
    fn send(&mut self, message: Item) -> Result<()> {
        self.socket.send(&message[..], 0).context("sending")
    }

    fn receive(&mut self, messages: &mut Vec<Item>) -> Result<()> {
        self.socket
            .recv(&mut self.message, 0)
            .context("receiving")?;
        messages.push(self.received());
        while messages.len() < BATCH_MESSAGES {
            match self.socket.recv(&mut self.message, DONTWAIT) {
                Ok(()) => messages.push(self.received()),
                Err(zmq::Error::EAGAIN) => break,
                Err(error) => return Err(error).context("receiving"),
            }
        }
        Ok(())
    }
}

const NAME: &str = "inproc://bench";
