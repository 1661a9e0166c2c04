//! How threads and tasks wait for what a client's lane brings. A thread runs the lane's turns itself if no other thread
//! does, as `lane/seat.rs` explains. A task is woken.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use tidewire_io::waker::LaneWaker;

use super::sync::WakeLane;
use crate::lane::{Lead, Task, Tasks, unsent};
use crate::sync::{park_until, this_thread};

/// The way to a client's lane: its waker and its seat, set once when the lane runs. Clones are the same way.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientLane(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    lane: OnceLock<Running>,
    tasks: Arc<Tasks>,
}

/// The references are weak, because what the application holds of a client may live longer than the lane.
#[derive(Debug)]
struct Running {
    waker: Weak<LaneWaker>,
    /// `None` if only the lane's own thread may run it.
    seat: Option<Weak<dyn Lead>>,
}

/// A thread or task that waits for an outcome or an event.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) waker: Waker,
    /// The count of a task. A thread has none, because it runs the lane if need be.
    task: Option<Task>,
}

impl ClientLane {
    /// Sets the lane, which runs from now on.
    pub(super) fn set(&self, waker: &Arc<LaneWaker>, seat: Option<&Arc<dyn Lead>>) {
        let waker = Arc::downgrade(waker);
        let seat = seat.map(Arc::downgrade);
        // A client has one lane, so this is called once.
        let _ = self.0.lane.set(Running { waker, seat });
    }

    /// The number of tasks that wait for this lane.
    pub(super) fn tasks(&self) -> &Arc<Tasks> {
        &self.0.tasks
    }

    /// Blocks this thread until `poll` is true, or until the time has come. Returns whether it became true. `poll` gets
    /// a waker if it must see to it that the outcome wakes this thread.
    pub(super) fn wait(
        &self,
        until_ns: Option<u64>,
        poll: &mut dyn FnMut(Option<&Waker>) -> bool,
    ) -> bool {
        let seat = self.0.lane.get().and_then(|it| it.seat.as_ref()?.upgrade());
        if let Some(seat) = seat {
            return seat.wait(until_ns, poll);
        }
        // The lane has ended, and the outcome is there or is being told. Or its own thread brings the outcome.
        while !poll(Some(&this_thread())) {
            if !park_until(until_ns) {
                return false;
            }
        }
        true
    }

    /// Blocks this thread until the future is ready.
    pub(super) fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let here = this_thread();
        let mut cx = Context::from_waker(&here);
        loop {
            // The first poll comes before the seat is touched: in a child by `fork` nobody unlocks it.
            let mut polled = future.as_mut().poll(&mut cx);
            if polled.is_pending() {
                self.wait(None, &mut |_| {
                    polled = future.as_mut().poll(&mut cx);
                    polled.is_ready()
                });
            }
            if let Poll::Ready(output) = polled {
                return output;
            }
        }
    }

    fn waker(&self) -> Option<Arc<LaneWaker>> {
        self.0.lane.get().and_then(|it| it.waker.upgrade())
    }
}

impl WakeLane for ClientLane {
    fn wake(&self) {
        if let Some(waker) = self.waker() {
            waker.wake();
        }
    }

    fn wake_poller(&self) {
        let Some(lane) = self.0.lane.get() else {
            return;
        };
        if let Some(waker) = lane.waker.upgrade()
            && waker.wake_poller()
            && let Some(seat) = &lane.seat
        {
            unsent::note(seat);
        }
    }

    fn note_waiting(&self, waker: &Waker) -> Waiting {
        let is_thread = waker.will_wake(&this_thread());
        Waiting {
            waker: waker.clone(),
            task: (!is_thread).then(|| Task::begin(&self.0.tasks)),
        }
    }

    fn wake_for_task(&self) {
        if self.0.tasks.are_waiting()
            && let Some(waker) = self.waker()
        {
            waker.wake_resting();
        }
    }
}

impl Waiting {
    /// Whether a thread waits. It does nothing else until it is woken.
    pub(super) fn is_thread(&self) -> bool {
        self.task.is_none()
    }

    #[cfg(test)]
    pub(super) fn of_thread(waker: &Waker) -> Self {
        Self {
            waker: waker.clone(),
            task: None,
        }
    }
}
