//! A backplane between servers of one process, for tests.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidewire::backplane::{
    Backplane, BackplaneError, Carrier, HistoryMessage, HistoryState, Node, RoomOrTopic, Subject,
    Wire,
};
use tidewire::{History, Position};
use tidewire_proto::backplane::{Content, Packet};
use tidewire_proto::topic::Pattern;

use super::Engine;
use super::streams::Streams;

/// A medium that connects servers of this process. Clones are the same medium.
#[derive(Clone, Debug, Default)]
pub struct InprocEngine {
    hub: Arc<Mutex<Hub>>,
}

/// The backplane of one server.
#[derive(Clone, Debug)]
pub struct InprocBackplane {
    engine: InprocEngine,
    /// The clock of the server is ahead by this.
    ahead: Duration,
}

#[derive(Debug, Default)]
struct Hub {
    ports: Vec<Port>,
    is_cut: bool,
    /// Packets of rooms and topics that will be lost.
    losses: usize,
    /// Packets that will be lost on their way to a stream.
    append_losses: usize,
    /// Whether no stream can be made.
    has_no_space: bool,
    /// Numbers of packets of requests and answers that still arrive, and that are then lost.
    directed_losses: (usize, usize),
    /// Requests to services so far.
    asked: usize,
    streams: Streams,
}

#[derive(Debug)]
struct Port {
    id: usize,
    node: String,
    events: Sender<Event>,
    subscriptions: HashSet<String>,
    /// The node neither sends nor receives, without noticing.
    is_silent: bool,
}

#[derive(Debug)]
enum Event {
    Packet(Arc<[u8]>),
    /// No node has the service of the request with this number.
    Unserved(u64),
    /// A new packet of a stream.
    Appended(RoomOrTopic, u64, Arc<[u8]>),
    /// A stream cannot be made.
    Failed(RoomOrTopic),
    /// The packets of a stream, which end with this sequence.
    Read(RoomOrTopic, HistoryState, Vec<Arc<[u8]>>),
    /// Packets for the node were dropped.
    Overflow,
    Cut,
    Mended,
    Wake,
}

impl InprocEngine {
    /// Loses the next packets of rooms and topics.
    pub fn lose(&self, packets: usize) {
        self.lock().losses = packets;
    }

    /// Tells all nodes that packets for them were dropped.
    pub fn tell_overflow(&self) {
        for port in &self.lock().ports {
            // The node of the port may have ended.
            let _ = port.events.send(Event::Overflow);
        }
    }

    /// Loses the next packets on their way to streams.
    pub fn lose_appended(&self, packets: usize) {
        self.lock().append_losses = packets;
    }

    /// Refuses new streams, as if the engine had no space, or ends this.
    pub fn run_out_of_space(&self, has_no_space: bool) {
        self.lock().has_no_space = has_no_space;
    }

    /// Makes all streams again, with sequences below the former ones, like a node with a slow clock. Nodes are not
    /// told.
    pub fn begin_streams_lower(&self) {
        self.lock().streams.begin_lower();
    }

    /// Loses the newest packets of all streams, as a power cut does. Nodes are not told.
    pub fn lose_ends(&self, packets: usize) {
        self.lock().streams.lose_ends(packets);
    }

    /// The number of streams that nodes have replaced because they had lost their ends.
    #[must_use]
    pub fn replaced(&self) -> usize {
        self.lock().streams.replaced()
    }

    /// The number of packets that a stream was given, each once.
    #[must_use]
    pub fn appended(&self, name: &RoomOrTopic) -> usize {
        self.lock().streams.appended(name)
    }

    /// The number of nodes that follow a stream.
    #[must_use]
    pub fn followers(&self, name: &RoomOrTopic) -> usize {
        let subscription = format!("stream {name}");
        let hub = self.lock();
        let follows = |port: &&Port| port.subscriptions.contains(&subscription);
        hub.ports.iter().filter(follows).count()
    }

