//! The requests of a client: those that wait for their replies, and those that wait to be sent.
//!
//! A request waits to be sent if the window is full and its caller chose to wait, or if it may be repeated and
//! there is no connection now. Both wait in one line, in the order they came, each with its deadline.

use std::collections::VecDeque;
use std::sync::Arc;

use tidewire_io::clock::now_ns;
use tidewire_io::timer::{TimerId, TimerWheel};
use tidewire_proto::codec::{Codec, RequestIds};
use tidewire_proto::correlate::Correlator;
use tidewire_proto::message::{Kind, Message};

use super::call::WhenWindowFull;
use super::request::{Pending, RequestError, SPARE_BYTES_MAX};
use crate::context::{Context, SendError};
use crate::session::{CloseReason, SessionId};

/// A request as the application handed it over.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) kind: Kind,
    pub(crate) channel: u16,
    pub(crate) name: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) deadline_ns: u64,
    pub(crate) idempotent: bool,
    pub(crate) when_full: WhenWindowFull,
    pub(crate) pending: Arc<Pending>,
}

#[derive(Debug)]
pub(super) struct Calls {
    sent: Correlator<Sent>,
    /// In ascending order of their numbers.
    parked: VecDeque<Parked>,
    last_parked: u64,
    deadlines: TimerWheel<Deadline>,
    /// Scratch list of deadlines that passed.
    expired: Vec<Deadline>,
    /// The session, while it is open.
    pub(super) session: Option<SessionId>,
    /// Whether another connection follows when this one ends.
    pub(super) reconnects: bool,
}

#[derive(Debug)]
struct Sent {
    id: u32,
    /// With its payload, to be repeated, or for its memory, in which the reply will come.
    call: Outgoing,
    timer: Option<TimerId>,
}

#[derive(Debug)]
struct Parked {
    number: u64,
    call: Outgoing,
    timer: TimerId,
}

#[derive(Clone, Copy, Debug)]
enum Deadline {
    Sent(u32),
    Parked(u64),
}

impl Outgoing {
    /// Leaves the answer for whoever waits, in the memory that the request was in.
    pub(super) fn answer(self, result: Result<u16, RequestError>, payload: &[u8]) {
        let Self {
            name,
            payload: mut memory,
            pending,
            ..
        } = self;
        memory.clear();
        if result.is_ok() {
            memory.extend_from_slice(payload);
        }
        pending.complete(result, memory, name);
    }
}

impl Calls {
    pub(super) fn new(ids: RequestIds, pending_max: usize, reconnects: bool) -> Self {
        Self {
            sent: Correlator::for_ids(ids, pending_max),
            parked: VecDeque::new(),
            last_parked: 0,
            deadlines: TimerWheel::new(now_ns(), DEADLINE_TICK_NS),
            expired: Vec::new(),
            session: None,
            reconnects,
        }
    }

    /// Sends a request, lets it wait, or fails it.
    pub(super) fn submit(&mut self, cx: &mut Context<'_>, call: Outgoing) {
        let waits = call.when_full == WhenWindowFull::Wait;
        match self.session {
            // Those that came before go before.
            Some(_) if waits && !self.parked.is_empty() => self.park(call),
            Some(session) => match self.send(cx, session, call) {
                Ok(_) => {}
                Err((call, RequestError::WindowFull)) if waits => self.park(call),
                Err((call, error)) => call.pending.fail(error),
            },
            None if call.idempotent && self.reconnects => self.park(call),
            None => call.pending.fail(RequestError::NotConnected),
        }
    }

    /// Sends a request now, or says why not. Returns its id.
    pub(super) fn call(
        &mut self,
        cx: &mut Context<'_>,
        call: Outgoing,
    ) -> Result<u32, RequestError> {
        let session = self.session.ok_or(RequestError::NotConnected)?;
        self.send(cx, session, call).map_err(|(_, error)| error)
    }

    /// Sends what waits, as far as the window allows.
    pub(super) fn send_parked(&mut self, cx: &mut Context<'_>) {
        while let Some(session) = self.session
            && let Some(parked) = self.parked.pop_front()
        {
            let Parked {
                number,
                call,
                timer,
            } = parked;
            match self.send(cx, session, call) {
                Ok(_) => {}
                Err((call, RequestError::WindowFull)) => {
                    let parked = Parked {
                        number,
                        call,
                        timer,
                    };
                    return self.parked.push_front(parked);
                }
                Err((call, error)) => call.pending.fail(error),
            }
            self.deadlines.cancel(timer);
        }
    }

