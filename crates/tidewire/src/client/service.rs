//! The lane's side of a client: one connection, its pending requests, and reconnecting.

use std::sync::Arc;

use tidewire_io::clock::now_ns;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::{Codec, RequestIds};
use tidewire_proto::message::{Kind, Message};

use super::dialing::Dialing;
use super::disconnected::Disconnected;
use super::effect::Effect;
use super::error::{ConnectError, RequestError};
use super::events::Event;
use super::link::{Control, Link, Subscribe};
use super::listening::{Listening, Step};
use super::pending::Pending;
use super::submissions::{Range, Submission, Submissions};
use super::table::TakenBytes;
use crate::service::Context;
use crate::service::{HandlerResult, Service};
use crate::session::SendError;
use crate::session::{CloseReason, SessionId};
use crate::transport::ConnectFailure;

#[derive(Debug)]
pub(crate) struct ClientService {
    pub(super) link: Arc<Link>,
    pub(super) dialing: Dialing,
    pub(super) session: Option<SessionId>,
    pub(super) ever_open: bool,
    /// The session's output is full or the connection not open yet, so submissions wait.
    is_backed_up: bool,
    /// Nothing is read, because the application does not take its events.
    is_reading_paused: bool,
    /// Submissions taken from the application.
    list: Submissions<Control>,
    pub(super) closing: bool,
    pub(super) pending: Pending,
    pub(super) listening: Listening,
}

impl ClientService {
    pub(crate) fn new(
        link: Arc<Link>,
        dialing: Dialing,
        ids: RequestIds,
        pending_max: usize,
    ) -> Self {
        let pending = Pending::new(Arc::clone(&link), ids, pending_max, dialing.reconnects());
        Self {
            link,
            dialing,
            session: None,
            ever_open: false,
            is_backed_up: false,
            is_reading_paused: false,
            list: Submissions::default(),
            closing: false,
            pending,
            listening: Listening::default(),
        }
    }

    fn run(&mut self, cx: &mut Context<'_>, submission: Submission<Control>) {
        match submission {
            Submission::Requests { .. } => self.pending.send_all(cx, &mut self.list),
            Submission::Abandon(slot) => self.pending.abandon(cx, slot),
            Submission::Undo(undo) => self.pending.undo(cx, undo),
            Submission::Messages { count, range } => self.send_messages(cx, count, range),
            Submission::Control(Control::Subscribe(subscribe)) => self.subscribe(cx, *subscribe),
            Submission::Control(Control::Unsubscribe(queue)) => {
                self.listening.give_up(&queue);
                // Now, so that it stays in front of a new subscription to the same pattern.
                self.ask_due(cx);
            }
            Submission::Control(Control::Close(farewell)) => {
                self.closing = true;
                self.pending.reconnects = false;
                match self.session {
                    Some(session) => cx.end_session(session, farewell),
                    None => cx.stop_lane(),
                }
            }
        }
    }

    fn subscribe(&mut self, cx: &mut Context<'_>, subscribe: Subscribe) {
        let Subscribe {
            pattern,
            policy,
            queue,
            deadline_ns,
            slot,
        } = subscribe;
        // What is to be asked about others waits for a place in the window, and came before.
        self.ask_due(cx);
        let key = self.listening.add(Arc::clone(&pattern), policy, queue);
        let step = Step::Subscribe { pattern, policy };
        if let Err(error) = self.ask(cx, key, &step, deadline_ns, Some(slot)) {
            self.listening.remove(key);
            self.pending.completions.fail(Some(slot), error);
        }
    }

    /// Appends a range of the list's bytes, which is as many whole frames as `count` says.
    fn send_messages(&mut self, cx: &mut Context<'_>, count: u64, range: Range) {
        let frames = self.list.bytes(range);
        let sent = self
            .pending
            .session
            .ok_or(SendError::NotOpen)
            .and_then(|session| cx.send_frames(session, frames));
        if let Err(error) = sent {
            tracing::trace!(%error, count, "messages were not sent");
            self.link.events.push(Event::Lost { count });
        }
    }

