//! rtrb, a ring for one producer and one consumer. It has no blocking calls, so both ends spin, and yield after some
//! attempts without success.

use std::process::ExitCode;

use anyhow::{Result, bail};
use peer_channels::{CAPACITY, Channel};
use peer_common::inproc::{BATCH_MESSAGES, End, Item, pause};
use rtrb::{Consumer, Producer, RingBuffer};

fn main() -> ExitCode {
    peer_common::run(&Channel {
        name: "rtrb",
        library: Some("rtrb"),
        connect,
    })
}

fn connect() -> (Both, Both) {
    let (to_far, from_near) = RingBuffer::new(CAPACITY);
    let (to_near, from_far) = RingBuffer::new(CAPACITY);
    (Both::new(to_far, from_far), Both::new(to_near, from_near))
}

struct Both {
    producer: Producer<Item>,
    consumer: Consumer<Item>,
    /// Messages that are copied into the ring as one chunk.
    waiting: Vec<Item>,
}

impl Both {
    fn new(producer: Producer<Item>, consumer: Consumer<Item>) -> Self {
        Self {
            producer,
            consumer,
            waiting: Vec::with_capacity(BATCH_MESSAGES),
        }
    }
}

impl End for Both {
    fn send(&mut self, message: Item) -> Result<()> {
        self.waiting.push(message);
        if self.waiting.len() == BATCH_MESSAGES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let mut from = 0;
        let mut spins = 0;
        while from < self.waiting.len() {
            let (_, left) = self.producer.push_partial_slice(&self.waiting[from..]);
            let written = self.waiting.len() - from - left.len();
            from += written;
            if written == 0 {
                if self.producer.is_abandoned() {
                    bail!("the other end is gone");
                }
                pause(&mut spins);
            }
        }
        self.waiting.clear();
        Ok(())
    }

    fn receive(&mut self, messages: &mut Vec<Item>) -> Result<()> {
        let mut spins = 0;
        while self.consumer.slots() == 0 {
            if self.consumer.is_abandoned() {
                bail!("the other end is gone");
            }
            pause(&mut spins);
        }
        let count = self.consumer.slots().min(BATCH_MESSAGES);
        let chunk = self.consumer.read_chunk(count)?;
        let (first, second) = chunk.as_slices();
        messages.extend_from_slice(first);
        messages.extend_from_slice(second);
        chunk.commit_all();
        Ok(())
    }
}
