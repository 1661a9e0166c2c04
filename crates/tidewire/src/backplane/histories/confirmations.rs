//! Messages of sessions until they are stored, and the sessions that wait for that.
//!
//! The messages of a session between two of its questions are a *span*. A question is answered when its span and those
//! before it have no message left that waits for its history. So the answer depends on messages of its own session
//! alone, and a history that fails keeps no other session waiting.
//!
//! A loss is told once, by the next question that somebody still waits for.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::STORE_TIMEOUT;
use crate::broker::{News, NotStored, StoreQuestion};
use crate::session::SessionId;

/// The sessions with messages that wait for their histories, or were lost. See the module.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    senders: HashMap<SessionId, StoringSession>,
    /// Questions of the batches that the node has not read.
    questions: VecDeque<StoreQuestion>,
    /// Messages that are no longer pending, but which their histories may still give back, by their numbers.
    doubts: HashMap<u64, (SpanId, Instant)>,
}

#[derive(Debug, Default)]
struct StoringSession {
    /// Spans that end with a question.
    asked: VecDeque<(Span, StoreQuestion)>,
    /// The number of the first of them.
    first: u64,
    /// The span after the last question.
    open: Span,
    has_ended: bool,
}

#[derive(Debug, Default)]
struct Span {
    /// Messages that wait for their histories.
    waiting: u64,
    /// Messages that may not be stored.
    given_up: u64,
}

/// The span of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanId {
    session: SessionId,
    span: u64,
}

impl Confirmations {
    /// Takes the questions of the batches that the node reads next.
    pub(super) fn take_questions(&mut self, questions: VecDeque<StoreQuestion>) {
        self.questions = questions;
    }

    /// Takes news of a session, in the order of its messages.
    pub(super) fn note(&mut self, news: News, session: SessionId) {
        match news {
            News::AsksStored => {
                if let Some(question) = self.questions.pop_front() {
                    let sender = self.senders.entry(session).or_default();
                    let span = std::mem::take(&mut sender.open);
                    sender.asked.push_back((span, question));
                }
            }
            News::Ended => {
                if let Some(sender) = self.senders.get_mut(&session) {
                    sender.has_ended = true;
                }
            }
        }
        self.answer(session);
    }

    /// Notes that a message waits for its history.
    pub(super) fn begin(&mut self, session: SessionId) -> SpanId {
        let sender = self.senders.entry(session).or_default();
        sender.open.waiting += 1;
        let span = sender.first + sender.asked.len() as u64;
        SpanId { session, span }
    }

    /// Notes that a message is stored, or was given up.
    pub(super) fn end(&mut self, id: SpanId, is_stored: bool) {
        let Some(sender) = self.senders.get_mut(&id.session) else {
            return;
        };
        let index = (id.span - sender.first) as usize;
        let span = match sender.asked.get_mut(index) {
            Some((span, _)) => span,
            None => &mut sender.open,
        };
        span.waiting -= 1;
        span.given_up += u64::from(!is_stored);
        self.answer(id.session);
    }

    /// Notes that a message is no longer pending, and that its history may still give it back.
    pub(super) fn doubt(&mut self, number: u64, id: SpanId, now: Instant) {
        match self.doubts.len() < DOUBTS_MAX {
            true => drop(self.doubts.insert(number, (id, now))),
            false => self.end(id, false),
        }
    }

    /// Notes that a history has given back a message that is not pending.
    pub(super) fn end_doubt(&mut self, number: u64) {
        if let Some((id, _)) = self.doubts.remove(&number) {
            self.end(id, true);
        }
    }

    /// Gives up the messages that no history has given back in time.
    pub(super) fn end_doubts(&mut self, now: Instant) {
        let is_late =
            |(_, since): &(SpanId, Instant)| now.saturating_duration_since(*since) > STORE_TIMEOUT;
        let late = self.doubts.extract_if(|_, doubt| is_late(doubt));
        let late: Vec<SpanId> = late.map(|(_, (id, _))| id).collect();
        for id in late {
            self.end(id, false);
        }
    }

    /// Answers the questions of a session for whose messages nothing is left to wait, and forgets a session without
    /// messages.
    fn answer(&mut self, session: SessionId) {
        let Some(sender) = self.senders.get_mut(&session) else {
            return;
        };
        while sender
            .asked
            .front()
            .is_some_and(|(span, _)| span.waiting == 0)
            && let Some((Span { given_up, .. }, question)) = sender.asked.pop_front()
        {
            sender.first += 1;
            match given_up {
                0 => question.answer(Ok(())),
                _ if question.is_cancelled() => {
                    let next = sender.asked.front_mut();
                    let next = next.map_or(&mut sender.open, |(span, _)| span);
                    next.given_up += given_up;
                }
                messages => question.answer(Err(NotStored::GivenUp { messages })),
            }
        }
        let has_loss_to_tell = sender.open.given_up > 0 && !sender.has_ended;
        if sender.asked.is_empty() && sender.open.waiting == 0 && !has_loss_to_tell {
            self.senders.remove(&session);
        }
    }
}

