//! The threads that wait for a lane run its turns, one of them at a time.
//!
//! Problem: a thread that waits for a reply sleeps while the lane's own thread is woken, works, and wakes it again.
//! That is two changes of thread for each call, 5 to 40 µs each. Approach: leader and followers. The thread that
//! holds the [`Seat`] leads: it waits on the poller, and runs the turns that bring the outcomes of all threads. A
//! thread that must wait leads if the seat is free. Else it follows: it is parked until its outcome is there, or
//! until the leader hands on the lead to it.
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
//! the peer wait for the next lead, at most two leases (`LEASE`). A task of an executor cannot lead, because its thread
//! has other tasks. While a task waits, the lane's own thread leads.
//!
//! No thread waits for the lane of a server: its own thread leads. If the lane has in-process sessions and little
//! work, its own thread sleeps without the seat, and lanes that write to these sessions may *visit* the lane, that is
//! run a turn of it: see `errands.rs`. `seat/model.rs` runs this code under a model checker. The decisions 0107 and
//! 0108 have the measurements and what was rejected.

use std::fmt;
use std::iter::{from_fn, once};
#[cfg(not(tidewire_model))]
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Waker;

use tidewire_io::clock::now_ns;
#[cfg(not(tidewire_model))]
use tidewire_io::poller::wait_readable;
use tidewire_io::waker::LaneWaker;

pub(crate) use crew::{Crew, Task, Tasks};

use super::LaneError;
use super::errands::{self, Errand};
#[cfg(not(tidewire_model))]
use super::wait::until;
use crate::engine::panic_text;
use crate::on_lane;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::{TryGuard, TryMutex, park_until, this_thread};
use crew::Following;

/// A lane, as the thread that leads it sees it.
pub(crate) trait Turns: Send {
    /// Runs a turn without a wait. It is called when a thread begins to lead.
    fn take_over(&mut self);

    /// Waits for events, at most until this time, handles them, and runs a turn. With 0 it only looks for events.
    fn step(&mut self, until_ns: Option<u64>) -> Result<(), LaneError>;

    /// Whether the lane may offer its seat to other lanes while it sleeps.
    fn may_offer(&self) -> bool {
        false
    }

    /// Begins a sleep with an offer if the lane is idle and open to visits. Else makes a step.
    fn step_or_offer(&mut self) -> Result<Option<Offer>, LaneError> {
        self.step(None)?;
        Ok(None)
    }

    /// Ends the offer: looks for events, handles them, and runs a turn.
    fn end_offer(&mut self) -> Result<(), LaneError> {
        self.step(Some(0))
    }

    /// A visit: answers these errands, and runs a turn. Returns whether the lane's own thread must be woken.
    fn attend(&mut self, errands: &mut dyn Iterator<Item = Errand>) -> bool {
        // Each errand that is dropped becomes a signal.
        errands.count() > 0
    }

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
    /// The lane's own thread sleeps outside of the seat, and other lanes may run this one. It becomes true under the
    /// lock.
    is_offered: AtomicBool,
    crew: Arc<Crew>,
}

struct Held<L> {
    /// `None` after the end.
    lane: Option<L>,
    /// The failure of a turn that another thread led. The lane's own thread ends the lane with it.
    failure: Option<LaneError>,
}

impl<L: Turns> Held<L> {
    /// The lane, unless it has ended or a turn of it has failed.
    fn lane(&mut self) -> Option<&mut L> {
        self.lane.as_mut().filter(|_| self.failure.is_none())
    }

    /// The lane, unless it has no further turn.
    fn running(&mut self) -> Option<&mut L> {
        self.lane().filter(|it| !it.stops())
    }
}

/// A sleep that permits visits.
pub(crate) struct Offer {
    /// The descriptor that is readable when the lane has events.
    readiness: Arc<OwnedFd>,
    until_ns: Option<u64>,
}

impl Offer {
    pub(super) fn new(readiness: Arc<OwnedFd>, until_ns: Option<u64>) -> Self {
        Self {
            readiness,
            until_ns,
        }
    }

    /// Sleeps until the lane has events, or until the time has come.
    #[cfg(not(tidewire_model))]
    fn sleep(&self, _: &LaneWaker) -> Result<(), LaneError> {
        Ok(wait_readable(self.readiness.as_fd(), until(self.until_ns))?)
    }

