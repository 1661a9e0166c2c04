//! The tokens by which a server knows the agents.
//!
//! The coordinator asks for them before each step, and again before the first of them expires. It may wait for the
//! answer; lanes only see a newer list. After a list was sent, the lanes look once more when the server has confirmed
//! it, because the confirmation says when the newer tokens expire.

use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use thiserror::Error;
use tidewire::auth::Token;

use crate::describe;

/// Gets the tokens of the agents.
#[derive(Clone)]
pub struct TokenSource(Arc<Get>);

type Get = dyn Fn() -> Result<Vec<Token>, Box<dyn Error + Send + Sync>> + Send + Sync;

/// The tokens of the agents cannot be got. The text has the reason, and no token.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot get the tokens of the agents: {0}")]
pub struct TokensError(String);

impl TokenSource {
    /// Gets tokens from a function: before each step, and newer ones when two thirds of the time until a token expires
    /// have passed. Agents take the tokens of the list in turn, by their numbers, so a list of one is for all of them.
    pub fn new(
        get: impl Fn() -> Result<Vec<Token>, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(get))
    }

    /// Gets them. It may wait.
    pub(crate) fn get(&self) -> Result<Arc<[Token]>, TokensError> {
        let tokens = catch_unwind(AssertUnwindSafe(&*self.0));
        let tokens = tokens.map_err(|_| TokensError("it panicked".to_owned()))?;
        let tokens = tokens.map_err(|error| TokensError(describe(&*error)))?;
        match tokens.is_empty() {
            true => Err(TokensError("there is none".to_owned())),
            false => Ok(tokens.into()),
        }
    }
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenSource(..)")
    }
}

/// The tokens of a step, between its coordinator and its lanes.
#[derive(Debug)]
pub(crate) struct StepTokens {
    list: Mutex<Arc<[Token]>>,
    /// How often there was a newer list.
    lists: AtomicU64,
    /// How often lanes were asked when their credentials expire.
    surveys: AtomicU64,
    /// When the first credentials expire, as far as lanes have said. `u64::MAX` for never.
    expires_ns: AtomicU64,
}

impl Default for StepTokens {
    fn default() -> Self {
        Self {
            list: Mutex::new(Arc::new([])),
            lists: AtomicU64::new(0),
            surveys: AtomicU64::new(0),
            expires_ns: AtomicU64::new(u64::MAX),
        }
    }
}

impl StepTokens {
    pub(crate) fn of(list: Arc<[Token]>) -> Self {
        Self {
            list: Mutex::new(list),
            ..Self::default()
        }
    }

    fn list(&self) -> Arc<[Token]> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&list)
    }

    /// Gives the lanes a newer list.
    fn replace(&self, list: Arc<[Token]>) {
        *self.list.lock().unwrap_or_else(PoisonError::into_inner) = list;
        self.lists.fetch_add(1, Ordering::Release);
    }

    /// Asks the lanes when the credentials of their agents expire.
    fn survey(&self) {
        self.expires_ns.store(u64::MAX, Ordering::Relaxed);
        self.surveys.fetch_add(1, Ordering::Release);
    }

    /// Notes when the credentials of an agent expire.
    pub(crate) fn note_expiry(&self, expires_ns: u64) {
        self.expires_ns.fetch_min(expires_ns, Ordering::Relaxed);
    }
}

/// The tokens of one lane.
#[derive(Debug)]
pub(crate) struct LaneTokens {
    list: Arc<[Token]>,
    lists: u64,
    surveys: u64,
}

/// The task of a lane about its credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenTask {
    /// Send newer ones.
    Send,
    /// Say when they expire.
    Survey,
}

impl LaneTokens {
    pub(crate) fn of(step: &StepTokens) -> Self {
        Self {
            lists: step.lists.load(Ordering::Acquire),
            surveys: step.surveys.load(Ordering::Acquire),
            list: step.list(),
        }
    }

