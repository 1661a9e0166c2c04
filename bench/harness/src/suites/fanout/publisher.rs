//! Tidewire as the publisher: a service that publishes to a topic from its own lane, as its rivals do in their servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidewire::{Context, HandlerResult, Kind, Message, Moment, PubSub, Service};
use tidewire_io::clock::now_ns;

use crate::contract::{Account, Work};
use crate::pace::{Pace, TICK_NS};
use crate::plan::RoleError;
use crate::publication::Publication;
use crate::stage::Stage;
use crate::subscriber::TOPIC;

/// Takes subscriptions, and publishes when all are there.
pub(in super::super) struct Publisher {
    subscriptions: PubSub,
    tally: Arc<Tally>,
    /// When it begins; nothing if it only takes subscriptions.
    start: Option<Start>,
    rate_per_sec: f64,
    payload_bytes: usize,
    pace: Option<Pace>,
    payload: Vec<u8>,
}

/// When the publisher begins.
#[derive(Clone, Copy)]
enum Start {
    /// With the last subscription, which is here.
    AtOnce,
    /// A while behind the last subscription, which may be at another node: the broker has to know it.
    #[cfg(feature = "nats")]
    Later(Option<u64>),
}

/// The counts that the publisher and the nodes of its subscribers share.
pub(in super::super) struct Tally {
    /// Subscribers that are still waited for.
    awaited: AtomicUsize,
    published: AtomicU64,
}

pub(in super::super) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let tally = Arc::new(Tally::new(work.subscribers));
    let publisher = || Publisher::new(work, &tally, Some(Start::AtOnce));
    let server = super::super::start_server(work, publisher)?;
    stage.serve(&server.to_string(), || Account {
        messages: Some(tally.published()),
        allocated_bytes: super::super::lanes_allocated(&server.metrics()),
        dropped: None,
    })
}

impl Tally {
    pub(in super::super) fn new(subscribers: usize) -> Self {
        Self {
            awaited: AtomicUsize::new(subscribers),
            published: AtomicU64::new(0),
        }
    }

    pub(in super::super) fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    fn is_complete(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) == 0
    }
}

impl Publisher {
    /// The service of a node of a cluster, of which one publishes.
    #[cfg(feature = "nats")]
    pub(in super::super) fn of_node(work: &Work, tally: &Arc<Tally>, publishes: bool) -> Self {
        Self::new(work, tally, publishes.then_some(Start::Later(None)))
    }

    fn new(work: &Work, tally: &Arc<Tally>, start: Option<Start>) -> Self {
        Self {
            subscriptions: PubSub::new(),
            tally: Arc::clone(tally),
            start,
            rate_per_sec: work.rate_per_sec,
            payload_bytes: work.message_bytes,
            pace: None,
            payload: Vec::new(),
        }
    }

    /// Begins if it is time to. Returns when to look again, if nothing else wakes the lane.
    fn begin(&mut self, now_ns: u64) -> Option<u64> {
        let is_complete = self.tally.is_complete();
        let (begins, again) = match self.start.as_mut()? {
            Start::AtOnce => (is_complete, None),
            #[cfg(feature = "nats")]
            Start::Later(at_ns) => {
                if is_complete {
                    at_ns.get_or_insert(now_ns + LATER_NS);
                }
                let begins = at_ns.is_some_and(|at_ns| at_ns <= now_ns);
                (begins, Some(now_ns + TICK_NS))
            }
        };
        if begins {
            self.pace = Some(Pace::new(self.rate_per_sec, now_ns));
        }
        again
    }
}

impl Service for Publisher {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let subscribes = message.kind == Kind::Subscribe;
        self.subscriptions.on_message(cx, message)?;
        if subscribes && !self.tally.is_complete() {
            self.tally.awaited.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        let now_ns = now_ns();
        if self.pace.is_none()
            && let Some(again_ns) = self.begin(now_ns)
        {
            return Some(Moment::from_ns(again_ns));
        }
        let pace = self.pace.as_mut()?;
        for sequence in pace.take(now_ns) {
            self.payload.clear();
            let publication = Publication {
                sequence,
                due_ns: pace.due_ns(sequence),
            };
            publication.append(self.payload_bytes, &mut self.payload);
            if let Err(error) = cx.topics().publish(TOPIC, &self.payload) {
                // The subscriber counts it as lost.
                tracing::error!(%error, "cannot publish");
            }
            self.tally.published.store(sequence + 1, Ordering::Relaxed);
        }
        Some(Moment::from_ns(now_ns + TICK_NS))
    }
}

/// How long the subscriptions of all nodes may take to reach the broker.
#[cfg(feature = "nats")]
const LATER_NS: u64 = 500_000_000;
