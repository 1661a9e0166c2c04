//! The threads that wait for a lane run its turns, one of them at a time.
//!
//! Problem: a thread that waits for a reply sleeps while the lane's own thread is woken, works, and wakes it again.
//! That is two changes of thread for each call, 5 to 40 µs each. Approach: leader and followers. The thread that holds
//! the [`Seat`] leads: it waits on the poller, and runs the turns that bring the outcomes of all threads. A thread that
//! must wait leads if the seat is free. Else it follows: it is parked until its outcome is there, or until the leader
//! hands on the lead to it.
//!
//! ```text
//!   thread that waits          lane's own thread
//!   ─────────────────          ─────────────────
//!   seat free? ── lead ──▶ turns until its own outcome ──▶ leave: the lead goes to the own thread if a
//!        │                                                  task waits, else to a follower, else to the own
//!        no                 leads while no thread waits      thread if work waits, else to nobody: the lane rests
//!        ▼                     │ hands on ▲
//!   follow: parked ◀───────────┘          └─ called: by a message, a control, a task, the end,
//!                                            or one lease after the last lead
//! ```
//!
//! Between two leads the lane rests: no thread watches its sockets. So a call in a loop wakes no other thread; the own
//! thread looks once a lease whether the loop goes on. While the lane rests nobody waits for it, and a thread that
//! brings work other than a request calls the lane's own thread, by
//! [`LaneWaker::wake`](tidewire_io::waker::LaneWaker::wake). Timers, requests without a waiting thread and messages of
//! the peer wait for the next lead, at most two [leases](LEASE). A task of an executor cannot lead, because its thread
//! has other tasks. While a task waits, the lane's own thread leads.
//!
//! The lane of a server has no such threads, so its own thread leads from its start to its end. `seat/model.rs` runs
//! this code under a model checker. Decision 0107 has the measurements and what was rejected.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_io::waker::LaneWaker;

use super::LaneError;
use crate::engine::panic_text;
use crate::on_lane;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::thread::{self, Thread};
use crate::sync::{Mutex, MutexGuard, TryGuard, TryMutex, park_for, park_until, this_thread};

/// A lane, as the thread that leads it sees it.
pub(crate) trait Turns: Send {
    /// Runs a turn without a wait. It is called when a thread begins to lead.
    fn take_over(&mut self);

    /// Waits for events, at most until this time, handles them, and runs a turn. With 0 it only looks for events.
    fn step(&mut self, until_ns: Option<u64>) -> Result<(), LaneError>;

    /// Whether the lane must end.
    fn stops(&self) -> bool;

    /// Whether another thread has left work.
    fn has_work(&self) -> bool;

    /// Ends the lane. Its own thread calls it.
    fn end(self, outcome: Result<(), LaneError>) -> Result<(), LaneError>;
}

/// A lane, and the right to run its turns.
pub(crate) struct Seat<L> {
    held: TryMutex<Held<L>>,
    crew: Arc<Crew>,
}

struct Held<L> {
    /// `None` after the end.
    lane: Option<L>,
    /// The failure of a turn that another thread led. The lane's own thread ends the lane with it.
    failure: Option<LaneError>,
}

/// The threads and tasks that wait for a lane.
#[derive(Debug)]
pub(crate) struct Crew {
    waker: Arc<LaneWaker>,
    /// Parked threads that can lead.
    followers: Mutex<Vec<Thread>>,
    /// Their number, for a look without the lock.
    follower_count: AtomicUsize,
    tasks: Arc<Tasks>,
    /// Whether the lane's own thread leads.
    is_led_by_own: AtomicBool,
    /// Number of leads so far. Only the leader changes it.
    leads: AtomicU64,
    /// Whether the lane's own thread sleeps without a lease, because another thread leads for long.
    sleeps_long: AtomicBool,
}

/// The number of tasks that wait for a lane.
#[derive(Debug, Default)]
pub(crate) struct Tasks(AtomicUsize);

