//! The lane's side of a client: one connection, its pending requests, and reconnecting.

use std::sync::Arc;

use super::unconfirmed::Unconfirmed;
use tidewire_io::clock::{Moment, now_ns};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::{Codec, RequestIds};
use tidewire_proto::connection::Farewell;
use tidewire_proto::message::{Kind, Message};

use super::dialing::Dialing;
use super::error::{Disconnected, RequestError};
use super::events::Event;
use super::holdings::Holdings;
use super::link::{Control, Link};
use super::pending::Pending;
use super::submissions::{Submission, Submissions};
use crate::service::{Context, HandlerResult, Service, refusal};
use crate::session::{CloseReason, SendError, SessionId};
use crate::transport::ConnectError;

#[derive(Debug)]
pub(crate) struct ClientService {
    pub(super) link: Arc<Link>,
    pub(super) dialing: Dialing,
    pub(super) ever_open: bool,
    /// Submissions wait, because the session's output is full or the connection is not open yet.
    is_backed_up: bool,
    /// Reading is paused, because an event queue is full.
    is_reading_paused: bool,
    /// Submissions taken from the application.
    list: Submissions<Control>,
    pub(super) closing: bool,
    pub(super) pending: Pending,
    pub(super) holdings: Holdings,
}

impl ClientService {
    pub(crate) fn new(
        link: Arc<Link>,
        dialing: Dialing,
        ids: RequestIds,
        pending_max: usize,
        reconnects: bool,
    ) -> Self {
        Self {
            dialing,
            ever_open: false,
            is_backed_up: false,
            is_reading_paused: false,
            list: Submissions::default(),
            closing: false,
            pending: Pending::new(Arc::clone(&link), ids, pending_max, reconnects),
            holdings: Holdings::new(Arc::clone(&link)),
            link,
        }
    }

    /// The session of the open connection.
    #[inline]
    pub(super) fn session(&self) -> Option<SessionId> {
        self.dialing.dialer.open_session()
    }

    /// Processes the next submissions of the list: a block of requests, or one other submission.
    fn run_next(&mut self, cx: &mut Context<'_>) {
        if self.list.request().is_some() {
            return self.pending.send_all(cx, &mut self.list);
        }
        let Some((submission, bytes)) = self.list.take() else {
            return;
        };
        match submission {
            // Handled above.
            Submission::Request(_) => {}
            Submission::Abandon(slot) => self.pending.abandon(cx, slot),
            Submission::Undo(undo) => self.pending.undo(cx, undo),
            Submission::Messages { count, .. } => {
                let session = self.pending.session.ok_or(SendError::NotOpen);
                let sent = session.and_then(|session| cx.connections().send_frames(session, bytes));
                match sent {
                    Ok(()) => self.pending.unconfirmed.note_sent(count),
                    Err(error) => {
                        tracing::trace!(%error, count, "messages were not sent");
                        self.pending.unconfirmed.note_lost(count);
                        self.link.events.push(Event::Lost { count });
                    }
                }
            }
            Submission::Control(Control::Open(opening)) => {
                self.holdings.open(cx, &mut self.pending, *opening);
            }
            Submission::Control(Control::Unsubscribe(queue)) => {
                self.holdings.give_up(&queue);
                // At once, so that it comes before a new subscription to the same pattern.
                self.holdings.ask_due(cx, &mut self.pending);
            }
            Submission::Control(Control::Close(farewell)) => self.close(cx, farewell),
            // Only messages are worth a wait, because the application no longer takes replies or events.
            Submission::Control(Control::Dropped) if !self.pending.unconfirmed.is_any() => {
                cx.stop_lane();
            }
            Submission::Control(Control::Dropped) => self.close(cx, None),
        }
    }

    fn close(&mut self, cx: &mut Context<'_>, farewell: Option<Box<Farewell>>) {
        self.closing = true;
        self.pending.reconnects = false;
        match self.session() {
            Some(session) => cx.connections().end(session, farewell),
            None => {
                self.dialing.dialer.cancel();
                self.dial(cx);
                cx.stop_lane();
            }
        }
    }

    /// Processes submissions, as far as the session's output has room and the turn's limit allows.
    fn run_submissions(&mut self, cx: &mut Context<'_>) {
        let mut turn_bytes = 0;
        loop {
            // Accepted submissions must not be dropped because the server is slow. They stay in the queue, and a full
            // queue refuses new submissions. If the output is still full after a flush, the lane waits for the socket,
            // whose event starts another turn.
            self.is_backed_up = match self.pending.session {
                None => self.dialing.holds_submissions() && self.may_wait_for_connection(),
                Some(session) => {
                    cx.is_full(session) && {
                        cx.flush(session);
                        cx.is_full(session)
                    }
                }
            };
            if self.is_backed_up || !self.link.table.refill(&mut self.list, &mut turn_bytes) {
                return;
            }
            // The submission may have come after `dial_if_due` looked.
            if self.dialing.is_lazily_idle() && self.list.wants_connection() {
                self.dialing.dialer.begin(now_ns());
                self.dial(cx);
                continue;
            }
            self.run_next(cx);
        }
    }

