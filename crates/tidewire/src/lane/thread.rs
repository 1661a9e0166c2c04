//! The server's handle to the thread of a lane.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::thread::{self, JoinHandle};

use tidewire_io::process::Process;

use super::errands::LaneDoors;
use super::{Lane, LaneError, Lead, Seat};
use crate::on_lane;
use crate::service::Service;

/// Tells when all lanes of a server have ended.
#[derive(Debug, Default)]
pub(crate) struct Ended(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    lanes: usize,
    /// The tasks that wait for the end.
    wakers: Vec<Waker>,
}

impl Ended {
    /// Whether no lane runs. If one does, its end wakes the task.
    pub(crate) fn is_over(&self, waker: &Waker) -> bool {
        let mut running = self.lock();
        if running.lanes > 0 && !running.wakers.iter().any(|it| it.will_wake(waker)) {
            running.wakers.push(waker.clone());
        }
        running.lanes == 0
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        // Each change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lane that runs. Dropping it counts the lane out, after a panic, too.
struct RunningLane(Arc<Ended>);

impl Drop for RunningLane {
    fn drop(&mut self) {
        let mut running = self.0.lock();
        running.lanes -= 1;
        if running.lanes == 0 {
            let wakers = std::mem::take(&mut running.wakers);
            drop(running);
            wakers.into_iter().for_each(Waker::wake);
        }
    }
}

/// The handle to a lane's thread.
#[derive(Debug)]
pub(crate) struct LaneThread {
    handle: JoinHandle<Result<(), LaneError>>,
    seat: Arc<dyn Lead>,
    process: Process,
}

impl LaneThread {
    /// Starts the thread of the lane with this index.
    pub(crate) fn start<S: Service>(
        index: usize,
        lane: Lane<S>,
        ended: &Arc<Ended>,
    ) -> io::Result<Self> {
        ended.lock().lanes += 1;
        let running = RunningLane(Arc::clone(ended));
        let name = format!("tidewire-lane-{index}");
        let mailbox = Arc::clone(&lane.core.exchange.mailbox);
        let crew = Arc::clone(&lane.crew);
        let is_attended = lane.visits.are_allowed();
        let seat = Seat::new(lane, crew);
        if is_attended {
            let weak: Weak<dyn Lead> = Arc::<Seat<_>>::downgrade(&seat);
            mailbox.set_doors(Box::new(LaneDoors::new(weak)));
        }
        let own = Arc::clone(&seat);
        let handle = thread::Builder::new().name(name).spawn(move || {
            mailbox.load.begin();
            let outcome = own.run();
            drop(running);
            outcome
        })?;
        let process = Process::this();
        Ok(Self {
            handle,
            seat,
            process,
        })
    }

    /// The seat, for threads that wait for this lane.
    pub(crate) fn seat(&self) -> &Arc<dyn Lead> {
        &self.seat
    }

    /// Whether the lane has ended.
    pub(crate) fn is_finished(&self) -> bool {
        !self.process.is_this() || self.handle.is_finished()
    }

    /// Whether the calling thread runs the lane, or a lane that this one visits.
    pub(crate) fn is_current(&self) -> bool {
        on_lane::is_within(self.seat.id())
    }

    /// Waits for the end of a lane that was asked to end. Returns the reason if it failed.
    ///
    /// On the thread that runs the lane it does not wait. A lane may call it there: it drops the waker of a task that
    /// owns the last client, and so the lane of that client drops its own server in the middle of a turn.
    pub(crate) fn join(self) -> Option<String> {
        if self.is_current() {
            return None;
        }
        if !self.process.is_this() {
            // There is no such thread here, so the handle can be neither joined nor dropped.
            std::mem::forget(self.handle);
            return Some(
                "the lane belongs to another process; start a server after the fork".to_owned(),
            );
        }
        match self.handle.join() {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the service panicked".to_owned()),
        }
    }
}
