//! The requests about rooms and subscriptions.

use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_proto::body::SubscribeBody;
use tidewire_proto::codec::Codec;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{FLAG_POSITION, Kind, Message};

use super::{Holdings, Opening, Step};
use crate::client::effect::{Effect, HoldingKey};
use crate::client::error::RequestError;
use crate::client::pending::Pending;
use crate::client::submissions::{RequestHead, WhenWindowFull};
use crate::limits::nanoseconds;
use crate::service::Context;
use crate::session::SessionId;

impl Holdings {
    /// Sends the application's request to join a room or to subscribe.
    pub(in crate::client) fn open(
        &mut self,
        cx: &mut Context<'_>,
        pending: &mut Pending,
        opening: Opening,
    ) {
        // Requests about other subscriptions came earlier and may wait for room in the window. They go first.
        self.ask_due(cx, pending);
        let (key, kind) = (self.entry_for(&opening), opening.kind);
        let step = Step {
            key,
            kind,
            channel: 0,
        };
        let Err(error) = self.ask(cx, pending, step, Some(&opening)) else {
            return;
        };
        self.entries[key].queue = None;
        self.settle(key);
        match error {
            RequestError::WindowFull if opening.when_full == WhenWindowFull::Wait => {
                self.waiting.push(opening);
            }
            error => pending.completions.fail(Some(opening.slot), error),
        }
    }

    /// Sends the requests that are due, and those that wait for room in the window. Registers again before the server
    /// forgets the client. Returns when to call again.
    pub(in crate::client) fn run_turn(
        &mut self,
        cx: &mut Context<'_>,
        pending: &mut Pending,
        now_ns: u64,
    ) -> Option<u64> {
        self.ask_due(cx, pending);
        for opening in std::mem::take(&mut self.waiting) {
            match opening.deadline_ns <= now_ns {
                true => {
                    let slot = Some(opening.slot);
                    pending.completions.fail(slot, RequestError::TimedOut);
                }
                false => self.open(cx, pending, opening),
            }
        }
        let registers = !self.entries.is_empty()
            && pending.session.is_some()
            && cx.codec().format().registers_subscribers;
        if registers
            && self.register_at_ns <= now_ns
            && let Err(error) = self.register(cx, pending)
        {
            tracing::debug!(%error, "cannot register again now");
        }
        let waiting = self.waiting.iter().map(|opening| opening.deadline_ns);
        waiting
            .chain(registers.then_some(self.register_at_ns))
            .min()
    }

    /// Sends the requests that are due and have no caller.
    pub(in crate::client) fn ask_due(&mut self, cx: &mut Context<'_>, pending: &mut Pending) {
        while pending.session.is_some()
            && let Some(step) = self.next_step()
        {
            if let Err(error) = self.ask(cx, pending, step, None) {
                // The window or the queue is full. A later turn tries again.
                tracing::debug!(%error, "cannot send a request about a subscription now; a later turn tries again");
                self.due.push(step.key);
                return;
            }
        }
    }

    fn ask(
        &mut self,
        cx: &mut Context<'_>,
        pending: &mut Pending,
        step: Step,
        opening: Option<&Opening>,
    ) -> Result<(), RequestError> {
        let Step { key, kind, channel } = step;
        let slot = opening.map(|opening| opening.slot);
        if cx.codec().format().registers_subscribers && kind != Kind::Join {
            if kind == Kind::Subscribe {
                let body = SubscribeBody::decode(&self.entries[key].body);
                if body.is_ok_and(|body| body.group.is_some()) {
                    // A registration gets every message.
                    let codec = cx.codec().name();
                    return Err(EncodeError::Unsupported { codec, kind }.into());
                }
                self.register(cx, pending)?;
            }
            // The server knows of no single subscription, so it refuses none.
            let _ = self.handle_answer(key, kind, Ok(0), None);
            let completions = &mut pending.completions;
            self.link.table.reply(completions, slot, 0, &[]);
            return Ok(());
        }
        let (mut body, mut flags) = (Vec::new(), 0);
        if kind != Kind::Unsubscribe {
            let entry = &self.entries[key];
            let since = opening.and_then(|opening| opening.since).or(entry.since());
            if let Some(since) = since.filter(|_| knows_positions(cx, pending.session)) {
                since.encode(&mut body);
                flags = FLAG_POSITION;
            }
            body.extend_from_slice(opening.map_or(&entry.body, |opening| &opening.body));
        }
        let deadline_ns = match opening {
            Some(opening) => opening.deadline_ns,
            // No deadline while reading may be paused, because the reply may be there unread.
            None if kind == Kind::Subscribe && self.link.may_hold_reading() => u64::MAX,
            None => now_ns().saturating_add(nanoseconds(ASK_TIMEOUT)),
        };
        let head = RequestHead {
            slot,
            kind,
            channel,
            deadline_ns,
            idempotent: false,
            when_full: WhenWindowFull::Refuse,
            effect: Some(Effect::Holding {
                key: HoldingKey::new(key),
            }),
            is_given_up: false,
        };
        pending.send_one(cx, &head, flags, &body)?;
        self.entries[key].pending += 1;
        Ok(())
    }

    /// Registers for all messages, with a codec whose subscribers do.
    fn register(
        &mut self,
        cx: &mut Context<'_>,
        pending: &mut Pending,
    ) -> Result<(), RequestError> {
        let Some(session) = pending.session else {
            return Err(pending.not_connected());
        };
        self.register_at_ns = now_ns().saturating_add(nanoseconds(REGISTER_INTERVAL));
        let registration = Message::new(Kind::Subscribe, 0, &[]);
        Ok(cx.send_to(session, &registration)?)
    }
}

/// Whether the server of this session takes positions.
fn knows_positions(cx: &Context<'_>, session: Option<SessionId>) -> bool {
    let session = session.and_then(|session| cx.core.sessions.table.find(session));
    session.is_some_and(|session| session.connection.handshake().knows_positions())
}

/// Timeout for the server's reply when the client requests a subscription again.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of registrations. A server forgets a client after a minute, so several registrations may be lost.
const REGISTER_INTERVAL: Duration = Duration::from_secs(15);
