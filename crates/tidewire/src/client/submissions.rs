//! The submissions of the application's threads in their order, and the bytes of them.
//!
//! One-way messages are encoded by the thread that sends them, and names and payloads of requests are copied, into one run
//! of bytes beside the list of submissions: both cost a copy, and a submission is a few words. Requests in a row are one
//! submission, and so are messages: the lane does what they have in common once for all of them. Lists and bytes go back and
//! forth between the threads and the lane, and are never allocated anew.

use tidewire_proto::message::Kind;

use super::effect::{Effect, Undo};
use super::slots::SlotId;

/// A submission to a client's lane. `C` is the type of those that are no request and no message.
#[derive(Debug)]
pub(crate) enum Submission<C> {
    /// Send requests: so many of the [next ones](Submissions::request).
    Requests { count: usize },
    /// The application abandoned a request that was not completed.
    Abandon(SlotId),
    /// The application dropped a reply that it never took: its effect is to be taken back.
    Undo(Undo),
    /// One-way messages: so many, encoded in this range of the bytes.
    Messages { count: u64, range: Range },
    /// Anything else, which needs no bytes.
    Control(C),
}

/// A submission that is no request and no message.
pub(crate) trait Control: std::fmt::Debug {
    /// When it is too late for it, and the slot that is told so.
    fn deadline(&self) -> Option<(u64, SlotId)>;
}

/// The policy for a request when as many wait for their replies as allowed.
/// A choice of [`Call::when_full`](crate::Call::when_full) and, as in the example of [`ClientBuilder`](crate::ClientBuilder),
/// of [`ClientBuilder::when_window_full`](crate::ClientBuilder::when_window_full).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenWindowFull {
    /// It fails with [`RequestError::WindowFull`](crate::RequestError::WindowFull). The default: the caller knows best what to
    /// do under load.
    #[default]
    Refuse,
    /// It waits its turn, within its deadline. Of those waiting there are at most 4,096; more are refused. So are those that
    /// come faster than the client's lane takes them up, which it does at once unless the server is slow to take what it is
    /// sent: beyond 4,096, or [`Limits::queue_bytes_max`](crate::Limits::queue_bytes_max) of payload.
    Wait,
}

/// A request without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead {
    /// Where the answer is left, if anybody waits for it.
    pub(crate) slot: Option<SlotId>,
    pub(crate) kind: Kind,
    pub(crate) channel: u16,
    pub(crate) deadline_ns: u64,
    pub(crate) idempotent: bool,
    pub(crate) when_full: WhenWindowFull,
    /// If what it does at the server outlives it.
    pub(crate) effect: Option<Effect>,
}

/// A request in the list: where its bytes are.
#[derive(Clone, Copy, Debug)]
struct Queued {
    head: RequestHead,
    /// Here its name begins, and behind that its payload.
    from: usize,
    name_bytes: usize,
    payload_bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Submissions<C> {
    list: Vec<Submission<C>>,
    /// How many there are, each request counted as one.
    count: usize,
    /// How many of the submissions were taken out.
    taken: usize,
    /// The requests of all submissions, in their order.
    requests: Vec<Queued>,
    /// How many of the requests were passed.
    passed: usize,
    /// How many requests of the submission that was taken out last were not passed.
    unpassed: usize,
    bytes: Vec<u8>,
    /// Bytes of whole submissions. A codec that panicked halfway may have left more behind.
    whole: usize,
    /// Bytes among them of one-way messages.
    message_bytes: usize,
    /// The earliest deadline among the submissions, or an earlier one that is no longer there; 0 before there was any.
    deadline_ns: u64,
}

/// A range of the bytes.
pub(crate) type Range = std::ops::Range<usize>;

impl<C> Default for Submissions<C> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            count: 0,
            taken: 0,
            requests: Vec::new(),
            passed: 0,
            unpassed: 0,
            bytes: Vec::new(),
            whole: 0,
            message_bytes: 0,
            deadline_ns: 0,
        }
    }
}