/// Messages that are no longer pending and may still come back: those of a few reads of full histories.
const DOUBTS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::broker::StoreAnswer;

    type Outcome = Result<(), NotStored>;

    /// Answers of one session, each with the number of its question.
    #[derive(Clone, Default)]
    struct Answers {
        told: Arc<Mutex<Vec<(u32, Outcome)>>>,
        are_cancelled: Arc<AtomicBool>,
    }

    struct Answer(u32, Answers);

    impl StoreAnswer for Answer {
        fn is_cancelled(&self) -> bool {
            self.1.are_cancelled.load(Ordering::Relaxed)
        }

        fn end(self: Box<Self>, outcome: Outcome) {
            self.1.told.lock().unwrap().push((self.0, outcome));
        }
    }

    const SESSION: SessionId = SessionId::NONE;

    fn ask(stored: &mut Confirmations, number: u32, answers: &Answers) {
        let question = StoreQuestion::new(Answer(number, answers.clone()));
        stored.take_questions([question].into());
        stored.note(News::AsksStored, SESSION);
    }

    fn told(answers: &Answers) -> Vec<(u32, Outcome)> {
        std::mem::take(&mut answers.told.lock().unwrap())
    }

    const LOST: Outcome = Err(NotStored::GivenUp { messages: 1 });

    #[test]
    fn answers_wait_for_all_earlier_messages_whatever_order_they_come_back_in() {
        let (mut stored, answers) = (Confirmations::default(), Answers::default());
        ask(&mut stored, 0, &answers);
        assert_eq!(told(&answers), [(0, Ok(()))], "there is no message");
        let first = stored.begin(SESSION);
        ask(&mut stored, 1, &answers);
        let second = stored.begin(SESSION);
        ask(&mut stored, 2, &answers);
        ask(&mut stored, 3, &answers);
        let third = stored.begin(SESSION);
        stored.end(third, true);
        stored.end(second, false);
        assert_eq!(told(&answers), []);
        stored.end(first, true);
        assert_eq!(told(&answers), [(1, Ok(())), (2, LOST), (3, Ok(()))]);
        assert!(stored.senders.is_empty());
    }

    #[test]
    fn a_loss_is_told_by_the_first_question_that_is_not_cancelled() {
        let (mut stored, answers) = (Confirmations::default(), Answers::default());
        let message = stored.begin(SESSION);
        answers.are_cancelled.store(true, Ordering::Relaxed);
        ask(&mut stored, 1, &answers);
        stored.end(message, false);
        told(&answers);
        answers.are_cancelled.store(false, Ordering::Relaxed);
        ask(&mut stored, 2, &answers);
        assert_eq!(told(&answers), [(2, LOST)]);
        assert!(stored.senders.is_empty());
    }

    #[test]
    fn a_message_in_doubt_is_stored_if_it_comes_back_and_else_given_up() {
        let (mut stored, answers) = (Confirmations::default(), Answers::default());
        let now = Instant::now();
        for number in 0..2 {
            let message = stored.begin(SESSION);
            stored.doubt(number, message, now);
        }
        ask(&mut stored, 1, &answers);
        stored.end_doubt(0);
        stored.end_doubts(now + STORE_TIMEOUT);
        assert_eq!(told(&answers), []);
        stored.end_doubts(now + STORE_TIMEOUT + Duration::from_nanos(1));
        assert_eq!(told(&answers), [(1, LOST)]);
    }

    #[test]
    fn a_session_that_has_ended_leaves_nothing_behind() {
        let mut stored = Confirmations::default();
        let messages = [0; 2].map(|_| stored.begin(SESSION));
        stored.end(messages[0], false);
        stored.note(News::Ended, SESSION);
        assert_eq!(stored.senders.len(), 1, "a message waits");
        stored.end(messages[1], true);
        assert!(stored.senders.is_empty());
        let lost = stored.begin(SESSION);
        stored.end(lost, false);
        assert_eq!(stored.senders.len(), 1, "a loss may be asked for");
        stored.note(News::Ended, SESSION);
        assert!(stored.senders.is_empty());
    }
}
