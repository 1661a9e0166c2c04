//! Deferred answers: they come back from other threads into their sessions.
//!
//! Where replies carry ids, an answer is sent when it comes. Otherwise the caller matches replies by their order, so
//! each session has a queue of replies. A later request that is answered at once also waits in this queue, while an
//! earlier request is unanswered. The session is not read while its queue is full.

use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use slab::Slab;
use tidewire_proto::connection::{Inbound, PauseReason};

use super::answer::{Content, Token};
use super::{CloseReason, LaneSessions, Session, SessionId};
use crate::limits::Limits;

/// The requests of a session that are not answered yet.
#[derive(Debug)]
pub(super) enum PendingRequests {
    /// Replies carry ids.
    Unordered {
        entries: Slab<Entry>,
        /// The entries of pending requests by their ids. The peer chooses the ids, and a hash map avoids a walk over
        /// all entries that the peer could make long.
        live: HashMap<u32, usize>,
    },
    /// Replies are matched by their order.
    Ordered {
        queue: VecDeque<QueuedReply>,
        /// The position of the first entry, counted over the life of the session.
        first: u64,
        /// Memory of the answers in the queue.
        bytes: usize,
    },
}

#[derive(Debug)]
pub(super) struct Entry {
    request_id: u32,
    token: Arc<Token>,
}

#[derive(Debug)]
pub(crate) enum QueuedReply {
    /// A token is out: the answer comes later.
    Deferred(Arc<Token>),
    /// Answered, but an earlier request is not.
    Answered(Vec<u8>),
    /// Refused, and the codec cannot express refusals.
    Inexpressible,
}

impl PendingRequests {
    fn new(ordered: bool) -> Self {
        if ordered {
            Self::Ordered {
                queue: VecDeque::new(),
                first: 0,
                bytes: 0,
            }
        } else {
            Self::Unordered {
                entries: Slab::new(),
                live: HashMap::new(),
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Unordered { entries, .. } => entries.len(),
            Self::Ordered { queue, .. } => queue.len(),
        }
    }

    /// Whether a request with this id is not answered yet.
    pub(super) fn has(&self, request_id: u32) -> bool {
        match self {
            Self::Unordered { live, .. } => live.contains_key(&request_id),
            Self::Ordered { .. } => false,
        }
    }

    /// Adds a request that is answered later and returns its position. `None` if another pending request has its id.
    fn push(&mut self, request_id: u32, token: Arc<Token>) -> Option<u64> {
        match self {
            Self::Unordered { entries, live } => {
                let key = entries.vacant_key();
                // Requests with id 0 expect no reply, so many may have it.
                if request_id != 0 {
                    match live.entry(request_id) {
                        Occupied(_) => return None,
                        Vacant(vacant) => drop(vacant.insert(key)),
                    }
                }
                entries.insert(Entry { request_id, token });
                Some(key as u64)
            }
            Self::Ordered { queue, first, .. } => {
                queue.push_back(QueuedReply::Deferred(token));
                Some(*first + queue.len() as u64 - 1)
            }
        }
    }

    /// Adds a reply to the queue, if replies have an order.
    fn queue_reply(&mut self, reply: QueuedReply) {
        if let Self::Ordered { queue, bytes, .. } = self {
            *bytes += reply.held_bytes();
            queue.push_back(reply);
        }
    }

    /// Memory of the answers in the queue.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Unordered { .. } => 0,
            Self::Ordered { bytes, .. } => *bytes,
        }
    }

    /// Whether reading must pause until some requests are answered: there are too many, the queue holds too many bytes,
    /// or the session ends after the answers.
    fn must_wait(&self, limits: &Limits) -> bool {
        self.len() >= limits.connections.deferred_max()
            || self.held_bytes() > limits.connections.queue_bytes_max()
            || self.is_ending()
    }

    /// Whether the session ends after the answers to earlier requests.
    fn is_ending(&self) -> bool {
        match self {
            Self::Unordered { .. } => false,
            Self::Ordered { queue, .. } => matches!(queue.back(), Some(QueuedReply::Inexpressible)),
        }
    }

    /// Gives up the unanswered requests at the end of the queue. Returns whether answers remain in front of them. If
    /// so, the queue ends at the first request given up, because the caller would take a later answer for the answer to
    /// that request.
    fn give_up_after_answers(&mut self) -> bool {
        match self {
            Self::Unordered { .. } => false,
            Self::Ordered { queue, .. } => {
                let before = queue.len();
                while let Some(QueuedReply::Deferred(token)) = queue.back() {
                    token.cancel();
                    queue.pop_back();
                }
                if queue.is_empty() {
                    return false;
                }
                if queue.len() < before {
                    queue.push_back(QueuedReply::Inexpressible);
                }
                true
            }
        }
    }

    /// Takes the answer to a request. Returns a frame that goes to the output now. Gives the answer back if it is not
    /// wanted.
    fn resolve(
        &mut self,
        position: u64,
        token: &Token,
        content: Content,
    ) -> Result<Option<Vec<u8>>, Content> {
        match self {
            Self::Unordered { entries, live } => {
                let key = usize::try_from(position).ok();
                let entry = key.and_then(|key| entries.try_remove(key));
                // A cancelled request has given up its id.
                let Some(entry) = entry.filter(|_| !token.is_cancelled()) else {
                    return Err(content);
                };
                // Its id may belong to a later request, if the peer cancelled this one.
                if live.get(&entry.request_id).copied() == key {
                    live.remove(&entry.request_id);
                }
                Ok(match content {
                    Content::Frame(frame) => Some(frame),
                    Content::Nothing | Content::Inexpressible => None,
                })
            }
            Self::Ordered {
                queue,
                first,
                bytes,
            } => {
                let index = usize::try_from(position.wrapping_sub(*first)).ok();
                let entry = index.and_then(|index| queue.get_mut(index));
                // The token of a cancelled request may have an index that another request uses now.
                let Some(waiting) = entry.filter(|_| !token.is_cancelled()) else {
                    return Err(content);
                };
                *waiting = match content {
                    Content::Frame(frame) => QueuedReply::Answered(frame),
                    Content::Nothing => QueuedReply::Answered(Vec::new()),
                    Content::Inexpressible => QueuedReply::Inexpressible,
                };
                *bytes += waiting.held_bytes();
                Ok(None)
            }
        }
    }

    /// Takes the reply at the front of the queue, if no earlier request waits for its answer.
    fn take_ready(&mut self) -> Option<QueuedReply> {
        let Self::Ordered {
            queue,
            first,
            bytes,
        } = self
        else {
            return None;
        };
        if let QueuedReply::Deferred(_) = queue.front()? {
            return None;
        }
        *first += 1;
        let reply = queue.pop_front()?;
        *bytes -= reply.held_bytes();
        Some(reply)
    }

    /// Calls `visit` for every token that is out.
    fn tokens(&self, mut visit: impl FnMut(&Token)) {
        match self {
            Self::Unordered { entries, .. } => {
                entries.iter().for_each(|(_, entry)| visit(&entry.token));
            }
            Self::Ordered { queue, .. } => {
                for reply in queue {
                    if let QueuedReply::Deferred(token) = reply {
                        visit(token);
                    }
                }
            }
        }
    }
}

