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
    pub(super) meter: Meter,
    /// See [`Profile::is_upstream`](super::Profile::is_upstream).
    pub(crate) is_upstream: bool,
    /// The proxy of a session whose client is not known yet.
    pub(crate) forwarder: Option<Arc<Endpoint>>,
    /// The number of the late answer that decides who the peer is.
    pub(crate) question: u64,
    /// The token of a session whose attempt waits for its turn.
    pub(crate) held_token: HeldToken,
    /// The identity that the session gets when another session gives way to it.
    pub(crate) newcomer: Option<Newcomer>,
    /// The credentials of a connection that this lane makes.
    pub(crate) credentials: Option<Token>,
}

/// A session that waits for a place among those of its identity.
#[derive(Debug)]
pub(crate) struct Newcomer {
    pub(crate) identity: Arc<Identity>,
    /// The sessions that were asked to give way, and that may still do so.
    pub(crate) unanswered: usize,
}

/// A token as it came in a hello. `Debug` does not show it.
#[derive(Default)]
pub(crate) struct HeldToken(pub(crate) Box<[u8]>);

impl std::fmt::Debug for HeldToken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "HeldToken({} bytes)", self.0.len())
    }
}

impl Attached {
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
