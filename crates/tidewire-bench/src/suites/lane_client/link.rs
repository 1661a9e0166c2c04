//! The link between a lane of clients and the thread that plays the driver.
//!
//! The driver sets a phase, which the lane looks at once a turn; the lane has counters, which the driver looks at behind the
//! window, and news, which are rare and go through a lock.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tidewire_io::waker::LaneWaker;

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
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) is_connected: bool,
    pub(super) failure: Option<String>,
    pub(super) result: Option<Measured>,
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
    pub(in super::super) fn new() -> Arc<Self> {
        Arc::new(Self {
            phase: AtomicU8::new(Phase::Connecting as u8),
            unanswered: AtomicU64::new(u64::MAX),
            faulty: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            news: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Plays the driver: lets the lane that `waker` wakes connect, warm up and work. Returns what it found. Where the
    /// receiver of what is sent one way is in this process, `taken` says how much that has.
    pub(in super::super) fn drive(
        &self,
        work: &Work,
        waker: &LaneWaker,
        stage: &mut Stage,
        taken: Option<&dyn Fn() -> u64>,
    ) -> Result<Measured, RoleError> {
        waker.wake();
        self.wait(CONNECT_MAX, "connect", |news| {
            news.is_connected.then_some(())
        })?;
        self.enter(Phase::WarmUp, waker);
        thread::sleep(Duration::from_millis(work.warm_up_ms));
        stage.started()?;
        self.enter(Phase::Measuring, waker);
        let (before, from) = (taken.map(|taken| taken()), Instant::now());
        thread::sleep(Duration::from_millis(work.measure_ms));
        let (after, seconds) = (taken.map(|taken| taken()), from.elapsed().as_secs_f64());
        self.enter(Phase::Draining, waker);
        stage.stopped()?;
        let mut measured =
            self.wait(RESULT_MAX, "hear from the lane", |news| news.result.take())?;
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

    fn enter(&self, phase: Phase, waker: &LaneWaker) {
        self.phase.store(phase as u8, Ordering::Release);
        waker.wake();
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Connecting,
            1 => Phase::WarmUp,
            2 => Phase::Measuring,
            _ => Phase::Draining,
        }
    }

    fn wait<T>(
        &self,
        timeout: Duration,
        what: &str,
        mut found: impl FnMut(&mut News) -> Option<T>,
    ) -> Result<T, RoleError> {
        let until = Instant::now() + timeout;
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(failure) = news.failure.take() {
                return Err(RoleError::failed(what)(failure));
            }
            if let Some(found) = found(&mut news) {
                return Ok(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("nothing came of it in {} s", timeout.as_secs());
                return Err(RoleError::failed(what)(text));
            }
            news = self
                .changed
                .wait_timeout(news, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    pub(super) fn tell(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

/// Longest wait for all connections.
const CONNECT_MAX: Duration = Duration::from_secs(25);

/// Longest wait for the lane's figures after the end.
const RESULT_MAX: Duration = Duration::from_secs(10);
