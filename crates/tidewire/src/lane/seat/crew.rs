//! The threads and tasks that wait for a lane, and how the lead passes between them.

use std::sync::Arc;
use std::time::Duration;

use tidewire_io::waker::LaneWaker;

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::thread::{self, Thread};
use crate::sync::{Mutex, MutexGuard, park_for};

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
    pub(in crate::lane) fn must_hand_on(&self) -> bool {
        self.follower_count.load(Ordering::Relaxed) > 0
            && self.is_led_by_own.load(Ordering::Relaxed)
            && !self.tasks.are_waiting()
    }

    #[inline]
    pub(super) fn note_lead(&self) {
        self.waker.after_rest();
        let leads = self.leads.load(Ordering::Relaxed);
        self.leads.store(leads.wrapping_add(1), Ordering::Relaxed);
    }

    /// Gives the lead to a follower, or calls the lane's own thread if tasks or work wait. The lane rests already, and
    /// the seat is free.
    #[inline]
    pub(super) fn hand_on(&self, has_work: bool) {
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
    pub(super) fn ask_for_lead(&self) {
        fence(Ordering::SeqCst);
        if self.must_hand_on() {
            self.waker.wake();
        }
    }

    pub(super) fn waker(&self) -> &LaneWaker {
        &self.waker
    }

    pub(super) fn set_led_by_own(&self, is_led: bool) {
        self.is_led_by_own.store(is_led, Ordering::SeqCst);
    }

    /// Waits on the lane's own thread until it must try to lead. `seen` is the number of leads at its last look.
    pub(super) fn rest(&self, seen: &mut u64) {
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
pub(super) struct Following<'a>(&'a Crew);

impl<'a> Following<'a> {
    pub(super) fn begin(crew: &'a Crew) -> Self {
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
