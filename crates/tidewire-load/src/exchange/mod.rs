//! The exchange between a step's lanes and its coordinator while the step runs.
//!
//! The coordinator opens the barrier and closes the step; the lanes publish counters once per turn and swap
//! histograms a few times a second, so that the live view costs the hot path nothing.

mod result;
mod times;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use tidewire::tls::Encryption;
use tidewire_io::clock::now_ns;

pub use self::result::WorkCounts;
pub(crate) use self::result::{AgentResult, Confirmation, Counts, LaneResult};
pub(crate) use self::times::{SentTimes, Times};
use crate::credentials::StepTokens;

/// Shared by the coordinator and all lanes of one step.
#[derive(Debug, Default)]
pub(crate) struct StepLink {
    /// 0 until the barrier opens.
    start_ns: AtomicU64,
    stop_ns: AtomicU64,
    steady_from_ns: AtomicU64,
    login_closed: AtomicBool,
    finished: AtomicBool,
    /// Agents logged in, slow receivers included.
    pub(crate) logins: Counter,
    pub(crate) slow_logins: Counter,
    pub(crate) login_failures: Counter,
    /// Agents that lost their connection, without slow receivers.
    pub(crate) disconnects: Counter,
    /// Slow receivers that lost their connection, which is nobody's fault.
    pub(crate) slow_disconnects: Counter,
    pub(crate) send_errors: Counter,
    /// Lanes that have sent everything they had to.
    pub(crate) lanes_done: Counter,
    /// The server's words about itself on the first connection.
    pub(crate) server_agent: OnceLock<String>,
    /// How the first connection was encrypted.
    pub(crate) encryption: OnceLock<Option<Encryption>>,
    pub(crate) tokens: StepTokens,
    /// Agents with a connection now, by node, without slow receivers.
    pub(crate) connected: Vec<AtomicU64>,
    /// Where receivers of an open fan-out find when messages were sent.
    pub(crate) sent_times: Option<SentTimes>,
    /// How many messages each agent has sent, in a step with faults, and else empty: agents whose connection ends then
    /// come back, and the ledger has to know what they missed.
    pub(crate) sent_counts: Vec<AtomicU64>,
    lanes: Vec<LaneLink>,
    results: Mutex<Vec<LaneResult>>,
    /// The times that the lanes recorded after they last offered any.
    last_times: Mutex<Vec<Times>>,
    /// Times collected so far.
    times: Mutex<Times>,
}

/// A number that lanes add to and the coordinator reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
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
    pub(crate) fn new(lanes: usize, nodes: usize, tokens: StepTokens) -> Self {
        Self {
            tokens,
            connected: (0..nodes).map(|_| AtomicU64::new(0)).collect(),
            stop_ns: AtomicU64::new(u64::MAX),
            steady_from_ns: AtomicU64::new(u64::MAX),
            lanes: (0..lanes).map(|_| LaneLink::default()).collect(),
            ..Self::default()
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
        Some(self.start_ns.load(Ordering::Acquire)).filter(|start_ns| *start_ns > 0)
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

    /// Agents logged in that are to keep up.
    pub(crate) fn normal_logins(&self) -> u64 {
        self.logins.get() - self.slow_logins.get()
    }

    /// Whether no agent that is to keep up has a connection.
    pub(crate) fn is_deserted(&self) -> bool {
        let mut counts = self.connected.iter();
        counts.all(|count| count.load(Ordering::Relaxed) == 0)
    }

    /// Agents with a connection now, node by node, where there are several.
    pub(crate) fn connected_by_node(&self) -> Vec<u64> {
        let counts = self.connected.iter().filter(|_| self.connected.len() > 1);
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
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
    pub(crate) fn hand_in(&self, result: LaneResult, times: Times) {
        lock(&self.last_times).push(times);
        lock(&self.results).push(result);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sum(|lane| &lane.sent)
    }

    pub(crate) fn received(&self) -> u64 {
        self.sum(|lane| &lane.received)
    }

    fn sum(&self, count: fn(&LaneLink) -> &AtomicU64) -> u64 {
        let counts = self.lanes.iter().map(count);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Adds what the lanes recorded since the last call to the whole and to `recent`. Called several times
    /// a second, it finds at most a swapped set of histograms per lane.
    pub(crate) fn collect_times(&self, recent: &mut Times) {
        for lane in &self.lanes {
            let mut exchange = lock(&lane.exchange);
            if let Some(mut full) = exchange.full.take() {
                recent.collect(&full);
                lock(&self.times).collect(&full);
                full.clear();
                exchange.empty = Some(full);
            }
        }
        for last in lock(&self.last_times).drain(..) {
            recent.collect(&last);
            lock(&self.times).collect(&last);
        }
    }

    /// Looks at the times collected so far.
    pub(crate) fn with_times<T>(&self, look: impl FnOnce(&Times) -> T) -> T {
        look(&lock(&self.times))
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
