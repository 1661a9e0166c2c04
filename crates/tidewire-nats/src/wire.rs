//! From a node to NATS: a bounded queue before the client. From NATS to the node: a bounded inbox after all
//! subscriptions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, Message, Subscriber, jetstream};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tidewire::backplane::{RoomOrTopic, Subject, Wire};
use tidewire::{History, Position};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, unconstrained};

use crate::streams::{News, REQUEST_MAX, Reader, headers_of};
use crate::subject::Prefix;

/// The way of a node to NATS. See the module.
pub(crate) struct NatsWire {
    client: Client,
    prefix: Prefix,
    /// How many servers of NATS keep a stream.
    replicas: usize,
    node: String,
    waiting: VecDeque<Outgoing>,
    waiting_bytes: usize,
    /// Subjects to subscribe to (`true`) or to unsubscribe from. They are sent before the packets, so that no node
    /// answers a question before its sender can receive.
    changes: BTreeMap<FollowedSubject, bool>,
    subscriptions: HashMap<String, AbortHandle>,
    /// The streams that the node follows, by the subjects of their subscriptions.
    followed: HashMap<String, RoomOrTopic>,
    /// Streams to read after their subscriptions are made: their limits, the first sequence, and the epoch of a stream
    /// to replace.
    reads: BTreeMap<RoomOrTopic, (History, u64, Option<u64>)>,
    /// The number of the newest reader, and the reader's number of each followed stream.
    reader: u64,
    newest_readers: HashMap<RoomOrTopic, u64>,
    /// Bounds the streams that are read at once.
    readers: Arc<Semaphore>,
    news: mpsc::Sender<News>,
    /// The client of JetStream, once a history is needed. It has its own task.
    context: Option<jetstream::Context>,
    inbox: Inbox,
    has_warned: bool,
}

struct Outgoing {
    subject: String,
    label: Label,
    packet: Bytes,
}

/// The text that goes to NATS beside a packet.
enum Label {
    None,
    /// The subject on which NATS reports that the packet has no receiver.
    Unserved(String),
    /// The id by which JetStream recognises a packet that it already has.
    Id(String),
}

/// A subject of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FollowedSubject {
    subject: String,
    /// Whether the node is in a queue group, in which one node receives each packet.
    is_shared: bool,
}

impl FollowedSubject {
    /// A subject of which the node gets each packet.
    fn alone(subject: String) -> Self {
        let is_shared = false;
        Self { subject, is_shared }
    }
}

/// The way of packets from the subscriptions to the node. It has room for bytes, because packets have very different
/// sizes.
#[derive(Clone, Debug)]
pub(crate) struct Inbox {
    packets: mpsc::UnboundedSender<(Message, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
    has_overflowed: Arc<AtomicBool>,
}

#[derive(Debug)]
pub(crate) struct Packets {
    received: mpsc::UnboundedReceiver<(Message, OwnedSemaphorePermit)>,
    has_overflowed: Arc<AtomicBool>,
}

impl Inbox {
    pub(crate) fn new() -> (Self, Packets) {
        let (packets, received) = mpsc::unbounded_channel();
        let has_overflowed = Arc::new(AtomicBool::new(false));
        let inbox = Self {
            packets,
            room: Arc::new(Semaphore::new(INBOX_BYTES_MAX)),
            has_overflowed: Arc::clone(&has_overflowed),
        };
        let packets = Packets {
            received,
            has_overflowed,
        };
        (inbox, packets)
    }

    /// Puts a packet into the inbox, or drops it. Its position tells the node that it is missing.
    pub(crate) fn put(&self, packet: Message) {
        let bytes = (packet.payload.len() + PACKET_COST_BYTES).min(INBOX_BYTES_MAX) as u32;
        match Arc::clone(&self.room).try_acquire_many_owned(bytes) {
            // After the end of the node the packet has no receiver.
            Ok(permit) => drop(self.packets.send((packet, permit))),
            Err(_) => self.has_overflowed.store(true, Ordering::Relaxed),
        }
    }

