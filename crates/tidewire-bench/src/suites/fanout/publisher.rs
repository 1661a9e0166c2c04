//! Tidewire as the publisher: a service that publishes to a topic from its own lane, as its rivals do in their servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewire::{Context, HandlerResult, Kind, Message, PubSub, Service};
use tidewire_io::clock::now_ns;

use crate::contract::{Account, Work};
use crate::pace::{Pace, TICK_NS};
use crate::plan::RoleError;
use crate::publication::Publication;
use crate::stage::Stage;
use crate::subscriber::TOPIC;

/// Takes subscriptions, and publishes when all are there.
struct Publisher {
    subscriptions: PubSub,
    /// How many subscribers it still waits for.
    awaited: usize,
    rate_per_sec: f64,
    payload_bytes: usize,
    pace: Option<Pace>,
    payload: Vec<u8>,
    published: Arc<AtomicU64>,
}

pub(super) fn serve(work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let published = Arc::new(AtomicU64::new(0));
    let server = super::super::start_server(work, || Publisher {
        subscriptions: PubSub::new(),
        awaited: work.subscribers,
        rate_per_sec: work.rate_per_sec,
        payload_bytes: work.message_bytes,
        pace: None,
        payload: Vec::new(),
        published: Arc::clone(&published),
    })?;
    stage.serve(&server.to_string(), || Account {
        messages: Some(published.load(Ordering::Relaxed)),
        allocated_bytes: super::super::lanes_allocated(&server.metrics()),
        dropped: None,
    })
}

impl Service for Publisher {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let subscribes = message.kind == Kind::Subscribe;
        self.subscriptions.on_message(cx, message)?;
        if subscribes && self.awaited > 0 {
            self.awaited -= 1;
            if self.awaited == 0 {
                self.pace = Some(Pace::new(self.rate_per_sec, now_ns()));
            }
        }
        Ok(())
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        let now_ns = now_ns();
        let pace = self.pace.as_mut()?;
        for sequence in pace.take(now_ns) {
            self.payload.clear();
            let publication = Publication {
                sequence,
                due_ns: pace.due_ns(sequence),
            };
            publication.append(self.payload_bytes, &mut self.payload);
            if let Err(error) = cx.publish(TOPIC, &self.payload) {
                // The subscriber counts it as lost.
                tracing::error!(%error, "cannot publish");
            }
            self.published.store(sequence + 1, Ordering::Relaxed);
        }
        Some(now_ns + TICK_NS)
    }
}
