//! What the application's threads leave for their client's lane.
//!
//! One list behind one lock, which the lane takes once a turn by swapping it for an empty one. One-way messages
//! are encoded by the thread that sends them, into bytes beside the list: they cost a copy, and stay in order with
//! requests. Both lists go back and forth and are never allocated anew.
//!
//! A lock-free queue was measured first. It moves a cache line between two processors for every message, where this
//! moves one for every turn; and a lock that nobody holds costs no more than its compare-and-swap.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::error::EncodeError;
use tidewire_proto::room::Policy;

use super::HandOverError;
use super::calls::Outgoing;
use super::request::{Pending, RequestError};
use super::subscription::TopicQueue;

/// What the application asks of its client's lane.
#[derive(Debug)]
pub(crate) enum Command {
    Call(Outgoing),
    /// The application let go of a request that was on its way under this id.
    Abandon {
        id: u32,
        pending: Arc<Pending>,
    },
    /// One-way messages, encoded, in the batch that this command is of.
    Frames {
        messages: u64,
        bytes: usize,
    },
    Subscribe {
        pattern: Arc<str>,
        policy: Option<Policy>,
        queue: Arc<TopicQueue>,
        pending: Arc<Pending>,
        deadline_ns: u64,
    },
    Unsubscribe(Arc<TopicQueue>),
    Close,
}

/// The commands of a client, bounded in number and bytes.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    /// Bytes of frames that may wait, beyond which nothing is added.
    frame_bytes_max: usize,
    /// Every frame is handed on by itself, because nothing but that says where it ends.
    is_single: bool,
    waiting: Mutex<Waiting>,
    /// Whether something waits: one of the constants below. So that a lane about to sleep need not take the lock.
    news: AtomicU8,
}

#[derive(Debug, Default)]
struct Waiting {
    taken: Batch,
    /// The lane has taken its last command.
    ended: bool,
}

/// Commands in their order. `Command::Frames` says how many of the bytes come at its place.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) commands: VecDeque<Command>,
    pub(crate) frames: Vec<u8>,
    /// Bytes of whole frames. A codec that panicked halfway may have left more behind.
    framed: usize,
    /// The earliest deadline among the commands, or an earlier one that is no longer there.
    deadline_ns: Option<u64>,
}

/// A command that was not taken, and why.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) command: Command,
    pub(crate) error: HandOverError,
}

impl CommandQueue {
    pub(crate) fn new(frame_bytes_max: usize, is_single: bool) -> Self {
        Self {
            frame_bytes_max,
            is_single,
            waiting: Mutex::default(),
            news: AtomicU8::new(NOTHING),
        }
    }

    /// Leaves a command for the lane.
    pub(crate) fn push(&self, command: Command) -> Result<(), Box<Refused>> {
        let mut waiting = self.lock();
        let error = match () {
            () if waiting.ended => HandOverError::Ended,
            () if waiting.taken.commands.len() >= COMMANDS_MAX => HandOverError::QueueFull,
            () => {
                waiting.taken.note_deadline(&command);
                waiting.taken.commands.push_back(command);
                self.news.store(NEW, Ordering::SeqCst);
                return Ok(());
            }
        };
        Err(Box::new(Refused { command, error }))
    }

    /// Leaves the one frame that `encode` appends.
    pub(crate) fn push_frame(
        &self,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), HandOverError> {
        let mut waiting = self.lock();
        if waiting.ended {
            return Err(HandOverError::Ended);
        }
        let Batch {
            commands,
            frames,
            framed,
            ..
        } = &mut waiting.taken;
        if *framed >= self.frame_bytes_max || commands.len() >= COMMANDS_MAX {
            return Err(HandOverError::QueueFull);
        }
        frames.truncate(*framed);
        encode(frames)?;
        let more = frames.len() - *framed;
        *framed = frames.len();
        if !self.is_single
            && let Some(Command::Frames { messages, bytes }) = commands.back_mut()
        {
            *messages += 1;
            *bytes += more;
        } else {
            commands.push_back(Command::Frames {
                messages: 1,
                bytes: more,
            });
        }
        self.news.store(NEW, Ordering::SeqCst);
        Ok(())
    }

    /// Whether something waits for [`take`](Self::take).
    #[inline]
    pub(crate) fn is_occupied(&self) -> bool {
        self.news.load(Ordering::SeqCst) != NOTHING
    }

