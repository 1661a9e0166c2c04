//! Drives a node on its thread: packets and events of NATS in, packets and subscriptions out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, Event, Message, ServerError, StatusCode, jetstream};
use tidewire::backplane::{BackplaneError, Carrier, HistoryMessage, Node};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};
use tokio::time::{sleep_until, timeout};

use crate::error::NatsError;
use crate::retry::QuietLog;
use crate::streams::{News, NewsContent, offset_of};
use crate::subject::{Prefix, unserved_request};
use crate::wire::{Inbox, NatsWire, Packets};

#[derive(Debug)]
pub(crate) struct NatsCarrier {
    pub(crate) runtime: Runtime,
    pub(crate) client: Client,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) prefix: Prefix,
    pub(crate) packet_bytes_max: usize,
    pub(crate) keeps_histories: bool,
    /// How many servers of NATS keep a stream.
    pub(crate) replicas: usize,
    /// The address without credentials.
    pub(crate) address: String,
    /// The paths of the files of credentials and authorities, for the log.
    pub(crate) files: String,
}

impl Carrier for NatsCarrier {
    fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    fn open_histories(&mut self) -> Result<(), BackplaneError> {
        let client = self.client.clone();
        // The client of JetStream starts a task.
        let asked = self
            .runtime
            .block_on(async move { jetstream::new(client).query_account().await });
        self.keeps_histories = true;
        asked.map(drop).map_err(|source| {
            let address = self.address.clone();
            BackplaneError::Engine(NatsError::NoStreams { address, source }.into())
        })
    }

    fn run(self: Box<Self>, node: Node) {
        let Self {
            runtime,
            client,
            events,
            prefix,
            keeps_histories,
            replicas,
            address,
            files,
            ..
        } = *self;
        let mut heard = EventHandler {
            address,
            files,
            log: QuietLog::default(),
        };
        let (inbox, packets) = Inbox::new();
        let (news, told) = mpsc::channel(NEWS_MAX);
        let mut wire = NatsWire::new(client, prefix, node.id(), (inbox, news), replicas);
        wire.probe(keeps_histories);
        runtime.block_on(drive(node, wire, (packets, told), events, &mut heard));
    }
}

async fn drive(
    mut node: Node,
    mut wire: NatsWire,
    (mut packets, mut told): (Packets, mpsc::Receiver<News>),
    mut events: mpsc::Receiver<Event>,
    heard: &mut EventHandler,
) {
    let work = Arc::new(Notify::new());
    node.set_waker({
        let work = Arc::clone(&work);
        move || work.notify_one()
    });
    loop {
        let turn = node.turn(Instant::now(), &mut wire);
        let is_waiting = wire.flush();
        let Some(due_at) = turn else { break };
        let wake_at = match is_waiting {
            true => due_at.min(Instant::now() + RETRY),
            false => due_at,
        };
        tokio::select! {
            Some(packet) = packets.next() => receive(&mut node, &wire, &packet),
            Some(news) = told.recv() => handle_news(&mut node, &wire, &news),
            Some(event) = events.recv() => heard.handle(&mut node, &wire, &event),
            () = work.notified() => {}
            () = sleep_until(wake_at.into()) => {}
        }
        take_some(&mut packets, |packet| receive(&mut node, &wire, packet));
        while let Ok(news) = told.try_recv() {
            handle_news(&mut node, &wire, &news);
        }
        while let Ok(event) = events.try_recv() {
            heard.handle(&mut node, &wire, &event);
        }
        if packets.take_overflow() {
            node.handle_overflow();
        }
        // Lanes that always have work must not keep the client of NATS from the network.
        tokio::task::yield_now().await;
    }
    // The node ends even if NATS takes nothing any more.
    drop(node);
    if timeout(FINISH_MAX, wire.finish()).await.is_err() {
        tracing::warn!("NATS did not take the last packets of the node in time");
    }
}

/// Takes waiting packets, as many as a node may handle before its turn.
fn take_some(packets: &mut Packets, mut receive: impl FnMut(&Message)) {
    let mut bytes = 0;
    for _ in 0..PACKETS_PER_TURN {
        let next = (bytes < BYTES_PER_TURN).then(|| packets.take());
        let Some(packet) = next.flatten() else {
            return;
        };
        bytes += packet.payload.len();
        receive(&packet);
    }
}

fn receive(node: &mut Node, wire: &NatsWire, message: &Message) {
    let packet = &message.payload;
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        if let Some(request) = unserved_request(&message.subject) {
            node.handle_unserved(request);
        }
        return;
    }
    if packet.is_empty() {
        // Another node asks NATS whether it may publish.
        return;
    }
    let Some(name) = wire.followed_name(&message.subject) else {
        // Packets of a stream that the node has left may still come.
        if !wire.is_of_stream(&message.subject) {
            node.handle_packet(packet, Instant::now());
        }
        return;
    };
    // A message without a sequence is not of JetStream.
    if let Some(offset) = offset_of(message) {
        node.handle_appended(name, HistoryMessage { offset, packet }, Instant::now());
    }
}