    /// Sends one request now. Gives it back with the reason if that cannot be; a full output counts as a full window.
    fn send(
        &mut self,
        cx: &mut Context<'_>,
        session: SessionId,
        call: Outgoing,
    ) -> Result<u32, (Outgoing, RequestError)> {
        let deadline_ns = call.deadline_ns;
        let sent = Sent {
            id: 0,
            call,
            timer: None,
        };
        let inserted = self.sent.insert(sent);
        let id = inserted.map_err(|(_, sent)| (sent.call, RequestError::WindowFull))?;
        let Some(sent) = self.sent.find_mut(id) else {
            return Ok(id);
        };
        sent.id = id;
        let call = &sent.call;
        let message = if cx.codec().has_ids() {
            Message::with_id(call.kind, call.channel, id, &call.payload)
        } else {
            Message::new(Kind::OneWay, call.channel, &call.payload)
        };
        let message = message.with_name(&call.name);
        let result = if call.pending.begin(id) {
            cx.send_to(session, &message).map_err(|error| match error {
                SendError::QueueFull => RequestError::WindowFull,
                SendError::Encode(error) => RequestError::Encode(error),
                SendError::NotOpen => RequestError::NotConnected,
            })
        } else {
            // Nobody wants it any more, so nobody reads this either.
            Err(RequestError::Shutdown)
        };
        if let Err(error) = result
            && let Some(Sent { call, .. }) = self.sent.take(id)
        {
            call.pending.suspend();
            return Err((call, error));
        }
        if let Some(sent) = self.sent.find_mut(id) {
            if !sent.call.idempotent && sent.call.payload.capacity() > SPARE_BYTES_MAX {
                sent.call.payload = Vec::new();
            }
            sent.timer = Some(self.deadlines.insert(deadline_ns, Deadline::Sent(id)));
        }
        Ok(id)
    }

    fn park(&mut self, call: Outgoing) {
        if self.parked.len() >= PARKED_MAX {
            return call.pending.fail(RequestError::WindowFull);
        }
        self.last_parked += 1;
        let number = self.last_parked;
        let timer = self
            .deadlines
            .insert(call.deadline_ns, Deadline::Parked(number));
        self.parked.push_back(Parked {
            number,
            call,
            timer,
        });
    }

    /// How many answers may still come.
    pub(super) fn owed(&self) -> usize {
        self.sent.owed()
    }

    /// The request that an answer with this id is for, if one waits for it, and that request's own id.
    pub(super) fn answer(&mut self, id: u32) -> Option<(u32, Outgoing)> {
        let Sent { id, call, timer } = self.sent.answer(id)?;
        if let Some(timer) = timer {
            self.deadlines.cancel(timer);
        }
        Some((id, call))
    }

    /// The application let go of a request.
    pub(super) fn abandon(&mut self, cx: &mut Context<'_>, id: u32, pending: &Arc<Pending>) {
        // The id may be another request's by now.
        let is_same = self
            .sent
            .find_mut(id)
            .is_some_and(|sent| Arc::ptr_eq(&sent.call.pending, pending));
        if is_same {
            self.give_up(cx, id, RequestError::Shutdown);
        }
    }

    /// When the next request is due to fail.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.next_deadline()
    }

    /// Fails what is due, and tells the ids of those that were on their way.
    pub(super) fn expire(&mut self, cx: &mut Context<'_>, now_ns: u64, mut tell: impl FnMut(u32)) {
        let mut expired = std::mem::take(&mut self.expired);
        self.deadlines.advance(now_ns, &mut expired);
        for deadline in expired.drain(..) {
            match deadline {
                Deadline::Sent(id) => {
                    self.give_up(cx, id, RequestError::TimedOut);
                    tell(id);
                }
                Deadline::Parked(number) => {
                    let found = self.parked.binary_search_by_key(&number, |it| it.number);
                    if let Some(parked) = found.ok().and_then(|index| self.parked.remove(index)) {
                        parked.call.pending.fail(RequestError::TimedOut);
                    }
                }
            }
        }
        self.expired = expired;
    }

    /// Stops waiting for a reply and tells the server, where the codec can say it.
    fn give_up(&mut self, cx: &mut Context<'_>, id: u32, error: RequestError) {
        let Some(Sent { call, timer, .. }) = self.sent.give_up(id) else {
            return;
        };
        if let Some(timer) = timer {
            self.deadlines.cancel(timer);
        }
        call.pending.fail(error);
        if let Some(session) = self.session {
            let cancel = Message::with_id(Kind::Cancel, call.channel, id, &[]);
            // A codec without cancels or a full output: the reply comes for nothing, and is counted.
            if let Err(error) = cx.send_to(session, &cancel) {
                tracing::trace!(id, %error, "cannot cancel a request");
            }
        }
    }

    /// The connection ended: what may be repeated waits for the next one, the rest fails.
    pub(super) fn handle_close(&mut self, reason: CloseReason) {
        self.session = None;
        let mut again = Vec::new();
        for Sent { call, timer, .. } in self.sent.drain() {
            if let Some(timer) = timer {
                self.deadlines.cancel(timer);
            }
            again.push(call);
        }
        for Parked { call, timer, .. } in std::mem::take(&mut self.parked) {
            self.deadlines.cancel(timer);
            again.push(call);
        }
        for call in again {
            if call.idempotent && self.reconnects {
                call.pending.suspend();
                self.park(call);
            } else {
                call.pending.fail(RequestError::Closed(reason));
            }
        }
    }

    /// The client ended.
    pub(super) fn fail_all(&mut self, error: &RequestError) {
        let sent = self.sent.drain().map(|sent| sent.call);
        for call in sent.chain(self.parked.drain(..).map(|parked| parked.call)) {
            call.pending.fail(error.clone());
        }
    }
}

/// Requests that wait to be sent. As many as commands wait for the lane: twice that is what a burst may be.
const PARKED_MAX: usize = 4096;

/// Resolution of request deadlines.
const DEADLINE_TICK_NS: u64 = 1_000_000;
