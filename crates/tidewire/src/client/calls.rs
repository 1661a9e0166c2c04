//! The requests of a client: those that wait for their replies, and those that wait to be sent.
//!
//! A request waits to be sent if the window is full and its caller chose to wait, or if it may be repeated and
//! there is no connection now. Both wait in one line, in the order they came, each with its deadline.

use std::collections::VecDeque;
use std::sync::Arc;

use tidewire_proto::codec::RequestIds;
use tidewire_proto::correlate::Correlator;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, Message};

use super::answers::Answers;
use super::call::WhenWindowFull;
use super::link::Link;
use super::queue::{Batch, Ticket};
use super::request::RequestError;
use super::slots::SlotId;
use super::whereabouts::Whereabouts;
use crate::context::{Context, SendError};
use crate::sender::SessionSender;
use crate::session::{CloseReason, SessionId};

#[derive(Debug)]
pub(super) struct Calls {
    link: Arc<Link>,
    /// Whether requests carry ids; without them they are messages whose answers come in their order.
    has_ids: bool,
    sent: Correlator<Sent>,
    /// In the order they came.
    parked: VecDeque<Kept>,
    /// Where to find those that are let go of.
    whereabouts: Whereabouts,
    /// When to look for requests whose deadlines have passed: at the earliest deadline, or before it.
    due_ns: Option<u64>,
    /// Scratch list of requests whose deadlines have passed.
    expired: Vec<u32>,
    /// What those who wait are to be told.
    pub(super) answers: Answers,
    /// The session, while it is open.
    pub(super) session: Option<SessionId>,
    /// Whether another connection follows when this one ends.
    pub(super) reconnects: bool,
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) ticket: Ticket,
    /// To be repeated.
    kept: Option<Box<Kept>>,
}

/// A request that is not on its way, or may not stay so.
#[derive(Debug)]
struct Kept {
    ticket: Ticket,
    name: String,
    payload: Vec<u8>,
}

/// Requests that are sent together: their session is found once, and written behind them if they are worth a write.
#[derive(Debug)]
struct Block<'a> {
    /// None if there is no session.
    sender: Option<SessionSender<'a>>,
    /// Of names and payloads.
    bytes: usize,
}

/// Why a request was not sent.
#[derive(Debug)]
enum NotSent {
    WindowFull,
    /// The session's output is full.
    OutputFull,
    NoSession,
    Encode(EncodeError),
    /// Nobody waits for its answer.
    Abandoned,
}

