//! Deferred answers, refusals, and answers that wait for earlier ones.

use std::sync::Arc;

use tidewire_proto::body::ErrorBody;
use tidewire_proto::codec::Codec;
use tidewire_proto::connection::PauseReason;
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, Message};

use super::{Context, Current, Deferred, HandlerError, HandlerResult, Ticket};
use crate::broker::{RemoteTicket, StoreQuestion};
use crate::engine::Origin;
use crate::session::{
    CloseReason, NOWHERE, PendingRequests, QueuedReply, SendError, SessionId, encode_within,
};

/// Whether a request asks only whether all before it was handled: it has neither a method nor a payload.
pub(super) fn is_flush(message: &Message<'_>) -> bool {
    message.name.is_empty() && message.channel == 0 && message.payload.is_empty()
}

impl Context<'_> {
    /// Defers the answer to the message being handled. The returned token may go to another thread and answer later.
    /// From now on only the token answers, whatever the handler returns.
    ///
    /// A session with `deferred_per_session_max` unanswered requests is not read until one of them is answered.
    pub fn defer(&mut self) -> Deferred {
        if let Some(ticket) = self.take_remote() {
            self.core.counters.deferred.add(1);
            self.current.deferred = true;
            return Deferred::of_node(ticket);
        }
        let mut token = self.core.sessions.spare_answers.take_token();
        if self.current.named
            && let Some(token) = Arc::get_mut(&mut token)
        {
            token.name.push_str(&self.core.replies.method_name);
        }
        let ordered = !self.codec().format().has_ids();
        let request_id = self.current.id;
        let limit = self.core.config.limits.connections.deferred_max();
        self.core.counters.deferred.add(1);
        let mut position = None;
        if let Some(session) = self.core.sessions.table.find_mut(self.id) {
            let unanswered = session
                .unanswered
                .get_or_insert_with(|| Box::new(PendingRequests::new(ordered)));
            position = unanswered.push(request_id, Arc::clone(&token));
            self.keeps_order = ordered;
            if unanswered.len() >= limit.max(1) {
                session.connection.input_mut().pause(PauseReason::Answers);
                self.stopped = true;
            }
        }
        self.update_fast_reply_limit();
        if position.is_none() {
            // Two replies with one id would be matched at random, and the peer would ignore the answer to this one.
            token.cancel();
            self.end_at_once(CloseReason::RequestIdReused);
        }
        self.current.deferred = true;
        Deferred::new(Ticket {
            shared: Arc::clone(&self.core.shared),
            token,
            lane: self.core.exchange.lane,
            session: self.id,
            position: position.unwrap_or(NOWHERE),
            current: self.current,
            frame_bytes_max: self.frame_bytes_max,
        })
    }

    /// Answers when all that the session has sent before is stored; at once if no message is stored later than it is handled.
    pub(super) fn reply_when_stored(&mut self) -> HandlerResult {
        if !self.core.exchange.stores_later() {
            return self.reply(&[]);
        }
        let question = StoreQuestion::new(self.defer());
        self.core.exchange.ask_stored(self.id, question);
        Ok(())
    }

    /// Sends a reply that repeats the method's name, or that waits for earlier ones. It is out of line to keep the
    /// common path short.
    #[cold]
    #[inline(never)]
    pub(crate) fn reply_apart(&mut self, payload: &[u8]) -> Result<(), SendError> {
        if let Some(ticket) = self.take_remote() {
            return Ok(ticket.reply(payload)?);
        }
        let name = std::mem::take(&mut self.core.replies.method_name);
        let called = if self.current.named { &name[..] } else { "" };
        let message = self.current.answer(called, payload);
        let sent = if self.keeps_order {
            self.reply_in_order(|context, out| {
                let limit = context.frame_bytes_max;
                encode_within(limit, out, |out| context.codec().encode(&message, out))
            })
        } else {
            self.send(message)
        };
        self.core.replies.method_name = name;
        sent
    }

    /// Counts a refused message and, if it was a request, answers it with the error.
    #[cold]
    #[inline(never)]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "so that it is freed here and not in the lane's loop"
    )]
    pub(crate) fn refuse(&mut self, error: HandlerError) {
        self.core.counters.refused.add(1);
        if let Some(cause) = error.cause() {
            self.note_failure(cause);
        }
        if let Some(ticket) = self.take_remote() {
            return ticket.refuse(error.code(), error.text());
        }
        let has_ids = self.codec().format().has_ids();
        // A token answers by itself, even when it is dropped.
        if self.current.deferred || !self.current.wants_refusal(has_ids) {
            return;
        }
        let name = std::mem::take(&mut self.core.replies.method_name);
        let request = self
            .current
            .request(if self.current.named { &name } else { "" });
        let body = ErrorBody {
            code: error.code(),
            text: error.text(),
        };
        let sent = if self.keeps_order {
            self.reply_in_order(|context, out| context.codec().encode_error(&request, &body, out))
        } else {
            self.send_framed(|codec, out| codec.encode_error(&request, &body, out))
        };
        self.core.replies.method_name = name;
        if let Err(error) = sent {
            tracing::trace!(session = %self.id, %error, "cannot send a refusal");
            if !has_ids {
                tracing::debug!(session = %self.id, "the codec cannot express a refusal, so the session ends");
                // Replies match requests by their order. Without this one, all later replies would be matched to the
                // wrong requests.
                self.end_in_order();
            }
        }
    }

    /// Takes the duty to answer the request of another node, if this call handles one.
    #[inline]
    fn take_remote(&mut self) -> Option<RemoteTicket> {
        match self.id == SessionId::NONE {
            true => self.core.replies.remote.take(),
            false => None,
        }
    }

    /// Frames an answer and puts it after the earlier ones.
    fn reply_in_order(
        &mut self,
        encode: impl FnOnce(&Self, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        let mut frame = self.core.sessions.spare_answers.take_frame();
        if let Err(error) = encode(self, &mut frame) {
            self.core.sessions.spare_answers.put_frame(frame);
            return Err(error.into());
        }
        self.queue_reply(QueuedReply::Answered(frame));
        Ok(())
    }

    pub(crate) fn end_at_once(&mut self, reason: CloseReason) {
        self.stopped = true;
        if let Some(slot) = self.core.sessions.table.slot_of(self.id) {
            self.core.sessions.table.close(slot, reason);
        }
    }

    /// Ends the session after the earlier requests have been answered.
    fn end_in_order(&mut self) {
        if self.keeps_order {
            self.stopped = true;
            self.queue_reply(QueuedReply::Inexpressible);
        } else {
            self.close();
        }
    }

    fn queue_reply(&mut self, reply: QueuedReply) {
        let Some(session) = self.core.sessions.table.find_mut(self.id) else {
            return;
        };
        let ends = matches!(reply, QueuedReply::Inexpressible);
        if let Some(unanswered) = session.unanswered.as_deref_mut() {
            unanswered.queue_reply(reply);
            if ends || unanswered.is_full(&self.core.config.limits) {
                session.connection.input_mut().pause(PauseReason::Answers);
                self.stopped = true;
            }
        }
    }

    /// Keeps the name of the called method, which codecs repeat in replies.
    pub(crate) fn remember_name(&mut self, name: &str) {
        self.current.named = true;
        self.core.replies.method_name.clear();
        self.core.replies.method_name.push_str(name);
    }
}

/// The value of [`Context::current`] before any message.
pub(crate) const NO_MESSAGE: Current = Current {
    origin: Origin::new(Kind::OneWay, 0),
    id: 0,
    named: false,
    deferred: false,
};
