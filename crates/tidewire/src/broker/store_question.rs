//! The question of a session whether all that it sent before is stored.

use std::fmt;

use thiserror::Error;

/// The duty to answer such a question. Dropping it answers that the server ends.
pub(crate) struct StoreQuestion(Option<Box<dyn StoreAnswer>>);

/// The way of the answer to its session.
pub(crate) trait StoreAnswer: Send {
    /// Whether nobody waits for the answer any more.
    fn is_cancelled(&self) -> bool;

    /// Answers. The messages are stored, or not all of them are.
    fn end(self: Box<Self>, outcome: Result<(), NotStored>);
}

/// The reason why messages count as not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotStored {
    /// The node had to give messages up, or cannot know whether the history has them.
    #[error(
        "{messages} messages that were sent before may not be stored, because their histories did not confirm them; \
         send again what must not be missing"
    )]
    GivenUp { messages: u64 },
    /// The node ends.
    #[error(
        "the server ends, and may not have stored what was sent before; send again what must not be missing, to \
        another server"
    )]
    Ended,
}

impl StoreQuestion {
    pub(crate) fn new(answer: impl StoreAnswer + 'static) -> Self {
        Self(Some(Box::new(answer)))
    }

    /// Whether nobody waits for the answer any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_none_or(|answer| answer.is_cancelled())
    }

    pub(crate) fn answer(mut self, outcome: Result<(), NotStored>) {
        self.end(outcome);
    }

    fn end(&mut self, outcome: Result<(), NotStored>) {
        if let Some(answer) = self.0.take() {
            answer.end(outcome);
        }
    }
}

impl Drop for StoreQuestion {
    fn drop(&mut self) {
        self.end(Err(NotStored::Ended));
    }
}

impl fmt::Debug for StoreQuestion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("StoreQuestion");
        fields.field("is_cancelled", &self.is_cancelled()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use tidewire_proto::backplane::NodeLife;

    use super::*;
    use crate::broker::BackplaneLink;

    struct Answer(Sender<Result<(), NotStored>>);

    impl StoreAnswer for Answer {
        fn is_cancelled(&self) -> bool {
            false
        }

        fn end(self: Box<Self>, outcome: Result<(), NotStored>) {
            self.0.send(outcome).unwrap();
        }
    }

    /// A question on its way to the node, and one that comes when the node has ended.
    #[test]
    fn a_question_that_the_node_does_not_answer_is_answered_by_its_end() {
        let (answers, answered) = channel();
        let link = BackplaneLink::new(NodeLife::new("one", 1), 100, true);
        let post = || {
            let mut questions = vec![StoreQuestion::new(Answer(answers.clone()))];
            assert_eq!(link.post(vec![0], &mut questions), Ok(0));
            assert!(questions.is_empty());
        };
        post();
        assert!(answered.try_recv().is_err());
        link.close();
        post();
        for _ in 0..2 {
            assert_eq!(answered.try_recv(), Ok(Err(NotStored::Ended)));
        }
        StoreQuestion::new(Answer(answers.clone())).answer(Ok(()));
        assert_eq!(answered.try_recv(), Ok(Ok(())));
        assert!(answered.try_recv().is_err(), "one answer each");
    }
}
