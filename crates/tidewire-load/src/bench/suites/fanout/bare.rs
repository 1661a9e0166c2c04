//! The bare publisher: writes the same bytes to every socket, as often as Tidewire sweeps a busy room. They are framed once,
//! into one log in which every receiver has a position, so that one that is behind costs no copies. There are no sessions
//! and no policies: with a log that is full the publisher waits for the slowest.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tidewire::io::clock::now_ns;
use tidewire::io::socket::{Listener, SocketOptions, Stream};
use tidewire::proto::codec::{Codec, Tw1};
use tidewire::{Address, Endpoint, Kind, Message};

use crate::bench::contract::{Account, Work};
use crate::bench::pace::Pace;
use crate::bench::plan::RoleError;
use crate::bench::publication::Publication;
use crate::bench::stage::Stage;
use crate::bench::subscriber::TOPIC;

/// A receiver, and how far it is in the log.
struct Receiver {
    stream: Stream,
    at: u64,
}

/// What is on its way to somebody, once for all. Positions count from the first byte that was ever in it.
struct Log {
    bytes: Vec<u8>,
    /// Position of the first byte that is kept.
    start: u64,
}

pub(super) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let address = super::super::bind_address(work);
    let Endpoint::Socket(address) = super::super::endpoint(&address)? else {
        let text = format!("no bare publisher over {address}");
        return Err(RoleError::Unsupported(text));
    };
    let listener =
        Listener::bind(&address, &SocketOptions::default()).map_err(RoleError::failed("listen"))?;
    let local = Address::from(listener.local_address().clone()).to_string();
    let published = Arc::new(AtomicU64::new(0));
    // It ends with the process: the runner's last word is the end of our input.
    thread::spawn({
        let (work, published) = (work.clone(), Arc::clone(&published));
        move || publish(&listener, &work, &published)
    });
    stage.serve(&local, || Account {
        messages: Some(published.load(Ordering::Relaxed)),
        ..Account::default()
    })
}

/// Publishes to so many connections until the last one has ended.
fn publish(listener: &Listener, work: &Work, published: &AtomicU64) -> io::Result<()> {
    let mut receivers = Vec::with_capacity(work.subscribers);
    while receivers.len() < work.subscribers {
        match listener.accept() {
            Ok(accepted) => receivers.push(Receiver {
                stream: accepted.stream,
                at: 0,
            }),
            // There is nothing else to do until somebody comes.
            Err(_) => thread::sleep(TICK),
        }
    }
    let mut pace = Pace::new(work.rate_per_sec, now_ns());
    let mut log = Log {
        bytes: Vec::new(),
        start: 0,
    };
    let mut payload = Vec::new();
    while !receivers.is_empty() {
        for _ in 0..TICKS_PER_WRITE {
            thread::sleep(TICK);
            if log.bytes.len() >= LOG_BYTES_MAX {
                // What is due waits, and is late by as much.
                continue;
            }
            for sequence in pace.take(now_ns()) {
                payload.clear();
                let due_ns = pace.due_ns(sequence);
                Publication { sequence, due_ns }.append(work.message_bytes, &mut payload);
                let message = Message::with_id(Kind::Deliver, 1, 0, &payload).with_name(TOPIC);
                Tw1.encode(&message, &mut log.bytes)
                    .map_err(io::Error::other)?;
            }
        }
        receivers.retain_mut(|receiver| receiver.write(&log).is_ok());
        if let Some(slowest) = receivers.iter().map(|receiver| receiver.at).min() {
            log.forget(slowest);
        }
        published.store(pace.taken(), Ordering::Relaxed);
    }
    Ok(())
}

impl Receiver {
    /// Writes what the socket takes of what is new.
    fn write(&mut self, log: &Log) -> io::Result<()> {
        let mut bytes = log.from(self.at);
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    self.at += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Log {
    /// What is behind a position that is still kept.
    fn from(&self, at: u64) -> &[u8] {
        &self.bytes[(at - self.start) as usize..]
    }

    /// Nobody needs what is before this position. It goes when it is the larger part, so that each byte is moved once.
    fn forget(&mut self, until: u64) {
        let count = (until - self.start) as usize;
        if count * 2 >= self.bytes.len() {
            self.bytes.drain(..count);
            self.start = until;
        }
    }
}

/// How often it looks for what is due, as every publisher does.
const TICK: Duration = Duration::from_millis(1);

/// A write to everybody every five milliseconds: the longest that Tidewire lets a message of a busy room wait.
const TICKS_PER_WRITE: u32 = 5;

/// What is kept for the slowest receiver, in bytes; with it the publisher waits.
const LOG_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_needs_stays_and_the_rest_goes() {
        let mut log = Log {
            bytes: (0..100).collect(),
            start: 0,
        };
        log.forget(10);
        assert_eq!(log.from(10)[0], 10);
        log.forget(60);
        assert_eq!((log.start, log.bytes.len()), (60, 40));
        log.bytes.push(100);
        assert_eq!((log.from(60)[0], log.from(100)), (60, &[100][..]));
        log.forget(101);
        assert!(log.from(101).is_empty());
    }
}
