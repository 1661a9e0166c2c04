//! Deliveries that begin with a header of their subscriber, as one write offers them.
//!
//! Problem: a log holds each message once for all subscribers, and some protocols put the subscriber's own number in
//! front of it. A write may end inside a header or a body. Approach: the deliveries of one write are copied into one
//! buffer of the lane, header by header and body by body, with the end of each delivery. The number of written bytes
//! then determines how far each subscriber came. Only the rest of a partly written delivery is kept, in the session's
//! own output, so a policy still drops all deliveries that were not begun.
//!
//! Rejected: a slice for each header and each body, because the kernel takes longer for two slices than for a copy of
//! the few hundred bytes of most messages. Rejected: headers in the session's output, because it would hold messages
//! that a policy should drop.

use super::log::RoomLog;
use super::subscriber::{Advance, Subscriber};

/// The deliveries of one write, each with its header.
#[derive(Debug, Default)]
pub struct Deliveries {
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    /// The number of frames of each subscriber, in the order in which they were gathered.
    counts: Vec<usize>,
}

/// A header and its body in the buffer.
#[derive(Clone, Copy, Debug)]
struct Frame {
    end: usize,
    body_bytes: usize,
}

impl Deliveries {
    /// Makes room for the next write. A buffer that one long message made large is freed.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(2 * WRITE_BYTES);
        self.frames.clear();
        self.counts.clear();
    }

    /// Copies the messages that the subscriber has not received, each after the header from `push_header`, until the
    /// buffer is full. A single delivery may be larger than the buffer.
    pub fn gather(
        &mut self,
        subscriber: &Subscriber,
        log: &RoomLog,
        mut push_header: impl FnMut(&[u8], &mut Vec<u8>),
    ) {
        let before = self.frames.len();
        if self.bytes.len() < WRITE_BYTES {
            subscriber.gather_frames(log, |body| {
                push_header(body, &mut self.bytes);
                self.bytes.extend_from_slice(body);
                self.frames.push(Frame {
                    end: self.bytes.len(),
                    body_bytes: body.len(),
                });
                self.bytes.len() < WRITE_BYTES
            });
        }
        self.counts.push(self.frames.len() - before);
    }

    /// All gathered bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Notes that the first `bytes` were written. Call [`WrittenDeliveries::advance`] for each subscriber, in the order
    /// of gathering.
    #[must_use]
    pub fn taken(&self, bytes: usize) -> WrittenDeliveries<'_> {
        WrittenDeliveries {
            buffer: &self.bytes,
            frames: &self.frames,
            counts: &self.counts,
            start: 0,
            bytes,
        }
    }
}

/// The written part of [`Deliveries`], to be applied to each subscriber.
#[derive(Debug)]
pub struct WrittenDeliveries<'a> {
    buffer: &'a [u8],
    /// The frames of the remaining subscribers.
    frames: &'a [Frame],
    counts: &'a [usize],
    /// The start of the first of them.
    start: usize,
    bytes: usize,
}

impl WrittenDeliveries<'_> {
    /// Moves the next subscriber past the written bytes. The rest of a torn delivery goes to `output`.
    pub fn advance(
        &mut self,
        subscriber: &mut Subscriber,
        log: &mut RoomLog,
        output: &mut Vec<u8>,
    ) -> Advance {
        let Some((count, counts)) = self.counts.split_first() else {
            return Advance::default();
        };
        let (own, others) = self.frames.split_at(*count);
        (self.counts, self.frames) = (counts, others);
        let (mut body_bytes, mut torn) = (0, false);
        for frame in own {
            if self.start < self.bytes {
                body_bytes += frame.body_bytes;
                if frame.end > self.bytes {
                    output.extend_from_slice(&self.buffer[self.bytes..frame.end]);
                    torn = true;
                }
            }
            self.start = frame.end;
        }
        // The bodies are whole, so no rest is left over.
        let Advance { messages, .. } = subscriber.advance(log, body_bytes, &mut Vec::new());
        Advance { messages, torn }
    }
}

/// Maximum bytes that one write offers, except for its last message. It is more than most sockets take at once.
const WRITE_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests;