    /// Whether submissions may wait for the connection. Closing is a submission, too. It waits only for earlier
    /// messages, until its own deadline.
    fn may_wait_for_connection(&self) -> bool {
        self.link.close_at_ns().is_none()
            || self.list.messages() > 0
            || self.link.table.has_messages()
    }

    /// Fails requests that wait for a full output after their deadlines. Returns the next deadline.
    fn expire_waiting(&mut self, now_ns: u64) -> Option<u64> {
        if !self.is_backed_up {
            return None;
        }
        let completions = &mut self.pending.completions;
        let mut expired = Vec::new();
        let next = self.list.expire(now_ns, &mut expired);
        for slot in expired {
            completions.fail(Some(slot), RequestError::TimedOut);
        }
        let waiting = self.link.table.expire(now_ns, completions);
        next.into_iter().chain(waiting).min()
    }

    /// Pauses reading if an event queue is full under [`PauseReading`](super::WhenEventsFull::PauseReading).
    #[inline]
    fn pause_if_held(&mut self, cx: &mut Context<'_>) {
        if self.link.holds_reading() {
            self.is_reading_paused = true;
            cx.pause_reading();
        }
    }

    /// Resumes reading when the event queues have room again.
    fn resume_if_released(&mut self, cx: &mut Context<'_>) {
        if self.is_reading_paused && !self.link.holds_reading() {
            self.is_reading_paused = false;
            if let Some(session) = self.session() {
                cx.resume_reading(session);
            }
        }
    }

    /// Handles the reply to a request, or its refusal.
    #[inline]
    fn handle_answer(&mut self, cx: &mut Context<'_>, id: u32, message: &Message<'_>) {
        let result = match message.kind {
            Kind::Error => Err(refused(cx, message)),
            _ => Ok(message.channel),
        };
        if let Err(RequestError::Refused { code, .. }) = &result
            && *code == ErrorCode::Draining
            && cx.core.sessions.table.is_peer_going(cx.id())
            && self.pending.put_back(id)
        {
            return;
        }
        let Some(head) = self.pending.take_answered(id) else {
            cx.core.counters.replies_unmatched.add(1);
            return;
        };
        let completions = &mut self.pending.completions;
        match (result, head.effect) {
            (result, Some(effect)) => self.handle_effect(cx, &head, effect, result, message),
            (Ok(channel), None) => {
                let table = &self.link.table;
                table.reply(completions, head.slot, channel, message.payload);
            }
            (Err(error), None) => completions.fail(head.slot, error),
        }
        if self.pending.completions.is_block() {
            self.complete(cx);
        }
    }

    /// Publishes the collected completions, and wakes the tasks that wait for them.
    fn complete(&mut self, cx: &mut Context<'_>) {
        let completions = &mut self.pending.completions;
        if completions.is_empty() {
            return;
        }
        self.link.table.complete(completions);
        while let Some(undo) = self.pending.completions.take_undo() {
            self.pending.undo(cx, undo);
        }
        let session = self.session();
        let completions = &mut self.pending.completions;
        if completions.has_wakers() {
            // Flush before the wake: a woken task may take the processor, and the server then already has work.
            if let Some(session) = session {
                cx.flush(session);
            }
            completions.wake();
        }
    }
}

