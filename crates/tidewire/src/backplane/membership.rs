//! The place of a node in its cluster: it claims its id, is a member, and ends.

use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::BackplaneError;

/// How far a node is in its life.
#[derive(Debug)]
pub(super) struct Membership {
    /// Is told when the node is a member of its cluster, or why it cannot be one. `None` once it was told.
    started: Option<Sender<Result<(), BackplaneError>>>,
    /// When the id is this node's, if no other node has objected.
    claimed_at: Option<Instant>,
    has_failed: bool,
    /// When the node ends at the latest, because its server has ended.
    stops_at: Option<Instant>,
    has_logged_namesake: bool,
}

impl Membership {
    pub(super) fn new(started: Sender<Result<(), BackplaneError>>) -> Self {
        Self {
            started: Some(started),
            claimed_at: None,
            has_failed: false,
            stops_at: None,
            has_logged_namesake: false,
        }
    }

    /// Begins to claim the id. It is this node's at a time, if no other node has objected until then.
    pub(super) fn begin(&mut self, claimed_at: Instant) {
        self.claimed_at = Some(claimed_at);
    }

    /// Ends the claim if its time has come. Returns whether it has.
    pub(super) fn claim(&mut self, now: Instant) -> bool {
        self.claimed_at.take_if(|at| *at <= now).is_some()
    }

    /// When the claim ends.
    pub(super) fn claimed_at(&self) -> Option<Instant> {
        self.claimed_at
    }

    /// Becomes a member of the cluster.
    pub(super) fn start(&mut self) {
        if let Some(started) = self.started.take() {
            // The server may have given up.
            let _ = started.send(Ok(()));
        }
    }

    /// Gives the claim up. A node that has started goes on.
    pub(super) fn fail(&mut self, error: BackplaneError) {
        if let Some(started) = self.started.take() {
            self.has_failed = true;
            // The server may have given up.
            let _ = started.send(Err(error));
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether the node has not been told yet whether it is a member.
    pub(super) fn is_starting(&self) -> bool {
        self.started.is_some()
    }

    /// Whether the node does not know yet that its id is free. Until then it speaks only to one with the same id:
    /// another node would take it for that one, started again.
    pub(super) fn is_claiming(&self) -> bool {
        self.is_starting() || self.has_failed
    }

    /// Begins to end, because the server has ended.
    pub(super) fn stop(&mut self, now: Instant) {
        self.stops_at.get_or_insert(now + STOP_MAX);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stops_at.is_some()
    }

    /// Whether the node stops, and has nothing to wait for or no time left.
    pub(super) fn has_stopped(&self, now: Instant, is_done: bool) -> bool {
        self.stops_at.is_some_and(|at| now >= at || is_done)
    }

    /// Whether another node with the same id is seen for the first time.
    pub(super) fn is_first_namesake(&mut self) -> bool {
        !std::mem::replace(&mut self.has_logged_namesake, true)
    }
}

/// The longest time for which a node that stops waits until the engine has its messages.
const STOP_MAX: Duration = Duration::from_secs(2);
