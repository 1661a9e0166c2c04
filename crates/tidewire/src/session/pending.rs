//! Deferred answers on their way back into their sessions.
//!
//! Where replies carry ids, an answer goes out when it comes. Where they do not, the caller matches them by their
//! order, so each session keeps a line of places: what is answered at once while an earlier request is still being
//! worked on waits in that line, too. A session reads no more while its line is full.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use slab::Slab;
use tidewire_proto::connection::{Inbound, PauseReason};

use super::answer::{Answer, Content, Token};
use super::{CloseReason, LaneSessions, Session};
use crate::limits::Limits;

/// The requests of a session that are not answered yet.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Replies carry ids.
    Unordered {
        entries: Slab<Entry>,
        /// Ids whose replies are waited for. The peer chooses them, so a walk over all entries would be its to make long.
        live: HashSet<u32>,
    },
    /// Replies are matched by their order.
    Ordered {
        places: VecDeque<Place>,
        /// Number of the first place, counted over the life of the session.
        first: u64,
        /// Memory of the answers among them.
        bytes: usize,
    },
}

#[derive(Debug)]
pub(crate) struct Entry {
    request_id: u32,
    token: Arc<Token>,
}

#[derive(Debug)]
pub(crate) enum Place {
    /// A token is out.
    Deferred(Arc<Token>),
    /// Answered, behind one that is not.
    Answered(Vec<u8>),
    /// Answered with what the codec has no words for.
    Inexpressible,
}

impl Unanswered {
    pub(crate) fn new(ordered: bool) -> Self {
        if ordered {
            Self::Ordered {
                places: VecDeque::new(),
                first: 0,
                bytes: 0,
            }
        } else {
            Self::Unordered {
                entries: Slab::new(),
                live: HashSet::new(),
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Unordered { entries, .. } => entries.len(),
            Self::Ordered { places, .. } => places.len(),
        }
    }

    /// The place of a request that is answered later, or `None` if its id is that of another one.
    pub(crate) fn push(&mut self, request_id: u32, token: Arc<Token>) -> Option<u64> {
        match self {
            Self::Unordered { entries, live } => {
                // Nobody waits for the replies to those with id 0, so there may be many.
                if request_id != 0 && !live.insert(request_id) {
                    return None;
                }
                Some(entries.insert(Entry { request_id, token }) as u64)
            }
            Self::Ordered { places, first, .. } => {
                places.push_back(Place::Deferred(token));
                Some(*first + places.len() as u64 - 1)
            }
        }
    }

    /// Adds the place of a request that is answered already, if there is a line.
    pub(crate) fn line_up(&mut self, place: Place) {
        if let Self::Ordered { places, bytes, .. } = self {
            *bytes += place.held_bytes();
            places.push_back(place);
        }
    }

    /// Memory of the answers that wait in line.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::Unordered { .. } => 0,
            Self::Ordered { bytes, .. } => *bytes,
        }
    }

    /// Whether the session is not read until some are answered: there are many, or much waits in line.
    pub(crate) fn is_full(&self, limits: &Limits) -> bool {
        self.len() >= limits.deferred_per_session_max.max(1)
            || self.held_bytes() > limits.queue_bytes_max
    }

    /// Whether the session ends when what was asked so far is answered.
    fn is_ending(&self) -> bool {
        match self {
            Self::Unordered { .. } => false,
            Self::Ordered { places, .. } => matches!(places.back(), Some(Place::Inexpressible)),
        }
    }

    /// Gives up every request that is not answered, unless an answer waits behind it in line. Returns whether one does. The line
    /// ends where the first one was given up, because the next answer would be taken for that one's.
    fn give_up_behind_answers(&mut self) -> bool {
        match self {
            Self::Unordered { .. } => false,
            Self::Ordered { places, .. } => {
                let before = places.len();
                while let Some(Place::Deferred(token)) = places.back() {
                    token.cancel();
                    places.pop_back();
                }
                if places.is_empty() {
                    return false;
                }
                if places.len() < before {
                    places.push_back(Place::Inexpressible);
                }
                true
            }
        }
    }

    /// Calls `visit` for every token that is out.
    fn tokens(&self, mut visit: impl FnMut(&Token)) {
        match self {
            Self::Unordered { entries, .. } => {
                entries.iter().for_each(|(_, entry)| visit(&entry.token));
            }
            Self::Ordered { places, .. } => {
                for place in places {
                    if let Place::Deferred(token) = place {
                        visit(token);
                    }
                }
            }
        }
    }
}

impl Place {
    fn held_bytes(&self) -> usize {
        match self {
            Self::Answered(frame) => frame.capacity(),
            Self::Deferred(_) | Self::Inexpressible => 0,
        }
    }
}

impl Session {
    /// Requests that were read and are not answered yet.
    pub(crate) fn unanswered_count(&self) -> usize {
        self.unanswered
            .as_ref()
            .map_or(0, |unanswered| unanswered.len())
    }

    /// Whether an immediate reply must wait for earlier ones.
    pub(crate) fn must_keep_order(&self) -> bool {
        matches!(
            self.unanswered.as_deref(),
            Some(Unanswered::Ordered { places, .. }) if !places.is_empty()
        )
    }
}

impl LaneSessions {
    /// The caller of this request does not want the answer any more.
    pub(crate) fn cancel_request(&mut self, slot: usize, request_id: u32) {
        self.counters.requests_cancelled.add(1);
        // A walk over at most `deferred_per_session_max` places, and only where a caller gave up.
        if let Some(Unanswered::Unordered { entries, live }) =
            self.slab[slot].unanswered.as_deref_mut()
        {
            // The caller has given the id up, so it may use it again.
            live.remove(&request_id);
            entries
                .iter()
                .filter(|(_, entry)| entry.request_id == request_id)
                .for_each(|(_, entry)| entry.token.cancel());
        }
    }

