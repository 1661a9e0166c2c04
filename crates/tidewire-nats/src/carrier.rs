//! Drives a node on its thread: packets and events of NATS in, packets and subscriptions out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, Event, Message, ServerError};
use tidewire::backplane::{Carrier, Node};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep_until, timeout};

use crate::subject::Prefix;
use crate::wire::NatsWire;

/// A connection to NATS, with the runtime of its client.
#[derive(Debug)]
pub(crate) struct NatsCarrier {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) prefix: Prefix,
    pub(crate) packet_bytes_max: usize,
}

impl Carrier for NatsCarrier {
    fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    fn run(self: Box<Self>, node: Node) {
        let Self {
            runtime,
            client,
            events,
            prefix,
            ..
        } = *self;
        let (sender, packets) = mpsc::channel(PACKETS_MAX);
        let wire = NatsWire::new(client, prefix, sender);
        runtime.block_on(drive(node, wire, packets, events));
    }
}

async fn drive(
    mut node: Node,
    mut wire: NatsWire,
    mut packets: mpsc::Receiver<Message>,
    mut events: mpsc::Receiver<Event>,
) {
    let work = Arc::new(Notify::new());
    node.set_waker({
        let work = Arc::clone(&work);
        move || work.notify_one()
    });
    loop {
        let turn = node.turn(Instant::now(), &mut wire);
        let is_waiting = wire.flush();
        if turn.has_ended {
            break;
        }
        let wake_at = match is_waiting {
            true => turn.wake_at.min(Instant::now() + RETRY),
            false => turn.wake_at,
        };
        tokio::select! {
            Some(packet) = packets.recv() => node.handle_packet(&packet.payload, Instant::now()),
            Some(event) = events.recv() => handle(&mut node, &event),
            () = work.notified() => {}
            () = sleep_until(wake_at.into()) => {}
        }
        for _ in 0..PACKETS_PER_TURN {
            let Ok(packet) = packets.try_recv() else {
                break;
            };
            node.handle_packet(&packet.payload, Instant::now());
        }
        while let Ok(event) = events.try_recv() {
            handle(&mut node, &event);
        }
    }
    // The node ends even if NATS takes nothing any more.
    drop(node);
    if timeout(FINISH_MAX, wire.finish()).await.is_err() {
        tracing::warn!("NATS did not take the last packets of the node in time");
    }
}

fn handle(node: &mut Node, event: &Event) {
    match event {
        Event::Connected => node.handle_connected(),
        Event::Disconnected => node.handle_disconnected(Instant::now()),
        Event::SlowConsumer(_) | Event::ServerError(ServerError::SlowConsumer(_)) => {
            node.handle_overflow();
        }
        Event::ServerError(ServerError::Other(text)) if is_about_permission(text) => {
            node.handle_refusal(text);
        }
        event => tracing::warn!(%event, "NATS says"),
    }
}

fn is_about_permission(text: &str) -> bool {
    text.to_ascii_lowercase().contains("permissions violation")
}

/// Packets of all subscriptions that wait for the node.
const PACKETS_MAX: usize = 1_024;

/// Packets that a node handles before its turn.
const PACKETS_PER_TURN: usize = 1_024;

/// Pause before the client of NATS is offered again what it did not take.
const RETRY: Duration = Duration::from_millis(1);

/// The longest time for the last packets of a node.
const FINISH_MAX: Duration = Duration::from_secs(2);
