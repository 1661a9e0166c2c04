//! The thread of a lane, as its server has it.

use std::thread::{self, JoinHandle};

use super::{Lane, LaneError};
use crate::service::Service;

/// See the module.
#[derive(Debug)]
pub(crate) struct LaneThread(JoinHandle<Result<(), LaneError>>);

impl LaneThread {
    /// Runs a lane, its server's lane of this index.
    pub(crate) fn start<S: Service>(index: usize, lane: Lane<S>) -> Result<Self, LaneError> {
        let name = format!("tidewire-lane-{index}");
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || lane.run())?;
        Ok(Self(thread))
    }

    /// Whether the lane has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Whether this is the thread that asks.
    pub(crate) fn is_current(&self) -> bool {
        self.0.thread().id() == thread::current().id()
    }

    /// Waits for the end of the lane, which was told to end. Returns why it failed, if it did.
    ///
    /// On its own thread it does not wait. The waker of a task may be all that is left of it, and the task may own the last
    /// client: then the lane of that client lets go of its own server, in the middle of a turn.
    pub(crate) fn join(self) -> Option<String> {
        if self.is_current() {
            return None;
        }
        match self.0.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the service panicked".to_owned()),
        }
    }
}
