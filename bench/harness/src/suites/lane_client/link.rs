//! The link between a lane of clients and the thread that plays the driver.
//!
//! The driver sets a phase, which the lane looks at once a turn; the lane has counters, which the driver looks at
//! behind the window, and news, which are rare.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use super::super::course::{News, hear_connected, hear_found, tell};
use crate::contract::{Measured, Work};
use crate::plan::RoleError;
use crate::probes::echo::DRAIN;
use crate::stage::Stage;

/// The state that the lane shares with the driver's thread.
#[derive(Debug)]
pub(in super::super) struct Link {
    phase: AtomicU8,
    /// Messages that are due back, for the driver's thread to see; unknown until the lane has handed in its figures.
    pub(super) unanswered: AtomicU64,
    /// Messages that will not come back as they should.
    pub(super) faulty: AtomicU64,
    /// Messages sent one way that came to the other end in order, where this lane has both.
    pub(in super::super) taken: AtomicU64,
    news: Sender<News<Measured>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
pub(super) enum Phase {
    Connecting,
    WarmUp,
    Measuring,
    Draining,
}

impl Link {
    /// Returns a link, and the channel on which the lane reports.
    pub(in super::super) fn new() -> (Arc<Self>, Receiver<News<Measured>>) {
        let (sender, news) = channel();
        let link = Self {
            phase: AtomicU8::new(Phase::Connecting as u8),
            unanswered: AtomicU64::new(u64::MAX),
            faulty: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            news: sender,
        };
        (Arc::new(link), news)
    }

    /// Plays the driver: lets the lane that `waker` wakes connect, warm up and work. Returns what it found. Where the
    /// receiver of what is sent one way is in this process, `taken` says how much that has.
    pub(in super::super) fn drive(
        &self,
        news: &Receiver<News<Measured>>,
        work: &Work,
        waker: &Waker,
        stage: &mut Stage,
        taken: Option<&dyn Fn() -> u64>,
    ) -> Result<Measured, RoleError> {
        waker.wake_by_ref();
        hear_connected(news)?;
        self.enter(Phase::WarmUp, waker);
        thread::sleep(Duration::from_millis(work.warm_up_ms));
        stage.started()?;
        self.enter(Phase::Measuring, waker);
        let (before, from) = (taken.map(|taken| taken()), Instant::now());
        thread::sleep(Duration::from_millis(work.measure_ms));
        let (after, seconds) = (taken.map(|taken| taken()), from.elapsed().as_secs_f64());
        self.enter(Phase::Draining, waker);
        stage.stopped()?;
        let mut measured = hear_found(news)?;
        if let (Some(before), Some(after)) = (before, after) {
            measured.messages = after - before;
            measured.seconds = seconds;
        }
        let missing = || match (taken, measured.sent) {
            (Some(taken), Some(sent)) => sent.abs_diff(taken()),
            (None, Some(_)) => 0,
            (_, None) => self.unanswered.load(Ordering::Acquire),
        };
        let until = Instant::now() + DRAIN;
        while missing() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        // Read behind the wait, in which what came wrongly still counts.
        let faulty = self.faulty.load(Ordering::Acquire);
        measured.lost += missing() + faulty;
        if taken.is_some() {
            measured.sent = None;
        }
        Ok(measured)
    }

    fn enter(&self, phase: Phase, waker: &Waker) {
        self.phase.store(phase as u8, Ordering::Release);
        waker.wake_by_ref();
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Connecting,
            1 => Phase::WarmUp,
            2 => Phase::Measuring,
            _ => Phase::Draining,
        }
    }

    pub(super) fn tell(&self, news: News<Measured>) {
        tell(&self.news, news);
    }
}
