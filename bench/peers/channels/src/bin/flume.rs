//! flume, bounded.

use std::process::ExitCode;

use anyhow::Result;
use flume::{Receiver, Sender, bounded};
use peer_channels::{CAPACITY, Channel};
use peer_common::inproc::{BATCH_MESSAGES, End, Item};

fn main() -> ExitCode {
    peer_common::run(&Channel {
        name: "flume",
        library: Some("flume"),
        connect,
    })
}

fn connect() -> (Both, Both) {
    let (to_far, from_near) = bounded(CAPACITY);
    let (to_near, from_far) = bounded(CAPACITY);
    (Both(to_far, from_far), Both(to_near, from_near))
}

struct Both(Sender<Item>, Receiver<Item>);

impl End for Both {
    fn send(&mut self, message: Item) -> Result<()> {
        Ok(self.0.send(message)?)
    }

    fn receive(&mut self, messages: &mut Vec<Item>) -> Result<()> {
        messages.push(self.1.recv()?);
        messages.extend(self.1.try_iter().take(BATCH_MESSAGES));
        Ok(())
    }
}
