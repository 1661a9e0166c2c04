//! The shared state of all threads of one server: the plan, the rooms, the ledger, and the ways to pause and to stop.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::ledger::FaultLedger;
use super::plan::FaultPlan;
use super::rooms::Rooms;

/// The state of one server.
///
/// Locks are taken in the order rooms, ledger, pause; the others are never held together with one of these.
#[derive(Debug)]
pub(super) struct Shared {
    plan: FaultPlan,
    address: SocketAddr,
    rooms: Mutex<Rooms>,
    ledger: Mutex<FaultLedger>,
    sockets: Mutex<HashMap<u64, TcpStream>>,
    next_connection: AtomicU64,
    stopped: AtomicBool,
    panicked: AtomicBool,
    stalled_until: Mutex<Option<Instant>>,
    wake: Condvar,
    next_slot: Mutex<Option<Instant>>,
}

impl Shared {
    pub(super) fn new(plan: FaultPlan, address: SocketAddr) -> Self {
        Self {
            rooms: Mutex::new(Rooms::new(&plan)),
            plan,
            address,
            ledger: Mutex::default(),
            sockets: Mutex::default(),
            next_connection: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            stalled_until: Mutex::new(None),
            wake: Condvar::new(),
            next_slot: Mutex::new(None),
        }
    }

    pub(super) fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn rooms(&self) -> MutexGuard<'_, Rooms> {
        lock(&self.rooms)
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, FaultLedger> {
        lock(&self.ledger)
    }

    /// Registers a connection, unless the server has stopped. The socket is kept, so that stopping reaches threads that
    /// block on it.
    pub(super) fn register(&self, stream: &TcpStream) -> Option<u64> {
        let mut sockets = lock(&self.sockets);
        // The check is under the lock. `stop` sets the flag and then closes the sockets, so at least one side notices
        // the other.
        if self.is_stopped() {
            return None;
        }
        let connection = self.next_connection.fetch_add(1, Ordering::Relaxed);
        sockets.insert(connection, stream.try_clone().ok()?);
        Some(connection)
    }

    pub(super) fn forget(&self, connection: u64) {
        lock(&self.sockets).remove(&connection);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Closes every socket at once and accepts no other.
    pub(super) fn stop(&self) {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        for socket in lock(&self.sockets).values() {
            // The socket may be closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        // A sleeper checks the flag under this lock, so it cannot miss the call.
        drop(lock(&self.stalled_until));
        self.wake.notify_all();
        // The acceptor blocks in `accept`. Any connection wakes it, and it sees the flag.
        let _ = TcpStream::connect(self.address);
    }

    pub(super) fn note_panic(&self) {
        self.panicked.store(true, Ordering::SeqCst);
    }

    pub(super) fn panicked(&self) -> bool {
        self.panicked.load(Ordering::SeqCst)
    }

    /// Begins a pause of everything.
    pub(super) fn stall(&self, duration: Duration) {
        *lock(&self.stalled_until) = Some(Instant::now() + duration);
    }

    /// Returns when there is no pause, or the server has stopped.
    pub(super) fn wait_while_stalled(&self) {
        let until = *lock(&self.stalled_until);
        if let Some(until) = until {
            self.sleep_until(until);
        }
    }

    /// Returns at `until` or later, or as soon as the server has stopped.
    pub(super) fn sleep_until(&self, until: Instant) {
        let mut guard = lock(&self.stalled_until);
        while !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            guard = self
                .wake
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Returns when the next delivery may be written, if the capped rate makes it wait.
    pub(super) fn claim_slot(&self) -> Option<Instant> {
        let rate = self.plan.deliveries_per_sec_max?;
        let interval = Duration::from_secs(1) / rate.max(1);
        if let Some(clock) = &self.plan.clock {
            clock.advance(interval);
            return None;
        }
        let mut next = lock(&self.next_slot);
        let now = Instant::now();
        let slot = next.map_or(now, |next| next.max(now));
        *next = Some(slot + interval);
        Some(slot)
    }
}

/// A connection in the view of its reader, its writer and its rooms.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) connection: u64,
    /// The number of deliveries before it is cut off.
    pub(super) cut_after: AtomicU64,
    pub(super) is_cut: AtomicBool,
}

impl Peer {
    pub(super) fn new(connection: u64) -> Arc<Self> {
        Arc::new(Self {
            connection,
            cut_after: AtomicU64::new(u64::MAX),
            is_cut: AtomicBool::new(false),
        })
    }
}

/// The threads leave their data whole even when a test makes one of them panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
