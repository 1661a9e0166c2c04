//! The output of one receiver: the delay line, the swaps, the cap, the cut, and the socket.
//!
//! The delay is the same for all deliveries, so a queue in order of arrival is also in order of time, and the thread
//! sleeps until the first delivery is due.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use tidewire_proto::message::MemberId;

use super::shared::{Peer, Shared};

#[derive(Debug)]
pub(super) enum Outgoing {
    /// An answer or a notice, which has no faults.
    Control(Vec<u8>),
    Delivery(Delivery),
}

/// A message of a room on its way to one receiver.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) frame: Arc<[u8]>,
    pub(super) sender: MemberId,
    pub(super) due: Instant,
    /// Whether to send it after the next one of its sender.
    pub(super) swap: bool,
    /// Whether the receiver can recognise its sender. Only then can another delivery be reordered after it.
    pub(super) is_intact: bool,
}

/// Writes the queue of one connection.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    stream: TcpStream,
    queue: Receiver<Outgoing>,
    held: HashMap<MemberId, HeldDelivery>,
    buffer: Vec<u8>,
    buffered: u64,
    /// Deliveries written before.
    written: u64,
    is_closed: bool,
}

/// A delivery that waits for the next one of its sender.
#[derive(Debug)]
struct HeldDelivery {
    frame: Arc<[u8]>,
    until: Instant,
}

impl Writer {
    pub(super) fn new(
        shared: Arc<Shared>,
        peer: Arc<Peer>,
        stream: TcpStream,
        queue: Receiver<Outgoing>,
    ) -> Self {
        Self {
            shared,
            peer,
            stream,
            queue,
            held: HashMap::new(),
            buffer: Vec::new(),
            buffered: 0,
            written: 0,
            is_closed: false,
        }
    }

    /// Runs until no sender of the queue is left.
    pub(super) fn run(mut self) {
        loop {
            match self.queue.try_recv() {
                Ok(outgoing) => self.handle(outgoing),
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.flush();
                    match self.wait() {
                        Ok(outgoing) => self.handle(outgoing),
                        Err(RecvTimeoutError::Timeout) => self.release_overdue(Instant::now()),
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                }
            }
        }
        for held in std::mem::take(&mut self.held).into_values() {
            self.push(&held.frame);
        }
        self.flush();
        // The last answer may be a refusal. Closing only the writing side lets the peer read it to the end.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    fn wait(&self) -> Result<Outgoing, RecvTimeoutError> {
        match self.held.values().map(|held| held.until).min() {
            Some(until) => self
                .queue
                .recv_timeout(until.saturating_duration_since(Instant::now())),
            None => self
                .queue
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn handle(&mut self, outgoing: Outgoing) {
        match outgoing {
            Outgoing::Control(frame) => self.buffer.extend_from_slice(&frame),
            Outgoing::Delivery(delivery) => self.deliver(delivery),
        }
    }

    fn deliver(&mut self, delivery: Delivery) {
        let now = Instant::now();
        self.release_overdue(now);
        if delivery.due > now {
            self.flush();
            self.shared.sleep_until(delivery.due);
        }
        let waiting = if delivery.is_intact {
            self.held.remove(&delivery.sender)
        } else {
            None
        };
        if let Some(held) = waiting {
            self.push(&delivery.frame);
            self.push(&held.frame);
            self.shared.ledger().swapped += 1;
        } else if delivery.swap {
            let held = HeldDelivery {
                frame: delivery.frame,
                until: now.max(delivery.due) + HOLD_MAX,
            };
            self.held.insert(delivery.sender, held);
        } else {
            self.push(&delivery.frame);
        }
    }

    /// Sends a delivery that waited too long for a next delivery: its sender has probably finished.
    fn release_overdue(&mut self, now: Instant) {
        if self.held.values().all(|held| held.until > now) {
            return;
        }
        let overdue: Vec<MemberId> = self
            .held
            .iter()
            .filter(|(_, held)| held.until <= now)
            .map(|(sender, _)| *sender)
            .collect();
        for sender in overdue {
            if let Some(held) = self.held.remove(&sender) {
                self.push(&held.frame);
            }
        }
    }

    fn push(&mut self, frame: &[u8]) {
        if let Some(slot) = self.shared.claim_slot()
            && slot > Instant::now()
        {
            self.flush();
            self.shared.sleep_until(slot);
        }
        self.buffer.extend_from_slice(frame);
        self.buffered += 1;
        let cut_after = self.peer.cut_after.load(Ordering::SeqCst);
        if !self.is_closed && self.written + self.buffered == cut_after {
            self.flush();
            self.cut();
        } else if self.buffer.len() >= BUFFER_BYTES_MAX {
            self.flush();
        }
    }

    /// Writes the buffer and accounts for it.
    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        self.shared.wait_while_stalled();
        let count = std::mem::take(&mut self.buffered);
        let is_written = !self.is_closed && self.stream.write_all(&self.buffer).is_ok();
        self.buffer.clear();
        let mut ledger = self.shared.ledger();
        ledger.queued -= count;
        if is_written {
            self.written += count;
            ledger.delivered += count;
        } else {
            self.is_closed = true;
            ledger.undeliverable += count;
        }
    }

    /// Ends the stream towards the peer only: all written bytes still arrive, so the number of its deliveries is exact.
    /// A reset would discard them.
    fn cut(&mut self) {
        if self.is_closed {
            return;
        }
        self.is_closed = true;
        self.peer.is_cut.store(true, Ordering::SeqCst);
        self.shared.ledger().disconnected += 1;
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// The maximum wait of a delivery for the next delivery of its sender. After this wait it is sent in order. It is many
/// times the think time of a test's agents, and well below the time an instrument waits for stragglers.
const HOLD_MAX: Duration = Duration::from_millis(250);

const BUFFER_BYTES_MAX: usize = 32 << 10;
