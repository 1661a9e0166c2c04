//! The requests that a client's lane has taken: sent requests that wait for their replies, and queued requests.
//!
//! A request is queued if the window is full and its caller chose to wait. A request that may be repeated also waits
//! there without a connection. Both kinds share one queue in order of arrival, and each has its deadline.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_proto::codec::RequestIds;
use tidewire_proto::correlate::Correlator;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, Message};

use super::effect::Effect;
use super::error::{Disconnected, RequestError};
use super::link::{Control, Link};
use super::slots::{BySlot, SlotId};
use super::submissions::{RequestHead, Submissions, WhenWindowFull};
use super::table::Completions;
use super::unconfirmed::Unconfirmed;
use crate::limits::nanoseconds;
use crate::service::Context;
use crate::service::SessionSender;
use crate::session::{SendError, SessionId};

#[derive(Debug)]
pub(super) struct Pending {
    link: Arc<Link>,
    /// Whether requests carry ids. Without ids, requests are one-way messages, and answers come in the same order.
    has_ids: bool,
    sent: Correlator<SentRequest>,
    /// In order of arrival.
    queued: VecDeque<RequestCopy>,
    /// The id under which each slot's request was last sent, so that an abandoned request is found without a search. An
    /// answer does not clear its entry. So a reader checks that the request with this id still belongs to the slot.
    sent_ids: BySlot<u32>,
    /// Time of the next search for passed deadlines, a tick late at most. `u64::MAX` if no request has one.
    due_ns: u64,
    /// Scratch list of requests whose deadlines have passed.
    expired: Vec<u32>,
    /// Outcomes that are not published yet.
    pub(super) completions: Completions,
    pub(super) unconfirmed: Unconfirmed,
    pub(super) session: Option<SessionId>,
    /// The error of the last attempt to connect, if it failed.
    pub(super) unreachable: Option<Arc<str>>,
    /// Whether another connection follows when this one ends.
    pub(super) reconnects: bool,
}

/// A request that was sent and waits for its reply.
#[derive(Debug)]
struct SentRequest {
    head: RequestHead,
    /// A copy, if the request may be repeated.
    kept: Option<Box<RequestCopy>>,
}

/// A request with its own copy of the bytes: it is queued, or may be repeated.
#[derive(Debug)]
pub(super) struct RequestCopy {
    head: RequestHead,
    name: String,
    payload: Vec<u8>,
}

/// Requests that are sent together. Their session is looked up once, and is written after them if the block is large
/// enough.
#[derive(Debug)]
struct Block<'a> {
    /// `None` if there is no session.
    sender: Option<SessionSender<'a>>,
    /// Bytes of names and payloads so far.
    bytes: usize,
    /// Whether requests were abandoned before this block. One that is abandoned meanwhile is sent for nothing.
    has_abandoned: bool,
}

/// The reason why a request was not sent.
#[derive(Clone, Copy, Debug)]
enum NotSent {
    WindowFull,
    OutputFull,
    NoSession,
    Encode(EncodeError),
    /// The caller does not want the outcome any more.
    Abandoned,
    /// The request is a flush, and earlier messages may be lost.
    MayBeLost {
        messages: u64,
    },
}

impl Pending {
    pub(super) fn new(
        link: Arc<Link>,
        ids: RequestIds,
        pending_max: usize,
        reconnects: bool,
    ) -> Self {
        Self {
            link,
            has_ids: ids != RequestIds::None,
            sent: Correlator::for_ids(ids, pending_max),
            queued: VecDeque::new(),
            sent_ids: BySlot::default(),
            due_ns: u64::MAX,
            expired: Vec::new(),
            completions: Completions::default(),
            unconfirmed: Unconfirmed::default(),
            session: None,
            unreachable: None,
            reconnects,
        }
    }

    /// Sends the next requests of the list, queues them, or fails them. Requests without room in the session stay in
    /// the list. Requests after a full block stay, too, because the block is written first.
    #[inline]
    pub(super) fn send_all(&mut self, cx: &mut Context<'_>, list: &mut Submissions<Control>) {
        let mut block = Block::begin(cx, self);
        while !block.is_full()
            && let Some((head, name, payload)) = list.request()
        {
            // Queued requests go first.
            let sent = if !self.queued.is_empty()
                && head.when_full == WhenWindowFull::Wait
                && block.sender.is_some()
            {
                Err(NotSent::WindowFull)
            } else {
                self.send(&mut block, head, 0, name, payload)
            };
            match sent {
                Ok(id) if head.idempotent && self.reconnects => {
                    self.keep(id, RequestCopy::new(head, name, payload));
                }
                Ok(_) => {}
                Err(NotSent::OutputFull) => return,
                Err(not_sent) if self.may_wait(head, &not_sent) => {
                    self.enqueue(RequestCopy::new(head, name, payload));
                }
                Err(not_sent) => self.completions.fail(head.slot, self.error(not_sent)),
            }
            list.pass();
        }
    }