    /// Whether something came since the last [`take`](Self::take) or [`expire`](Self::expire).
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::SeqCst) == NEW
    }

    /// Fails what waits in vain, and tells when to do so again. For a lane that cannot take anything now.
    pub(crate) fn expire(&self, now_ns: u64) -> Option<u64> {
        if !self.is_occupied() {
            return None;
        }
        let mut expired = Vec::new();
        let next = {
            let mut waiting = self.lock();
            self.news.store(SEEN, Ordering::SeqCst);
            waiting.taken.expire(now_ns, &mut expired)
        };
        // Without the lock, because whoever is woken may have the next command.
        for pending in expired {
            pending.fail(RequestError::TimedOut);
        }
        next
    }

    /// Gives what waits for the empty `batch`.
    pub(crate) fn take(&self, batch: &mut Batch) {
        if self.is_occupied() {
            let mut waiting = self.lock();
            self.news.store(NOTHING, Ordering::SeqCst);
            std::mem::swap(&mut waiting.taken, batch);
        }
    }

    /// Takes nothing more, and gives what waits.
    pub(crate) fn end(&self) -> Batch {
        let mut waiting = self.lock();
        waiting.ended = true;
        self.news.store(NOTHING, Ordering::SeqCst);
        std::mem::take(&mut waiting.taken)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Batch {
    /// Forgets everything and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.commands.clear();
        self.frames.clear();
        self.framed = 0;
        self.deadline_ns = None;
    }

    /// Takes out the requests whose deadlines have passed. Returns when the next one will.
    pub(crate) fn expire(&mut self, now_ns: u64, expired: &mut Vec<Arc<Pending>>) -> Option<u64> {
        if self.deadline_ns.is_none_or(|at| at > now_ns) {
            return self.deadline_ns;
        }
        let mut next = None;
        self.commands.retain(|command| {
            let is_due = command.deadline_ns().is_some_and(|at| at <= now_ns);
            if !is_due {
                next = earlier(next, command.deadline_ns());
            } else if let Command::Call(Outgoing { pending, .. })
            | Command::Subscribe { pending, .. } = command
            {
                expired.push(Arc::clone(pending));
            }
            !is_due
        });
        self.deadline_ns = next;
        next
    }

    fn note_deadline(&mut self, command: &Command) {
        self.deadline_ns = earlier(self.deadline_ns, command.deadline_ns());
    }
}

impl Command {
    /// When whoever waits for its outcome waits no more.
    fn deadline_ns(&self) -> Option<u64> {
        match self {
            Self::Call(Outgoing { deadline_ns, .. }) | Self::Subscribe { deadline_ns, .. } => {
                Some(*deadline_ns)
            }
            _ => None,
        }
    }
}

fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// Fails what nobody will do any more, so that nobody waits for it. Returns the one-way messages among it.
pub(super) fn fail(commands: impl Iterator<Item = Command>) -> u64 {
    let mut lost = 0;
    for command in commands {
        match command {
            Command::Call(Outgoing { pending, .. }) | Command::Subscribe { pending, .. } => {
                pending.fail(RequestError::Shutdown);
            }
            Command::Frames { messages, .. } => lost += messages,
            _ => {}
        }
    }
    lost
}

/// Commands that wait for the lane; frames in a row are one.
const COMMANDS_MAX: usize = 4096;

/// Nothing waits.
const NOTHING: u8 = 0;

/// What waits was looked at, and could not be taken.
const SEEN: u8 = 1;

/// Something waits that the lane does not know of.
const NEW: u8 = 2;

#[cfg(test)]
mod tests {
    use tidewire_proto::message::Kind;

    use super::*;
    use crate::client::WhenWindowFull;
    use crate::client::request::Request;

    fn frame(queue: &CommandQueue, bytes: &[u8]) -> Result<(), HandOverError> {
        queue.push_frame(|out| {
            out.extend_from_slice(bytes);
            Ok(())
        })
    }

    #[test]
    fn frames_in_a_row_are_one_command_and_keep_their_place() {
        let queue = CommandQueue::new(1_000, false);
        frame(&queue, b"ab").unwrap();
        frame(&queue, b"c").unwrap();
        queue.push(Command::Close).unwrap();
        frame(&queue, b"d").unwrap();
        assert!(queue.is_occupied());
        let mut batch = Batch::default();
        queue.take(&mut batch);
        assert!(!queue.is_occupied());
        assert_eq!(batch.frames, b"abcd");
        assert!(matches!(
            batch.commands.make_contiguous(),
            [
                Command::Frames {
                    messages: 2,
                    bytes: 3
                },
                Command::Close,
                Command::Frames {
                    messages: 1,
                    bytes: 1
                }
            ]
        ));
    }

