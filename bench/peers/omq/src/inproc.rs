//! Within one process: two threads with blocking PAIR sockets, which OMQ connects without its I/O thread in between.

use anyhow::{Context as _, Result};
use omq_tokio::{Context, Message, SocketType, blocking};
use peer_common::inproc::{self, BATCH_MESSAGES, End, ITEM_BYTES, Item};
use peer_common::{Measured, Work};

use crate::{CONNECT_MAX, options};

pub(crate) fn drive(work: &Work) -> Result<Measured> {
    let context = Context::new();
    inproc::drive(work, || {
        let far = context.blocking_socket(SocketType::Pair, options());
        far.bind(NAME).context("binding")?;
        let near = context.blocking_socket(SocketType::Pair, options());
        near.connect(NAME).context("connecting")?;
        near.wait_connected(1, CONNECT_MAX).context("connecting")?;
        Ok((Pair::new(near), Pair::new(far)))
    })
}

struct Pair {
    socket: blocking::Socket,
    messages: Vec<Message>,
}

impl Pair {
    fn new(socket: blocking::Socket) -> Self {
        Self {
            socket,
            messages: Vec::with_capacity(BATCH_MESSAGES),
        }
    }
}

impl End for Pair {
    fn send(&mut self, message: Item) -> Result<()> {
        let message = Message::from_slice(&message);
        self.socket.send(message).context("sending")
    }

    fn receive(&mut self, messages: &mut Vec<Item>) -> Result<()> {
        let received = &mut self.messages;
        self.socket.recv_many_into(BATCH_MESSAGES, received)?;
        for message in received.drain(..) {
            let part = message.part_slice(0).unwrap_or_default();
            // A message of another size is wrong, and the check of its number will find that.
            messages.push(part.try_into().unwrap_or([0xfe; ITEM_BYTES]));
        }
        Ok(())
    }
}

const NAME: &str = "inproc://bench";