/// A task that waits. Dropping it counts it out.
#[derive(Debug)]
pub(crate) struct Task(Arc<Tasks>);

/// The outcome of an attempt to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Led {
    /// The caller is ready.
    Ready,
    /// The time has come.
    TimedOut,
    /// Another thread leads.
    Busy,
    /// The lane has ended or is about to. Its end brings all outcomes.
    Ended,
}

/// A seat, whatever its lane.
pub(crate) trait Lead: Send + Sync + fmt::Debug {
    /// Runs the lane's turns until `is_ready` or until the time has come, unless another thread leads.
    fn lead(&self, until_ns: Option<u64>, is_ready: &mut dyn FnMut() -> bool) -> Led;

    fn crew(&self) -> &Crew;

    /// Tells this lane from all others of the process.
    fn id(&self) -> usize;
}

impl dyn Lead {
    /// Blocks this thread until `poll` is true, or until the time has come. Returns whether it became true. `poll` gets
    /// the waker of this thread if it must see to it that the outcome wakes the thread.
    pub(crate) fn wait(
        &self,
        until_ns: Option<u64>,
        poll: &mut dyn FnMut(Option<&Waker>) -> bool,
    ) -> bool {
        if unsent::is_elsewhere(self.id()) {
            // The outcome may be there already. Then more requests may follow, and leave together.
            if self.lead(Some(0), &mut || poll(None)) == Led::Ready {
                return true;
            }
            unsent::send_elsewhere(self.id());
        }
        let mut following = None;
        let is_ready = loop {
            let led = self.lead(until_ns, &mut || poll(None));
            match led {
                Led::Ready => break true,
                Led::TimedOut => break false,
                Led::Busy | Led::Ended => {}
            }
            if poll(Some(&this_thread())) {
                break true;
            }
            if led == Led::Busy && following.is_none() {
                // A leader that left before it could see this follower has left the seat free.
                following = Some(Following::begin(self.crew()));
                continue;
            }
            if following.is_some() {
                self.crew().ask_for_lead();
            }
            if !park_until(until_ns) {
                break false;
            }
        };
        if following.take().is_some() {
            // The lead may have been handed on to this thread, which does not need it any more.
            self.lead(until_ns, &mut || true);
        }
        is_ready
    }
}

impl<L: Turns> Seat<L> {
    pub(crate) fn new(lane: L, crew: Arc<Crew>) -> Arc<Self> {
        let held = Held {
            lane: Some(lane),
            failure: None,
        };
        Arc::new(Self {
            held: TryMutex::new(held),
            crew,
        })
    }

    /// Runs the lane whenever no other thread leads it, until its end. Only the lane's own thread calls it.
    pub(super) fn run(&self) -> Result<(), LaneError> {
        self.crew.waker.set_thread(this_thread());
        on_lane::begin(self.id());
        let mut seen = 0;
        loop {
            if let Some(held) = self.take()
                && let Some(outcome) = self.run_turns(held)
            {
                return outcome;
            }
            self.crew.rest(&mut seen);
            // A thread that leaves sees the call that ended this rest, or this thread sees that the seat is free.
            fence(Ordering::SeqCst);
        }
    }

    /// Leads on the lane's own thread until a thread wants the lead, or to the lane's end.
    fn run_turns(&self, mut held: TryGuard<'_, Held<L>>) -> Option<Result<(), LaneError>> {
        let Held { lane, failure } = &mut *held;
        let Some(lane) = lane else {
            return Some(Ok(()));
        };
        self.crew.is_led_by_own.store(true, Ordering::SeqCst);
        let mut outcome = match failure.take() {
            Some(failure) => Err(failure),
            None => contain(|| {
                // A lane that stops has had its last turn.
                if !lane.stops() {
                    lane.take_over();
                }
                while !lane.stops() {
                    lane.step(None)?;
                    if self.crew.must_hand_on() {
                        break;
                    }
                }
                Ok(())
            }),
        };
        self.crew.is_led_by_own.store(false, Ordering::SeqCst);
        if outcome.is_ok() && !lane.stops() {
            self.leave(held);
            return None;
        }
        let lane = held.lane.take();
        // Threads that wait meanwhile find no lane.
        drop(held);
        if let Some(lane) = lane {
            outcome = lane.end(outcome);
        }
        Some(outcome)
    }