    async fn fill(self, mut subscriber: Subscriber) {
        while let Some(packet) = subscriber.next().await {
            self.put(packet);
        }
    }
}

impl Packets {
    pub(crate) async fn next(&mut self) -> Option<Message> {
        Some(self.received.recv().await?.0)
    }

    pub(crate) fn take(&mut self) -> Option<Message> {
        Some(self.received.try_recv().ok()?.0)
    }

    pub(crate) fn take_overflow(&self) -> bool {
        self.has_overflowed.swap(false, Ordering::Relaxed)
    }
}

impl NatsWire {
    pub(crate) fn new(
        client: Client,
        prefix: Prefix,
        node: &str,
        (inbox, news): (Inbox, mpsc::Sender<News>),
        replicas: usize,
    ) -> Self {
        Self {
            client,
            prefix,
            replicas,
            node: node.to_owned(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            changes: BTreeMap::new(),
            subscriptions: HashMap::new(),
            followed: HashMap::new(),
            reads: BTreeMap::new(),
            reader: 0,
            newest_readers: HashMap::new(),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
            news,
            context: None,
            inbox,
            has_warned: false,
        }
    }

    pub(crate) fn packet_bytes_max(&self) -> usize {
        self.client.server_info().max_payload
    }

    /// Publishes and subscribes to subjects of all kinds that the node uses later. NATS refuses at once what the user
    /// may not do. A packet of these is empty. The subscriptions stay: a user that may do less when NATS is back is
    /// seen then.
    pub(crate) fn probe(&mut self, keeps_histories: bool) {
        let [published, subscribed] = self.prefix.probes(keeps_histories);
        for subject in subscribed {
            note_change(&mut self.changes, FollowedSubject::alone(subject), true);
        }
        for subject in published {
            // The queue is empty at the start.
            let _ = self.push(subject, Label::None, &[]);
        }
    }

    /// Whether a stream publishes to this subject.
    pub(crate) fn is_of_stream(&self, subject: &str) -> bool {
        self.prefix.is_followed(subject)
    }

    /// The room or topic of the stream that published to this subject.
    pub(crate) fn followed_name(&self, subject: &str) -> Option<&RoomOrTopic> {
        self.followed.get(subject)
    }

    /// Whether the news are of the newest reader of a stream that the node follows.
    pub(crate) fn is_newest(&self, news: &News) -> bool {
        self.newest_readers.get(&news.name) == Some(&news.reader)
    }

    /// Gives the client as much as it takes at once. Returns whether something waits.
    pub(crate) fn flush(&mut self) -> bool {
        while let Some((followed, is_wanted)) = self.changes.pop_first() {
            if !self.change(&followed, is_wanted) {
                self.changes.insert(followed, is_wanted);
                return true;
            }
        }
        self.start_reads();
        while let Some(next) = self.waiting.front() {
            let (client, subject, packet) =
                (&self.client, next.subject.clone(), next.packet.clone());
            // A task without budget of tokio gets "not ready", which would look like a client that takes nothing.
            let published = match &next.label {
                Label::None => unconstrained(client.publish(subject, packet)).now_or_never(),
                Label::Unserved(unserved) => {
                    let publish = client.publish_with_reply(subject, unserved.clone(), packet);
                    unconstrained(publish).now_or_never()
                }
                Label::Id(id) => {
                    let publish = client.publish_with_headers(subject, headers_of(id), packet);
                    unconstrained(publish).now_or_never()
                }
            };
            match published {
                None => return true,
                Some(Ok(())) => self.has_warned = false,
                Some(Err(error)) => {
                    if !std::mem::replace(&mut self.has_warned, true) {
                        tracing::warn!(%error, "NATS does not take a packet");
                    }
                }
            }
            if let Some(sent) = self.waiting.pop_front() {
                self.waiting_bytes -= sent.packet.len();
            }
        }
        false
    }

    /// Subscribes or unsubscribes. Returns whether the client took it.
    fn change(&mut self, followed: &FollowedSubject, is_wanted: bool) -> bool {
        let subject = followed.subject.clone();
        if !is_wanted {
            // The subscriber unsubscribes when its task drops it.
            if let Some(task) = self.subscriptions.remove(&subject) {
                task.abort();
            }
            return true;
        }
        let client = &self.client;
        let of = subject.clone();
        let subscribed = match followed.is_shared {
            false => unconstrained(client.subscribe(of)).now_or_never(),
            true => unconstrained(client.queue_subscribe(of, GROUP.to_owned())).now_or_never(),
        };
        match subscribed {
            None => return false,
            Some(Ok(subscriber)) => {
                let task = tokio::spawn(self.inbox.clone().fill(subscriber));
                self.subscriptions.insert(subject, task.abort_handle());
            }
            Some(Err(error)) => tracing::error!(%error, "NATS does not take a subscription"),
        }
        true
    }

    fn start_reads(&mut self) {
        if self.reads.is_empty() {
            return;
        }
        let client = &self.client;
        let make = || {
            let context = ContextBuilder::new().timeout(REQUEST_MAX);
            context.build(client.clone())
        };
        let context = self.context.get_or_insert_with(make);
        for (name, (limits, from, replaced)) in std::mem::take(&mut self.reads) {
            self.reader += 1;
            self.newest_readers.insert(name.clone(), self.reader);
            let reader = Reader {
                number: self.reader,
                context: context.clone(),
                prefix: self.prefix.clone(),
                replicas: self.replicas,
                name,
                limits,
                from,
                replaced,
            };
            let readers = Arc::clone(&self.readers);
            tokio::spawn(reader.run(readers, self.news.clone()));
        }
    }

    fn read(&mut self, name: &RoomOrTopic, read: (History, u64, Option<u64>)) {
        let subject = self.prefix.followed(name);
        if !self.followed.contains_key(&subject) {
            self.followed.insert(subject.clone(), name.clone());
            note_change(&mut self.changes, FollowedSubject::alone(subject), true);
        }
        self.reads.insert(name.clone(), read);
        self.newest_readers.remove(name);
    }

    fn push(&mut self, subject: String, label: Label, packet: &[u8]) -> bool {
        let bytes = packet.len();
        if self.waiting_bytes + bytes > WAITING_BYTES_MAX || self.waiting.len() >= WAITING_MAX {
            return false;
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(Outgoing {
            subject,
            label,
            packet: Bytes::copy_from_slice(packet),
        });
        true
    }

    fn note_change(&mut self, subject: Subject<'_>, is_wanted: bool) {
        if let Subject::Node(id) = subject {
            let unserved = FollowedSubject::alone(self.prefix.all_unserved(id));
            note_change(&mut self.changes, unserved, is_wanted);
        }
        let followed = FollowedSubject {
            is_shared: matches!(subject, Subject::Service(_)),
            subject: self.prefix.subject(subject),
        };
        note_change(&mut self.changes, followed, is_wanted);
    }

    /// Sends all waiting packets, also those that the client has taken.
    pub(crate) async fn finish(mut self) {
        while self.flush() {
            tokio::task::yield_now().await;
        }
        if let Err(error) = self.client.flush().await {
            tracing::warn!(%error, "the last packets of the node may not have reached NATS");
        }
    }
}

/// Notes that a subject is wanted or not. Opposite waiting changes cancel each other, so a long outage of NATS collects
/// no more than the subjects that there are.
fn note_change<S: Ord>(changes: &mut BTreeMap<S, bool>, subject: S, is_wanted: bool) {
    match changes.get(&subject) {
        Some(waiting) if *waiting != is_wanted => drop(changes.remove(&subject)),
        _ => drop(changes.insert(subject, is_wanted)),
    }
}

impl Wire for NatsWire {
    fn publish(&mut self, to: Subject<'_>, packet: &[u8]) -> bool {
        self.push(self.prefix.subject(to), Label::None, packet)
    }

    fn ask(&mut self, service: &str, request: u64, packet: &[u8]) -> bool {
        let subject = self.prefix.subject(Subject::Service(service));
        let unserved = self.prefix.unserved(&self.node, request);
        self.push(subject, Label::Unserved(unserved), packet)
    }

    fn subscribe(&mut self, subject: Subject<'_>) {
        self.note_change(subject, true);
    }

    fn unsubscribe(&mut self, subject: Subject<'_>) {
        self.note_change(subject, false);
    }

    fn append(&mut self, name: &RoomOrTopic, id: &str, packet: &[u8]) -> bool {
        self.push(self.prefix.stored(name), Label::Id(id.to_owned()), packet)
    }

    fn follow(&mut self, name: &RoomOrTopic, limits: &History, from: u64) {
        self.read(name, (*limits, from, None));
    }

    fn replace(&mut self, name: &RoomOrTopic, limits: &History, lost: Position) {
        self.read(name, (*limits, lost.offset, Some(lost.epoch)));
    }

    fn unfollow(&mut self, name: &RoomOrTopic) {
        let subject = self.prefix.followed(name);
        self.reads.remove(name);
        self.newest_readers.remove(name);
        if self.followed.remove(&subject).is_some() {
            note_change(&mut self.changes, FollowedSubject::alone(subject), false);
        }
    }
}

/// The name of the queue group of the nodes that have a service.
const GROUP: &str = "tidewire";

/// Bytes that wait for the client of NATS. Beyond them packets are dropped, and counted by the node.
const WAITING_BYTES_MAX: usize = 8 << 20;

/// Packets that wait for the client of NATS.
const WAITING_MAX: usize = 65_536;

/// Streams that are read at once. All others wait until the node has taken a stream that was read.
const READERS_MAX: usize = 64;

const INBOX_BYTES_MAX: usize = 16 << 20;

/// Bytes that a packet takes beside its own.
const PACKET_COST_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: rooms that opened and closed while NATS was gone were a growing list of commands.
    #[test]
    fn changes_during_an_outage_are_bounded_by_the_subjects() {
        let mut changes = BTreeMap::new();
        for round in 0..1_000 {
            let subject = format!("room{}", round % 10);
            note_change(&mut changes, subject.clone(), true);
            note_change(&mut changes, subject, false);
        }
        assert!(changes.is_empty(), "{changes:?}");
        note_change(&mut changes, "room".to_owned(), false);
        note_change(&mut changes, "room".to_owned(), true);
        assert!(changes.is_empty(), "the subscription was there, and stays");
        note_change(&mut changes, "room".to_owned(), true);
        assert_eq!(changes.get("room"), Some(&true));
    }

    /// Regression: each subscription held 4,096 packets of any size, some GB in all.
    #[test]
    fn an_inbox_is_bounded_by_bytes_and_tells_that_it_was_full() {
        const OFFERED: usize = 100;
        let packet = Message {
            subject: "room".into(),
            reply: None,
            payload: Bytes::from(vec![0; 1 << 20]),
            headers: None,
            status: None,
            description: None,
            length: 1 << 20,
        };
        let (inbox, mut packets) = Inbox::new();
        for _ in 0..OFFERED {
            inbox.put(packet.clone());
        }
        assert!(packets.take_overflow() && !packets.take_overflow());
        let mut taken = 0;
        while let Some(packet) = packets.take() {
            taken += packet.payload.len();
        }
        assert!((INBOX_BYTES_MAX / 2..=INBOX_BYTES_MAX).contains(&taken));
        inbox.put(packet);
        assert!(packets.take().is_some() && !packets.take_overflow());
    }
}