    /// Sends a request now, or returns the reason why it cannot.
    pub(super) fn send_one(
        &mut self,
        cx: &mut Context<'_>,
        head: &RequestHead,
        flags: u8,
        payload: &[u8],
    ) -> Result<(), RequestError> {
        let mut block = Block::begin(cx, self);
        let sent = self.send(&mut block, head, flags, "", payload);
        sent.map(drop).map_err(|not_sent| self.error(not_sent))
    }

    /// Sends queued requests, block by block, as far as the window and the session's output allow.
    pub(super) fn send_queued(&mut self, cx: &mut Context<'_>) {
        self.drop_abandoned();
        while self.session.is_some() && !self.queued.is_empty() {
            if !self.send_queued_block(cx) {
                return;
            }
        }
    }

    /// Sends the next block of queued requests. Returns whether another block may follow.
    fn send_queued_block(&mut self, cx: &mut Context<'_>) -> bool {
        let mut block = Block::begin(cx, self);
        while !block.is_full()
            && let Some(kept) = self.queued.pop_front()
        {
            let RequestCopy {
                head,
                name,
                payload,
            } = &kept;
            match self.send(&mut block, head, 0, name, payload) {
                Ok(id) if head.idempotent && self.reconnects => self.keep(id, kept),
                Ok(_) => {}
                Err(NotSent::WindowFull | NotSent::OutputFull) => {
                    self.queued.push_front(kept);
                    return false;
                }
                Err(not_sent) => self.completions.fail(head.slot, self.error(not_sent)),
            }
        }
        true
    }

    /// Sends one request now and returns its id, or the reason why it cannot.
    // Compiled into the loops, so that the sender stays in registers.
    #[inline(always)]
    fn send(
        &mut self,
        block: &mut Block<'_>,
        head: &RequestHead,
        flags: u8,
        name: &str,
        payload: &[u8],
    ) -> Result<u32, NotSent> {
        if head.effect == Some(Effect::Flush)
            && let Some(messages) = self.unconfirmed.take_lost()
        {
            return Err(NotSent::MayBeLost { messages });
        }
        let Some(sender) = &mut block.sender else {
            return Err(NotSent::NoSession);
        };
        if block.has_abandoned && self.link.table.is_abandoned(head.slot) {
            return Err(NotSent::Abandoned);
        }
        // Checked before `insert` takes an id, because a skipped id would leave a gap.
        if !sender.has_room() {
            return Err(NotSent::OutputFull);
        }
        let sent = SentRequest {
            head: *head,
            kept: None,
        };
        let id = self.sent.insert(sent).map_err(|_| NotSent::WindowFull)?;
        let (kind, number) = match self.has_ids {
            true => (head.kind, id),
            false => (Kind::OneWay, 0),
        };
        let message = Message {
            kind,
            flags,
            channel: head.channel,
            id: number,
            name,
            payload,
        };
        if let Err(error) = sender.send(&message) {
            self.sent.take(id);
            return Err(error.into());
        }
        block.bytes += name.len() + payload.len();
        if let Some(slot) = head.slot {
            *self.sent_ids.get_mut(slot) = id;
        }
        self.due_ns = self.due_ns.min(head.deadline_ns);
        if head.effect == Some(Effect::Flush) {
            self.unconfirmed.begin_flush(head.slot);
        }
        Ok(id)
    }

    /// Converts the reason into the error of a request that does not wait.
    fn error(&self, not_sent: NotSent) -> RequestError {
        match not_sent {
            NotSent::WindowFull | NotSent::OutputFull => RequestError::WindowFull,
            NotSent::Encode(error) => RequestError::Encode(error),
            NotSent::NoSession => self.not_connected(),
            // The caller has gone, so the value does not matter.
            NotSent::Abandoned => RequestError::Shutdown,
            NotSent::MayBeLost { messages } => RequestError::MayBeLost { messages },
        }
    }

