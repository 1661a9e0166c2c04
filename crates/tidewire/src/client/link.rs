//! State that a client's lane shares with the application's threads: the request table, events, and how the client begins and ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tidewire_io::waker::LaneWaker;
use tidewire_proto::connection::Farewell;
use tidewire_proto::room::Policy;

use super::error::ConnectError;
use super::event_queue::{EventBounds, EventQueue, Queued};
use super::events::Event;
use super::reading::Reading;
use super::slots::SlotId;
use super::submissions;
use super::subscription::TopicQueue;
use super::sync::WakeLane;
use super::table::RequestTable;
use crate::address::{AddressError, Endpoint};
use crate::mailbox::EnqueueError;

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub(super) table: RequestTable<Control>,
    reading: Arc<Reading>,
    event_bounds: EventBounds,
    /// When the client ends, whatever still waits; never, before somebody closed it.
    close_at_ns: AtomicU64,
    pub(crate) events: EventQueue<Event>,
    first: Mutex<First>,
}

/// A client's way to its first connection.
#[derive(Debug, Default)]
struct First {
    outcome: Option<Result<(), ConnectError>>,
    /// Of who waits for the outcome.
    waker: Option<Waker>,
    /// Endpoints of the server that the lane has not taken.
    found: Option<Result<Vec<Endpoint>, AddressError>>,
}

/// A command to a client's lane that is no request and no message.
#[derive(Debug)]
pub(crate) enum Control {
    Subscribe(Box<Subscribe>),
    Unsubscribe(Arc<TopicQueue>),
    /// With what the server is told.
    Close(Option<Box<Farewell>>),
}

/// A subscription to be made.
#[derive(Debug)]
pub(crate) struct Subscribe {
    pub(crate) pattern: Arc<str>,
    pub(crate) policy: Option<Policy>,
    pub(crate) queue: Arc<TopicQueue>,
    pub(crate) deadline_ns: u64,
    /// Where the outcome is left.
    pub(crate) slot: SlotId,
}

impl submissions::Control for Control {
    fn deadline(&self) -> Option<(u64, SlotId)> {
        match self {
            Self::Subscribe(subscribe) => Some((subscribe.deadline_ns, subscribe.slot)),
            Self::Unsubscribe(_) | Self::Close(_) => None,
        }
    }
}

impl Link {
    /// A link by way of this table, each of whose event queues has these bounds.
    pub(super) fn new(table: RequestTable<Control>, event_bounds: EventBounds) -> Self {
        let reading = Arc::new(Reading::default());
        Self {
            table,
            event_bounds,
            close_at_ns: AtomicU64::new(u64::MAX),
            events: EventQueue::new(event_bounds, Arc::clone(&reading)),
            reading,
            first: Mutex::default(),
        }
    }

    /// The lane runs, and this wakes it.
    pub(super) fn set_waker(&self, waker: &Arc<LaneWaker>) {
        self.table.waker().set(waker);
        self.reading.waker().set(waker);
        // Nobody heard a wake before this, and a host may have been looked up meanwhile.
        self.table.waker().wake();
    }

    /// Ends the client at this time, or an earlier one that was set before, and closes its connection.
    pub(crate) fn close_by(
        &self,
        at_ns: u64,
        farewell: Option<Box<Farewell>>,
    ) -> Result<(), EnqueueError> {
        let before_ns = self.close_at_ns.fetch_min(at_ns, Ordering::SeqCst);
        // Whoever came first has told the lane to close.
        if before_ns < u64::MAX && !self.table.has_ended() {
            self.table.waker().wake();
            return Ok(());
        }
        self.table.control(Control::Close(farewell))
    }

    /// When the client ends, once somebody has closed it.
    pub(super) fn close_at_ns(&self) -> Option<u64> {
        let at_ns = self.close_at_ns.load(Ordering::SeqCst);
        (at_ns < u64::MAX).then_some(at_ns)
    }

    /// The bounds of a queue for which nobody asks for others.
    pub(super) fn event_bounds(&self) -> EventBounds {
        self.event_bounds
    }

    /// A queue for the events of a subscription.
    pub(super) fn new_queue<E: Queued>(&self, bounds: EventBounds) -> EventQueue<E> {
        EventQueue::new(bounds, Arc::clone(&self.reading))
    }

    /// Whether nothing may be read for now, because the application does not take what there is.
    #[inline]
    pub(super) fn holds_reading(&self) -> bool {
        self.reading.is_held()
    }

    /// Whether reading may be held, so that an answer may wait unread for any time.
    pub(super) fn may_hold_reading(&self) -> bool {
        self.reading.may_be_held()
    }

    /// Events dropped so far because the application did not take them.
    pub(super) fn events_dropped(&self) -> u64 {
        self.reading.dropped()
    }

    /// Ready when the first attempt to connect succeeded or failed. One future asks it.
    pub(super) fn poll_first(&self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        let mut first = self.lock_first();
        match first.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                let replaced = first.waker.replace(cx.waker().clone());
                // Dropping a waker may run code of its executor, which must find the lock free.
                drop(first);
                drop(replaced);
                Poll::Pending
            }
        }
    }

    /// Answers [`poll_first`](Self::poll_first); the first answer counts.
    pub(super) fn complete_first(&self, outcome: Result<(), ConnectError>) {
        let mut first = self.lock_first();
        first.outcome.get_or_insert(outcome);
        let waker = first.waker.take();
        drop(first);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The server's name was looked up.
    pub(super) fn set_found(&self, found: Result<Vec<Endpoint>, AddressError>) {
        self.lock_first().found = Some(found);
        self.table.waker().wake();
    }

    /// Takes what was found.
    pub(super) fn take_found(&self) -> Option<Result<Vec<Endpoint>, AddressError>> {
        self.lock_first().found.take()
    }

    fn lock_first(&self) -> MutexGuard<'_, First> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