impl Service for ClientService {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        if !self.take_open(cx) {
            return;
        }
        self.pending.session = Some(cx.id());
        self.link
            .table
            .set_frame_bytes_max(cx.call.frame_bytes_max());
        self.pending.unreachable = None;
        self.holdings.handle_open();
        self.plan_renewal(cx);
        let agent = cx.session().peer_agent().unwrap_or_default().to_owned();
        self.link.events.push(Event::Opened { agent });
        if !self.ever_open {
            self.ever_open = true;
            self.link.complete_first(Ok(()));
        }
        self.pause_if_held(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match message.kind {
            Kind::Deliver if cx.codec().format().registers_subscribers => {
                self.holdings.handle_broadcast(&message);
            }
            Kind::Deliver | Kind::Gap | Kind::Position
                if self.holdings.handle_message(&message) => {}
            Kind::Placement => self.holdings.handle_placement(&message),
            _ => match self.pending.answered_id(&message) {
                Some(id) => {
                    self.handle_answer(cx, id, &message);
                    return Ok(());
                }
                None => {
                    let event = event_of(&mut self.pending.unconfirmed, cx, &message);
                    self.link.events.push(event);
                }
            },
        }
        self.pause_if_held(cx);
        Ok(())
    }

    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        if self.session() != Some(cx.id()) {
            // The session of another address was open first.
            return;
        }
        self.dialing.dialer.note_end(now_ns(), reason);
        self.is_reading_paused = false;
        self.stay_away_if_told(reason);
        let farewell = cx.session().peer_farewell();
        let text = Arc::from(farewell.map_or("", |farewell| &farewell.text));
        let end = Disconnected { reason, text };
        self.pending.handle_close(&end);
        if !self.closing {
            self.holdings.handle_close(&end);
        }
        let cause = end.to_string();
        let Disconnected { reason, text } = end;
        self.link.events.push(Event::Closed { reason, text });
        if let Some(to) = cx.session().peer_moved_to() {
            self.dialing.follow(to);
        }
        self.retry(cx, cause);
    }

    fn on_connect_failed(&mut self, cx: &mut Context<'_>, failure: ConnectError) {
        if self.dialing.dialer.note_failure(cx.id(), failure) {
            self.dial(cx);
        }
    }

    /// Ends the lane: calls and subscriptions of the client must not wait for replies that the panic has lost.
    fn on_panic(&mut self, _: &mut Context<'_>) {
        panic!("a client does not go on after a panic");
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        let now_ns = now_ns();
        let close_at_ns = self.link.close_at_ns();
        if close_at_ns.is_some_and(|at| at <= now_ns) {
            tracing::debug!(
                "the server did not accept the queued messages before the close timeout"
            );
            cx.stop_lane();
            return None;
        }
        self.dial_if_due(cx, now_ns);
        if self
            .pending
            .session
            .is_some_and(|session| cx.core.sessions.table.is_peer_going(session))
        {
            // The server would refuse new requests. They wait for the next connection, or fail as without a connection.
            self.pending.session = None;
        }
        self.resume_if_released(cx);
        let dropped = self.link.events_dropped();
        cx.core.counters.events_dropped.set(dropped);
        self.run_submissions(cx);
        self.dialing.note_told();
        // A woken task submits its next requests soon. Yielding the processor to it once would save a wake of this
        // lane, which is a fifth of the cost of a request on an idle machine. Rejected: on a busy machine all other
        // processes run first, and a round trip took 4 ms instead of 0.1 ms.
        self.complete(cx);
        let waiting_deadline_ns = self.expire_waiting(now_ns);
        let Self {
            pending, holdings, ..
        } = self;
        pending.expire(cx, now_ns, |head| holdings.handle_timeout(head));
        pending.send_queued(cx);
        let ask_at_ns = holdings.run_turn(cx, pending, now_ns);
        self.complete(cx);
        let renew_at_ns = self.renew_if_due(cx, now_ns);
        [
            renew_at_ns,
            close_at_ns,
            self.dialing.dialer.wake_ns(),
            waiting_deadline_ns,
            ask_at_ns,
            self.pending.next_deadline_ns(),
        ]
        .into_iter()
        .flatten()
        .min()
        .map(Moment::from_ns)
    }

    fn has_work(&self) -> bool {
        if self.is_reading_paused && !self.link.holds_reading() {
            return true;
        }
        if self.dialing.awaits_lookup() && self.link.has_found() {
            return true;
        }
        if self.is_backed_up {
            // Submissions that the lane has seen wait for the socket. New submissions may have an earlier deadline.
            return self.link.table.has_news();
        }
        self.link.table.is_occupied()
    }
}

/// The event for a message that answers nothing. A refusal is noted for the next flush.
fn event_of(unconfirmed: &mut Unconfirmed, cx: &Context<'_>, message: &Message<'_>) -> Event {
    if message.kind != Kind::Error {
        return Event::of_message(message);
    }
    let (code, text) = refusal(cx.codec(), message);
    let number = cx.codec().error_number(message);
    unconfirmed.note_refused(code, number, text.clone());
    let channel = message.channel;
    Event::Refused {
        channel,
        code,
        number,
        text,
    }
}

/// The error of a request that the server refused.
#[cold]
fn refused(cx: &Context<'_>, message: &Message<'_>) -> RequestError {
    let (code, text) = refusal(cx.codec(), message);
    let number = cx.codec().error_number(message);
    RequestError::Refused { code, number, text }
}

impl Drop for ClientService {
    /// Completes everything, because the lane has ended and no caller may wait for ever.
    fn drop(&mut self) {
        self.holdings.end();
        // Requests that were answered before the end keep their replies. All others fail with the error below.
        let completions = &mut self.pending.completions;
        self.link.table.complete(completions);
        completions.wake();
        let error = match self.dialing.dialer.is_refused() {
            true => self.pending.not_connected(),
            false => RequestError::Shutdown,
        };
        let lost = self.list.messages() + self.link.table.end(&error);
        if lost > 0 {
            self.link.events.push(Event::Lost { count: lost });
        }
        if !self.ever_open {
            self.link.complete_first(Err(ConnectError::Ended));
        }
        self.link.events.push(Event::Ended);
    }
}