    /// Sends a packet to the nodes that follow a stream, as any program may that reaches the engine.
    pub fn inject_appended(&self, name: &RoomOrTopic, sequence: u64, packet: &[u8]) {
        for port in &self.lock().ports {
            let appended = Event::Appended(name.clone(), sequence, packet.into());
            // The node of the port may have ended.
            let _ = port.events.send(appended);
        }
    }

    /// Loses packets of requests and answers, after some that still arrive.
    pub fn lose_directed(&self, arrive: usize, packets: usize) {
        self.lock().directed_losses = (arrive, packets);
    }

    /// Whether all planned losses have happened.
    #[must_use]
    pub fn has_lost_all(&self) -> bool {
        let hub = self.lock();
        hub.losses + hub.append_losses + hub.directed_losses.1 == 0
    }

    /// Stops a node's sending and receiving, as if its process had stopped, or starts both again.
    pub fn silence(&self, node: &str, is_silent: bool) {
        for port in &mut self.lock().ports {
            if port.node == node {
                port.is_silent = is_silent;
            }
        }
    }

    /// The number of nodes that have subscribed to a subject.
    #[must_use]
    pub fn subscribers(&self, subject: Subject<'_>) -> usize {
        let key = key(subject);
        let hub = self.lock();
        let ports = hub.ports.iter();
        ports
            .filter(|port| port.subscriptions.contains(&key))
            .count()
    }

    /// Sends a packet as any program may that reaches the engine.
    pub fn inject(&self, to: Subject<'_>, packet: &[u8]) {
        self.lock().send(to, packet);
    }

    /// Returns the backplane of a node with a clock that is ahead of others by this time.
    #[must_use]
    pub fn backplane_ahead(&self, ahead: Duration) -> InprocBackplane {
        let engine = self.clone();
        InprocBackplane { engine, ahead }
    }

