//! The bare publisher: writes the same block to every socket, as often as Tidewire sweeps a busy room. It does the same
//! bytes, and has no sessions, no policies and no shared log.

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

/// A receiver, and what it did not take yet.
struct Receiver {
    stream: Stream,
    waiting: Vec<u8>,
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
                waiting: Vec::new(),
            }),
            // There is nothing else to do until somebody comes.
            Err(_) => thread::sleep(TICK),
        }
    }
    let mut pace = Pace::new(work.rate_per_sec, now_ns());
    let (mut block, mut payload) = (Vec::new(), Vec::new());
    while !receivers.is_empty() {
        block.clear();
        for _ in 0..TICKS_PER_WRITE {
            thread::sleep(TICK);
            for sequence in pace.take(now_ns()) {
                payload.clear();
                let due_ns = pace.due_ns(sequence);
                Publication { sequence, due_ns }.append(work.message_bytes, &mut payload);
                let message = Message::with_id(Kind::Deliver, 1, 0, &payload).with_name(TOPIC);
                Tw1.encode(&message, &mut block).map_err(io::Error::other)?;
            }
        }
        receivers.retain_mut(|receiver| receiver.write(&block).is_ok());
        published.store(pace.taken(), Ordering::Relaxed);
    }
    Ok(())
}

impl Receiver {
    fn write(&mut self, block: &[u8]) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.waiting.extend_from_slice(block);
            let waiting = std::mem::take(&mut self.waiting);
            return self.write_what_fits(&waiting);
        }
        self.write_what_fits(block)
    }

    fn write_what_fits(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.waiting = bytes.to_vec();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// How often it looks for what is due, as every publisher does.
const TICK: Duration = Duration::from_millis(1);

/// A write to everybody every five milliseconds: the longest that Tidewire lets a message of a busy room wait.
const TICKS_PER_WRITE: u32 = 5;