    /// Does what the application asked for, as far as the session's output has room and the turn is not over.
    fn run_submissions(&mut self, cx: &mut Context<'_>) {
        let mut taken = TakenBytes::default();
        loop {
            // What was accepted must not be dropped because the server is slow: it stays in the queue, and the queue tells
            // whoever adds to it. An output still full after a flush waits for the socket, whose event is a turn again.
            self.is_backed_up = match self.pending.session {
                None => self.dialing.holds_submissions() && self.may_wait_for_connection(),
                Some(session) => {
                    cx.is_full(session) && {
                        cx.flush(session);
                        cx.is_full(session)
                    }
                }
            };
            if self.is_backed_up {
                return;
            }
            let next = self.link.table.next(&mut self.list, &mut taken);
            let Some(submission) = next else {
                return;
            };
            self.run(cx, submission);
        }
    }

    /// Whether what was asked for may wait for the connection. Closing is one of the submissions: it waits for messages that were
    /// taken before, until its own deadline, and for nothing else.
    fn may_wait_for_connection(&self) -> bool {
        self.link.close_at_ns().is_none() || self.link.table.has_messages()
    }

    /// Fails requests that wait behind a full output longer than they may. Returns when the next one will have.
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

    pub(super) fn may_hold_reading(&self) -> bool {
        self.link.may_hold_reading()
    }

    /// Stops reading once a queue of events is full that is to be waited for.
    #[inline]
    fn pause_if_held(&mut self, cx: &mut Context<'_>) {
        if self.link.holds_reading() {
            self.is_reading_paused = true;
            cx.pause_reading();
        }
    }

    /// Reads on once there is room for events again.
    fn resume_if_released(&mut self, cx: &mut Context<'_>) {
        if self.is_reading_paused && !self.link.holds_reading() {
            self.is_reading_paused = false;
            if let Some(session) = self.session {
                cx.resume_reading(session);
            }
        }
    }

    /// Completes the requests whose outcomes there are.
    fn complete(&mut self, cx: &mut Context<'_>) {
        let completions = &mut self.pending.completions;
        if completions.is_empty() {
            return;
        }
        self.link.table.complete(completions);
        while let Some(undo) = self.pending.completions.undos.pop() {
            self.pending.undo(cx, undo);
        }
        let completions = &mut self.pending.completions;
        if completions.has_wakers() {
            // Before somebody takes the processor who was waiting for this, so that the server has work meanwhile.
            if let Some(session) = self.session {
                cx.flush(session);
            }
            completions.wake();
        }
    }
}