    /// Takes the seat if it is free.
    #[inline]
    fn take(&self) -> Option<TryGuard<'_, Held<L>>> {
        let held = self.held.try_lock()?;
        self.crew.note_lead();
        Some(held)
    }

    /// Leaves the seat, and wakes the thread that must lead next.
    #[inline]
    fn leave(&self, held: TryGuard<'_, Held<L>>) {
        let Held { lane, failure } = &*held;
        let going_on = lane.as_ref().filter(|it| !it.stops() && failure.is_none());
        let Some(lane) = going_on else {
            drop(held);
            return self.crew.waker.unpark();
        };
        self.crew.waker.before_rest();
        let has_work = lane.has_work();
        drop(held);
        self.crew.hand_on(has_work);
    }
}

impl<L: Turns> Lead for Seat<L> {
    fn lead(&self, until_ns: Option<u64>, is_ready: &mut dyn FnMut() -> bool) -> Led {
        let Some(mut held) = self.take() else {
            return Led::Busy;
        };
        let mut is_done = false;
        let led = match &mut *held {
            Held {
                lane: Some(lane),
                failure: None,
            } => {
                let _here = on_lane::enter(self.id());
                let is_ready = &mut || {
                    is_done = is_done || is_ready();
                    is_done
                };
                contain(|| lead_until(lane, until_ns, is_ready))
            }
            _ => Ok(Led::Ended),
        };
        let led = led.unwrap_or_else(|failure| {
            held.failure = Some(failure);
            match is_done {
                true => Led::Ready,
                false => Led::Ended,
            }
        });
        self.leave(held);
        led
    }

    fn crew(&self) -> &Crew {
        &self.crew
    }

    fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Runs turns until the caller is ready or its time has come. Each lead looks at the sockets at least once: the own
/// thread does not while leads go on, and a loop of short waits would keep the lane from its peer.
fn lead_until<L: Turns>(
    lane: &mut L,
    until_ns: Option<u64>,
    is_ready: &mut dyn FnMut() -> bool,
) -> Result<Led, LaneError> {
    if is_ready() {
        return Ok(Led::Ready);
    }
    if !lane.stops() {
        lane.take_over();
    }
    while !lane.stops() {
        lane.step(match is_ready() {
            true => Some(0),
            false => until_ns,
        })?;
        if is_ready() {
            return Ok(Led::Ready);
        }
        if until_ns.is_some_and(|until_ns| now_ns() >= until_ns) {
            return Ok(Led::TimedOut);
        }
    }
    Ok(match is_ready() {
        true => Led::Ready,
        false => Led::Ended,
    })
}

/// Runs turns. A panic of a turn becomes an error, and the thread that led goes on.
pub(super) fn contain<T>(work: impl FnOnce() -> Result<T, LaneError>) -> Result<T, LaneError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(LaneError::ServicePanicked(panic_text(&*panic))))
}

impl<L> fmt::Debug for Seat<L> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Seat");
        shown.field("crew", &self.crew).finish_non_exhaustive()
    }
}

impl Crew {
    pub(crate) fn new(waker: &Arc<LaneWaker>, tasks: Arc<Tasks>) -> Arc<Self> {
        Arc::new(Self {
            waker: Arc::clone(waker),
            followers: Mutex::default(),
            follower_count: AtomicUsize::new(0),
            tasks,
            is_led_by_own: AtomicBool::new(false),
            leads: AtomicU64::new(0),
            sleeps_long: AtomicBool::new(false),
        })
    }

