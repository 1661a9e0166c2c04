//! Deferred answers, refusals, and answers that wait for earlier ones.

use tidewire_proto::body::ErrorBody;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use super::CallState;
use crate::broker::{RemoteTicket, StoreQuestion};
use crate::engine::{Core, Replies};
use crate::service::{HandlerError, HandlerResult};
use crate::session::{QueuedReply, SendError, SessionId, encode_within};

/// Whether a request asks only whether all before it was handled: it has neither a method nor a payload.
pub(in crate::service) fn is_flush(message: &Message<'_>) -> bool {
    message.name.is_empty() && message.channel == 0 && message.payload.is_empty()
}

impl CallState {
    /// Answers when all that the session has sent before is stored; at once if no message is stored later than it is
    /// handled.
    pub(in crate::service) fn reply_when_stored(&mut self, core: &mut Core) -> HandlerResult {
        if !core.exchange.stores_later() {
            return self.reply(core, &[]);
        }
        let question = StoreQuestion::new(self.defer(core));
        core.exchange.ask_stored(self.id, question);
        Ok(())
    }

    /// Sends a reply that repeats the method's name, or that waits for earlier ones. It is out of line to keep the
    /// common path short.
    #[cold]
    #[inline(never)]
    pub(super) fn reply_apart(&mut self, core: &mut Core, payload: &[u8]) -> Result<(), SendError> {
        if let Some(ticket) = self.take_remote(core) {
            return Ok(ticket.reply(payload)?);
        }
        let name = std::mem::take(&mut core.replies.method_name);
        let called = if self.current.named { &name[..] } else { "" };
        let message = self.current.answer(called, payload);
        let sent = if self.keeps_order {
            let limit = self.frame_bytes_max;
            self.reply_in_order(core, |codec, out| {
                encode_within(limit, out, |out| codec.encode(&message, out))
            })
        } else {
            self.send(core, &message)
        };
        core.replies.method_name = name;
        sent
    }

    /// Counts a refused message and, if it was a request, answers it with the error.
    #[cold]
    #[inline(never)]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "so that it is freed here and not in the lane's loop"
    )]
    pub(crate) fn refuse(&mut self, core: &mut Core, error: HandlerError) {
        core.counters.refused.add(1);
        if let Some(cause) = error.cause() {
            core.note_failure(self.id, cause);
        }
        if let Some(ticket) = self.take_remote(core) {
            return ticket.refuse(error.code(), error.text());
        }
        let has_ids = core.config.codecs.get(self.codec).format().has_ids();
        // A token answers by itself, even when it is dropped.
        if self.current.deferred || !self.current.wants_refusal(has_ids) {
            return;
        }
        let name = std::mem::take(&mut core.replies.method_name);
        let request = self
            .current
            .request(if self.current.named { &name } else { "" });
        let body = ErrorBody {
            code: error.code(),
            text: error.text(),
        };
        let sent = if self.keeps_order {
            self.reply_in_order(core, |codec, out| codec.encode_error(&request, &body, out))
        } else {
            self.send_framed(&mut core.sessions, |codec, out| {
                codec.encode_error(&request, &body, out)
            })
        };
        core.replies.method_name = name;
        if let Err(error) = sent {
            tracing::trace!(session = %self.id, %error, "cannot send a refusal");
            if !has_ids {
                tracing::debug!(session = %self.id, "the codec cannot express a refusal, so the session ends");
                // Replies match requests by their order. Without this one, all later replies would be matched to the
                // wrong requests.
                self.end_in_order(core);
            }
        }
    }

    /// Takes the duty to answer the request of another node, if this call handles one.
    #[inline]
    pub(super) fn take_remote(&self, core: &mut Core) -> Option<RemoteTicket> {
        match self.id == SessionId::NONE {
            true => core.replies.remote.take(),
            false => None,
        }
    }

    /// Frames an answer and puts it after the earlier ones.
    fn reply_in_order(
        &mut self,
        core: &mut Core,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        let mut frame = core.sessions.spare_answers.take_frame();
        if let Err(error) = encode(core.config.codecs.get(self.codec), &mut frame) {
            core.sessions.spare_answers.put_frame(frame);
            return Err(error.into());
        }
        self.queue_reply(core, QueuedReply::Answered(frame));
        Ok(())
    }

    /// Ends the session after the earlier requests have been answered.
    fn end_in_order(&mut self, core: &mut Core) {
        if self.keeps_order {
            self.stopped = true;
            self.queue_reply(core, QueuedReply::Inexpressible);
        } else {
            self.end_session(&mut core.sessions, self.id, None);
        }
    }

    fn queue_reply(&mut self, core: &mut Core, reply: QueuedReply) {
        if let Some(session) = core.sessions.table.find_mut(self.id) {
            session.queue_reply(reply, &core.config.limits);
            self.stopped |= session.awaits_answers();
        }
    }

    /// Keeps the name of the called method, which codecs repeat in replies.
    pub(crate) fn remember_name(&mut self, replies: &mut Replies, name: &str) {
        self.current.named = true;
        replies.method_name.clear();
        replies.method_name.push_str(name);
    }
}