impl Service for ClientService {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.pending.session = Some(cx.session());
        self.link.table.set_frame_bytes_max(cx.frame_bytes_max);
        self.pending.unreachable = None;
        self.dialing.note_open();
        self.listening.handle_open();
        let agent = cx.peer_agent().unwrap_or_default().to_owned();
        self.link.events.push(Event::Opened { agent });
        if !self.ever_open {
            self.ever_open = true;
            self.link.complete_first(Ok(()));
        }
        self.pause_if_held(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.kind == Kind::Deliver && cx.codec().registers_subscribers() {
            self.listening.handle_broadcast(&message);
            self.pause_if_held(cx);
            return Ok(());
        }
        if matches!(message.kind, Kind::Deliver | Kind::Gap)
            && self.listening.handle_message(&message)
        {
            self.pause_if_held(cx);
            return Ok(());
        }
        let Some(id) = self.pending.answered_id(&message) else {
            self.link.events.push(Event::Message(message.into()));
            self.pause_if_held(cx);
            return Ok(());
        };
        let result = if message.kind == Kind::Error {
            let body = cx.codec().decode_error(&message);
            let (code, text) = body.map_or((ErrorCode::Internal, String::new()), |body| {
                let text = if body.text.is_empty() {
                    body.code.to_string()
                } else {
                    body.text.to_owned()
                };
                (body.code, text)
            });
            let number = cx.codec().error_number(&message);
            Err(RequestError::Refused { code, number, text })
        } else {
            Ok(message.channel)
        };
        if let Err(RequestError::Refused { code, .. }) = &result
            && *code == ErrorCode::Draining
            && cx.is_peer_going(cx.session())
            && self.pending.put_back(id)
        {
            return Ok(());
        }
        let Some(head) = self.pending.take_answered(id) else {
            cx.count_unmatched_reply();
            return Ok(());
        };
        let completions = &mut self.pending.completions;
        match (result, head.effect) {
            (result, Some(effect)) => self.handle_effect(cx, &head, effect, result, &message),
            (Ok(channel), None) => {
                let table = &self.link.table;
                table.reply(completions, head.slot, channel, message.payload);
            }
            (Err(error), None) => completions.fail(head.slot, error),
        }
        let completions = &self.pending.completions;
        if completions.is_block() {
            self.complete(cx);
        }
        Ok(())
    }

    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        self.session = None;
        self.is_reading_paused = false;
        self.stay_away_if_told(reason);
        let farewell = cx.peer_farewell();
        let text = Arc::from(farewell.map_or("", |farewell| &farewell.text));
        let end = Disconnected { reason, text };
        self.pending.handle_close(&end);
        if !self.closing {
            self.listening.handle_close(reason);
        }
        let cause = end.to_string();
        let Disconnected { reason, text } = end;
        self.link.events.push(Event::Closed { reason, text });
        self.retry(cx, cause);
    }

    fn on_connect_failed(&mut self, cx: &mut Context<'_>, failure: ConnectFailure) {
        self.handle_failure(cx, failure);
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        let now_ns = now_ns();
        let close_at_ns = self.link.close_at_ns();
        if close_at_ns.is_some_and(|at| at <= now_ns) {
            tracing::debug!("the server took too long to take what waited for it");
            cx.stop_lane();
            return None;
        }
        self.dial_if_due(cx, now_ns);
        if self
            .pending
            .session
            .is_some_and(|session| cx.is_peer_going(session))
        {
            // It would refuse what is new. That waits for the next connection, or fails as without one.
            self.pending.session = None;
        }
        self.resume_if_released(cx);
        cx.set_events_dropped(self.link.events_dropped());
        self.run_submissions(cx);
        self.dialing.note_told();
        // Whoever is woken has the next requests in a moment, and giving the processor up for them once would save ringing
        // this lane: a fifth of what a request costs where nothing else runs. But where something does, all of it runs first,
        // and a round trip took 4 ms in place of 0.1.
        self.complete(cx);
        let waiting_deadline_ns = self.expire_waiting(now_ns);
        let Self {
            pending, listening, ..
        } = self;
        pending.expire(cx, now_ns, |head| {
            if let Some(key) = head.effect.and_then(Effect::subscription) {
                listening.handle_timeout(key);
            }
        });
        self.pending.send_queued(cx);
        self.ask_due(cx);
        self.complete(cx);
        let register_at_ns = self.register_due(cx, now_ns);
        [
            close_at_ns,
            self.dialing.retry_at_ns(),
            waiting_deadline_ns,
            self.pending.next_deadline_ns(),
            register_at_ns,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn has_work(&self) -> bool {
        if self.is_reading_paused && !self.link.holds_reading() {
            return true;
        }
        if self.is_backed_up {
            // What it has seen waits for the socket; what it has not seen may have a deadline before that.
            return self.link.table.has_news();
        }
        self.link.table.is_occupied()
    }
}

impl Drop for ClientService {
    /// The lane ended, in order or not: nobody may wait for ever.
    fn drop(&mut self) {
        self.listening.end();
        // What was answered before the end stays so; all other requests fail by it.
        let completions = &mut self.pending.completions;
        self.link.table.complete(completions);
        completions.wake();
        let error = match self.dialing.is_refused() {
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
