//! One subscriber's view of a room log: its position, the messages to skip, and its losses.
//!
//! Conservation: each message since a subscriber attached is exactly one of: delivered (the socket or the session's
//! output took its bytes), the subscriber's own, dropped, or not delivered yet.

use std::collections::VecDeque;

use super::log::{Cursor, RoomLog};
use super::policy::{LagLimits, Policy, Verdict};

/// A cursor with its own messages, its policy and its unannounced losses.
#[derive(Debug)]
pub struct Subscriber {
    cursor: Cursor,
    /// Runs of the subscriber's own messages ahead of the cursor, in order.
    own: VecDeque<OwnRun>,
    own_bytes: u64,
    own_messages: u64,
    policy: Policy,
    limits: LagLimits,
    gap: u64,
    /// Whether the backlog of `drop_newest` is in the session's output. Until that is sent, new messages are dropped.
    spilled: bool,
    source: Source,
}

/// Where the next messages of a subscriber come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The log, from the cursor on.
    Log,
    /// The newest message of each topic. From this first message not given yet to the cursor, they are sent instead.
    Latest(u64),
    /// The history of the room or topic, from this offset on. New messages of the log are in the history, too.
    History(u64),
}

/// A part of what a subscriber by [`Policy::ConflateByTopic`] receives when it takes messages again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatestPiece<'a> {
    /// The number of messages that are lost before the last of the frames that follow.
    Gap(u64),
    /// A frame of the log.
    Frame(&'a [u8]),
}

/// The result of [`Subscriber::tell_latest`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToldLatest {
    /// The number of frames that the subscriber was given.
    pub messages: u64,
    /// The number of messages that newer messages replaced, or that the subscriber will not receive.
    pub lost: u64,
}

/// The result of [`Subscriber::advance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advance {
    /// The number of messages of others that the cursor passed, including a torn one.
    pub messages: u64,
    /// Whether the last of them was torn and its rest was moved to the session's output.
    pub torn: bool,
}

#[derive(Clone, Copy, Debug)]
struct OwnRun {
    start: u64,
    end: u64,
    first_message: u64,
    messages: u64,
}

impl Subscriber {
    /// Attaches to `log` at its head.
    pub fn attach(log: &mut RoomLog, policy: Policy, limits: LagLimits) -> Self {
        Self {
            cursor: log.attach(),
            own: VecDeque::new(),
            own_bytes: 0,
            own_messages: 0,
            policy,
            limits,
            gap: 0,
            spilled: false,
            source: Source::Log,
        }
    }

    /// Leaves `log`. Returns the number of messages of others that the subscriber had not received.
    pub fn detach(self, log: &mut RoomLog) -> u64 {
        let behind = self.messages_behind(log);
        if self.latest_from().is_some() {
            log.unfollow_latest();
        }
        log.detach(self.cursor);
        behind
    }

    /// The policy of this subscription.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The bytes of others that the log keeps for this subscriber.
    #[inline]
    #[must_use]
    pub fn bytes_behind(&self, log: &RoomLog) -> u64 {
        log.bytes_behind(&self.cursor) - self.own_bytes
    }

    /// Whether messages of the subscriber itself remain to be skipped.
    #[inline]
    #[must_use]
    pub fn has_own_behind(&self) -> bool {
        !self.own.is_empty()
    }

    /// The number of messages of others that this subscriber was not given yet.
    #[inline]
    #[must_use]
    pub fn messages_behind(&self, log: &RoomLog) -> u64 {
        let conflated = self
            .latest_from()
            .map_or(0, |from| self.cursor.message() - from);
        log.messages_behind(&self.cursor) - self.own_messages + conflated
    }

    /// As [`Self::bytes_behind`], plus the kept messages of topics while it is conflated.
    #[must_use]
    pub fn held_back_bytes(&self, log: &RoomLog) -> u64 {
        let latest = self.latest_from().zip(log.latest());
        self.bytes_behind(log) + latest.map_or(0, |(from, latest)| latest.bytes_from(from))
    }

    /// Whether the next messages of the subscriber are not those of the log: it is [conflated](Self::conflate) or
    /// [replayed](Self::replay) to. Its owner sends these before it gathers from the log.
    #[inline]
    #[must_use]
    pub fn is_off_log(&self) -> bool {
        self.source != Source::Log
    }

