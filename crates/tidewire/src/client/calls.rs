//! The requests of a client: those that wait for their replies, and those that wait to be sent.
//!
//! A request waits to be sent if the window is full and its caller chose to wait, or if it may be repeated and
//! there is no connection now. Both wait in one line, in the order they came, each with its deadline.

use std::collections::VecDeque;
use std::sync::Arc;

use tidewire_proto::codec::{Codec, RequestIds};
use tidewire_proto::correlate::Correlator;
use tidewire_proto::message::{Kind, Message};

use super::answers::Answers;
use super::call::WhenWindowFull;
use super::link::Link;
use super::queue::Ticket;
use super::request::RequestError;
use super::slots::SlotId;
use crate::context::{Context, SendError};
use crate::session::{CloseReason, SessionId};

#[derive(Debug)]
pub(super) struct Calls {
    link: Arc<Link>,
    sent: Correlator<Sent>,
    /// In the order they came.
    parked: VecDeque<Kept>,
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

impl Calls {
    pub(super) fn new(
        link: Arc<Link>,
        ids: RequestIds,
        pending_max: usize,
        reconnects: bool,
    ) -> Self {
        Self {
            link,
            sent: Correlator::for_ids(ids, pending_max),
            parked: VecDeque::new(),
            due_ns: None,
            expired: Vec::new(),
            answers: Answers::default(),
            session: None,
            reconnects,
        }
    }

    /// Sends a request, lets it wait, or fails it.
    pub(super) fn submit(
        &mut self,
        cx: &mut Context<'_>,
        ticket: &Ticket,
        name: &str,
        payload: &[u8],
    ) {
        let kept = || Kept {
            ticket: *ticket,
            name: name.to_owned(),
            payload: payload.to_vec(),
        };
        let waits = ticket.when_full == WhenWindowFull::Wait;
        let repeats = ticket.idempotent && self.reconnects;
        match self.session {
            // Those that came before go before.
            Some(_) if waits && !self.parked.is_empty() => self.park(kept()),
            Some(session) => match self.send(cx, session, ticket, name, payload) {
                Ok(id) if repeats => self.keep(id, kept()),
                Ok(_) => {}
                Err(RequestError::WindowFull) if waits => self.park(kept()),
                Err(error) => self.answers.fail(ticket.slot, error),
            },
            None if repeats => self.park(kept()),
            None => self.answers.fail(ticket.slot, RequestError::NotConnected),
        }
    }

    /// Sends a request now, or says why not.
    pub(super) fn call(
        &mut self,
        cx: &mut Context<'_>,
        ticket: &Ticket,
        payload: &[u8],
    ) -> Result<(), RequestError> {
        let session = self.session.ok_or(RequestError::NotConnected)?;
        self.send(cx, session, ticket, "", payload).map(drop)
    }

    /// Sends what waits, as far as the window allows.
    pub(super) fn send_parked(&mut self, cx: &mut Context<'_>) {
        while let Some(session) = self.session
            && let Some(kept) = self.parked.pop_front()
        {
            match self.send(cx, session, &kept.ticket, &kept.name, &kept.payload) {
                Ok(id) if kept.ticket.idempotent && self.reconnects => self.keep(id, kept),
                Ok(_) => {}
                Err(RequestError::WindowFull) => return self.parked.push_front(kept),
                Err(error) => self.answers.fail(kept.ticket.slot, error),
            }
        }
    }

    /// Sends one request now and returns its id, or says why not; a full output counts as a full window.
    fn send(
        &mut self,
        cx: &mut Context<'_>,
        session: SessionId,
        ticket: &Ticket,
        name: &str,
        payload: &[u8],
    ) -> Result<u32, RequestError> {
        if self.link.exchange().is_abandoned(ticket.slot) {
            // Nobody reads this either.
            return Err(RequestError::Shutdown);
        }
        let sent = Sent {
            ticket: *ticket,
            kept: None,
        };
        let inserted = self.sent.insert(sent);
        let id = inserted.map_err(|_| RequestError::WindowFull)?;
        let message = if cx.codec().has_ids() {
            Message::with_id(ticket.kind, ticket.channel, id, payload)
        } else {
            Message::new(Kind::OneWay, ticket.channel, payload)
        };
        if let Err(error) = cx.send_to(session, &message.with_name(name)) {
            self.sent.take(id);
            return Err(match error {
                SendError::QueueFull => RequestError::WindowFull,
                SendError::Encode(error) => RequestError::Encode(error),
                SendError::NotOpen => RequestError::NotConnected,
            });
        }
        self.note_deadline(ticket.deadline_ns);
        Ok(id)
    }

    /// Keeps a request that is on its way, to repeat it.
    fn keep(&mut self, id: u32, kept: Kept) {
        if let Some(sent) = self.sent.find_mut(id) {
            sent.kept = Some(Box::new(kept));
        }
    }

    fn park(&mut self, kept: Kept) {
        if self.parked.len() >= PARKED_MAX {
            return self
                .answers
                .fail(kept.ticket.slot, RequestError::WindowFull);
        }
        self.note_deadline(kept.ticket.deadline_ns);
        self.parked.push_back(kept);
    }

    /// How many answers may still come.
    pub(super) fn owed(&self) -> usize {
        self.sent.owed()
    }

    /// The request that an answer with this id is for, if one waits for it.
    pub(super) fn take_answered(&mut self, id: u32) -> Option<Ticket> {
        self.sent.answer(id).map(|sent| sent.ticket)
    }

    /// The application let go of a request.
    pub(super) fn abandon(&mut self, cx: &mut Context<'_>, slot: SlotId) {
        let is_same = |ticket: &Ticket| ticket.slot == Some(slot);
        let sent = self.sent.iter().find(|(_, sent)| is_same(&sent.ticket));
        if let Some((id, _)) = sent {
            self.give_up(cx, id, RequestError::Shutdown);
        } else if let Some(index) = self.parked.iter().position(|kept| is_same(&kept.ticket)) {
            self.parked.remove(index);
            self.answers.fail(Some(slot), RequestError::Shutdown);
        }
        // Or its answer has come.
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
        let answers = &mut self.answers;
        self.parked.retain(|Kept { ticket, .. }| {
            let is_due = ticket.deadline_ns <= now_ns;
            if is_due {
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
                let slot = kept.ticket.slot;
                self.answers.fail(slot, RequestError::Closed(reason));
            }
        }
    }
}

/// Requests that wait to be sent. As many as commands wait for the lane: twice that is what a burst may be.
const PARKED_MAX: usize = 4096;

/// Resolution of request deadlines.
const DEADLINE_TICK_NS: u64 = 1_000_000;
