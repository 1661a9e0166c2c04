//! The submissions of the application's threads, in order, and their bytes.
//!
//! Each list of submissions has one buffer of bytes. The sending thread encodes one-way messages into it, and copies
//! names and payloads of requests. Each costs one copy, and a submission itself is a few words. Consecutive messages
//! are one submission. The threads and the lane exchange lists and byte buffers, and never allocate new ones.

use tidewire_proto::message::Kind;

use super::effect::{Effect, Undo};
use super::slots::SlotId;

/// A submission to a client's lane. `C` is the type of submissions that are neither requests nor messages.
#[derive(Debug)]
pub(crate) enum Submission<C> {
    /// Sends a request. Its name and payload are in the list's bytes.
    Request(Queued),
    /// The application abandoned a request that was not completed.
    Abandon(SlotId),
    /// The application dropped a reply that it never took. The effect of the request is undone.
    Undo(Undo),
    /// Sends `count` one-way messages, encoded in this range of the bytes.
    Messages { count: u64, range: Range },
    /// Another submission, without bytes.
    Control(C),
}

/// A submission other than a request or a message.
pub(crate) trait Control: std::fmt::Debug {
    /// The deadline, and the slot that gets the error when it has passed.
    fn deadline(&self) -> Option<(u64, SlotId)>;
}

/// The policy for a request that finds the window full: as many requests wait for their replies as allowed. A choice of
/// [`Call::when_window_full`](crate::Call::when_window_full) and, as in the example of
/// [`ClientBuilder`](crate::ClientBuilder), of
/// [`ClientBuilder::when_window_full`](crate::ClientBuilder::when_window_full).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenWindowFull {
    /// The request fails with [`RequestError::WindowFull`](crate::RequestError::WindowFull). This is the default,
    /// because the caller knows best what to do under load.
    #[default]
    Refuse,
    /// The request waits for its turn, within its deadline. At most 4,096 requests wait; more are refused. Requests are
    /// refused as well if more than 4,096 of them, or
    /// [`ConnectionLimits::queue_bytes_max`](crate::limits::ConnectionLimits::queue_bytes_max) of payload, wait for the
    /// client's lane. The lane takes them at once unless the server reads too slowly.
    Wait,
}

/// A request without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead {
    /// Slot for the outcome. `None` if the outcome is not wanted.
    pub(crate) slot: Option<SlotId>,
    pub(crate) kind: Kind,
    pub(crate) channel: u16,
    pub(crate) deadline_ns: u64,
    pub(crate) idempotent: bool,
    pub(crate) when_full: WhenWindowFull,
    pub(crate) effect: Option<Effect>,
    /// The caller gave up a request with an effect. The client still waits for the reply.
    pub(crate) is_given_up: bool,
}

/// A request in the list, with the position of its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    head: RequestHead,
    /// Offset of the name; the payload follows it.
    from: usize,
    name_bytes: usize,
    payload_bytes: usize,
}

/// A list of submissions and their bytes. See the module.
#[derive(Debug)]
pub(crate) struct Submissions<C> {
    list: Vec<Submission<C>>,
    /// Number of submissions at the front that were taken out.
    taken: usize,
    bytes: Vec<u8>,
    /// Length of complete submissions in `bytes`. A codec that panicked may have left more.
    whole: usize,
    /// Bytes of one-way messages among `whole`.
    message_bytes: usize,
    /// The earliest deadline among the submissions, or `u64::MAX`. It may be too early, because its submission may be
    /// gone.
    deadline_ns: u64,
}

/// A range of `Submissions::bytes`.
pub(crate) type Range = std::ops::Range<usize>;

impl<C> Default for Submissions<C> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            taken: 0,
            bytes: Vec::new(),
            whole: 0,
            message_bytes: 0,
            deadline_ns: u64::MAX,
        }
    }
}

impl<C: Control> Submission<C> {
    /// The deadline, and the slot that gets the error when it has passed.
    #[inline]
    fn deadline(&self) -> Option<(u64, Option<SlotId>)> {
        match self {
            Self::Request(Queued { head, .. }) => Some((head.deadline_ns, head.slot)),
            Self::Control(control) => control.deadline().map(|(at, slot)| (at, Some(slot))),
            Self::Messages { .. } | Self::Abandon(_) | Self::Undo(_) => None,
        }
    }
}

impl<C: Control> Submissions<C> {
    /// Whether a submission needs a connection. Submissions that only end something do not.
    pub(crate) fn wants_connection(&self) -> bool {
        let needs_it = |submission: &Submission<C>| {
            matches!(submission, Submission::Messages { .. }) || submission.deadline().is_some()
        };
        self.list.iter().skip(self.taken).any(needs_it)
    }

