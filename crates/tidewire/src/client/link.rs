//! What a client's lane shares with the application's threads.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Waker;

use tidewire_io::doorbell::Doorbell;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use super::event_queue::{EventBounds, EventQueue, Queued, WhenEventsFull};
use super::events::Event;
use super::exchange::{Exchange, MustRing, Refused};
use super::queue::{Command, Subscribe, Ticket};
use super::reading::Reading;
use super::request::Reply;
use super::slots::{Outcome, SlotId};
use super::{ConnectError, HandOverError};
use crate::context::encode_within;

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    exchange: Exchange,
    reading: Arc<Reading>,
    event_bounds: EventBounds,
    /// Largest frame that both sides take.
    frame_bytes_max: AtomicUsize,
    /// When the client ends, whatever still waits; never, before somebody closed it.
    close_at_ns: AtomicU64,
    pub(crate) events: EventQueue<Event>,
    first: Mutex<Option<Result<(), ConnectError>>>,
    first_ready: Condvar,
}

impl Link {
    /// A link by way of this exchange, each of whose event queues has these bounds.
    pub(crate) fn new(exchange: Exchange, event_bounds: EventBounds) -> Self {
        let reading = Arc::new(Reading::default());
        Self {
            exchange,
            event_bounds,
            frame_bytes_max: AtomicUsize::new(usize::MAX),
            close_at_ns: AtomicU64::new(u64::MAX),
            events: EventQueue::new(event_bounds, Arc::clone(&reading)),
            reading,
            first: Mutex::new(None),
            first_ready: Condvar::new(),
        }
    }

    pub(crate) fn set_frame_bytes_max(&self, bytes: usize) {
        self.frame_bytes_max.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_doorbell(&self, doorbell: &Arc<Doorbell>) {
        self.reading.set_doorbell(doorbell);
    }

    /// Leaves a command for the lane and wakes it if it sleeps.
    pub(crate) fn push(&self, command: Command) -> Result<(), Box<Refused>> {
        let must_ring = self.exchange.push(command)?;
        self.ring_if(must_ring);
        Ok(())
    }

    /// Leaves a request for the lane and wakes it if it sleeps. Returns where the answer will be. One that fits no frame is
    /// refused before it is copied.
    pub(crate) fn push_call(
        &self,
        ticket: Ticket,
        name: &str,
        payload: &[u8],
    ) -> Result<SlotId, HandOverError> {
        let limit = self.frame_bytes_max.load(Ordering::Relaxed);
        if name.len().max(payload.len()) > limit {
            return Err(too_large(name, payload, limit).into());
        }
        let (slot, must_ring) = self.exchange.push_call(ticket, name, payload)?;
        self.ring_if(must_ring);
        Ok(slot)
    }

    /// Leaves a subscription for the lane and wakes it if it sleeps. Returns where the outcome will be.
    pub(crate) fn push_subscribe(
        &self,
        subscribe: impl FnOnce(SlotId) -> Subscribe,
    ) -> Result<SlotId, HandOverError> {
        let (slot, must_ring) = self.exchange.push_subscribe(subscribe)?;
        self.ring_if(must_ring);
        Ok(slot)
    }

    /// Leaves a one-way message for the lane and wakes it if it sleeps.
    pub(crate) fn push_message(
        &self,
        codec: &AnyCodec,
        message: &Message<'_>,
    ) -> Result<(), HandOverError> {
        let limit = self.frame_bytes_max.load(Ordering::Relaxed);
        let must_ring = self
            .exchange
            .push_frame(|out| encode_within(limit, out, |out| codec.encode(message, out)))?;
        self.ring_if(must_ring);
        Ok(())
    }

    /// Takes a reply that can be had without a lock.
    #[inline(always)]
    pub(crate) fn fetch(&self, slot: SlotId) -> Option<Reply> {
        self.exchange.fetch(slot)
    }

    /// Takes the outcome of a request, or has `waker` woken when there is one, if it is given.
    pub(crate) fn fetch_or_wait(&self, slot: SlotId, waker: Option<&Waker>) -> Option<Outcome> {
        self.exchange.fetch_or_wait(slot, waker)
    }

    /// Lets go of a request whose outcome was not fetched.
    pub(crate) fn abandon(&self, slot: SlotId) {
        self.ring_if(self.exchange.abandon(slot));
    }

    /// Ends the client at this time, or an earlier one that was set before.
    pub(crate) fn close_by(&self, at_ns: u64) {
        self.close_at_ns.fetch_min(at_ns, Ordering::SeqCst);
        self.ring();
    }

    /// When the client ends, once somebody has closed it.
    pub(super) fn close_at_ns(&self) -> Option<u64> {
        let at_ns = self.close_at_ns.load(Ordering::SeqCst);
        (at_ns < u64::MAX).then_some(at_ns)
    }

    fn ring_if(&self, must_ring: MustRing) {
        if must_ring.0 {
            self.ring();
        }
    }

    pub(crate) fn ring(&self) {
        self.reading.ring();
    }

    /// A queue for the events of a subscription.
    pub(super) fn new_queue<E: Queued + PartialEq>(&self) -> EventQueue<E> {
        EventQueue::new(self.event_bounds, Arc::clone(&self.reading))
    }

    /// Whether nothing may be read for now, because the application does not take what there is.
    #[inline]
    pub(super) fn holds_reading(&self) -> bool {
        self.reading.is_held()
    }

    /// Whether reading may be held, so that an answer may wait unread for any time.
    pub(super) fn may_hold_reading(&self) -> bool {
        self.event_bounds.when_full == WhenEventsFull::PauseReading
    }

    /// Events dropped so far because the application did not take them.
    pub(super) fn events_dropped(&self) -> u64 {
        self.reading.dropped()
    }

    /// The lane's side: what was left for it, and where it leaves answers.
    pub(super) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// Blocks until the first attempt to connect succeeded or failed.
    pub(crate) fn wait_first(&self) -> Result<(), ConnectError> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = first.take() {
                return result;
            }
            first = self
                .first_ready
                .wait(first)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Answers [`wait_first`](Self::wait_first); the first answer counts.
    pub(super) fn complete_first(&self, result: Result<(), ConnectError>) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(result);
        drop(first);
        self.first_ready.notify_all();
    }
}

/// Why a request fits no frame of at most `limit` bytes.
#[cold]
fn too_large(name: &str, payload: &[u8], limit: usize) -> EncodeError {
    if payload.len() > limit {
        EncodeError::PayloadTooLarge {
            bytes: payload.len() as u64,
            limit: limit as u64,
        }
    } else {
        EncodeError::TextTooLong {
            bytes: name.len(),
            limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was copied, and refused by the lane.
    #[test]
    fn a_request_that_fits_no_frame_is_refused_before_it_is_copied() {
        let link = Link::new(Exchange::new(1 << 20, false), EventBounds::default());
        link.set_frame_bytes_max(100);
        let ask = |name: &str, payload_bytes: usize| {
            link.push_call(Ticket::due_at(1), name, &vec![7; payload_bytes])
        };
        let (bytes, limit) = (101, 100);
        let refused = EncodeError::PayloadTooLarge { bytes, limit };
        assert_eq!(ask("name", 101), Err(HandOverError::Encode(refused)));
        let (bytes, limit) = (101, 100);
        let refused = EncodeError::TextTooLong { bytes, limit };
        assert_eq!(
            ask(&"n".repeat(101), 100),
            Err(HandOverError::Encode(refused))
        );
        assert!(!link.exchange.is_occupied());
        // The lane knows what the frame is beside its payload.
        assert!(ask("name", 100).is_ok() && link.exchange.is_occupied());
    }
}
