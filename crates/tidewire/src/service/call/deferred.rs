//! Answers that come later: from a worker, another thread, or an async task.
//!
//! A handler that cannot answer at once takes [`Context::defer`](crate::Context::defer), a token of the request that
//! may go to any thread. The holder frames the answer and puts it into the mailbox of the session's lane. It wakes
//! the lane only if the lane sleeps. A token that is dropped without an answer, for example by a worker that
//! panicked, answers with an error, so that every caller gets an answer.
//!
//! The mailbox type has no bound, but the number of answers has: every answer has a token, and a session with too
//! many tokens is not read. With a bounded mailbox a lane would have to wait for another one, or for itself when a
//! handler answers its own token. Frames and tokens are reused, so a steady flow of deferred answers allocates
//! nothing.
//!
//! Rejected: answering through [`Context::send_to`](crate::Context::send_to) of another session's context, because only
//! lanes have a context, and codecs without ids need the order kept. Rejected: a boxed future for each request, because
//! it needs an allocation and a scheduler where a queue is enough.

use std::sync::Arc;

use tidewire_proto::body::{ErrorBody, ErrorCode};
use tidewire_proto::codec::{AnyCodec, Codec};

use super::{CallState, Current};
use crate::broker::{NotStored, RemoteTicket, StoreAnswer};
use crate::config::CodecNumber;
use crate::engine::{Core, ServerShared};
use crate::mailbox::LaneMessage;
use crate::session::{
    Answer, CloseReason, Content, NOWHERE, SendError, SessionId, Token, encode_within,
};

/// A token that answers one request later, from any thread.
///
/// A token that is dropped without an answer answers with [`ErrorCode::Internal`].
///
/// ```
/// use std::thread;
/// use tidewire::Client;
///
/// let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| {
///     let (deferred, payload) = (cx.defer(), message.payload.to_vec());
///     thread::spawn(move || deferred.reply(&payload.to_ascii_uppercase()));
///     Ok(())
/// })?;
/// let client = Client::connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"hello").wait()?.payload(), b"HELLO");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping it answers the request with an error"]
pub struct Deferred {
    duty: Option<Duty>,
}

/// The request that a token answers.
#[derive(Debug)]
enum Duty {
    /// A request of a session of this server.
    Session(Ticket),
    /// A request of another node.
    Node(RemoteTicket),
}

#[derive(Debug)]
struct Ticket {
    shared: Arc<ServerShared>,
    token: Arc<Token>,
    lane: usize,
    session: SessionId,
    codec: CodecNumber,
    /// The position of the request among the unanswered ones of its session.
    position: u64,
    current: Current,
    /// Largest frame that both sides accept.
    frame_bytes_max: usize,
}

impl Deferred {
    /// Returns the session that waits for the answer. It is [`SessionId::NONE`] for a request of another node.
    #[must_use]
    pub fn session(&self) -> SessionId {
        match &self.duty {
            Some(Duty::Session(ticket)) => ticket.session,
            _ => SessionId::NONE,
        }
    }

    /// Whether the answer is no longer needed: the caller cancelled the request, or its session ended. The check is
    /// cheap enough for the middle of a long calculation. An answer to a cancelled request is dropped and counted.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        match &self.duty {
            Some(Duty::Session(ticket)) => ticket.token.is_cancelled(),
            Some(Duty::Node(ticket)) => ticket.is_cancelled(),
            None => true,
        }
    }

    /// Answers the request, as [`Context::reply`](crate::Context::reply) does. `Ok` means that the answer is in the
    /// mailbox of the session's lane. If the session has ended when the lane takes it, the answer is counted in
    /// `deferred_undelivered`.
    ///
    /// # Errors
    /// [`SendError::Encode`] if the payload does not fit a frame of the codec. The caller gets an error instead.
    pub fn reply(mut self, payload: &[u8]) -> Result<(), SendError> {
        match self.duty.take() {
            Some(Duty::Session(ticket)) => ticket.reply(payload),
            Some(Duty::Node(ticket)) => Ok(ticket.reply(payload)?),
            None => Ok(()),
        }
    }

    /// Answers the request with an error: a code for programs, a text for people.
    pub fn refuse(mut self, code: ErrorCode, text: &str) {
        self.end(code, text);
    }

    fn end(&mut self, code: ErrorCode, text: &str) {
        match self.duty.take() {
            Some(Duty::Session(ticket)) => ticket.refuse(code, text),
            Some(Duty::Node(ticket)) => ticket.refuse(code, text),
            None => {}
        }
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.end(ErrorCode::Internal, DROPPED);
    }
}