    fn lock(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for InprocEngine {
    type Backplane = InprocBackplane;

    fn backplane(&self) -> InprocBackplane {
        self.backplane_ahead(Duration::ZERO)
    }

    fn cut(&mut self) {
        let mut hub = self.lock();
        hub.is_cut = true;
        for port in &hub.ports {
            // The node of the port may have ended.
            let _ = port.events.send(Event::Cut);
        }
    }

    fn mend(&mut self) {
        let mut hub = self.lock();
        hub.is_cut = false;
        for port in &hub.ports {
            // The node of the port may have ended.
            let _ = port.events.send(Event::Mended);
        }
    }

    fn lose_streams(&mut self) {
        self.lock().streams.clear();
    }

    fn save_streams(&mut self) {
        self.lock().streams.save();
    }

    fn restore_streams(&mut self) {
        self.lock().streams.restore();
    }
}

impl Backplane for InprocBackplane {
    fn connect(&self) -> Result<Box<dyn Carrier>, BackplaneError> {
        Ok(Box::new(InprocCarrier(self.clone())))
    }
}

#[derive(Debug)]
struct InprocCarrier(InprocBackplane);

struct InprocWire {
    engine: InprocEngine,
    id: usize,
}

impl Carrier for InprocCarrier {
    fn open_histories(&mut self) -> Result<(), BackplaneError> {
        Ok(())
    }

    fn packet_bytes_max(&self) -> usize {
        64 * 1024
    }

    fn run(self: Box<Self>, mut node: Node) {
        let InprocBackplane { engine, ahead } = self.0;
        let (events, received) = channel();
        let id = {
            let mut hub = engine.lock();
            let id = hub.ports.last().map_or(0, |port| port.id + 1);
            hub.ports.push(Port {
                id,
                node: node.id().to_owned(),
                events: events.clone(),
                subscriptions: HashSet::new(),
                is_silent: false,
            });
            id
        };
        node.set_waker(move || {
            // The thread may have ended.
            let _ = events.send(Event::Wake);
        });
        let mut wire = InprocWire {
            engine: engine.clone(),
            id,
        };
        drive(&mut node, &mut wire, &received, ahead);
        engine.lock().ports.retain(|port| port.id != id);
    }
}

fn drive(node: &mut Node, wire: &mut InprocWire, received: &Receiver<Event>, ahead: Duration) {
    let now = || Instant::now() + ahead;
    loop {
        let Some(wake_at) = node.turn(now(), wire) else {
            return;
        };
        let wait = wake_at.saturating_duration_since(now());
        let mut next = match received.recv_timeout(wait) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        while let Some(event) = next {
            match event {
                Event::Packet(packet) => node.handle_packet(&packet, now()),
                Event::Unserved(request) => node.handle_unserved(request),
                Event::Appended(name, offset, packet) => {
                    let packet = &packet[..];
                    let message = HistoryMessage { offset, packet };
                    node.handle_appended(&name, message, now());
                }
                Event::Read(name, state, packets) => {
                    let first = state.last + 1 - packets.len() as u64;
                    let messages: Vec<HistoryMessage<'_>> = (first..)
                        .zip(&packets)
                        .map(|(offset, packet)| HistoryMessage { offset, packet })
                        .collect();
                    node.handle_history(&name, state, &messages, now());
                }
                Event::Failed(name) => node.handle_history_failure(&name, "no space"),
                Event::Overflow => node.handle_overflow(),
                Event::Cut => node.handle_disconnected(now()),
                Event::Mended => node.handle_connected(),
                Event::Wake => {}
            }
            next = received.try_recv().ok();
        }
    }
}

impl Wire for InprocWire {
    fn publish(&mut self, to: Subject<'_>, packet: &[u8]) -> bool {
        let mut hub = self.engine.lock();
        if hub.is_cut {
            return false;
        }
        if hub
            .ports
            .iter()
            .any(|port| port.id == self.id && port.is_silent)
        {
            return true;
        }
        if hub.loses(to, packet) {
            return true;
        }
        hub.send(to, packet);
        true
    }

    fn ask(&mut self, service: &str, request: u64, packet: &[u8]) -> bool {
        let subject = Subject::Service(service);
        let mut hub = self.engine.lock();
        if hub.is_cut {
            return false;
        }
        let own = hub.ports.iter().find(|port| port.id == self.id);
        if own.is_some_and(|port| port.is_silent) || hub.loses(subject, packet) {
            return true;
        }
        let key = key(subject);
        let serves = |port: &&Port| port.id != self.id && port.subscriptions.contains(&key);
        let serving: Vec<&Port> = hub.ports.iter().filter(serves).collect();
        if serving.is_empty() {
            for port in hub.ports.iter().filter(|port| port.id == self.id) {
                // The node of the port may have ended.
                let _ = port.events.send(Event::Unserved(request));
            }
            return true;
        }
        let port = serving[hub.asked % serving.len()];
        if !port.is_silent {
            // The node of the port may have ended.
            let _ = port.events.send(Event::Packet(packet.into()));
        }
        hub.asked += 1;
        true
    }

    fn subscribe(&mut self, subject: Subject<'_>) {
        self.change(|subscriptions| subscriptions.insert(key(subject)));
    }

    fn unsubscribe(&mut self, subject: Subject<'_>) {
        self.change(|subscriptions| subscriptions.remove(&key(subject)));
    }

    fn append(&mut self, name: &RoomOrTopic, id: &str, packet: &[u8]) -> bool {
        let mut hub = self.engine.lock();
        let hub = &mut *hub;
        if hub.is_cut || !hub.streams.has(name) {
            return true;
        }
        if hub.append_losses > 0 {
            hub.append_losses -= 1;
            return true;
        }
        let packet: Arc<[u8]> = packet.into();
        let Some(sequence) = hub.streams.append(name, id, &packet) else {
            return true;
        };
        let is_lost = hub.losses > 0;
        hub.losses = hub.losses.saturating_sub(1);
        let subscription = format!("stream {name}");
        let ports = hub.ports.iter().filter(|_| !is_lost);
        for port in ports.filter(|port| port.subscriptions.contains(&subscription)) {
            let appended = Event::Appended(name.clone(), sequence, Arc::clone(&packet));
            // The node of the port may have ended.
            let _ = port.events.send(appended);
        }
        true
    }

    fn follow(&mut self, name: &RoomOrTopic, limits: &History, from: u64) {
        let mut hub = self.engine.lock();
        let hub = &mut *hub;
        if hub.is_cut {
            // The node reads again when it is connected.
            return;
        }
        if hub.has_no_space && !hub.streams.has(name) {
            let own = hub.ports.iter().filter(|port| port.id == self.id);
            for port in own {
                // The node is the caller.
                let _ = port.events.send(Event::Failed(name.clone()));
            }
            return;
        }
        let (state, packets) = hub.streams.read(name, limits, from);
        let read = Event::Read(name.clone(), state, packets);
        if let Some(port) = hub.ports.iter_mut().find(|port| port.id == self.id) {
            port.subscriptions.insert(format!("stream {name}"));
            // The node is the caller.
            let _ = port.events.send(read);
        }
    }

    fn replace(&mut self, name: &RoomOrTopic, limits: &History, lost: Position) {
        let mut hub = self.engine.lock();
        if !hub.is_cut {
            hub.streams.replace(name, lost.epoch);
        }
        drop(hub);
        self.follow(name, limits, lost.offset);
    }

    fn unfollow(&mut self, name: &RoomOrTopic) {
        self.change(|subscriptions| subscriptions.remove(&format!("stream {name}")));
    }
}

impl InprocWire {
    fn change(&self, change: impl FnOnce(&mut HashSet<String>) -> bool) {
        let mut hub = self.engine.lock();
        if let Some(port) = hub.ports.iter_mut().find(|port| port.id == self.id) {
            change(&mut port.subscriptions);
        }
    }
}

impl Hub {
    fn send(&self, to: Subject<'_>, packet: &[u8]) {
        let packet: Arc<[u8]> = packet.into();
        for port in self.ports.iter().filter(|port| !port.is_silent) {
            for _ in 0..port.copies(to) {
                // The node of the port may have ended.
                let _ = port.events.send(Event::Packet(Arc::clone(&packet)));
            }
        }
    }

    /// Whether to lose this packet.
    fn loses(&mut self, to: Subject<'_>, packet: &[u8]) -> bool {
        let losses = match to {
            Subject::Room(_) | Subject::Topic(_) => &mut self.losses,
            _ => match Packet::decode(packet).map(|it| it.content) {
                Ok(Content::Asked(_) | Content::Answered(_)) => {
                    let (arrive, losses) = &mut self.directed_losses;
                    if *arrive > 0 {
                        *arrive -= 1;
                        return false;
                    }
                    losses
                }
                _ => return false,
            },
        };
        let is_lost = *losses > 0;
        *losses -= usize::from(is_lost);
        is_lost
    }
}

impl Port {
    /// How often a packet arrives: once for each subscription that matches.
    fn copies(&self, to: Subject<'_>) -> usize {
        let Subject::Topic(topic) = to else {
            return usize::from(self.subscriptions.contains(&key(to)));
        };
        let patterns = self
            .subscriptions
            .iter()
            .filter_map(|key| key.strip_prefix("topic "));
        let matches = |pattern: &&str| Pattern::parse(pattern).is_ok_and(|it| it.matches(topic));
        patterns.filter(matches).count()
    }
}

fn key(subject: Subject<'_>) -> String {
    match subject {
        Subject::Nodes => "nodes".to_owned(),
        Subject::Node(id) => format!("node {id}"),
        Subject::Service(name) => format!("service {name}"),
        Subject::Room(name) => format!("room {name}"),
        Subject::Topic(name) | Subject::Pattern(name) => format!("topic {name}"),
    }
}
