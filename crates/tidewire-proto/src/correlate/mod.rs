//! Matches replies to requests.
//!
//! Three kinds of codec need one interface with three ways: ids of 32 bits ([`RequestIds::Bits32`]), ids of 8 bits, and
//! no ids. Without ids the first answer belongs to the first request. The guarantee is the same for all: an answer
//! finds its own request or none, never another request.
//!
//! The difficulty is a request that was given up (its deadline passed, or its caller ended) while its answer may still
//! come. With 32 bits the next user of the slot has another id. With 8 bits the sequence is soon needed again, and
//! without ids the late answer would shift all that follow. There, a request given up keeps its slot until its answer
//! has come or the connection ends; when no slot is left, new requests are refused. A peer that never answers costs the
//! connection, not a wrong match.
//!
//! Without ids the guarantee depends on the order of the answers. If answers may be lost or reordered, as over UDP, no
//! table can detect it, and later answers match wrong requests. Send requests over UDP only with ids.
//!
//! Rejected: releasing a sequence after a time, because the peer's longest time is not known here.

mod arrivals;
mod order;
mod sequence;
mod slots;

pub use arrivals::{Arrival, Arrivals, RecentIds};

use order::Order;
use sequence::Sequences;
use slots::Slots;

use crate::codec::RequestIds;

/// Requests that wait for their replies.
#[derive(Debug)]
pub struct Correlator<T> {
    matcher: Matcher<T>,
    pending_max: usize,
}

#[derive(Debug)]
enum Matcher<T> {
    Bits32(Slots<T>),
    Bits8(Sequences<T>),
    None(Order<T>),
}

/// The number of waiting requests has reached the limit, or the maximum of the codec's ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pending_max} requests are waiting for their replies already")]
pub struct WindowFull {
    pending_max: usize,
}

impl<T> Correlator<T> {
    /// A table for at most `pending_max` requests with ids of 32 bits; at most 65,535.
    #[must_use]
    pub fn new(pending_max: usize) -> Self {
        Self::for_ids(RequestIds::Bits32, pending_max)
    }

    /// A table for at most `pending_max` requests of a codec with such ids. The maximum is 255 with ids of 8 bits, and
    /// otherwise 65,535.
    #[must_use]
    pub fn for_ids(ids: RequestIds, pending_max: usize) -> Self {
        let (matcher, limit) = match ids {
            RequestIds::Bits32 => (Matcher::Bits32(Slots::new()), slots::PENDING_MAX),
            RequestIds::Bits8 => (Matcher::Bits8(Sequences::new()), sequence::PENDING_MAX),
            RequestIds::None => (Matcher::None(Order::new()), slots::PENDING_MAX),
        };
        Self {
            matcher,
            pending_max: pending_max.clamp(1, limit),
        }
    }

    /// Registers a request and returns its id, which is never 0. Without ids on the wire, the id is only valid for
    /// calls of this table.
    ///
    /// # Errors
    /// The table is full; `value` comes back with the error. Requests given up count as long as their replies are
    /// pending, except with ids of 32 bits.
    // Inlined into the caller that makes the value. Passed through memory, the value would be read in larger pieces
    // than it was written in, and the processor would wait.
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> Result<u32, (WindowFull, T)> {
        let full = WindowFull {
            pending_max: self.pending_max,
        };
        // With 8 bits, requests given up use sequences too, and the two together may exceed the limit.
        let counted = match &self.matcher {
            Matcher::Bits32(_) | Matcher::Bits8(_) => self.len(),
            Matcher::None(_) => self.pending_replies(),
        };
        if counted >= self.pending_max {
            return Err((full, value));
        }
        match &mut self.matcher {
            Matcher::Bits32(slots) => Ok(slots.insert(value)),
            Matcher::Bits8(sequences) => sequences.insert(value).map_err(|value| (full, value)),
            Matcher::None(order) => Ok(order.insert(value)),
        }
    }

    /// Takes the request that an arriving answer with this id belongs to. Without ids, the id is ignored and the
    /// request is the oldest. Returns `None` for an answer that no request waits for.
    // Inlined into the caller, which needs a part of the value.
    #[inline(always)]
    pub fn answer(&mut self, id: u32) -> Option<T> {
        match &mut self.matcher {
            Matcher::Bits32(slots) => slots.take(id),
            Matcher::Bits8(sequences) => sequences.answer(id),
            Matcher::None(order) => order.answer(),
        }
    }

    /// Stops waiting for this request. Its answer may still come and then matches nothing.
    pub fn give_up(&mut self, id: u32) -> Option<T> {
        match &mut self.matcher {
            Matcher::Bits32(slots) => slots.take(id),
            Matcher::Bits8(sequences) => sequences.give_up(id),
            Matcher::None(order) => order.give_up(id),
        }
    }

    /// Removes a request that was never sent, or a request with an answer that was recognised by its id. Its id is free
    /// again.
    pub fn take(&mut self, id: u32) -> Option<T> {
        match &mut self.matcher {
            Matcher::Bits32(slots) => slots.take(id),
            Matcher::Bits8(sequences) => sequences.take(id),
            Matcher::None(order) => order.take(id),
        }
    }

    /// The waiting request with this id.
    pub fn find_mut(&mut self, id: u32) -> Option<&mut T> {
        match &mut self.matcher {
            Matcher::Bits32(slots) => slots.find_mut(id),
            Matcher::Bits8(sequences) => sequences.find_mut(id),
            Matcher::None(order) => order.find_mut(id),
        }
    }

    /// All waiting requests with their ids, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let (slots, sequences, order) = match &self.matcher {
            Matcher::Bits32(slots) => (Some(slots.iter()), None, None),
            Matcher::Bits8(sequences) => (None, Some(sequences.iter()), None),
            Matcher::None(order) => (None, None, Some(order.iter())),
        };
        slots
            .into_iter()
            .flatten()
            .chain(sequences.into_iter().flatten())
            .chain(order.into_iter().flatten())
    }

    /// Takes all waiting requests, to fail them because the connection ended. No reply is pending any more.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        // Only one of the three exists. `chain` gives a type with a name, without a box.
        let (slots, sequences, order) = match &mut self.matcher {
            Matcher::Bits32(slots) => (Some(slots.drain()), None, None),
            Matcher::Bits8(sequences) => (None, Some(sequences.drain()), None),
            Matcher::None(order) => (None, None, Some(order.drain())),
        };
        slots
            .into_iter()
            .flatten()
            .chain(sequences.into_iter().flatten())
            .chain(order.into_iter().flatten())
    }

    /// The number of waiting requests.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.matcher {
            Matcher::Bits32(slots) => slots.len(),
            Matcher::Bits8(sequences) => sequences.waiting(),
            Matcher::None(order) => order.waiting(),
        }
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of replies that may still come: for waiting requests and for requests given up. Without ids, a
    /// message that comes while none is pending is not an answer.
    #[must_use]
    pub fn pending_replies(&self) -> usize {
        match &self.matcher {
            Matcher::Bits32(slots) => slots.len(),
            Matcher::Bits8(sequences) => sequences.pending_replies(),
            Matcher::None(order) => order.pending_replies(),
        }
    }
}

#[cfg(test)]
mod tests;