impl<C: Control> Submissions<C> {
    /// Whether something in it is for the server: anything but what ends something.
    pub(crate) fn wants_connection(&self) -> bool {
        self.list.iter().any(|submission| match submission {
            Submission::Requests { .. } | Submission::Messages { .. } => true,
            Submission::Control(control) => control.deadline().is_some(),
            Submission::Abandon(_) | Submission::Undo(_) => false,
        })
    }

    /// Whether there is no room for another submission.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count >= SUBMISSIONS_MAX
    }

    /// Takes the next submission out. Requests come again until all of them were [passed](Self::pass).
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Submission<C>> {
        if self.unpassed == 0 {
            let next = self.list.get_mut(self.taken)?;
            self.taken += 1;
            let submission = std::mem::replace(next, Submission::Requests { count: 0 });
            let Submission::Requests { count } = submission else {
                return Some(submission);
            };
            self.unpassed = count;
        }
        Some(Submission::Requests {
            count: self.unpassed,
        })
    }

    /// The next request of the submission that was taken out last, if there is one: its head, name and payload.
    #[inline]
    pub(crate) fn request(&self) -> Option<(&RequestHead, &str, &[u8])> {
        if self.unpassed == 0 {
            return None;
        }
        let queued = self.requests.get(self.passed)?;
        let bytes = self.bytes.get(queued.from..)?;
        if queued.name_bytes == 0 {
            return Some((&queued.head, "", bytes.get(..queued.payload_bytes)?));
        }
        let (name, bytes) = bytes.split_at_checked(queued.name_bytes)?;
        // It was text when it was copied here; what is none is the name of no method.
        let name = str::from_utf8(name).unwrap_or("\u{fffd}");
        Some((&queued.head, name, bytes.get(..queued.payload_bytes)?))
    }

    /// The next request is done with.
    #[inline]
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
        self.unpassed -= 1;
    }

    /// The bytes of a range.
    #[inline]
    pub(crate) fn bytes(&self, range: Range) -> &[u8] {
        &self.bytes[range]
    }

    /// Bytes of one-way messages in it.
    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// Bytes of requests in it, and of those that fell due in it: they are passed over, and stay until it is cleared.
    #[inline]
    pub(crate) fn request_bytes(&self) -> usize {
        self.whole - self.message_bytes
    }

    /// The cost of running all of it, in bytes that are copied.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.count * SUBMISSION_WEIGHT_BYTES + self.whole
    }

    /// Adds a submission without bytes.
    pub(crate) fn push(&mut self, submission: Submission<C>) {
        if let Submission::Control(control) = &submission
            && let Some((deadline_ns, _)) = control.deadline()
        {
            self.note_deadline(deadline_ns);
        }
        self.list.push(submission);
        self.count += 1;
    }

    /// Adds a request.
    #[inline(always)]
    pub(crate) fn push_request(&mut self, head: RequestHead, name: &str, payload: &[u8]) {
        let from = self.whole;
        self.bytes.truncate(from);
        if !name.is_empty() {
            self.bytes.extend_from_slice(name.as_bytes());
        }
        self.bytes.extend_from_slice(payload);
        self.whole = self.bytes.len();
        self.push_queued(Queued {
            head,
            from,
            name_bytes: name.len(),
            payload_bytes: payload.len(),
        });
    }

    /// Adds a request whose bytes are there, to those before it.
    #[inline(always)]
    fn push_queued(&mut self, queued: Queued) {
        self.note_deadline(queued.head.deadline_ns);
        self.requests.push(queued);
        self.count += 1;
        if let Some(Submission::Requests { count }) = self.list.last_mut() {
            *count += 1;
        } else {
            self.list.push(Submission::Requests { count: 1 });
        }
    }

    /// Adds the one message that `encode` appends, to those before it unless it `is_apart`.
    pub(crate) fn push_message<E>(
        &mut self,
        is_apart: bool,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.bytes.truncate(self.whole);
        encode(&mut self.bytes)?;
        let more = self.bytes.len() - self.whole;
        self.whole = self.bytes.len();
        self.message_bytes += more;
        if !is_apart && let Some(Submission::Messages { count, range }) = self.list.last_mut() {
            *count += 1;
            range.end = self.whole;
        } else {
            let range = self.whole - more..self.whole;
            self.push(Submission::Messages { count: 1, range });
        }
        Ok(())
    }

    /// Forgets everything and keeps the memory, but none of more than `bytes_max`.
    pub(crate) fn clear(&mut self, bytes_max: usize) {
        self.list.clear();
        self.count = 0;
        self.taken = 0;
        self.requests.clear();
        self.passed = 0;
        self.unpassed = 0;
        self.bytes.clear();
        self.bytes.shrink_to(bytes_max);
        self.whole = 0;
        self.message_bytes = 0;
        self.deadline_ns = 0;
    }

    /// Takes out the requests whose deadlines have passed. Returns when the next one will.
    pub(crate) fn expire(&mut self, now_ns: u64, expired: &mut Vec<SlotId>) -> Option<u64> {
        if !(1..=now_ns).contains(&self.deadline_ns) {
            return (self.deadline_ns > 0).then_some(self.deadline_ns);
        }
        self.deadline_ns = 0;
        let requests = std::mem::take(&mut self.requests).into_iter();
        let mut requests = requests.skip(std::mem::take(&mut self.passed));
        let unpassed = Submission::Requests {
            count: std::mem::take(&mut self.unpassed),
        };
        self.count = 0;
        let submissions = std::mem::take(&mut self.list).into_iter();
        let submissions = submissions.skip(std::mem::take(&mut self.taken));
        for submission in std::iter::once(unpassed).chain(submissions) {
            match submission {
                Submission::Requests { count } => {
                    for queued in requests.by_ref().take(count) {
                        if queued.head.deadline_ns <= now_ns {
                            expired.extend(queued.head.slot);
                        } else {
                            self.push_queued(queued);
                        }
                    }
                }
                Submission::Control(control) => match control.deadline() {
                    Some((deadline_ns, slot)) if deadline_ns <= now_ns => expired.push(slot),
                    _ => self.push(Submission::Control(control)),
                },
                submission => self.push(submission),
            }
        }
        (self.deadline_ns > 0).then_some(self.deadline_ns)
    }

    /// How many one-way messages are in it and not taken out.
    pub(crate) fn messages(&self) -> u64 {
        let messages = self.list.iter().map(|submission| match submission {
            Submission::Messages { count, .. } => *count,
            _ => 0,
        });
        messages.sum()
    }

    #[inline]
    fn note_deadline(&mut self, deadline_ns: u64) {
        if self.deadline_ns == 0 || deadline_ns < self.deadline_ns {
            self.deadline_ns = deadline_ns;
        }
    }
}

/// Submissions that wait for the lane; messages in a row are one.
pub(super) const SUBMISSIONS_MAX: usize = 4096;

/// Bytes that a submission counts beside its own, so that many small ones are much work, too.
const SUBMISSION_WEIGHT_BYTES: usize = 256;

/// No control at all.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct Nothing;

#[cfg(test)]
impl Control for Nothing {
    fn deadline(&self) -> Option<(u64, SlotId)> {
        None
    }
}

#[cfg(test)]
impl RequestHead {
    /// A request with this deadline.
    pub(super) fn due_at(deadline_ns: u64) -> Self {
        Self {
            slot: None,
            kind: Kind::Request,
            channel: 0,
            deadline_ns,
            idempotent: false,
            when_full: WhenWindowFull::Refuse,
            effect: None,
        }
    }
}

#[cfg(test)]
mod tests;
