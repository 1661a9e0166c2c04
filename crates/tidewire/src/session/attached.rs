//! Data that only some sessions have: state and timers of the service, and a measured rate.
//!
//! A session without such data pays for one empty pointer. A state is identified by its type, so combined services keep
//! their states side by side without knowing each other. A program has only a handful of state types, so a linear
//! search finds them.
//!
//! Rejected: a type parameter of the session, which would run through every part of the lane. Rejected too: a table in
//! the service with the session's number as its key, which each user would have to clean up.

use std::any::Any;
use std::sync::Arc;

use super::meter::Meter;
use crate::address::Endpoint;
use crate::auth::{Identity, Token};

#[derive(Debug, Default)]
pub(crate) struct Attached {
    states: Vec<Box<dyn Any + Send>>,
    meter: Meter,
    /// See [`Profile::is_upstream`](super::Profile::is_upstream).
    is_upstream: bool,
    /// The proxy of a session whose client is not known yet.
    forwarder: Option<Arc<Endpoint>>,
    /// The number of the late answer that decides who the peer is.
    question: u64,
    /// The token of a session whose attempt waits for its turn.
    held_token: HeldToken,
    /// The identity that the session gets when another session gives way to it.
    newcomer: Option<Newcomer>,
    /// The credentials of a connection that this lane makes.
    credentials: Option<Token>,
}

/// A session that waits for a place among those of its identity.
#[derive(Debug)]
struct Newcomer {
    identity: Arc<Identity>,
    /// The sessions that were asked to give way, and that may still do so.
    unanswered: usize,
}

/// A token as it came in a hello. `Debug` does not show it.
#[derive(Default)]
struct HeldToken(Box<[u8]>);

impl std::fmt::Debug for HeldToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "HeldToken({} bytes)", self.0.len())
    }
}

impl Attached {
    pub(super) fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }

    pub(super) fn is_upstream(&self) -> bool {
        self.is_upstream
    }

    /// Notes that this lane makes the connection, with these credentials.
    pub(crate) fn set_dialed(&mut self, is_upstream: bool, credentials: Option<Token>) {
        (self.is_upstream, self.credentials) = (is_upstream, credentials);
    }

    pub(super) fn credentials(&self) -> Option<&Token> {
        self.credentials.as_ref()
    }

    pub(crate) fn set_credentials(&mut self, token: Token) {
        self.credentials = Some(token);
    }

    pub(crate) fn forwarder(&self) -> Option<&Arc<Endpoint>> {
        self.forwarder.as_ref()
    }

    pub(crate) fn set_forwarder(&mut self, proxy: Option<Endpoint>) {
        self.forwarder = proxy.map(Arc::new);
    }

    /// Notes that this late answer, and no earlier one, decides who the peer is.
    pub(crate) fn await_answer(&mut self, question: u64) {
        self.question = question;
    }

    pub(crate) fn awaits_answer(&self, question: u64) -> bool {
        self.question == question
    }

    /// Keeps the token until the attempt has its turn.
    pub(crate) fn hold_token(&mut self, token: &[u8]) {
        self.held_token.0 = token.into();
    }

    pub(crate) fn release_token(&mut self) -> Box<[u8]> {
        std::mem::take(&mut self.held_token.0)
    }

    /// Lets the session wait until one of as many others gives way. Returns false if the session waits already, because
    /// another newcomer was faster.
    pub(crate) fn await_place(&mut self, identity: &Arc<Identity>, others: usize) -> bool {
        let is_new = self.newcomer.is_none();
        self.newcomer.get_or_insert_with(|| Newcomer {
            identity: Arc::clone(identity),
            unanswered: others,
        });
        is_new
    }

    /// The identity that waits for a place.
    pub(crate) fn newcomer(&self) -> Option<&Arc<Identity>> {
        self.newcomer.as_ref().map(|it| &it.identity)
    }

    /// Ends the wait for a place. Returns the identity that waited.
    pub(crate) fn end_wait_for_place(&mut self) -> Option<Arc<Identity>> {
        self.newcomer.take().map(|it| it.identity)
    }

    /// Notes that a session which was asked to give way does not. Returns how many may still do so; `None` if the
    /// session does not wait.
    pub(crate) fn note_refused_place(&mut self) -> Option<usize> {
        let newcomer = self.newcomer.as_mut()?;
        newcomer.unanswered = newcomer.unanswered.saturating_sub(1);
        Some(newcomer.unanswered)
    }

    pub(crate) fn state<T: Any>(&self) -> Option<&T> {
        self.states.iter().find_map(|state| state.downcast_ref())
    }

    pub(crate) fn state_mut<T: Any>(&mut self) -> Option<&mut T> {
        let mut states = self.states.iter_mut();
        states.find_map(|state| state.downcast_mut())
    }

    /// Sets a state. Returns the state that it replaces.
    pub(crate) fn set_state<T: Any + Send>(&mut self, state: T) -> Option<T> {
        match self.state_mut() {
            Some(former) => Some(std::mem::replace(former, state)),
            None => {
                self.states.push(Box::new(state));
                None
            }
        }
    }

    pub(crate) fn take_state<T: Any>(&mut self) -> Option<T> {
        let index = self.states.iter().position(|state| state.is::<T>())?;
        let state = self.states.swap_remove(index).downcast().ok()?;
        Some(*state)
    }
}