    /// The first message not given yet, while conflated.
    fn latest_from(&self) -> Option<u64> {
        match self.source {
            Source::Latest(from) => Some(from),
            _ => None,
        }
    }

    /// The offset of the next message from the history, while that is replayed.
    #[must_use]
    pub fn next_of_history(&self) -> Option<u64> {
        match self.source {
            Source::History(next) => Some(next),
            _ => None,
        }
    }

    /// Lets the next messages come from the history, from `next` on. Call [`Self::pass_log`] before each gathering.
    pub fn replay(&mut self, next: u64) {
        self.source = Source::History(next);
    }

    /// Passes the log up to its head, because the history has its messages. Returns the number of passed messages of
    /// others.
    pub fn pass_log(&mut self, log: &mut RoomLog) -> u64 {
        let (position, message) = (log.head_position(), log.head_message());
        let passed = self.skip_to(log, position, message);
        self.gap -= passed;
        passed
    }

    /// Lets the next messages come from the log again, after its head. Returns the number of passed messages of others.
    pub fn end_replay(&mut self, log: &mut RoomLog) -> u64 {
        self.source = Source::Log;
        self.pass_log(log)
    }

    /// Whether the subscriber is at the head of the log. If only its own messages are left, the call passes them.
    pub fn reach_head(&mut self, log: &mut RoomLog) -> bool {
        let has_read_all = self.messages_behind(log) == 0;
        if has_read_all && !self.own.is_empty() {
            let (position, message) = (log.head_position(), log.head_message());
            self.skip_to(log, position, message);
        }
        has_read_all
    }

    /// Notes that the subscriber itself appended the newest message, at `position`, and will not receive it.
    pub fn skip_own(&mut self, log: &RoomLog, position: u64, bytes: usize) {
        let end = position + bytes as u64;
        self.own_bytes += bytes as u64;
        self.own_messages += 1;
        match self.own.back_mut() {
            Some(run) if run.end == position => {
                run.end = end;
                run.messages += 1;
            }
            _ => self.own.push_back(OwnRun {
                start: position,
                end,
                first_message: log.head_message() - 1,
                messages: 1,
            }),
        }
    }