impl Calls {
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
            parked: VecDeque::new(),
            whereabouts: Whereabouts::default(),
            due_ns: None,
            expired: Vec::new(),
            answers: Answers::default(),
            session: None,
            reconnects,
        }
    }

    /// Sends the requests that are next in the batch, lets them wait, or fails them. Those that the session has no room for
    /// stay where they are, and so do those behind a block, which is written first.
    pub(super) fn submit(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        let mut block = Block::begin(cx, self.session);
        while !block.is_full()
            && let Some((ticket, name, payload)) = batch.call()
        {
            // Those that came before go before.
            let sent = if ticket.when_full == WhenWindowFull::Wait
                && !self.parked.is_empty()
                && block.sender.is_some()
            {
                Err(NotSent::WindowFull)
            } else {
                self.send(&mut block, ticket, name, payload)
            };
            match sent {
                Ok(id) if self.repeats(ticket) => self.keep(id, Kept::new(ticket, name, payload)),
                Ok(_) => {}
                Err(NotSent::OutputFull) => return,
                Err(not_sent) if self.may_wait(ticket, &not_sent) => {
                    self.park(Kept::new(ticket, name, payload));
                }
                Err(not_sent) => self.answers.fail(ticket.slot, not_sent.into()),
            }
            batch.pass_call();
        }
    }

    /// Sends a request now, or says why not.
    pub(super) fn call(
        &mut self,
        cx: &mut Context<'_>,
        ticket: &Ticket,
        payload: &[u8],
    ) -> Result<(), RequestError> {
        let mut block = Block::begin(cx, self.session);
        self.send(&mut block, ticket, "", payload)?;
        Ok(())
    }

    /// Sends what waits, block by block, as far as the window and the session's output allow.
    pub(super) fn send_parked(&mut self, cx: &mut Context<'_>) {
        self.drop_let_go();
        while self.session.is_some() && !self.parked.is_empty() {
            if !self.send_parked_block(cx) {
                return;
            }
        }
    }

    /// Sends the next block of what waits. Returns whether others may follow.
    fn send_parked_block(&mut self, cx: &mut Context<'_>) -> bool {
        let mut block = Block::begin(cx, self.session);
        while !block.is_full()
            && let Some(kept) = self.parked.pop_front()
        {
            let Kept {
                ticket,
                name,
                payload,
            } = &kept;
            match self.send(&mut block, ticket, name, payload) {
                Ok(id) if self.repeats(ticket) => self.keep(id, kept),
                Ok(_) => {}
                Err(NotSent::WindowFull | NotSent::OutputFull) => {
                    self.parked.push_front(kept);
                    return false;
                }
                Err(not_sent) => self.fail_parked(ticket.slot, not_sent.into()),
            }
        }
        true
    }

    /// Sends one request now and returns its id, or says why not.
    // Compiled into the loops, so that the sender stays in registers.
    #[inline(always)]
    fn send(
        &mut self,
        block: &mut Block<'_>,
        ticket: &Ticket,
        name: &str,
        payload: &[u8],
    ) -> Result<u32, NotSent> {
        let Some(sender) = &mut block.sender else {
            return Err(NotSent::NoSession);
        };
        if self.link.exchange().is_abandoned(ticket.slot) {
            return Err(NotSent::Abandoned);
        }
        // Before it takes an id, because the next one would leave a gap.
        if !sender.has_room() {
            return Err(NotSent::OutputFull);
        }
        let sent = Sent {
            ticket: *ticket,
            kept: None,
        };
        let id = self.sent.insert(sent).map_err(|_| NotSent::WindowFull)?;
        let message = if self.has_ids {
            Message::with_id(ticket.kind, ticket.channel, id, payload)
        } else {
            Message::new(Kind::OneWay, ticket.channel, payload)
        };
        if let Err(error) = sender.send(&message.with_name(name)) {
            self.sent.take(id);
            return Err(error.into());
        }
        block.bytes += name.len() + payload.len();
        self.whereabouts.note_sent(ticket.slot, id);
        self.note_deadline(ticket.deadline_ns);
        Ok(id)
    }

    /// Whether a request is sent again when the connection ends.
    fn repeats(&self, ticket: &Ticket) -> bool {
        ticket.idempotent && self.reconnects
    }

    /// Whether a request that was not sent waits for its turn.
    fn may_wait(&self, ticket: &Ticket, not_sent: &NotSent) -> bool {
        match not_sent {
            NotSent::WindowFull => ticket.when_full == WhenWindowFull::Wait,
            NotSent::NoSession => self.session.is_none() && self.repeats(ticket),
            _ => false,
        }
    }

    /// Keeps a request that is on its way, to repeat it.
    fn keep(&mut self, id: u32, kept: Kept) {
        if let Some(sent) = self.sent.find_mut(id) {
            sent.kept = Some(Box::new(kept));
        }
    }

    fn park(&mut self, kept: Kept) {
        let slot = kept.ticket.slot;
        if self.parked.len() - self.whereabouts.let_go_count() >= PARKED_MAX {
            return self.fail_parked(slot, RequestError::WindowFull);
        }
        self.whereabouts.note_waiting(slot);
        self.note_deadline(kept.ticket.deadline_ns);
        self.parked.push_back(kept);
    }

    /// There is no place in the line for a request, or no longer.
    fn fail_parked(&mut self, slot: Option<SlotId>, error: RequestError) {
        self.whereabouts.note_gone(slot);
        self.answers.fail(slot, error);
    }

    /// Takes out of the line what was let go of since the last time, in one walk for all.
    fn drop_let_go(&mut self) {
        if self.whereabouts.let_go_count() == 0 {
            return;
        }
        let Self {
            parked,
            whereabouts,
            answers,
            ..
        } = self;
        parked.retain(|Kept { ticket, .. }| {
            let is_let_go = whereabouts.is_let_go(ticket.slot);
            if is_let_go {
                whereabouts.note_gone(ticket.slot);
                answers.fail(ticket.slot, RequestError::Shutdown);
            }
            !is_let_go
        });
    }

    /// The id that an answer belongs to: its own, or without ids that of the oldest request, whatever it is. None if it is no
    /// answer.
    pub(super) fn answered_id(&self, message: &Message<'_>) -> Option<u32> {
        match message.kind {
            Kind::Reply | Kind::Error if message.id != 0 => Some(message.id),
            Kind::OneWay if !self.has_ids && self.sent.owed() > 0 => Some(0),
            _ => None,
        }
    }

    /// The request that an answer with this id is for, if one waits for it.
    pub(super) fn take_answered(&mut self, id: u32) -> Option<Ticket> {
        self.sent.answer(id).map(|sent| sent.ticket)
    }

    /// The server, which goes away, refused a request before it did anything of it. One that is to be repeated waits for the
    /// next connection. Returns whether it does.
    pub(super) fn put_back(&mut self, id: u32) -> bool {
        let kept = self.sent.find_mut(id).and_then(|sent| sent.kept.take());
        let Some(kept) = kept.filter(|_| self.reconnects) else {
            return false;
        };
        self.sent.answer(id);
        self.park(*kept);
        true
    }

    /// A reply came for this request, if anybody waits for it.
    #[inline]
    pub(super) fn reply(&mut self, slot: Option<SlotId>, channel: u16, payload: &[u8]) {
        let slots = self.link.exchange().slots();
        self.answers.reply(slots, slot, channel, payload);
    }

    /// The application let go of a request. One that waits to be sent goes with the next [`send_parked`](Self::send_parked).
    pub(super) fn abandon(&mut self, cx: &mut Context<'_>, slot: SlotId) {
        let sent = self.whereabouts.sent_id(slot).filter(|id| {
            let sent = self.sent.find_mut(*id);
            sent.is_some_and(|sent| sent.ticket.slot == Some(slot))
        });
        match sent {
            Some(id) => self.give_up(cx, id, RequestError::Shutdown),
            // It waits, or its answer has come.
            None => self.whereabouts.let_go(slot),
        }
    }

    /// When to look for requests whose deadlines have passed.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.due_ns
    }

    fn note_deadline(&mut self, deadline_ns: u64) {
        self.due_ns = Some(self.due_ns.map_or(deadline_ns, |due| due.min(deadline_ns)));
    }

    /// Fails what is due, and tells of those that were on their way.
    ///
    /// Deadlines are looked for among all requests, when the earliest one has passed that there was at the last look:
    /// nearly all requests are answered long before theirs, so most looks find nothing, and there is one in as long as a
    /// deadline. A timer for each request would cost more than all else that is done for it here.
    pub(super) fn expire(
        &mut self,
        cx: &mut Context<'_>,
        now_ns: u64,
        mut tell: impl FnMut(&Ticket),
    ) {
        if self.due_ns.is_none_or(|due| due > now_ns) {
            return;
        }
        let mut next_ns = u64::MAX;
        let mut expired = std::mem::take(&mut self.expired);
        for (id, sent) in self.sent.iter() {
            let deadline_ns = sent.ticket.deadline_ns;
            if deadline_ns <= now_ns {
                tell(&sent.ticket);
                expired.push(id);
            } else {
                next_ns = next_ns.min(deadline_ns);
            }
        }
        for id in expired.drain(..) {
            self.give_up(cx, id, RequestError::TimedOut);
        }
        self.expired = expired;
        let (answers, whereabouts) = (&mut self.answers, &mut self.whereabouts);
        self.parked.retain(|Kept { ticket, .. }| {
            let is_due = ticket.deadline_ns <= now_ns;
            if is_due {
                whereabouts.note_gone(ticket.slot);
                answers.fail(ticket.slot, RequestError::TimedOut);
            } else {
                next_ns = next_ns.min(ticket.deadline_ns);
            }
            !is_due
        });
        // Not more often than once in a tick, however many deadlines there are.
        self.due_ns = (next_ns < u64::MAX).then(|| next_ns.max(now_ns + DEADLINE_TICK_NS));
    }

    /// Stops waiting for a reply and tells the server, where the codec can say it.
    fn give_up(&mut self, cx: &mut Context<'_>, id: u32, error: RequestError) {
        let Some(Sent { ticket, .. }) = self.sent.give_up(id) else {
            return;
        };
        self.answers.fail(ticket.slot, error);
        if let Some(session) = self.session {
            let cancel = Message::with_id(Kind::Cancel, ticket.channel, id, &[]);
            // A codec without cancels or a full output: the reply comes for nothing, and is counted.
            if let Err(error) = cx.send_to(session, &cancel) {
                tracing::trace!(id, %error, "cannot cancel a request");
            }
        }
    }

    /// The connection ended: what may be repeated waits for the next one, the rest fails.
    pub(super) fn handle_close(&mut self, reason: CloseReason) {
        self.session = None;
        self.drop_let_go();
        let parked = std::mem::take(&mut self.parked);
        let mut again = Vec::new();
        for Sent { ticket, kept } in self.sent.drain() {
            match kept {
                Some(kept) => again.push(*kept),
                None => self.answers.fail(ticket.slot, RequestError::Closed(reason)),
            }
        }
        for kept in again.into_iter().chain(parked) {
            if kept.ticket.idempotent && self.reconnects {
                self.park(kept);
            } else {
                self.fail_parked(kept.ticket.slot, RequestError::Closed(reason));
            }
        }
    }
}

impl<'a> Block<'a> {
    fn begin(cx: &'a mut Context<'_>, session: Option<SessionId>) -> Self {
        Self {
            sender: session.and_then(|session| cx.sender(session).ok()),
            bytes: 0,
        }
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.bytes >= BLOCK_BYTES
    }
}

impl Kept {
    fn new(ticket: &Ticket, name: &str, payload: &[u8]) -> Self {
        Self {
            ticket: *ticket,
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
            SendError::NotOpen => Self::NoSession,
        }
    }
}

impl From<NotSent> for RequestError {
    fn from(not_sent: NotSent) -> Self {
        match not_sent {
            NotSent::WindowFull | NotSent::OutputFull => Self::WindowFull,
            NotSent::Encode(error) => Self::Encode(error),
            NotSent::NoSession => Self::NotConnected,
            // Nobody reads this.
            NotSent::Abandoned => Self::Shutdown,
        }
    }
}

/// Requests that wait to be sent. As many as commands wait for the lane: twice that is what a burst may be.
const PARKED_MAX: usize = 4096;

/// Names and payloads, in bytes, that end a block. An output of as many is written at once.
const BLOCK_BYTES: usize = 64 << 10;

/// Resolution of request deadlines.
const DEADLINE_TICK_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests;