impl StoreAnswer for Deferred {
    fn is_cancelled(&self) -> bool {
        Self::is_cancelled(self)
    }

    fn end(self: Box<Self>, outcome: Result<(), NotStored>) {
        match outcome {
            Ok(()) => {
                if let Err(error) = self.reply(&[]) {
                    tracing::debug!(%error, "a confirmation cannot be sent");
                }
            }
            Err(error) => self.refuse(ErrorCode::Internal, &error.to_string()),
        }
    }
}

impl CallState {
    /// Takes the duty to answer the message being handled; see [`Context::defer`](crate::Context::defer).
    pub(in crate::service) fn defer(&mut self, core: &mut Core) -> Deferred {
        if let Some(ticket) = self.take_remote(core) {
            core.counters.deferred.add(1);
            self.current.deferred = true;
            return Deferred {
                duty: Some(Duty::Node(ticket)),
            };
        }
        let mut token = core.sessions.spare_answers.take_token();
        if self.current.named
            && let Some(token) = Arc::get_mut(&mut token)
        {
            token.set_name(&core.replies.method_name);
        }
        let ordered = !core.config.codecs.get(self.codec).format().has_ids();
        let request_id = self.current.id;
        core.counters.deferred.add(1);
        let mut position = None;
        if let Some(session) = core.sessions.table.find_mut(self.id) {
            let limits = &core.config.limits;
            position = session.defer(request_id, Arc::clone(&token), ordered, limits);
            self.keeps_order = ordered;
            self.stopped |= session.awaits_answers();
        }
        self.update_fast_reply_limit(&core.sessions);
        if position.is_none() {
            // Two replies with one id would be matched at random, and the peer would ignore the answer to this one.
            token.cancel();
            self.stopped = true;
            if let Some(slot) = core.sessions.table.slot_of(self.id) {
                core.sessions
                    .table
                    .close(slot, CloseReason::RequestIdReused);
            }
        }
        self.current.deferred = true;
        let ticket = Ticket {
            shared: Arc::clone(&core.shared),
            token,
            lane: core.exchange.lane(),
            session: self.id,
            codec: self.codec,
            position: position.unwrap_or(NOWHERE),
            current: self.current,
            frame_bytes_max: self.frame_bytes_max,
        };
        Deferred {
            duty: Some(Duty::Session(ticket)),
        }
    }
}

impl Ticket {
    fn codec(&self) -> &AnyCodec {
        self.shared.config.codecs.get(self.codec)
    }

    fn reply(self, payload: &[u8]) -> Result<(), SendError> {
        let mut frame = self.shared.spare_frames.take();
        let message = self.current.answer(self.token.name(), payload);
        let encoded = encode_within(self.frame_bytes_max, &mut frame, |out| {
            self.codec().encode(&message, out)
        });
        match encoded {
            Ok(()) => {
                self.post(Content::Frame(frame));
                Ok(())
            }
            Err(error) => {
                self.shared.spare_frames.put(frame);
                self.refuse(ErrorCode::Internal, &error.to_string());
                Err(SendError::Encode(error))
            }
        }
    }

    fn refuse(self, code: ErrorCode, text: &str) {
        let codec = self.codec();
        if !self.current.wants_refusal(codec.format().has_ids()) {
            return self.post(Content::Nothing);
        }
        let mut frame = self.shared.spare_frames.take();
        let request = self.current.request(self.token.name());
        let content = match codec.encode_error(&request, &ErrorBody { code, text }, &mut frame) {
            Ok(()) => Content::Frame(frame),
            Err(error) => {
                tracing::trace!(session = %self.session, %error, "cannot send a refusal");
                if codec.format().has_ids() {
                    Content::Nothing
                } else {
                    tracing::debug!(session = %self.session, "the codec cannot express a refusal, so the session ends");
                    Content::Inexpressible
                }
            }
        };
        self.post(content);
    }

    fn post(self, content: Content) {
        let lanes = self.shared.lanes.all();
        if let Some(lane) = lanes.get(self.lane) {
            let answer = Answer::new(self.session, self.position, self.token, content);
            if let Err(message) = lane.post(LaneMessage::Answer(answer)) {
                lane.count_undelivered(&message);
            }
        }
    }
}

/// The text of the error that the caller gets when a token was dropped.
const DROPPED: &str = "the request was given up without an answer";