    /// Whether there is no room for another submission.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= SUBMISSIONS_MAX
    }

    /// Whether there is room for another message.
    pub(crate) fn takes_message(&self, bytes_max: usize) -> bool {
        !self.is_full() && self.message_bytes < bytes_max
    }

    /// Whether there is room for another request. Requests that passed their deadline count until the list is cleared,
    /// because their bytes stay.
    #[inline]
    pub(crate) fn takes_request(&self, bytes_max: usize) -> bool {
        !self.is_full() && self.whole - self.message_bytes < bytes_max
    }

    /// Whether all submissions were taken out.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.taken >= self.list.len()
    }

    /// Returns head, name and payload of the next submission if it is a request. It stays until it is
    /// [passed](Self::pass).
    #[inline]
    pub(crate) fn request(&self) -> Option<(&RequestHead, &str, &[u8])> {
        let Some(Submission::Request(queued)) = self.list.get(self.taken) else {
            return None;
        };
        let bytes = self.bytes.get(queued.from..)?;
        if queued.name_bytes == 0 {
            return Some((&queued.head, "", bytes.get(..queued.payload_bytes)?));
        }
        let (name, bytes) = bytes.split_at_checked(queued.name_bytes)?;
        // The bytes were copied from a `str`. The replacement character names no method.
        let name = str::from_utf8(name).unwrap_or("\u{fffd}");
        Some((&queued.head, name, bytes.get(..queued.payload_bytes)?))
    }

    /// Marks the next submission as done.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.taken += 1;
    }

    /// Takes out the next submission, with its bytes if it is messages.
    pub(crate) fn take(&mut self) -> Option<(Submission<C>, &[u8])> {
        let next = self.list.get_mut(self.taken)?;
        self.taken += 1;
        let done = Submission::Messages {
            count: 0,
            range: 0..0,
        };
        let submission = std::mem::replace(next, done);
        let bytes = match &submission {
            Submission::Messages { range, .. } => &self.bytes[range.clone()],
            _ => &[],
        };
        Some((submission, bytes))
    }

    /// The cost of processing all submissions, as a number of copied bytes.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.list.len() * SUBMISSION_WEIGHT_BYTES + self.whole
    }

    #[inline]
    pub(crate) fn push(&mut self, submission: Submission<C>) {
        if let Some((deadline_ns, _)) = submission.deadline() {
            self.deadline_ns = self.deadline_ns.min(deadline_ns);
        }
        self.list.push(submission);
    }

    /// Adds a request with a copy of its name and payload.
    #[inline(always)]
    pub(crate) fn push_request(&mut self, head: RequestHead, name: &str, payload: &[u8]) {
        let from = self.whole;
        self.bytes.truncate(from);
        if !name.is_empty() {
            self.bytes.extend_from_slice(name.as_bytes());
        }
        self.bytes.extend_from_slice(payload);
        self.whole = self.bytes.len();
        self.deadline_ns = self.deadline_ns.min(head.deadline_ns);
        self.list.push(Submission::Request(Queued {
            head,
            from,
            name_bytes: name.len(),
            payload_bytes: payload.len(),
        }));
    }

    /// Adds the one message that `encode` appends. It joins the previous messages unless it `is_apart`.
    pub(crate) fn push_message<E>(
        &mut self,
        is_apart: bool,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.bytes.truncate(self.whole);
        encode(&mut self.bytes)?;
        let from = self.whole;
        self.whole = self.bytes.len();
        self.message_bytes += self.whole - from;
        if !is_apart && let Some(Submission::Messages { count, range }) = self.list.last_mut() {
            *count += 1;
            range.end = self.whole;
        } else {
            let range = from..self.whole;
            self.list.push(Submission::Messages { count: 1, range });
        }
        Ok(())
    }

    /// Clears the list and keeps its memory, but not more than `bytes_max` of the byte buffer.
    #[inline]
    pub(crate) fn clear(&mut self, bytes_max: usize) {
        self.list.clear();
        self.taken = 0;
        self.bytes.clear();
        self.bytes.shrink_to(bytes_max);
        self.whole = 0;
        self.message_bytes = 0;
        self.deadline_ns = u64::MAX;
    }

    /// Removes the submissions whose deadlines have passed. Returns the next deadline.
    pub(crate) fn expire(&mut self, now_ns: u64, expired: &mut Vec<SlotId>) -> Option<u64> {
        if self.deadline_ns <= now_ns {
            self.list.drain(..std::mem::take(&mut self.taken));
            self.deadline_ns = u64::MAX;
            for submission in std::mem::take(&mut self.list) {
                match submission.deadline() {
                    Some((deadline_ns, slot)) if deadline_ns <= now_ns => expired.extend(slot),
                    _ => self.push(submission),
                }
            }
        }
        (self.deadline_ns < u64::MAX).then_some(self.deadline_ns)
    }

    /// Number of one-way messages that were not taken.
    pub(crate) fn messages(&self) -> u64 {
        let messages = self.list.iter().map(|submission| match submission {
            Submission::Messages { count, .. } => *count,
            _ => 0,
        });
        messages.sum()
    }
}

/// Largest number of submissions that wait for the lane; each request counts as one, and consecutive messages count as
/// one.
pub(super) const SUBMISSIONS_MAX: usize = 4096;

/// Extra bytes that each submission counts in [`Submissions::weight_bytes`], so that many small submissions count as
/// much work.
const SUBMISSION_WEIGHT_BYTES: usize = 256;

/// A control type without values, for tests.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Nothing;

#[cfg(test)]
impl Control for Nothing {
    #[inline]
    fn deadline(&self) -> Option<(u64, SlotId)> {
        None
    }
}

#[cfg(test)]
impl RequestHead {
    pub(super) fn due_at(deadline_ns: u64) -> Self {
        Self {
            slot: None,
            kind: Kind::Request,
            channel: 0,
            deadline_ns,
            idempotent: false,
            when_full: WhenWindowFull::Refuse,
            effect: None,
            is_given_up: false,
        }
    }
}

#[cfg(test)]
mod tests;
