//! State that a client's lane shares with the application's threads: the request table, the events, the first
//! connection and the time to close.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tidewire_io::poller::PollerKind;
use tidewire_proto::connection::Farewell;

use super::event_queue::{EventBounds, EventQueue, Queued, Reading};
use super::events::Event;
use super::holdings::Opening;
use super::slots::SlotId;
use super::submissions;
use super::subscription::TopicQueue;
use super::sync::WakeLane;
use super::table::RequestTable;
use super::waiting::{ClientLane, Waiting};
use crate::address::Endpoint;
use crate::dial::LookupResult;
use crate::server::Server;
use crate::session::SendError;
use crate::transport::ConnectError;

/// The shared state of one client. See the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) table: RequestTable<Control>,
    reading: Arc<Reading>,
    event_bounds: EventBounds,
    /// When the client ends, even if messages are still queued. `u64::MAX` until the client is closed.
    close_at_ns: AtomicU64,
    pub(crate) events: EventQueue<Event>,
    first: Mutex<First>,
}

/// The outcome of a client's first attempt to connect.
#[derive(Debug, Default)]
struct First {
    outcome: Option<Result<(), ConnectError>>,
    /// The future that waits for the outcome.
    waiting: Option<Waiting>,
    /// The results of a lookup that the lane has not taken yet.
    found: Option<LookupResult>,
    /// The endpoint of the last connection that was open.
    endpoint: Option<Endpoint>,
}

/// A submission to a client's lane other than a request or a message.
#[derive(Debug)]
pub(crate) enum Control {
    /// Joins a room or subscribes.
    Open(Box<Opening>),
    Unsubscribe(Arc<TopicQueue>),
    /// Carries the reason that is sent to the server.
    Close(Option<Box<Farewell>>),
    /// The last clone of the client was dropped.
    Dropped,
}

impl submissions::Control for Control {
    fn deadline(&self) -> Option<(u64, SlotId)> {
        match self {
            Self::Open(opening) => Some((opening.deadline_ns, opening.slot)),
            Self::Unsubscribe(_) | Self::Close(_) | Self::Dropped => None,
        }
    }
}

impl Link {
    /// Creates a link with this table. Each of its event queues has these bounds.
    pub(super) fn new(table: RequestTable<Control>, event_bounds: EventBounds) -> Self {
        let reading = Arc::new(Reading::new(table.waker().clone()));
        Self {
            table,
            event_bounds,
            close_at_ns: AtomicU64::new(u64::MAX),
            events: EventQueue::new(event_bounds, Arc::clone(&reading)),
            reading,
            first: Mutex::default(),
        }
    }

    /// Notes that the lane of this server runs from now on, and wakes the lane.
    pub(super) fn set_lane(&self, server: &Server) {
        // The completions of io_uring are for the thread that asked for them. So only the lane's own thread runs it.
        let is_shared = server.poller() != PollerKind::Uring;
        let seat = server.seat().filter(|_| is_shared);
        self.lane().set(&server.lane_waker(0), seat);
        // Earlier wakes were lost, and a name look-up may have finished.
        self.lane().wake();
    }

    pub(super) fn lane(&self) -> &ClientLane {
        self.table.waker()
    }

    /// Sets the time at which the client ends, and submits this control, which ends its connection. An earlier time
    /// that was set before stays.
    pub(super) fn close_by(&self, at_ns: u64, control: Control) -> Result<(), SendError> {
        let before_ns = self.close_at_ns.fetch_min(at_ns, Ordering::SeqCst);
        // An earlier call has already submitted the close.
        if before_ns < u64::MAX && !self.table.has_ended() {
            self.lane().wake();
            return Ok(());
        }
        self.table.control(control)
    }

    /// When the client ends, or `None` if it was not closed.
    pub(super) fn close_at_ns(&self) -> Option<u64> {
        let at_ns = self.close_at_ns.load(Ordering::SeqCst);
        (at_ns < u64::MAX).then_some(at_ns)
    }

    pub(super) fn event_bounds(&self) -> EventBounds {
        self.event_bounds
    }

    pub(super) fn new_queue<E: Queued>(&self, bounds: EventBounds) -> EventQueue<E> {
        EventQueue::new(bounds, Arc::clone(&self.reading))
    }

    /// Whether the lane must not read, because an event queue is full.
    #[inline]
    pub(super) fn holds_reading(&self) -> bool {
        self.reading.is_held()
    }

    /// Whether reading may be paused at some time, so that a reply may stay unread without a time limit.
    pub(super) fn may_hold_reading(&self) -> bool {
        self.reading.may_be_held()
    }

    /// Number of events dropped so far because the application did not take them.
    pub(super) fn events_dropped(&self) -> u64 {
        self.reading.dropped()
    }

    /// Ready when the first attempt to connect succeeded or failed. Only one future may call it.
    pub(super) fn poll_first(&self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        if !self.table.is_here() {
            return Poll::Ready(Err(ConnectError::Ended));
        }
        let mut first = self.lock_first();
        match first.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                let waiting = self.lane().note_waiting(cx.waker());
                let replaced = first.waiting.replace(waiting);
                // Unlock first: dropping a waker may run code of its executor, which may take this lock.
                drop(first);
                drop(replaced);
                self.lane().wake_for_task();
                Poll::Pending
            }
        }
    }

    /// Sets the result of [`poll_first`](Self::poll_first). Only the first call has an effect.
    pub(super) fn complete_first(&self, outcome: Result<(), ConnectError>) {
        let mut first = self.lock_first();
        first.outcome.get_or_insert(outcome);
        let waiting = first.waiting.take();
        drop(first);
        if let Some(waiting) = waiting {
            waiting.waker.wake();
        }
    }

    pub(super) fn set_endpoint(&self, endpoint: Endpoint) {
        self.lock_first().endpoint = Some(endpoint);
    }

    /// The endpoint of the last connection that was open.
    pub(super) fn endpoint(&self) -> Option<Endpoint> {
        self.lock_first().endpoint.clone()
    }

    /// Stores the results of a lookup and wakes the lane. Credentials for an earlier connection may come late. They do
    /// not replace addresses, because the lane would wait for the addresses for ever.
    pub(super) fn set_found(&self, found: LookupResult) {
        let mut first = self.lock_first();
        let has_addresses = |it: &LookupResult| it.endpoints.is_some();
        if has_addresses(&found) || !first.found.as_ref().is_some_and(has_addresses) {
            first.found = Some(found);
        }
        drop(first);
        self.lane().wake();
    }

    /// Whether a lookup has ended and its results are not taken.
    pub(super) fn has_found(&self) -> bool {
        self.lock_first().found.is_some()
    }

    pub(super) fn take_found(&self) -> Option<LookupResult> {
        self.lock_first().found.take()
    }

    fn lock_first(&self) -> MutexGuard<'_, First> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