    /// The token of the agent with this number, and how many there are for all agents.
    pub(crate) fn token(&self, agent: u32) -> Option<&Token> {
        let index = (agent as usize).checked_rem(self.list.len())?;
        self.list.get(index)
    }

    /// How many different tokens there are.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn has_task(&self, step: &StepTokens) -> bool {
        self.lists != step.lists.load(Ordering::Acquire)
            || self.surveys != step.surveys.load(Ordering::Acquire)
    }

    pub(crate) fn take_task(&mut self, step: &StepTokens) -> Option<TokenTask> {
        let lists = step.lists.load(Ordering::Acquire);
        if self.lists != lists {
            (self.lists, self.list) = (lists, step.list());
            return Some(TokenTask::Send);
        }
        let surveys = step.surveys.load(Ordering::Acquire);
        let is_asked = std::mem::replace(&mut self.surveys, surveys) != surveys;
        is_asked.then_some(TokenTask::Survey)
    }
}

/// The coordinator's part: it asks for newer tokens in time.
#[derive(Debug)]
pub(crate) struct Renewal {
    source: Option<TokenSource>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Newer tokens are asked for at `at_ns`, in time for those that expire at `expires_ns`.
    Planned { at_ns: u64, expires_ns: u64 },
    /// The source was asked.
    Asked {
        answer: Receiver<Result<Arc<[Token]>, TokensError>>,
        expires_ns: u64,
    },
    /// Newer ones were sent, and their expiry is asked for at `at_ns`.
    Sent { at_ns: u64 },
}

impl Renewal {
    pub(crate) fn new(source: Option<TokenSource>) -> Self {
        Self {
            source,
            state: State::Planned {
                at_ns: u64::MAX,
                expires_ns: u64::MAX,
            },
        }
    }

    /// Does what is due. Returns whether the lanes have a task, so that they must be woken.
    pub(crate) fn look(&mut self, tokens: &StepTokens, now_ns: u64) -> bool {
        let Some(source) = &self.source else {
            return false;
        };
        match &mut self.state {
            State::Planned { at_ns, expires_ns } => {
                let first_ns = tokens.expires_ns.load(Ordering::Relaxed);
                if first_ns != *expires_ns {
                    let left_ns = first_ns.saturating_sub(now_ns);
                    (*at_ns, *expires_ns) = (first_ns - left_ns / SHARE_LEFT, first_ns);
                }
                if now_ns >= *at_ns {
                    let (expires_ns, answer) = (*expires_ns, ask(source));
                    self.state = State::Asked { answer, expires_ns };
                }
                false
            }
            State::Asked { answer, expires_ns } => {
                let error = match answer.try_recv() {
                    Ok(Ok(list)) => {
                        tokens.replace(list);
                        let at_ns = now_ns + CONFIRMATION_NS;
                        self.state = State::Sent { at_ns };
                        return true;
                    }
                    Err(TryRecvError::Empty) => return false,
                    Ok(Err(error)) => error,
                    Err(TryRecvError::Disconnected) => TokensError("no thread".to_owned()),
                };
                // The sessions end when the tokens expire, and the report says so.
                tracing::warn!(%error, "newer tokens are missing; trying again");
                let expires_ns = *expires_ns;
                let left_ns = expires_ns.saturating_sub(now_ns);
                let at_ns = match left_ns {
                    0 => u64::MAX,
                    _ => now_ns + (left_ns / 2).max(PAUSE_NS_MIN),
                };
                self.state = State::Planned { at_ns, expires_ns };
                false
            }
            State::Sent { at_ns } if now_ns >= *at_ns => {
                tokens.survey();
                self.state = State::Planned {
                    at_ns: u64::MAX,
                    expires_ns: u64::MAX,
                };
                true
            }
            State::Sent { .. } => false,
        }
    }
}

