//! The exchange between a step's lanes and its coordinator while the step runs.
//!
//! The coordinator opens the barrier and closes the step; the lanes publish counters once per turn and swap
//! histograms a few times a second, so that the live view costs the hot path nothing.

mod result;
mod times;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tidewire_io::clock::now_ns;

pub(crate) use self::result::{AgentResult, Confirmed, Counts, LaneResult};
pub(crate) use self::times::{SentTimes, Times};

/// Shared by the coordinator and all lanes of one step.
#[derive(Debug)]
pub(crate) struct StepLink {
    /// 0 until the barrier opens.
    start_ns: AtomicU64,
    stop_ns: AtomicU64,
    steady_from_ns: AtomicU64,
    login_closed: AtomicBool,
    finished: AtomicBool,
    logins: AtomicU64,
    slow_logins: AtomicU64,
    login_failures: AtomicU64,
    disconnects: AtomicU64,
    slow_disconnects: AtomicU64,
    send_errors: AtomicU64,
    lanes_done: AtomicU64,
    server_agent: OnceLock<String>,
    lanes: Vec<LaneLink>,
    results: Mutex<Vec<LaneResult>>,
    /// Times collected so far.
    times: Mutex<Times>,
}

#[derive(Debug, Default)]
struct LaneLink {
    sent: AtomicU64,
    received: AtomicU64,
    exchange: Mutex<Exchange>,
}

/// Two sets of histograms change hands: the lane fills one while the coordinator reads the other.
#[derive(Debug)]
struct Exchange {
    full: Option<Box<Times>>,
    empty: Option<Box<Times>>,
    swapped_ns: u64,
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            full: None,
            empty: Some(Box::default()),
            swapped_ns: 0,
        }
    }
}