impl QueuedReply {
    fn held_bytes(&self) -> usize {
        match self {
            Self::Answered(frame) => frame.capacity(),
            Self::Deferred(_) | Self::Inexpressible => 0,
        }
    }
}

impl Session {
    /// Number of requests that were read and not answered yet.
    #[inline]
    pub(crate) fn unanswered_count(&self) -> usize {
        self.unanswered
            .as_ref()
            .map_or(0, |unanswered| unanswered.len())
    }

    /// Whether an immediate reply must wait for earlier ones.
    pub(crate) fn must_keep_order(&self) -> bool {
        matches!(
            self.unanswered.as_deref(),
            Some(PendingRequests::Ordered { queue, .. }) if !queue.is_empty()
        )
    }

    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Whether reading waits for answers.
    pub(crate) fn awaits_answers(&self) -> bool {
        self.connection.input().is_paused_by(PauseReason::Answers)
    }

    /// Adds a request that is answered later and returns its position. `None` if another pending request has its id.
    pub(crate) fn defer(
        &mut self,
        request_id: u32,
        token: Arc<Token>,
        ordered: bool,
        limits: &Limits,
    ) -> Option<u64> {
        let unanswered = self
            .unanswered
            .get_or_insert_with(|| Box::new(PendingRequests::new(ordered)));
        let position = unanswered.push(request_id, token);
        self.pause_for_answers(limits);
        position
    }

    /// Adds a reply after those that earlier requests wait for.
    pub(crate) fn queue_reply(&mut self, reply: QueuedReply, limits: &Limits) {
        if let Some(unanswered) = self.unanswered.as_deref_mut() {
            unanswered.queue_reply(reply);
            self.pause_for_answers(limits);
        }
    }

    /// Pauses reading if too many requests wait, or if the session ends after their answers.
    fn pause_for_answers(&mut self, limits: &Limits) {
        let unanswered = self.unanswered.as_deref();
        if unanswered.is_some_and(|unanswered| unanswered.must_wait(limits)) {
            self.connection.input_mut().pause(PauseReason::Answers);
        }
    }

    /// Cancels a request whose caller does not want the answer any more.
    pub(crate) fn cancel_request(&mut self, request_id: u32) {
        if let Some(PendingRequests::Unordered { entries, live }) = self.unanswered.as_deref_mut()
            // The caller has given the id up and may reuse it. Id 0 is no request's, so it is never here.
            && let Some(key) = live.remove(&request_id)
            && let Some(entry) = entries.get(key)
        {
            entry.token.cancel();
        }
    }

    /// Cancels all requests, so that the holders of their tokens see that no answer is wanted.
    pub(super) fn cancel_requests(&mut self) {
        if let Some(unanswered) = self.unanswered.take() {
            unanswered.tokens(Token::cancel);
        }
    }