    /// Whether the lane's own thread leads and must give the lead to a thread that waits. While a task waits, it keeps
    /// the lead: else the two would change after each call.
    #[inline]
    pub(super) fn must_hand_on(&self) -> bool {
        self.follower_count.load(Ordering::Relaxed) > 0
            && self.is_led_by_own.load(Ordering::Relaxed)
            && !self.tasks.are_waiting()
    }

    #[inline]
    fn note_lead(&self) {
        self.waker.after_rest();
        let leads = self.leads.load(Ordering::Relaxed);
        self.leads.store(leads.wrapping_add(1), Ordering::Relaxed);
    }

    /// Gives the lead to a follower, or calls the lane's own thread if tasks or work wait. The lane rests already, and
    /// the seat is free.
    #[inline]
    fn hand_on(&self, has_work: bool) {
        fence(Ordering::SeqCst);
        let needs_own = self.tasks.are_waiting();
        // A wake before the seat was free has called the own thread, which then found the seat taken.
        let was_called = !self.waker.is_resting();
        if !needs_own && let Some(follower) = self.next_follower() {
            follower.unpark();
        } else if needs_own || has_work || was_called {
            self.waker.after_rest();
            self.waker.unpark();
        } else if self.sleeps_long.load(Ordering::Relaxed) {
            self.waker.unpark();
        }
    }

    /// The lock orders this look against a follower that comes: the follower then finds the seat free.
    fn next_follower(&self) -> Option<Thread> {
        self.lock().first().cloned()
    }

    /// Makes the lane's own thread hand on the lead if it sleeps on the poller.
    fn ask_for_lead(&self) {
        fence(Ordering::SeqCst);
        if self.must_hand_on() {
            self.waker.wake();
        }
    }

    /// Waits on the lane's own thread until it must try to lead. `seen` is the number of leads at its last look.
    fn rest(&self, seen: &mut u64) {
        loop {
            let leads = self.leads.load(Ordering::Relaxed);
            if *seen != leads {
                *seen = leads;
                park_for(LEASE);
                if !self.waker.is_resting() {
                    return;
                }
                continue;
            }
            // After this look the lease begins again.
            *seen = leads.wrapping_sub(1);
            if self.waker.is_resting() {
                // The lease is over.
                return;
            }
            // Another thread leads for long, perhaps for hours. It unparks this thread when it leaves.
            self.sleeps_long.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !self.waker.is_resting() {
                thread::park();
            }
            self.sleeps_long.store(false, Ordering::Relaxed);
            if !self.waker.is_resting() {
                // It was called, or yet another thread leads.
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Thread>> {
        // No code under the lock panics.
        let locked = self.followers.lock();
        locked.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A thread that is among the followers.
struct Following<'a>(&'a Crew);

impl<'a> Following<'a> {
    fn begin(crew: &'a Crew) -> Self {
        let mut followers = crew.lock();
        followers.push(thread::current());
        crew.follower_count
            .store(followers.len(), Ordering::Relaxed);
        Self(crew)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        let own = thread::current().id();
        let mut followers = self.0.lock();
        if let Some(index) = followers.iter().position(|it| it.id() == own) {
            // The next in the row stays the next.
            followers.remove(index);
        }
        self.0
            .follower_count
            .store(followers.len(), Ordering::Relaxed);
    }
}

impl Task {
    pub(crate) fn begin(tasks: &Arc<Tasks>) -> Self {
        tasks.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(tasks))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tasks {
    #[inline]
    pub(crate) fn are_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// The time after a lead in which the lane's own thread does not take the seat. The calls of a program that calls again
/// and again then wake no other thread. It is longer than most programs think between two calls, and shorter than a
/// tick of a timer that the library promises.
const LEASE: Duration = Duration::from_millis(1);

#[cfg(all(test, tidewire_model))]
mod model;
#[cfg(test)]
mod tests;
pub(crate) mod unsent;
