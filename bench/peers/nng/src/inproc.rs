//! Within one process: PAIR sockets.

use anyhow::{Context as _, Result, anyhow};
use nng::{Message, Protocol, Socket};
use peer_common::inproc::{self, BATCH_MESSAGES, End, ITEM_BYTES, Item};
use peer_common::{Measured, Work};

use crate::socket;

pub(crate) fn drive(work: &Work) -> Result<Measured> {
    inproc::drive(work, || {
        let far = socket(Protocol::Pair0)?;
        far.listen(NAME).context("listening")?;
        let near = socket(Protocol::Pair0)?;
        near.dial(NAME).context("connecting")?;
        Ok((Pair(near), Pair(far)))
    })
}

struct Pair(Socket);

impl End for Pair {
    fn send(&mut self, message: Item) -> Result<()> {
        let sent = self.0.send(&message[..]);
        sent.map_err(|(_, error)| anyhow!("sending: {error}"))
    }

    fn receive(&mut self, messages: &mut Vec<Item>) -> Result<()> {
        messages.push(item(&self.0.recv().context("receiving")?));
        while messages.len() < BATCH_MESSAGES {
            match self.0.try_recv() {
                Ok(message) => messages.push(item(&message)),
                Err(nng::Error::TryAgain) => break,
                Err(error) => return Err(error).context("receiving"),
            }
        }
        Ok(())
    }
}

fn item(message: &Message) -> Item {
    // A message of another size is wrong, and the check of its number will find that.
    message[..].try_into().unwrap_or([0xfe; ITEM_BYTES])
}

const NAME: &str = "inproc://bench";