    pub(super) fn not_connected(&self) -> RequestError {
        match &self.unreachable {
            Some(cause) => RequestError::CannotConnect {
                cause: cause.as_ref().to_owned(),
            },
            None => RequestError::NotConnected,
        }
    }

    /// Whether a request that could not be sent is queued.
    fn may_wait(&self, head: &RequestHead, not_sent: &NotSent) -> bool {
        match not_sent {
            NotSent::WindowFull => head.when_full == WhenWindowFull::Wait,
            NotSent::NoSession => self.session.is_none() && head.idempotent && self.reconnects,
            _ => false,
        }
    }

    /// Stores a copy of a sent request, to repeat it.
    fn keep(&mut self, id: u32, kept: RequestCopy) {
        if let Some(sent) = self.sent.find_mut(id) {
            sent.kept = Some(Box::new(kept));
        }
    }

    pub(super) fn enqueue(&mut self, kept: RequestCopy) {
        if self.queued.len() >= QUEUED_MAX {
            self.drop_abandoned();
        }
        if self.queued.len() >= QUEUED_MAX {
            return self
                .completions
                .fail(kept.head.slot, RequestError::WindowFull);
        }
        self.due_ns = self.due_ns.min(kept.head.deadline_ns);
        self.queued.push_back(kept);
    }

    /// Removes the abandoned requests from the queue in one walk.
    fn drop_abandoned(&mut self) {
        let table = &self.link.table;
        if !table.has_abandoned() {
            return;
        }
        self.queued.retain(|RequestCopy { head, .. }| {
            let is_abandoned = table.is_abandoned(head.slot);
            if is_abandoned {
                self.completions.fail(head.slot, RequestError::Shutdown);
            }
            !is_abandoned
        });
    }