    #[test]
    fn frames_that_end_where_they_are_handed_on_stay_apart() {
        let queue = CommandQueue::new(1_000, true);
        frame(&queue, b"ab").unwrap();
        frame(&queue, b"c").unwrap();
        let mut batch = Batch::default();
        queue.take(&mut batch);
        let lengths = batch.commands.iter().map(|command| match command {
            Command::Frames { bytes, .. } => *bytes,
            _ => 0,
        });
        assert_eq!(lengths.collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn a_frame_that_cannot_be_encoded_leaves_nothing_behind() {
        let queue = CommandQueue::new(1_000, false);
        let error = EncodeError::PayloadTooLarge { bytes: 9, limit: 8 };
        let refused = queue.push_frame(|_| Err(error));
        assert_eq!(refused, Err(HandOverError::Encode(error)));
        assert!(!queue.is_occupied());
    }

    #[test]
    fn it_is_bounded_and_refuses_after_its_end() {
        let queue = CommandQueue::new(1_000, false);
        for _ in 0..COMMANDS_MAX {
            queue.push(Command::Close).unwrap();
        }
        let refused = queue.push(Command::Close).unwrap_err();
        assert_eq!(refused.error, HandOverError::QueueFull);
        assert_eq!(frame(&queue, b"x"), Err(HandOverError::QueueFull));
        assert_eq!(queue.end().commands.len(), COMMANDS_MAX);
        let refused = queue.push(Command::Close).unwrap_err();
        assert_eq!(refused.error, HandOverError::Ended);

        let queue = CommandQueue::new(1_000, false);
        frame(&queue, &[0; 1_000]).unwrap();
        assert_eq!(frame(&queue, b"x"), Err(HandOverError::QueueFull));
        queue.end();
        assert_eq!(frame(&queue, b"x"), Err(HandOverError::Ended));
    }

    #[test]
    fn a_codec_that_panics_halfway_leaves_no_half_frame() {
        let queue = CommandQueue::new(1_000, false);
        frame(&queue, b"a").unwrap();
        let panicked = std::panic::catch_unwind(|| {
            queue.push_frame(|out| {
                out.push(b'!');
                panic!("on purpose")
            })
        });
        assert!(panicked.is_err());
        frame(&queue, b"b").unwrap();
        let mut batch = Batch::default();
        queue.take(&mut batch);
        assert_eq!(batch.frames, b"ab");
    }

    /// A request with this deadline, and where its outcome is left.
    fn request_due_at(deadline_ns: u64) -> (Request, Command) {
        let (request, pending) = Request::new();
        let call = Outgoing {
            kind: Kind::Request,
            channel: 0,
            name: String::new(),
            payload: Vec::new(),
            deadline_ns,
            idempotent: false,
            when_full: WhenWindowFull::Refuse,
            pending,
        };
        (request, Command::Call(call))
    }

    #[test]
    fn what_waits_too_long_fails_and_the_rest_stays() {
        let queue = CommandQueue::new(1_000, false);
        assert_eq!(queue.expire(u64::MAX), None);
        let mut requests = Vec::new();
        for deadline_ns in [30, 10, 20] {
            let (request, command) = request_due_at(deadline_ns);
            queue.push(command).unwrap();
            frame(&queue, b"x").unwrap();
            requests.push(request);
        }
        assert!(queue.has_news());
        assert_eq!(queue.expire(9), Some(10));
        assert!(!queue.has_news() && queue.is_occupied());
        assert_eq!(queue.expire(20), Some(30));
        let late = requests.split_off(1).into_iter();
        let late: Vec<_> = late.map(Request::wait).collect();
        assert_eq!(
            late,
            [Err(RequestError::TimedOut), Err(RequestError::TimedOut)]
        );

        let mut batch = Batch::default();
        queue.take(&mut batch);
        assert_eq!((queue.expire(u64::MAX), batch.frames.len()), (None, 3));
        let mut expired = Vec::new();
        assert_eq!(batch.expire(29, &mut expired), Some(30));
        assert!(expired.is_empty());
        assert_eq!(batch.expire(30, &mut expired), None);
        assert_eq!(expired.len(), 1);
        batch.clear();
        queue.push(Command::Close).unwrap();
        queue.take(&mut batch);
        assert_eq!(batch.expire(u64::MAX, &mut expired), None);
    }
}