    /// Memory held for runs of the subscriber's own messages.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.own.capacity() * size_of::<OwnRun>()
    }

    /// Takes the number of messages that are lost and not yet announced. The caller announces them, so the number is
    /// reset.
    pub fn take_gap(&mut self) -> u64 {
        std::mem::take(&mut self.gap)
    }

    /// Passes the bytes behind, in order and without the subscriber's own messages, to `take` until it returns false.
    #[inline]
    pub fn gather<'a>(&self, log: &'a RoomLog, mut take: impl FnMut(&'a [u8]) -> bool) {
        let mut position = self.cursor.position();
        let head = log.head_position();
        let mut own = self.own.iter();
        loop {
            let run = own.next();
            let end = run.map_or(head, |run| run.start);
            while position < end {
                let slice = log.contiguous(&self.cursor, position, end);
                position += slice.len() as u64;
                if !take(slice) {
                    return;
                }
            }
            match run {
                Some(run) => position = run.end,
                None => return,
            }
        }
    }

    /// Notes that the socket took `bytes` of those that [`Self::gather`] offered. The rest of a torn frame goes to
    /// `output`.
    pub fn advance(&mut self, log: &mut RoomLog, bytes: usize, output: &mut Vec<u8>) -> Advance {
        let mut remaining = bytes as u64;
        let mut position = self.cursor.position();
        let mut own_passed = 0;
        while let Some(run) = self.own.front() {
            let others = run.start - position;
            if remaining < others {
                break;
            }
            remaining -= others;
            position = run.end;
            own_passed += run.messages;
            self.own_messages -= run.messages;
            self.own_bytes -= run.end - run.start;
            self.own.pop_front();
        }
        position += remaining;
        let (boundary, message) = log.boundary_from(&self.cursor, position);
        let torn = boundary > position;
        if torn {
            output.extend_from_slice(log.contiguous(&self.cursor, position, boundary));
        }
        let messages = message - self.cursor.message() - own_passed;
        log.seek(&mut self.cursor, boundary, message);
        Advance { messages, torn }
    }

    /// Gathers like [`Self::gather`], but frame by frame. Stops when `take` returns false.
    pub fn gather_frames<'a>(&self, log: &'a RoomLog, mut take: impl FnMut(&'a [u8]) -> bool) {
        self.gather_whole_frames(log, 0, |frame| take(frame).then_some(0));
    }

    /// Gathers like [`Self::gather`], but in pieces of whole frames, for transports that preserve boundaries. A piece
    /// has at most the requested bytes, first `bytes_max` and then the last result of `take`, or is one larger frame.
    /// Stops when `take` returns `None`.
    pub fn gather_whole_frames<'a>(
        &self,
        log: &'a RoomLog,
        bytes_max: usize,
        mut take: impl FnMut(&'a [u8]) -> Option<usize>,
    ) {
        self.gather_to(log, log.head_position(), bytes_max, &mut take);
    }

    fn gather_to<'a>(
        &self,
        log: &'a RoomLog,
        head: u64,
        mut bytes_max: usize,
        take: &mut impl FnMut(&'a [u8]) -> Option<usize>,
    ) {
        let mut position = self.cursor.position();
        let mut own = self.own.iter();
        loop {
            let run = own.next();
            let end = run.map_or(head, |run| run.start.min(head));
            while position < end {
                let frames = log.frames_from(&self.cursor, position, end, bytes_max);
                position += frames.len() as u64;
                match take(frames) {
                    Some(next_max) => bytes_max = next_max,
                    None => return,
                }
            }
            match run {
                Some(run) => position = run.end,
                None => return,
            }
        }
    }

    /// Applies the policy to a subscriber whose socket takes nothing. The session has to send its output before the
    /// log. `drop_newest` moves its backlog to the output by `spill`, frame by frame, so that the log does not keep it.
    pub fn enforce(
        &mut self,
        log: &mut RoomLog,
        is_output_empty: bool,
        spill: impl FnMut(&[u8]),
    ) -> Verdict {
        if let Source::History(_) = self.source {
            let replayed = self.pass_log(log);
            return Verdict::Replay { replayed };
        }
        let bytes = self.bytes_behind(log);
        let messages = self.messages_behind(log);
        let over = bytes > self.limits.bytes_max || messages > self.limits.messages_max;
        let dropped = match self.policy {
            Policy::Disconnect if over => return Verdict::Disconnect,
            Policy::Block if over => return Verdict::Block,
            Policy::ConflateByTopic if messages > 1 => return Verdict::Conflate,
            Policy::DropOldest if over => self.keep_newest(log),
            Policy::Conflate if messages > 1 => self.keep_last(log),
            Policy::DropNewest => {
                // A gap that is not yet announced must come before any newer message is copied.
                self.spilled &= !is_output_empty || self.gap > 0;
                if over && !self.spilled {
                    self.spill(log, spill);
                    self.spilled = true;
                }
                if self.spilled { self.drop_all(log) } else { 0 }
            }
            _ => 0,
        };
        Verdict::Keep { dropped }
    }

    fn keep_newest(&mut self, log: &mut RoomLog) -> u64 {
        let from = log.head_position().saturating_sub(self.limits.bytes_max);
        let by_bytes = log.boundary_from(&self.cursor, from.max(self.cursor.position()));
        let message = log.head_message().saturating_sub(self.limits.messages_max);
        let target = if message > by_bytes.1 {
            (log.position_of(&self.cursor, message), message)
        } else {
            by_bytes
        };
        self.skip_to(log, target.0, target.1)
    }

    fn keep_last(&mut self, log: &mut RoomLog) -> u64 {
        let mut end = log.head_message();
        for run in self.own.iter().rev() {
            if run.first_message + run.messages != end {
                break;
            }
            end = run.first_message;
        }
        let message = (end - 1).max(self.cursor.message());
        let position = log.position_of(&self.cursor, message);
        self.skip_to(log, position, message)
    }

    /// Skips all messages that the subscriber has not been given. Returns how many messages of others that was; they
    /// are part of the next gap.
    pub fn drop_all(&mut self, log: &mut RoomLog) -> u64 {
        if let Source::History(_) = self.source {
            return self.pass_log(log);
        }
        let conflated = self.latest_from().map_or(0, |from| {
            self.source = Source::Log;
            log.unfollow_latest();
            self.cursor.message() - from
        });
        self.gap += conflated;
        let (position, message) = (log.head_position(), log.head_message());
        conflated + self.skip_to(log, position, message)
    }

    /// Notes that a subscriber by [`Policy::ConflateByTopic`] cannot take more. It later receives the newest message of
    /// each topic in place of the messages before it. `topic_of` finds the topic of a frame of the log. The subscriber
    /// must have no messages of its own in the log; only members of rooms have some.
    pub fn conflate(&mut self, log: &mut RoomLog, topic_of: impl Fn(&[u8]) -> &str) {
        debug_assert!(self.own.is_empty(), "a publisher hears what it publishes");
        if self.latest_from().is_none() {
            self.source = Source::Latest(self.cursor.message());
            log.follow_latest(&self.cursor, self.limits, &topic_of);
        }
        log.update_latest(&topic_of);
        let (position, message) = (log.head_position(), log.head_message());
        log.seek(&mut self.cursor, position, message);
    }

    /// Sends a conflated subscriber the next of the newest messages until they have at least `bytes_max` bytes, and
    /// before them the number of lost ones. Call [`Self::conflate`] first. After the last of them the subscriber
    /// continues with the log.
    pub fn tell_latest(
        &mut self,
        log: &mut RoomLog,
        bytes_max: usize,
        mut tell: impl FnMut(LatestPiece<'_>),
    ) -> ToldLatest {
        let (Some(from), Some(latest)) = (self.latest_from(), log.latest()) else {
            return ToldLatest::default();
        };
        let end = self.cursor.message();
        let mut told = ToldLatest::default();
        let (mut next, mut bytes) = (from, 0);
        for (message, frame) in latest.from(from) {
            if bytes >= bytes_max {
                break;
            }
            next = message + 1;
            bytes += frame.len();
            told.messages += 1;
        }
        if bytes < bytes_max {
            // There are no more messages, so those after the last one were evicted.
            next = end;
        }
        told.lost = next - from - told.messages;
        let gap = told.lost + self.take_gap();
        if gap > 0 {
            tell(LatestPiece::Gap(gap));
        }
        for (_, frame) in latest.from(from).take(told.messages as usize) {
            tell(LatestPiece::Frame(frame));
        }
        if next < end {
            self.source = Source::Latest(next);
        } else {
            self.source = Source::Log;
            log.unfollow_latest();
        }
        told
    }

    /// Copies the oldest whole messages that fit the limits to the output. There is one copy per stall: while the
    /// output holds them, all newer messages are dropped.
    fn spill(&mut self, log: &mut RoomLog, mut spill: impl FnMut(&[u8])) {
        let mut end = log.position_of(
            &self.cursor,
            self.cursor.message()
                + self
                    .limits
                    .messages_max
                    .min(log.messages_behind(&self.cursor)),
        );
        let bytes_end = self.cursor.position() + self.limits.bytes_max;
        if end > bytes_end {
            let (_, message) = log.boundary_from(&self.cursor, bytes_end + 1);
            end = log.position_of(&self.cursor, message - 1);
        }
        let mut bytes = 0;
        self.gather_to(log, end, 0, &mut |frame| {
            spill(frame);
            bytes += frame.len();
            Some(0)
        });
        let advance = self.advance(log, bytes, &mut Vec::new());
        debug_assert!(!advance.torn);
    }

    /// Drops all messages before a boundary. Returns the number of messages of others among them.
    fn skip_to(&mut self, log: &mut RoomLog, position: u64, message: u64) -> u64 {
        let passed = message - self.cursor.message();
        let mut own_passed = 0;
        while let Some(run) = self.own.front_mut() {
            if run.start >= position {
                break;
            }
            let (end, end_message) = if run.end <= position {
                (run.end, run.first_message + run.messages)
            } else {
                (position, message)
            };
            let messages = end_message - run.first_message;
            own_passed += messages;
            self.own_messages -= messages;
            self.own_bytes -= end - run.start;
            if run.end <= position {
                self.own.pop_front();
            } else {
                run.start = end;
                run.first_message = end_message;
                run.messages -= messages;
            }
        }
        log.seek(&mut self.cursor, position, message);
        let dropped = passed - own_passed;
        self.gap += dropped;
        dropped
    }
}