impl StepLink {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            start_ns: AtomicU64::new(0),
            stop_ns: AtomicU64::new(u64::MAX),
            steady_from_ns: AtomicU64::new(u64::MAX),
            login_closed: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            logins: AtomicU64::new(0),
            slow_logins: AtomicU64::new(0),
            login_failures: AtomicU64::new(0),
            disconnects: AtomicU64::new(0),
            slow_disconnects: AtomicU64::new(0),
            send_errors: AtomicU64::new(0),
            lanes_done: AtomicU64::new(0),
            server_agent: OnceLock::new(),
            lanes: (0..lanes).map(|_| LaneLink::default()).collect(),
            results: Mutex::default(),
            times: Mutex::default(),
        }
    }

    /// From now on no login counts, neither as made nor as failed.
    pub(crate) fn close_login(&self) {
        self.login_closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_login_closed(&self) -> bool {
        self.login_closed.load(Ordering::SeqCst)
    }

    /// Opens the barrier: agents count their first think time from `start_ns` and send until `stop_ns`.
    pub(crate) fn open(&self, start_ns: u64, steady_from_ns: u64, stop_ns: u64) {
        self.stop_ns.store(stop_ns, Ordering::Relaxed);
        self.steady_from_ns.store(steady_from_ns, Ordering::Relaxed);
        self.start_ns.store(start_ns, Ordering::Release);
    }

    /// Brings the end of sending forward.
    pub(crate) fn stop_sending(&self, stop_ns: u64) {
        self.stop_ns.fetch_min(stop_ns, Ordering::Relaxed);
    }

    /// Ends the step: lanes hand in their results and stop.
    pub(crate) fn finish(&self) {
        self.finished.store(true, Ordering::Release);
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    pub(crate) fn start_ns(&self) -> Option<u64> {
        match self.start_ns.load(Ordering::Acquire) {
            0 => None,
            start_ns => Some(start_ns),
        }
    }

    pub(crate) fn stop_ns(&self) -> u64 {
        self.stop_ns.load(Ordering::Relaxed)
    }

    /// The window in which sent and arrived messages count for the steady rates.
    #[inline]
    pub(crate) fn steady_window(&self) -> (u64, u64) {
        (
            self.steady_from_ns.load(Ordering::Relaxed),
            self.stop_ns.load(Ordering::Relaxed),
        )
    }

    pub(crate) fn add_login(&self, is_slow: bool) {
        self.slow_logins
            .fetch_add(u64::from(is_slow), Ordering::Relaxed);
        self.logins.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_login_failure(&self) {
        self.add_login_failures(1);
    }

    pub(crate) fn add_login_failures(&self, count: u64) {
        self.login_failures.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn add_disconnect(&self, is_slow: bool) {
        let counter = if is_slow {
            &self.slow_disconnects
        } else {
            &self.disconnects
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_send_error(&self) {
        self.send_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_lane_done(&self) {
        self.lanes_done.fetch_add(1, Ordering::Relaxed);
    }

    /// Lanes that have sent everything they had to.
    pub(crate) fn lanes_done(&self) -> u64 {
        self.lanes_done.load(Ordering::Relaxed)
    }

    /// Agents logged in, slow receivers included.
    pub(crate) fn logins(&self) -> u64 {
        self.logins.load(Ordering::Relaxed)
    }

    /// Slow receivers logged in.
    pub(crate) fn slow_logins(&self) -> u64 {
        self.slow_logins.load(Ordering::Relaxed)
    }

    /// Slow receivers that lost their connection, which is nobody's fault.
    pub(crate) fn slow_disconnects(&self) -> u64 {
        self.slow_disconnects.load(Ordering::Relaxed)
    }

    pub(crate) fn login_failures(&self) -> u64 {
        self.login_failures.load(Ordering::Relaxed)
    }

    pub(crate) fn disconnects(&self) -> u64 {
        self.disconnects.load(Ordering::Relaxed)
    }

    pub(crate) fn send_errors(&self) -> u64 {
        self.send_errors.load(Ordering::Relaxed)
    }

    pub(crate) fn set_server_agent(&self, agent: &str) {
        self.server_agent.get_or_init(|| agent.to_owned());
    }

    pub(crate) fn server_agent(&self) -> Option<&str> {
        self.server_agent.get().map(String::as_str)
    }

    /// Called by lane `lane` once per turn.
    pub(crate) fn publish(&self, lane: usize, sent: u64, received: u64, times: &mut Box<Times>) {
        let link = &self.lanes[lane];
        link.sent.store(sent, Ordering::Relaxed);
        link.received.store(received, Ordering::Relaxed);
        let Ok(mut exchange) = link.exchange.try_lock() else {
            return;
        };
        let now_ns = now_ns();
        if now_ns.saturating_sub(exchange.swapped_ns) < SWAP_INTERVAL_NS || exchange.full.is_some()
        {
            return;
        }
        let Some(empty) = exchange.empty.take() else {
            return;
        };
        exchange.full = Some(std::mem::replace(times, empty));
        exchange.swapped_ns = now_ns;
    }

    /// A lane's last words.
    pub(crate) fn hand_in(&self, result: LaneResult, times: &Times) {
        lock(&self.times).merge(times);
        lock(&self.results).push(result);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.lanes
            .iter()
            .map(|lane| lane.sent.load(Ordering::Relaxed))
            .sum()
    }

    pub(crate) fn received(&self) -> u64 {
        self.lanes
            .iter()
            .map(|lane| lane.received.load(Ordering::Relaxed))
            .sum()
    }

    /// Adds what the lanes recorded since the last call to the whole and to `recent`. Called several times
    /// a second, it finds at most a swapped set of histograms per lane.
    pub(crate) fn collect_times(&self, recent: &mut Times) {
        for lane in &self.lanes {
            let mut exchange = lock(&lane.exchange);
            if let Some(mut full) = exchange.full.take() {
                recent.merge(&full);
                lock(&self.times).merge(&full);
                full.clear();
                exchange.empty = Some(full);
            }
        }
    }

    /// Everything, once all lanes have ended.
    pub(crate) fn take_results(&self) -> (Vec<LaneResult>, Times) {
        self.collect_times(&mut Times::default());
        let results = std::mem::take(&mut *lock(&self.results));
        let times = std::mem::take(&mut *lock(&self.times));
        (results, times)
    }
}

/// A lane that panicked leaves counters and whole histograms.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often a lane offers its histogram to the live view.
const SWAP_INTERVAL_NS: u64 = 200_000_000;