    #[cfg(tidewire_model)]
    fn sleep(&self, waker: &LaneWaker) -> Result<(), LaneError> {
        waker.sleep_in_model();
        Ok(())
    }
}

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

    /// Runs the lane for a session with a signal, if its own thread sleeps outside of the seat. Else the errand is
    /// dropped, which sends the signal.
    fn attend(&self, errand: Errand);

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
            // If the outcome is there, the requests of other lanes wait, to leave together with later ones.
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
            is_offered: AtomicBool::new(false),
            crew,
        })
    }

    /// Runs the lane whenever no other thread leads it, until its end. Only the lane's own thread calls it.
    pub(super) fn run(&self) -> Result<(), LaneError> {
        self.crew.waker().set_thread(this_thread());
        on_lane::begin(self.id());
        let mut seen = 0;
        loop {
            if let Some(held) = self.take()
                && let Some(outcome) = self.run_turns(held)
            {
                return outcome;
            }
            self.crew.rest(&mut seen);
            // A thread that leaves sees the wake that ended this rest, or this thread sees that the seat is free.
            fence(Ordering::SeqCst);
        }
    }

    /// Leads on the lane's own thread until a thread wants the lead, or to the lane's end.
    fn run_turns<'a>(&'a self, mut held: TryGuard<'a, Held<L>>) -> Option<Result<(), LaneError>> {
        self.crew.set_led_by_own(true);
        if held.lane.is_none() {
            return Some(Ok(()));
        }
        // A lane that stops has had its last turn.
        let mut outcome = contain(|| {
            held.running().map(L::take_over);
            Ok(())
        });
        loop {
            let Held { lane, failure } = &mut *held;
            if let Some(failure) = failure.take() {
                outcome = Err(failure);
            }
            let Some(lane) = lane.as_mut().filter(|_| outcome.is_ok()) else {
                break;
            };
            match contain(|| self.run_to_offer(lane)) {
                Ok(Some(offer)) => {
                    self.is_offered.store(true, Ordering::Relaxed);
                    drop(held);
                    let slept = offer.sleep(self.crew.waker());
                    // Ends the visits: they could keep the lock from this thread, and do not poll sockets.
                    self.is_offered.store(false, Ordering::Relaxed);
                    held = self.held.lock();
                    let lane = held.running();
                    outcome = slept.and_then(|()| contain(|| lane.map_or(Ok(()), L::end_offer)));
                }
                Ok(None) => break,
                Err(failure) => outcome = Err(failure),
            }
        }
        self.crew.set_led_by_own(false);
        if outcome.is_ok() && held.lane.as_ref().is_some_and(|lane| !lane.stops()) {
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

    /// Runs turns until the lane sleeps outside of the seat, or until its own thread must leave the seat.
    fn run_to_offer(&self, lane: &mut L) -> Result<Option<Offer>, LaneError> {
        while !lane.stops() {
            if !lane.may_offer() {
                lane.step(None)?;
            } else if let Some(offer) = lane.step_or_offer()? {
                return Ok(Some(offer));
            }
            if self.crew.must_hand_on() {
                break;
            }
        }
        Ok(None)
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
    fn leave(&self, mut held: TryGuard<'_, Held<L>>) {
        errands::send();
        let Some(lane) = held.running() else {
            drop(held);
            return self.crew.waker().unpark();
        };
        self.crew.waker().before_rest();
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
        let led = match held.lane() {
            Some(lane) => {
                let _here = on_lane::enter(self.id());
                let is_ready = &mut || {
                    is_done = is_done || is_ready();
                    is_done
                };
                contain(|| lead_until(lane, until_ns, is_ready))
            }
            None => Ok(Led::Ended),
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

    fn attend(&self, errand: Errand) {
        if !self.is_offered.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut held) = self.held.try_lock() else {
            return;
        };
        let Some(lane) = held.lane() else {
            return;
        };
        if !self.is_offered.load(Ordering::Relaxed) {
            return;
        }
        let next = from_fn(|| errands::take_of(self.id()));
        let attended = contain(|| {
            let _here = on_lane::enter(self.id());
            Ok(lane.attend(&mut once(errand).chain(next)))
        });
        if !matches!(attended, Ok(false)) {
            held.failure = attended.err();
            // Its own thread runs the lane next.
            self.is_offered.store(false, Ordering::Relaxed);
            drop(held);
            self.crew.waker().wake();
        }
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

mod crew;
#[cfg(all(test, tidewire_model))]
mod model;
#[cfg(test)]
mod tests;
pub(crate) mod unsent;
