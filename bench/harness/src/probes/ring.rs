//! Within a process, bare: two threads and the byte ring between them, or one thread that plays both ends.
//!
//! Two threads look for work without sleeping, which is the most that two cores can do. Every message is looked at by
//! itself, and its number checked.

use std::hint::spin_loop;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tidewire_io::affinity::pin_to_core;
use tidewire_io::clock::now_ns;
use tidewire_io::poller::Interest;
use tidewire_io::ring::RingStream;

use super::echo::DRAIN;
use crate::contract::{Measured, Work};
use crate::stage::Stage;

/// Sends messages of [`MESSAGE_BYTES`] through a pair of rings: one way if `in_flight` of the work is 0, else there and
/// back. One thread has both ends, or each end has a thread of its own. Two threads are pinned to the first two cores
/// of the work. If the work names fewer cores, the system places them, and a thread that waits yields its core. Counts
/// the messages that arrived with the expected number.
pub(crate) fn drive(work: &Work, one_thread: bool, stage: &mut Stage) -> io::Result<Measured> {
    let in_flight = work.in_flight as u64;
    let (near, far) = RingStream::pair(RING_BYTES)?;
    let taken = Arc::new(AtomicU64::new(0));
    let mut near = Near {
        end: End::new(near),
        in_flight,
        taken: Arc::clone(&taken),
    };
    let mut far = Far {
        end: End::new(far),
        answers: in_flight > 0,
        pending_replies: 0,
        taken,
    };
    if one_thread {
        return near.run(work, stage, &mut || far.step().map(drop));
    }
    let cores = work.cores.clone();
    let spins = cores.len() >= 2;
    let rest = move || {
        if spins {
            spin_loop();
        } else {
            thread::yield_now();
        }
    };
    let server = thread::spawn(move || {
        if let [_, core, ..] = cores[..] {
            pin_to_core(core)?;
        }
        while far.step()? {
            rest();
        }
        io::Result::Ok(())
    });
    if let [core, _, ..] = work.cores[..] {
        pin_to_core(core)?;
    }
    let outcome = near.run(work, stage, &mut || {
        rest();
        Ok(())
    });
    drop(near);
    let served = server
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("the other thread panicked")));
    served.and(outcome)
}

struct End {
    stream: RingStream,
    next_in: u64,
    next_out: u64,
}

/// The end that offers.
struct Near {
    end: End,
    in_flight: u64,
    taken: Arc<AtomicU64>,
}

/// The end that takes, and answers if it is to.
struct Far {
    end: End,
    answers: bool,
    pending_replies: u64,
    taken: Arc<AtomicU64>,
}

impl Near {
    fn run(
        &mut self,
        work: &Work,
        stage: &mut Stage,
        between: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<Measured> {
        self.run_for(work.warm_up_ms, between)?;
        let window = stage.begin()?;
        let (before, from_ns) = (self.received(), now_ns());
        self.run_for(work.measure_ms, between)?;
        let messages = self.received() - before;
        let seconds = (now_ns() - from_ns) as f64 / 1e9;
        let allocated_bytes = window.end()?;
        let until_ns = now_ns() + DRAIN.as_nanos() as u64;
        while self.received() < self.end.next_out && now_ns() < until_ns {
            self.end.take()?;
            between()?;
        }
        let lost = self.end.next_out - self.received();
        Ok(Measured {
            allocated_bytes,
            ..Measured::verified(messages, seconds, lost)
        })
    }

    fn run_for(
        &mut self,
        duration_ms: u64,
        between: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let until_ns = now_ns() + duration_ms * 1_000_000;
        while now_ns() < until_ns {
            for _ in 0..STEPS {
                if self.in_flight == 0 {
                    self.end.put(CHUNK);
                } else {
                    self.end.take()?;
                    let under_way = self.end.next_out - self.end.next_in;
                    self.end.put(self.in_flight - under_way);
                }
                between()?;
            }
        }
        Ok(())
    }

    /// Messages that came where they should.
    fn received(&self) -> u64 {
        if self.in_flight == 0 {
            self.taken.load(Ordering::Acquire)
        } else {
            self.end.next_in
        }
    }
}

impl Far {
    /// Takes what is there and answers. Returns whether the other end still is there.
    fn step(&mut self) -> io::Result<bool> {
        let Some(count) = self.end.take()? else {
            return Ok(false);
        };
        if count > 0 {
            self.taken.store(self.end.next_in, Ordering::Release);
        }
        if self.answers {
            self.pending_replies += count;
            self.pending_replies -= self.end.put(self.pending_replies);
        }
        Ok(true)
    }
}

impl End {
    fn new(mut stream: RingStream) -> Self {
        // Both ends poll, so neither is ever woken.
        stream.set_interest(Interest::NONE);
        Self {
            stream,
            next_in: 0,
            next_out: 0,
        }
    }

    /// Takes the messages that are there and checks them; nothing when the other end is gone.
    fn take(&mut self) -> io::Result<Option<u64>> {
        let bytes = match self.stream.readable() {
            Ok([]) => return Ok(None),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Some(0)),
            Err(error) => return Err(error),
        };
        let messages = bytes.chunks_exact(MESSAGE_BYTES);
        let count = messages.len();
        for message in messages {
            if message[..8] != self.next_in.to_le_bytes() {
                return Err(io::Error::other(format!(
                    "a message is not number {}",
                    self.next_in
                )));
            }
            self.next_in += 1;
        }
        self.stream.consume(count * MESSAGE_BYTES);
        Ok(Some(count as u64))
    }

    /// Writes up to this many messages. Returns how many there was room for; none, too, when the other end is gone.
    fn put(&mut self, count: u64) -> u64 {
        let Ok(room) = self.stream.writable() else {
            return 0;
        };
        let bytes = room.len().min(count as usize * MESSAGE_BYTES);
        let messages = room[..bytes].chunks_exact_mut(MESSAGE_BYTES);
        let count = messages.len();
        for message in messages {
            message[..8].copy_from_slice(&self.next_out.to_le_bytes());
            message[8..].fill(b'.');
            self.next_out += 1;
        }
        self.stream.commit(count * MESSAGE_BYTES);
        count as u64
    }
}

pub(crate) const MESSAGE_BYTES: usize = 32;

/// Room of the ring in each direction, in bytes.
const RING_BYTES: usize = 256 * 1_024;

/// Messages written at once one way.
const CHUNK: u64 = 512;

/// Looks between two readings of the clock.
const STEPS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_comes_on_one_thread_and_on_two() {
        for one_thread in [true, false] {
            for in_flight in [0, 1, 128] {
                // On a busy machine one of two threads may not run for as long as a short window.
                let mut windows = (4..14).map(|power| {
                    let work = Work {
                        in_flight,
                        warm_up_ms: 5,
                        measure_ms: 1 << power,
                        ..Work::default()
                    };
                    let mut stage = Stage::new(io::empty(), io::sink());
                    let outcome = drive(&work, one_thread, &mut stage).unwrap();
                    assert!(outcome.seconds > 0.0);
                    assert_eq!(outcome.lost, 0);
                    outcome.messages
                });
                assert!(windows.any(|messages| messages > 0));
            }
        }
    }
}