/// Asks on a thread of its own, because a source may wait.
fn ask(source: &TokenSource) -> Receiver<Result<Arc<[Token]>, TokensError>> {
    let (sender, answer) = channel();
    let source = source.clone();
    let thread = thread::Builder::new().name("tidewire-tokens".to_owned());
    // Without a thread the sender is gone, which is the answer.
    drop(thread.spawn(move || {
        // The step may have ended meanwhile.
        let _ = sender.send(source.get());
    }));
    answer
}

/// Newer tokens are asked for when this part of the time is left.
const SHARE_LEFT: u64 = 3;

/// How long a server may take to confirm newer tokens. If it takes longer, they are sent once more.
const CONFIRMATION_NS: u64 = 500_000_000;

/// The least pause between two questions to a source that fails.
const PAUSE_NS_MIN: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn source(texts: &'static [&'static str]) -> TokenSource {
        TokenSource::new(move || {
            let tokens = texts.iter().map(|text| Token::new(text));
            Ok(tokens.collect::<Result<_, _>>()?)
        })
    }

    /// Looks until the answer of the source is there.
    fn look_until_task(renewal: &mut Renewal, tokens: &StepTokens, now_ns: u64) {
        while !renewal.look(tokens, now_ns) {
            thread::yield_now();
        }
    }

    #[test]
    fn agents_take_tokens_in_turn_and_errors_show_none() {
        let step = StepTokens::of(source(&["a", "b"]).get().unwrap());
        let lane = LaneTokens::of(&step);
        let of = |agent| lane.token(agent).map(Token::secret);
        assert_eq!([of(0), of(1), of(2)], [Some("a"), Some("b"), Some("a")]);
        assert!(LaneTokens::of(&StepTokens::default()).token(0).is_none());
        let error = source(&[]).get().unwrap_err().to_string();
        assert!(error.ends_with("there is none"), "{error}");
        let error = source(&["se cret"]).get().unwrap_err().to_string();
        assert!(!error.contains("cret"), "{error}");
        let panics = TokenSource::new(|| panic!("no"));
        assert!(panics.get().is_err());
    }

    #[test]
    fn newer_tokens_are_asked_for_in_time_sent_and_surveyed() {
        let newer = source(&["newer"]);
        let step = StepTokens::of(source(&["first"]).get().unwrap());
        let (mut lane, mut renewal) = (LaneTokens::of(&step), Renewal::new(Some(newer)));
        assert!(!renewal.look(&step, 0), "nothing expires");
        step.note_expiry(9_000);
        step.note_expiry(3_000);
        assert!(!renewal.look(&step, 0), "two thirds have not passed");
        assert!(matches!(
            renewal.state,
            State::Planned {
                at_ns: 2_000,
                expires_ns: 3_000
            }
        ));
        look_until_task(&mut renewal, &step, 2_000);
        assert!(lane.has_task(&step));
        assert_eq!(lane.take_task(&step), Some(TokenTask::Send));
        assert_eq!(lane.token(7).map(Token::secret), Some("newer"));
        look_until_task(&mut renewal, &step, 2_000 + CONFIRMATION_NS);
        assert_eq!(lane.take_task(&step), Some(TokenTask::Survey));
        assert_eq!(lane.take_task(&step), None);
        assert!(
            !renewal.look(&step, u64::MAX - 1),
            "nothing expires any more"
        );
    }

    #[test]
    fn a_source_that_fails_is_asked_again_before_the_end() {
        let step = StepTokens::default();
        let mut renewal = Renewal::new(Some(source(&[])));
        step.note_expiry(3_000_000_000);
        assert!(!renewal.look(&step, 0));
        assert!(!renewal.look(&step, 2_000_000_000));
        while matches!(renewal.state, State::Asked { .. }) {
            assert!(!renewal.look(&step, 2_000_000_000));
        }
        let State::Planned { at_ns, .. } = renewal.state else {
            panic!("it is asked again");
        };
        assert_eq!(at_ns, 2_500_000_000);
    }
}
