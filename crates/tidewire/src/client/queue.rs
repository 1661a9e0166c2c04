//! What the application's threads leave for their client's lane: commands in their order, and the bytes of them.
//!
//! One-way messages are encoded by the thread that sends them, and names and payloads of requests are copied, into one run
//! of bytes beside the list of commands: both cost a copy, and a command is a few words. Requests in a row are one command,
//! and so are messages: the lane does what they have in common once for all of them. Lists and bytes go back and forth
//! between the threads and the lane, and are never allocated anew.

use std::num::NonZeroU32;
use std::sync::Arc;

use tidewire_proto::message::Kind;
use tidewire_proto::room::Policy;

use super::call::WhenWindowFull;
use super::slots::SlotId;
use super::subscription::TopicQueue;

/// What the application asks of its client's lane.
#[derive(Debug)]
pub(crate) enum Command {
    /// Send requests: so many of the batch's [next ones](Batch::call).
    Calls {
        count: usize,
    },
    /// The application let go of a request that was not answered.
    Abandon(SlotId),
    /// One-way messages: so many, encoded in this piece of the batch's bytes.
    Frames {
        messages: u64,
        piece: Piece,
    },
    Subscribe(Box<Subscribe>),
    Unsubscribe(Arc<TopicQueue>),
    Close,
}

/// A subscription to be made.
#[derive(Debug)]
pub(crate) struct Subscribe {
    pub(crate) pattern: Arc<str>,
    pub(crate) policy: Option<Policy>,
    pub(crate) queue: Arc<TopicQueue>,
    pub(crate) deadline_ns: u64,
    /// Where the outcome is left.
    pub(crate) slot: SlotId,
}

/// A request without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    /// Where the answer is left, if anybody waits for it.
    pub(crate) slot: Option<SlotId>,
    pub(crate) kind: Kind,
    pub(crate) channel: u16,
    pub(crate) deadline_ns: u64,
    pub(crate) idempotent: bool,
    pub(crate) when_full: WhenWindowFull,
    /// The subscription it is about.
    pub(crate) subscription: Option<SubscriptionKey>,
}

/// The number of a subscription in its client's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubscriptionKey(NonZeroU32);

/// A request in a batch: where its bytes are.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ticket: Ticket,
    /// From here to `name_to` is its name, and from there to `to` its payload.
    from: usize,
    name_to: usize,
    to: usize,
}

/// Commands in their order, and the bytes that they are about.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    commands: Vec<Command>,
    /// How many there are, each request counted as one.
    count: usize,
    /// How many of the commands were taken out.
    taken: usize,
    /// The requests of all commands, in their order.
    calls: Vec<Asked>,
    /// How many of the requests were passed.
    passed_calls: usize,
    /// How many requests of the command that was taken out last were not passed.
    unpassed_calls: usize,
    bytes: Vec<u8>,
    /// Bytes of whole commands. A codec that panicked halfway may have left more behind.
    whole: usize,
    /// Bytes among them of one-way messages.
    framed: usize,
    /// The earliest deadline among the commands, or an earlier one that is no longer there; 0 before there was any.
    deadline_ns: u64,
}

/// A piece of a batch's bytes.
pub(crate) type Piece = std::ops::Range<usize>;