    /// Returns the id of the request that a message answers: its own id, or 0 for the oldest request where requests
    /// have no ids. `None` if the message is no answer.
    pub(super) fn answered_id(&self, message: &Message<'_>) -> Option<u32> {
        match message.kind {
            Kind::Reply | Kind::Error if message.id != 0 => Some(message.id),
            Kind::OneWay if !self.has_ids && self.sent.pending_replies() > 0 => Some(0),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn take_answered(&mut self, id: u32) -> Option<RequestHead> {
        self.sent.answer(id).map(|sent| sent.head)
    }

    /// Queues a request again that a server refused because it goes away. The server has not processed it. Returns
    /// false if the request must not be repeated.
    pub(super) fn put_back(&mut self, id: u32) -> bool {
        let kept = self.sent.find_mut(id).and_then(|sent| sent.kept.take());
        let Some(kept) = kept.filter(|_| self.reconnects) else {
            return false;
        };
        self.sent.answer(id);
        self.enqueue(*kept);
        true
    }

    /// Gives up the request that was last sent for this abandoned slot, if it still waits. Otherwise its answer has
    /// come, or it is queued: the next [`send_queued`](Self::send_queued) removes it.
    pub(super) fn abandon(&mut self, cx: &mut Context<'_>, slot: SlotId) {
        if let Some(id) = self.sent_ids.get(slot).copied()
            && let Some(sent) = self.sent.find_mut(id)
            && sent.head.slot == Some(slot)
        {
            self.give_up(cx, id, RequestError::Shutdown);
        }
    }

    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        (self.due_ns < u64::MAX).then_some(self.due_ns)
    }

    /// Fails the requests whose deadlines have passed. Calls `tell` for each of them that was sent.
    ///
    /// The search walks over all requests, at the earliest deadline that the last search found. Nearly all requests are
    /// answered long before their deadlines. So most searches find nothing, and a search happens once in the length of
    /// a deadline. A timer for each request would cost more than all other work for it here.
    pub(super) fn expire(
        &mut self,
        cx: &mut Context<'_>,
        now_ns: u64,
        mut tell: impl FnMut(&RequestHead),
    ) {
        if self.due_ns > now_ns {
            return;
        }
        let mut next_ns = u64::MAX;
        let mut expired = std::mem::take(&mut self.expired);
        for (id, sent) in self.sent.iter() {
            let deadline_ns = sent.head.deadline_ns;
            if deadline_ns <= now_ns {
                tell(&sent.head);
                expired.push(id);
            } else {
                next_ns = next_ns.min(deadline_ns);
            }
        }
        // Requests that are given up here may have a later deadline.
        self.due_ns = u64::MAX;
        for id in expired.drain(..) {
            self.give_up(cx, id, RequestError::TimedOut);
        }
        self.expired = expired;
        next_ns = next_ns.min(self.due_ns);
        self.queued.retain(|RequestCopy { head, .. }| {
            let is_due = head.deadline_ns <= now_ns;
            if is_due {
                self.completions.fail(head.slot, RequestError::TimedOut);
            } else {
                next_ns = next_ns.min(head.deadline_ns);
            }
            !is_due
        });
        // At most one search a tick, for any number of deadlines.
        self.due_ns = next_ns.max(now_ns + DEADLINE_TICK_NS);
    }

    /// Stops waiting for a reply, and sends a cancel if the codec can express it. A request with an
    /// [effect](super::effect) stays pending without a slot until a later deadline, so that its reply can be undone.
    fn give_up(&mut self, cx: &mut Context<'_>, id: u32, error: RequestError) {
        if let Some(SentRequest { head, kept }) = self.sent.find_mut(id)
            && head.effect.is_some_and(|effect| effect != Effect::Flush)
            && !head.is_given_up
        {
            let deadline_ns = now_ns().saturating_add(nanoseconds(LATE_ANSWER_TIMEOUT));
            (head.is_given_up, head.deadline_ns) = (true, deadline_ns);
            *kept = None;
            self.completions.fail(head.slot.take(), error);
            self.due_ns = self.due_ns.min(deadline_ns);
            return;
        }
        let Some(SentRequest { head, .. }) = self.sent.give_up(id) else {
            return;
        };
        self.completions.fail(head.slot, error);
        if let Some(session) = self.session {
            let cancel = Message::with_id(Kind::Cancel, head.channel, id, &[]);
            // Without a cancel the reply still comes, and is counted as unexpected.
            if let Err(error) = cx.send_to(session, &cancel) {
                tracing::trace!(id, %error, "cannot cancel a request");
            }
        }
    }

    /// Handles the end of the connection: requests that may be repeated wait for the next connection, others fail.
    pub(super) fn handle_close(&mut self, end: &Disconnected) {
        self.session = None;
        self.drop_abandoned();
        let queued = std::mem::take(&mut self.queued);
        let mut again = Vec::new();
        let mut flushes = Vec::new();
        for SentRequest { head, kept } in self.sent.drain() {
            if head.effect == Some(Effect::Flush) && !self.link.table.is_abandoned(head.slot) {
                flushes.push(head.slot);
            }
            match kept {
                Some(kept) => again.push(*kept),
                None => self
                    .completions
                    .fail(head.slot, RequestError::Closed(end.clone())),
            }
        }
        self.unconfirmed.handle_close(flushes.into_iter());
        for kept in again.into_iter().chain(queued) {
            if kept.head.idempotent && self.reconnects {
                self.enqueue(kept);
            } else {
                self.completions
                    .fail(kept.head.slot, RequestError::Closed(end.clone()));
            }
        }
    }
}

impl<'a> Block<'a> {
    fn begin(cx: &'a mut Context<'_>, pending: &Pending) -> Self {
        let session = pending.session;
        Self {
            sender: session.and_then(|session| SessionSender::open(cx, session).ok()),
            bytes: 0,
            has_abandoned: pending.link.table.has_abandoned(),
        }
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.bytes >= BLOCK_BYTES
    }
}

impl RequestCopy {
    pub(super) fn new(head: &RequestHead, name: &str, payload: &[u8]) -> Self {
        Self {
            head: *head,
            name: name.to_owned(),
            payload: payload.to_vec(),
        }
    }
}

impl From<SendError> for NotSent {
    fn from(error: SendError) -> Self {
        match error {
            SendError::QueueFull => Self::OutputFull,
            SendError::Encode(error) => Self::Encode(error),
            SendError::NotOpen | SendError::Ended | SendError::OtherProcess => Self::NoSession,
        }
    }
}

/// Largest number of queued requests. It equals the number of submissions that wait for the lane, so a burst may be
/// twice as large.
const QUEUED_MAX: usize = 4096;

/// Bytes of names and payloads that fill a block. An output of this size is written at once.
const BLOCK_BYTES: usize = 64 << 10;

/// Timeout for the reply to a request with an effect after its caller gave up. A working server is faster.
const LATE_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// Resolution of request deadlines.
const DEADLINE_TICK_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