fn handle_news(node: &mut Node, wire: &NatsWire, news: &News) {
    if !wire.is_newest(news) {
        return;
    }
    match &news.what {
        NewsContent::Read(state, packets) => {
            let messages: Vec<HistoryMessage<'_>> = packets
                .iter()
                .map(|(offset, packet)| HistoryMessage {
                    offset: *offset,
                    packet,
                })
                .collect();
            node.handle_history(&news.name, *state, &messages, Instant::now());
        }
        NewsContent::Failed(text) => node.handle_history_failure(&news.name, text),
    }
}

/// Handles the events of the client of NATS, and logs failures at most once in ten seconds, because an attempt to
/// connect fails once a second without NATS.
#[derive(Debug)]
struct EventHandler {
    address: String,
    files: String,
    log: QuietLog,
}

impl EventHandler {
    fn handle(&mut self, node: &mut Node, wire: &NatsWire, event: &Event) {
        match event {
            Event::Connected => {
                node.handle_packet_limit(wire.packet_bytes_max());
                node.handle_connected();
            }
            Event::Disconnected => node.handle_disconnected(Instant::now()),
            Event::SlowConsumer(_) | Event::ServerError(ServerError::SlowConsumer(_)) => {
                node.handle_overflow();
            }
            Event::ServerError(ServerError::Other(text)) if is_about_permission(text) => {
                node.handle_refusal(text);
            }
            event => self.log(event),
        }
    }

    fn log(&mut self, event: &Event) {
        let Some(unlogged) = self.log.may_log(Instant::now()) else {
            return;
        };
        let (address, files) = (&self.address, &self.files);
        let remedy = match files.is_empty() {
            true => "check that nats-server runs there, and the user of the address",
            false => "check that nats-server runs there, and these files, which are read again",
        };
        tracing::warn!(
            %event,
            address,
            files,
            unlogged,
            "NATS reports a failure: {remedy}; further failures are not logged for 10 s"
        );
    }
}

/// Passes an event to the node. Dropped packets lead to many events, which may fill at most half of the queue.
pub(crate) fn pass_on(events: &mpsc::Sender<Event>, event: Event) {
    if matches!(event, Event::SlowConsumer(_)) && events.capacity() < events.max_capacity() / 2 {
        return;
    }
    // A full queue already holds events of this kind, so the loss of one more changes nothing.
    let _ = events.try_send(event);
}

fn is_about_permission(text: &str) -> bool {
    text.to_ascii_lowercase().contains("permissions violation")
}

const PACKETS_PER_TURN: usize = 1_024;

/// Bytes of packets that a node handles before its turn, about. Its turn gives the lanes their messages, and for each
/// lane 4 MiB may wait.
const BYTES_PER_TURN: usize = 1 << 20;

/// Streams that were read and wait for the node.
const NEWS_MAX: usize = 16;

/// Pause before the client of NATS is offered packets again that it did not take.
const RETRY: Duration = Duration::from_millis(1);

/// The longest time for the last packets of a node.
const FINISH_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Regression: a node handled 1,024 packets of any size before it passed their content to the lanes. A burst of
    /// packets of 16 KiB was more than the 4 MiB that may wait for a lane, and the rest was dropped.
    #[test]
    fn a_burst_is_given_to_the_lanes_before_it_is_too_much_for_them() {
        const OFFERED: usize = 900;
        const BYTES: usize = 16 << 10;
        let packet = Message {
            subject: "room".into(),
            reply: None,
            payload: Bytes::from(vec![0; BYTES]),
            headers: None,
            status: None,
            description: None,
            length: BYTES,
        };
        let (inbox, mut packets) = Inbox::new();
        for _ in 0..OFFERED {
            inbox.put(packet.clone());
        }
        assert!(!packets.take_overflow(), "all of it is in the inbox");
        let (mut taken, mut turns) = (0, 0);
        while taken < OFFERED {
            let before = taken;
            take_some(&mut packets, |_| taken += 1);
            turns += 1;
            assert!(taken > before, "the rest was dropped");
            assert!((taken - before) * BYTES <= 2 << 20, "{}", taken - before);
        }
        assert_eq!((taken, turns), (OFFERED, OFFERED.div_ceil(64)));
    }

    /// Regression: a flood of dropped packets could fill the queue, so that the node was not told that NATS was back.
    #[test]
    fn a_flood_of_dropped_packets_leaves_room_for_other_events() {
        let (sender, mut events) = mpsc::channel(16);
        for _ in 0..1_000 {
            pass_on(&sender, Event::SlowConsumer(1));
        }
        pass_on(&sender, Event::Disconnected);
        pass_on(&sender, Event::Connected);
        let mut told = Vec::new();
        while let Ok(event) = events.try_recv() {
            told.push(event);
        }
        assert!(matches!(
            told[..],
            [
                Event::SlowConsumer(_),
                ..,
                Event::Disconnected,
                Event::Connected
            ]
        ));
    }
}