impl Batch {
    /// Whether there is no room for another command.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.count >= COMMANDS_MAX
    }

    /// Takes the next command out. Requests come again until all of them were [passed](Self::pass_call).
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Command> {
        if self.unpassed_calls == 0 {
            let next = self.commands.get_mut(self.taken)?;
            self.taken += 1;
            let command = std::mem::replace(next, Command::Calls { count: 0 });
            let Command::Calls { count } = command else {
                return Some(command);
            };
            self.unpassed_calls = count;
        }
        Some(Command::Calls {
            count: self.unpassed_calls,
        })
    }

    /// The next request of the command that was taken out last, if there is one: its ticket, name and payload.
    #[inline]
    pub(crate) fn call(&self) -> Option<(&Ticket, &str, &[u8])> {
        if self.unpassed_calls == 0 {
            return None;
        }
        let asked = self.calls.get(self.passed_calls)?;
        let name = self.bytes.get(asked.from..asked.name_to)?;
        let payload = self.bytes.get(asked.name_to..asked.to)?;
        let name = match name {
            [] => "",
            // It was text when it was copied here; what is none is the name of no method.
            name => str::from_utf8(name).unwrap_or("\u{fffd}"),
        };
        Some((&asked.ticket, name, payload))
    }

    /// The next request is done with.
    #[inline]
    pub(crate) fn pass_call(&mut self) {
        self.passed_calls += 1;
        self.unpassed_calls -= 1;
    }

    /// The bytes of a piece.
    #[inline]
    pub(crate) fn bytes(&self, piece: Piece) -> &[u8] {
        &self.bytes[piece]
    }

    /// Bytes of one-way messages in it.
    pub(crate) fn framed(&self) -> usize {
        self.framed
    }

    /// Bytes of requests in it, and of those that fell due in it: they are passed over, and stay until it is cleared.
    #[inline]
    pub(crate) fn asked(&self) -> usize {
        self.whole - self.framed
    }

    /// What it takes to run all of it, in bytes that are copied.
    pub(crate) fn weight_bytes(&self) -> usize {
        self.count * COMMAND_WEIGHT_BYTES + self.whole
    }

    /// Adds a command without bytes.
    pub(crate) fn push(&mut self, command: Command) {
        if let Command::Subscribe(subscribe) = &command {
            self.note_deadline(subscribe.deadline_ns);
        }
        self.commands.push(command);
        self.count += 1;
    }

    /// Adds a request.
    #[inline(always)]
    pub(crate) fn push_call(&mut self, ticket: Ticket, name: &str, payload: &[u8]) {
        let from = self.whole;
        self.bytes.truncate(from);
        if !name.is_empty() {
            self.bytes.extend_from_slice(name.as_bytes());
        }
        self.bytes.extend_from_slice(payload);
        self.whole = self.bytes.len();
        self.push_asked(Asked {
            ticket,
            from,
            name_to: from + name.len(),
            to: self.whole,
        });
    }

    /// Adds a request whose bytes are there, to those before it.
    #[inline(always)]
    fn push_asked(&mut self, asked: Asked) {
        self.note_deadline(asked.ticket.deadline_ns);
        self.calls.push(asked);
        self.count += 1;
        if let Some(Command::Calls { count }) = self.commands.last_mut() {
            *count += 1;
        } else {
            self.commands.push(Command::Calls { count: 1 });
        }
    }

    /// Adds the one message that `encode` appends, to those before it unless it `is_apart`.
    pub(crate) fn push_frame<E>(
        &mut self,
        is_apart: bool,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.bytes.truncate(self.whole);
        encode(&mut self.bytes)?;
        let more = self.bytes.len() - self.whole;
        self.whole = self.bytes.len();
        self.framed += more;
        if !is_apart && let Some(Command::Frames { messages, piece }) = self.commands.last_mut() {
            *messages += 1;
            piece.end = self.whole;
        } else {
            let piece = self.whole - more..self.whole;
            self.push(Command::Frames { messages: 1, piece });
        }
        Ok(())
    }

    /// Forgets everything and keeps the memory, but none of more than `bytes_max`.
    pub(crate) fn clear(&mut self, bytes_max: usize) {
        self.commands.clear();
        self.count = 0;
        self.taken = 0;
        self.calls.clear();
        self.passed_calls = 0;
        self.unpassed_calls = 0;
        self.bytes.clear();
        self.bytes.shrink_to(bytes_max);
        self.whole = 0;
        self.framed = 0;
        self.deadline_ns = 0;
    }

    /// Takes out the requests whose deadlines have passed. Returns when the next one will.
    pub(crate) fn expire(&mut self, now_ns: u64, expired: &mut Vec<SlotId>) -> Option<u64> {
        if !(1..=now_ns).contains(&self.deadline_ns) {
            return (self.deadline_ns > 0).then_some(self.deadline_ns);
        }
        self.deadline_ns = 0;
        let calls = std::mem::take(&mut self.calls).into_iter();
        let mut calls = calls.skip(std::mem::take(&mut self.passed_calls));
        let unpassed = Command::Calls {
            count: std::mem::take(&mut self.unpassed_calls),
        };
        self.count = 0;
        let commands = std::mem::take(&mut self.commands).into_iter();
        let commands = commands.skip(std::mem::take(&mut self.taken));
        for command in std::iter::once(unpassed).chain(commands) {
            match command {
                Command::Calls { count } => {
                    for asked in calls.by_ref().take(count) {
                        if asked.ticket.deadline_ns <= now_ns {
                            expired.extend(asked.ticket.slot);
                        } else {
                            self.push_asked(asked);
                        }
                    }
                }
                Command::Subscribe(subscribe) if subscribe.deadline_ns <= now_ns => {
                    expired.push(subscribe.slot);
                }
                command => self.push(command),
            }
        }
        (self.deadline_ns > 0).then_some(self.deadline_ns)
    }

    /// How many one-way messages are in it and not taken out.
    pub(crate) fn messages(&self) -> u64 {
        let messages = self.commands.iter().map(|command| match command {
            Command::Frames { messages, .. } => *messages,
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

impl SubscriptionKey {
    pub(crate) fn new(index: usize) -> Self {
        // The server gives out an alias of 16 bits for each, so that there are never as many as would wrap.
        Self(NonZeroU32::MIN.saturating_add(index as u32))
    }

    pub(crate) fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Commands that wait for the lane; messages in a row are one.
pub(super) const COMMANDS_MAX: usize = 4096;

/// What a command counts beside its bytes, so that many small ones are much work, too.
const COMMAND_WEIGHT_BYTES: usize = 256;

#[cfg(test)]
impl Ticket {
    /// A request with this deadline.
    pub(super) fn due_at(deadline_ns: u64) -> Self {
        Self {
            slot: None,
            kind: Kind::Request,
            channel: 0,
            deadline_ns,
            idempotent: false,
            when_full: WhenWindowFull::Refuse,
            subscription: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(batch: &mut Batch, bytes: &[u8]) {
        let pushed = batch.push_frame::<()>(false, |out| {
            out.extend_from_slice(bytes);
            Ok(())
        });
        pushed.unwrap();
    }

    #[test]
    fn messages_in_a_row_are_one_command_and_keep_their_place() {
        let mut batch = Batch::default();
        frame(&mut batch, b"ab");
        frame(&mut batch, b"c");
        batch.push_call(Ticket::due_at(1), "na", b"pay");
        frame(&mut batch, b"d");
        assert_eq!(batch.bytes, b"abcnapayd");
        assert_eq!((batch.framed(), batch.messages()), (4, 3));
        assert_eq!(batch.asked(), 5);
        assert!(matches!(
            batch.commands.as_slice(),
            [
                Command::Frames {
                    messages: 2,
                    piece: Piece { start: 0, end: 3 }
                },
                Command::Calls { count: 1 },
                Command::Frames {
                    messages: 1,
                    piece: Piece { start: 8, end: 9 }
                }
            ]
        ));
    }

    #[test]
    fn messages_that_end_where_they_are_handed_on_stay_apart() {
        let mut batch = Batch::default();
        for bytes in [&b"ab"[..], b"c"] {
            let pushed = batch.push_frame::<()>(true, |out| {
                out.extend_from_slice(bytes);
                Ok(())
            });
            pushed.unwrap();
        }
        let pieces = std::iter::from_fn(|| match batch.next()? {
            Command::Frames { messages: 1, piece } => Some(piece),
            other => panic!("{other:?}"),
        });
        assert_eq!(pieces.collect::<Vec<_>>(), [0..2, 2..3]);
    }

    #[test]
    fn a_message_that_is_not_whole_leaves_nothing_behind() {
        let mut batch = Batch::default();
        frame(&mut batch, b"a");
        let refused = batch.push_frame(false, |out| {
            out.push(b'!');
            Err("on purpose")
        });
        assert_eq!(refused, Err("on purpose"));
        batch.push_call(Ticket::due_at(1), "", b"b");
        assert_eq!(batch.bytes, b"ab");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            batch.push_frame::<()>(false, |out| {
                out.push(b'!');
                panic!("on purpose")
            })
        }));
        assert!(panicked.is_err());
        frame(&mut batch, b"c");
        assert_eq!((batch.bytes.as_slice(), batch.messages()), (&b"abc"[..], 2));
    }

    /// What waits too long is taken out, and the bytes of the rest stay with it.
    #[test]
    fn what_is_due_is_passed_over() {
        let mut batch = Batch::default();
        let slots = super::super::slots::Slots::default();
        let mut waiters = super::super::slots::Waiters::default();
        let ids = [30, 10, 20].map(|deadline_ns| {
            let mut ticket = Ticket::due_at(deadline_ns);
            ticket.slot = Some(slots.open(&mut waiters));
            batch.push_call(ticket, "", &[deadline_ns as u8]);
            ticket.slot.unwrap()
        });
        frame(&mut batch, b"x");
        let mut expired = Vec::new();
        assert_eq!(batch.expire(9, &mut expired), Some(10));
        assert!(expired.is_empty());
        assert_eq!(batch.expire(20, &mut expired), Some(30));
        assert_eq!(expired, ids[1..]);
        assert_eq!((batch.calls.len(), batch.bytes.len()), (1, 4));
        assert!(matches!(batch.next(), Some(Command::Calls { count: 1 })));
        let (ticket, name, payload) = batch.call().unwrap();
        assert_eq!((ticket.slot, name, payload), (Some(ids[0]), "", &[30][..]));
        // It was taken out, and was not passed.
        expired.clear();
        assert_eq!(batch.expire(u64::MAX, &mut expired), None);
        assert_eq!(expired, ids[..1]);
        assert!(batch.call().is_none());
        assert!(matches!(
            batch.next(),
            Some(Command::Frames { messages: 1, .. })
        ));
        assert!(batch.next().is_none());
    }

    #[test]
    fn commands_come_out_with_their_bytes() {
        let mut batch = Batch::default();
        batch.push_call(Ticket::due_at(1), "na", b"pay");
        batch.push(Command::Close);
        frame(&mut batch, b"d");
        batch.push_call(Ticket::due_at(2), "", b"p");
        batch.push_call(Ticket::due_at(3), "me", b"q");
        for _ in 0..2 {
            assert!(matches!(batch.next(), Some(Command::Calls { count: 1 })));
        }
        let (_, name, payload) = batch.call().unwrap();
        assert_eq!((name, payload), ("na", &b"pay"[..]));
        batch.pass_call();
        // What was passed does not fall due.
        let mut expired = Vec::new();
        assert_eq!(batch.expire(1, &mut expired), Some(2));
        assert!(expired.is_empty() && batch.call().is_none());
        assert!(matches!(batch.next(), Some(Command::Close)));
        assert_eq!(batch.messages(), 1);
        let Some(Command::Frames { messages: 1, piece }) = batch.next() else {
            panic!("no messages");
        };
        assert_eq!((batch.bytes(piece), batch.messages()), (&b"d"[..], 0));
        assert!(matches!(batch.next(), Some(Command::Calls { count: 2 })));
        for expected in [("", &b"p"[..]), ("me", b"q")] {
            let (_, name, payload) = batch.call().unwrap();
            assert_eq!((name, payload), expected);
            batch.pass_call();
        }
        assert!(batch.call().is_none() && batch.next().is_none());
    }

    #[test]
    fn much_memory_is_not_kept() {
        let mut batch = Batch::default();
        batch.push_call(Ticket::due_at(1), "", &[0; 1_000]);
        batch.clear(1_000);
        assert!(batch.bytes.capacity() >= 1_000);
        batch.push_call(Ticket::due_at(1), "", &[0; 10_000]);
        batch.clear(1_000);
        assert!(batch.bytes.capacity() < 10_000);
        assert!(batch.next().is_none() && batch.framed() == 0);
        assert_eq!(batch.expire(u64::MAX, &mut Vec::new()), None);
    }
}