    /// Brings a deferred answer back into its session.
    pub(crate) fn deliver_answer(&mut self, answer: Answer) {
        let Answer {
            session,
            place,
            token,
            content,
        } = answer;
        match self.slot_of(session) {
            Some(slot) => {
                if self.resolve(slot, place, &token, content) {
                    self.counters.deferred_answered.add(1);
                } else {
                    self.counters.deferred_undelivered.add(1);
                }
                self.handle_answered(slot);
            }
            None => {
                self.counters.deferred_undelivered.add(1);
                self.keep_frame(content);
            }
        }
        self.keep_token(token);
    }

    /// Brings an answer into its session's output or line. Returns whether it is on its way to the peer.
    fn resolve(&mut self, slot: usize, place: u64, token: &Arc<Token>, content: Content) -> bool {
        match self.slab[slot].unanswered.as_deref_mut() {
            Some(Unanswered::Unordered { entries, live }) => {
                let known = usize::try_from(place)
                    .ok()
                    .and_then(|key| entries.try_remove(key))
                    // A cancelled request has given its id up.
                    .filter(|_| !token.is_cancelled());
                let Some(entry) = known else {
                    self.keep_frame(content);
                    return false;
                };
                live.remove(&entry.request_id);
                if let Content::Frame(frame) = content {
                    self.append(slot, frame);
                }
                true
            }
            Some(Unanswered::Ordered {
                places,
                first,
                bytes,
            }) => {
                let index = usize::try_from(place.wrapping_sub(*first)).ok();
                let place = index.and_then(|index| places.get_mut(index));
                // That of a cancelled request may be another one's by now.
                let Some(waiting) = place.filter(|_| !token.is_cancelled()) else {
                    self.keep_frame(content);
                    return false;
                };
                *waiting = match content {
                    Content::Frame(frame) => Place::Answered(frame),
                    Content::Nothing => Place::Answered(Vec::new()),
                    Content::Inexpressible => Place::Inexpressible,
                };
                *bytes += waiting.held_bytes();
                self.advance_line(slot);
                true
            }
            None => false,
        }
    }

    /// Sends what stands answered at the front of a session's line.
    fn advance_line(&mut self, slot: usize) {
        loop {
            let Some(Unanswered::Ordered {
                places,
                first,
                bytes,
            }) = self.slab[slot].unanswered.as_deref_mut()
            else {
                return;
            };
            match places.front() {
                None | Some(Place::Deferred(_)) => return,
                Some(Place::Answered(_) | Place::Inexpressible) => {}
            }
            *first += 1;
            match places.pop_front() {
                Some(Place::Answered(frame)) => {
                    *bytes -= frame.capacity();
                    self.append(slot, frame);
                }
                _ => {
                    // Answers behind the one that is missing would be taken for it.
                    self.cancel_all(slot);
                    return self.finish(slot, CloseReason::Service);
                }
            }
        }
    }

    /// Adds a frame to a session's output and keeps its buffer.
    pub(crate) fn append(&mut self, slot: usize, frame: Vec<u8>) {
        let (output, buffers) = self.outbox.of(slot, &mut self.slab[slot].output);
        output.ensure_buffer(buffers);
        output.bytes.extend_from_slice(&frame);
        output.handle_appended(&self.config.codec);
        self.outbox.spare_frames.put(frame);
        self.mark_dirty(slot);
    }

    /// Something was answered: reading may go on, and an end that waited for it may come.
    fn handle_answered(&mut self, slot: usize) {
        let session = &mut self.slab[slot];
        let waiting = session.unanswered_count();
        let limits = &self.config.limits;
        let must_wait = session
            .unanswered
            .as_ref()
            .is_some_and(|unanswered| unanswered.is_ending() || unanswered.is_full(limits));
        if !must_wait && session.connection.resume(PauseReason::Answers) {
            self.resumed.push(slot);
        }
        if waiting == 0 {
            self.mark_dirty(slot);
        }
        // A peer that asks and does not take the answers is read no further, as after replies at once.
        let is_full = self.output(slot).len() > self.outbox.queue_bytes_max;
        let connection = &mut self.slab[slot].connection;
        if is_full && connection.inbound() != Inbound::Ended && !connection.is_closed() {
            connection.pause(PauseReason::Output);
            self.counters.reads_paused.add(1);
            self.update_interest(slot);
        }
    }

    /// The session will end: requests that nobody has answered are given up, but those that answers wait for in line.
    pub(super) fn keep_answered(&mut self, slot: usize) {
        let unanswered = self.slab[slot].unanswered.as_deref_mut();
        if !unanswered.is_some_and(Unanswered::give_up_behind_answers) {
            self.cancel_all(slot);
        }
    }

    /// Tells the holders of a session's tokens that nobody waits for their answers.
    pub(crate) fn cancel_all(&mut self, slot: usize) {
        if let Some(unanswered) = self.slab[slot].unanswered.take() {
            unanswered.tokens(Token::cancel);
        }
    }

    fn keep_frame(&self, content: Content) {
        if let Content::Frame(frame) = content {
            self.outbox.spare_frames.put(frame);
        }
    }

    fn keep_token(&mut self, mut token: Arc<Token>) {
        if self.outbox.spare_tokens.len() < SPARE_TOKENS_MAX
            && let Some(inner) = Arc::get_mut(&mut token)
        {
            inner.reset();
            self.outbox.spare_tokens.push(token);
        }
    }
}

/// The place of an answer that goes nowhere.
pub(crate) const NOWHERE: u64 = u64::MAX;

/// Tokens a lane keeps to use again: about 64 KiB.
const SPARE_TOKENS_MAX: usize = 1024;