    /// Prepares the end of the session: gives up its unanswered requests, except those before answers in the queue.
    pub(super) fn keep_answered(&mut self) {
        let unanswered = self.unanswered.as_deref_mut();
        if !unanswered.is_some_and(PendingRequests::give_up_after_answers) {
            self.cancel_requests();
        }
    }
}

/// A deferred answer that returns to its lane.
#[derive(Debug)]
pub(crate) struct Answer {
    session: SessionId,
    position: u64,
    token: Arc<Token>,
    content: Content,
}

impl Answer {
    pub(crate) fn new(
        session: SessionId,
        position: u64,
        token: Arc<Token>,
        content: Content,
    ) -> Self {
        Self {
            session,
            position,
            token,
            content,
        }
    }

    /// Memory of its frame.
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.content {
            Content::Frame(frame) => frame.capacity(),
            Content::Nothing | Content::Inexpressible => 0,
        }
    }
}

impl LaneSessions {
    /// Delivers a deferred answer to its session.
    pub(crate) fn deliver_answer(&mut self, answer: Answer) {
        let Answer {
            session,
            position,
            token,
            content,
        } = answer;
        let slot = self.table.slot_of(session);
        let unanswered = slot.and_then(|slot| self.table[slot].unanswered.as_deref_mut());
        let resolved = match unanswered {
            Some(unanswered) => unanswered.resolve(position, &token, content),
            None => Err(content),
        };
        match (slot, resolved) {
            (Some(slot), Ok(frame)) => {
                if let Some(frame) = frame {
                    self.append_frame(slot, frame);
                }
                while let Some(unanswered) = self.table[slot].unanswered.as_deref_mut()
                    && let Some(reply) = unanswered.take_ready()
                {
                    if let QueuedReply::Answered(frame) = reply {
                        self.append_frame(slot, frame);
                    } else {
                        // The caller would take later answers for the missing one.
                        self.table[slot].cancel_requests();
                        self.finish(slot, CloseReason::Service, None);
                    }
                }
                self.counters.deferred_answered.add(1);
            }
            (_, Ok(_)) => {}
            (_, Err(content)) => {
                self.spare_answers.put_content(content);
                self.counters.deferred_undelivered.add(1);
            }
        }
        if let Some(slot) = slot {
            self.handle_answered(slot);
        }
        self.spare_answers.put_token(token);
    }

    /// Appends a frame to a session's output and keeps its buffer for reuse.
    pub(crate) fn append_frame(&mut self, slot: usize, frame: Vec<u8>) {
        self.bring_forward(slot);
        self.outputs.append_frames(slot, &frame);
        self.spare_answers.put_frame(frame);
        self.outputs.list(slot);
    }

    /// Resumes reading after an answer, and continues an end that waited for it.
    fn handle_answered(&mut self, slot: usize) {
        let session = &self.table[slot];
        let waiting = session.unanswered_count();
        let limits = &self.config.limits;
        let unanswered = session.unanswered.as_deref();
        let must_wait = unanswered.is_some_and(|unanswered| unanswered.must_wait(limits));
        if !must_wait {
            self.table.resume(slot, PauseReason::Answers);
        }
        if waiting == 0 {
            self.outputs.list(slot);
        }
        // A peer that does not take its answers is not read, as after immediate replies.
        let is_full = self.outputs.is_full(slot);
        let connection = &mut self.table[slot].connection;
        if is_full && connection.input().state() != Inbound::Ended && !connection.is_closed() {
            connection.input_mut().pause(PauseReason::Output);
            self.counters.reads_paused.add(1);
            self.update_interest(slot);
        }
    }
}

/// A position for an answer that is not wanted.
pub(crate) const NOWHERE: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use tidewire_proto::message::{Kind, Message};

    use crate::lane::lane;
    use crate::server::Server;

    /// Regression: a cancel walked all pending requests of its session, and one with id 0 cancelled all messages
    /// without an id.
    #[test]
    fn a_cancel_ends_the_request_with_its_id_and_no_other() {
        let mut lane = lane(&Server::builder());
        let (slot, _far) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let defer = |lane: &mut crate::lane::Lane<_>, number| {
            let mut cx = lane.core.context(id);
            cx.call
                .begin(&Message::with_id(Kind::Request, 0, number, &[]));
            cx.defer()
        };
        let [quiet, first, other] = [0, 7, 8].map(|number| defer(&mut lane, number));
        lane.core.sessions[slot].cancel_request(0);
        lane.core.sessions[slot].cancel_request(9);
        assert!(!quiet.is_cancelled() && !first.is_cancelled());
        lane.core.sessions[slot].cancel_request(7);
        assert!(first.is_cancelled() && !other.is_cancelled() && !quiet.is_cancelled());

        // The peer uses the id again before the cancelled request is answered.
        let second = defer(&mut lane, 7);
        first.reply(b"late").unwrap();
        lane.turn();
        assert_eq!(lane.core.counters.deferred_undelivered.read(), 1);
        lane.core.sessions[slot].cancel_request(7);
        assert!(second.is_cancelled(), "the id still finds it");
        assert!(!lane.core.sessions[slot].connection.is_closed());
    }
}
