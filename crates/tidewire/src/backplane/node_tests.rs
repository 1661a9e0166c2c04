//! A node by hand: the test is its engine, its lane and its clock.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use tidewire_proto::backplane::{
    Asked, Entry, StreamKind, StreamPosition, encode_alive, encode_asked, encode_stream,
};
use tidewire_proto::message::MemberId;
use tidewire_proto::topic::Pattern;

use super::*;
use crate::Server;
use crate::broker::{Addressee, BackplaneLink, Item, News};
use crate::engine::Outgoing;
use crate::limits::Limits;
use crate::mailbox::{Lanes, Mailbox};
use crate::observe::LaneCounters;
use crate::room::{Directory, SharedRoom};
use crate::session::SessionId;

const OTHER: (&str, u64) = ("two", 7);

/// The packets of a node, each with its subject.
#[derive(Default)]
struct Recorder {
    sent: Vec<(String, Vec<u8>)>,
    /// Whether nothing can go out now.
    is_full: bool,
}

impl Wire for Recorder {
    fn publish(&mut self, to: Subject<'_>, packet: &[u8]) -> bool {
        if !self.is_full {
            self.sent.push((format!("{to:?}"), packet.to_vec()));
        }
        !self.is_full
    }

    fn ask(&mut self, _: &str, _: u64, _: &[u8]) -> bool {
        true
    }

    fn subscribe(&mut self, _: Subject<'_>) {}

    fn unsubscribe(&mut self, _: Subject<'_>) {}

    fn append(&mut self, _: &KeptName, _: &str, _: &[u8]) -> bool {
        true
    }

    fn follow(&mut self, _: &KeptName, _: &History, _: u64) {}

    fn replace(&mut self, _: &KeptName, _: &History, _: Position) {}

    fn unfollow(&mut self, _: &KeptName) {}
}

struct Rig {
    node: Node,
    wire: Recorder,
    mailbox: Arc<Mailbox>,
    now: Instant,
}

impl Rig {
    /// Starts the node "one" of a server with one lane. It has joined its cluster.
    fn start(limits: Limits) -> Self {
        let mut settings = NodeSettings::new("one").unwrap();
        settings.services = vec!["echo".to_owned()];
        let link = Arc::new(BackplaneLink::new("one", 1, 60_000, true));
        let directory = Directory::new(&limits, None, Some(Arc::clone(&link)));
        let kind = tidewire_io::poller::PollerKind::Poll;
        let builder = Server::builder().limits(limits);
        let shared = builder.share(kind, Outgoing::default(), None);
        let mailbox = Mailbox::new(Arc::default()).unwrap();
        let lanes = Arc::new(Lanes::new(Some(Arc::clone(&link))));
        lanes.set(vec![Arc::clone(&mailbox)]);
        let node = Node::new(NodeParts {
            settings,
            link,
            directory: Arc::new(directory),
            config: shared.config,
            counters: Arc::<CachePadded<LaneCounters>>::default(),
            lanes,
            figures: Arc::default(),
            packet_bytes_max: 64 * 1024,
            started: std::sync::mpsc::channel().0,
        });
        let mut rig = Self {
            node,
            wire: Recorder::default(),
            mailbox,
            now: Instant::now(),
        };
        rig.turn();
        rig.beat();
        rig
    }

    fn turn(&mut self) -> Turn {
        self.node.turn(self.now, &mut self.wire)
    }

    /// Lets a heartbeat pass. Returns what the node has sent since the last look.
    fn beat(&mut self) -> Vec<(String, Vec<u8>)> {
        self.now += self.node.settings.heartbeat;
        self.turn();
        std::mem::take(&mut self.wire.sent)
    }

    /// Lets somebody join a room of this server.
    fn join(&self, room: &str, name: &str) -> MemberId {
        let directory = &self.node.directory;
        let session = SessionId::new(0, directory.own_count(room), 1);
        let member = directory.claim(name, session).unwrap();
        directory.enter(room, &member, 0, None).unwrap();
        member.id
    }

    /// Lets somebody subscribe to a pattern.
    fn subscribe(&self, pattern: &str) -> Arc<SharedRoom> {
        let directory = &self.node.directory;
        let pattern = Pattern::parse(pattern).unwrap();
        directory.subscribe(&pattern, 0, None).unwrap()
    }

    /// Gives the node a packet of the other one.
    fn receive(&mut self, encode: impl FnOnce((&str, u64), &mut Vec<u8>)) {
        let mut packet = Vec::new();
        encode(OTHER, &mut packet);
        self.node.handle_packet(&packet, self.now);
    }

    /// Gives the node entries of the other one in a room or topic.
    fn receive_entries(&mut self, to: (StreamKind, &str), at: (u64, u64), entries: &[Entry<'_>]) {
        let position = StreamPosition {
            start: 1,
            message: at.0,
            change: at.1,
        };
        self.receive(|other, out| {
            encode_stream(other, to, position, out);
            entries.iter().for_each(|entry| entry.encode(out));
        });
    }

    /// The figures of the node.
    fn figures(&self) -> NodeFigures {
        self.node.figures.lock().unwrap().clone()
    }
}

/// Regression: the node divided by the room that such packets leave for entries, and its thread panicked.
#[test]
fn an_engine_that_comes_back_with_tiny_packets_leaves_the_node_cut_off() {
    let mut rig = Rig::start(Limits::default());
    rig.receive(|other, out| {
        let asked = Asked {
            request: 1,
            left_ms: 60_000,
            service: "echo",
            payload: b"",
        };
        encode_asked(other, &asked, out);
    });
    for (bytes, is_cut_off) in [(1_031, true), (0, true), (64 * 1024, false)] {
        rig.node.handle_disconnected(rig.now);
        rig.node.handle_packet_limit(bytes);
        rig.node.handle_connected();
        let sent = rig.beat();
        assert_eq!(rig.figures().is_cut_off, is_cut_off, "{bytes}");
        assert_eq!(sent.is_empty(), is_cut_off, "{bytes}");
    }
    // An engine may also tell the limit without having gone.
    rig.node.handle_packet_limit(0);
    rig.beat();
    assert!(rig.figures().is_cut_off);
}

/// Regression: the server of a node whose thread had panicked looked well, and took messages that went nowhere.
#[test]
fn a_server_whose_node_has_ended_early_is_cut_off_and_counts_what_it_drops() {
    let mut batch = Vec::new();
    let payload = b"x";
    let published = Entry::Published { payload };
    for name in ["a", "b"] {
        Item::encode(Addressee::Topic, name, Some(&published), &mut batch);
    }
    Item::encode(Addressee::Own(News::Ended, 1), "", None, &mut batch);
    for has_stopped in [false, true] {
        let mut rig = Rig::start(Limits::default());
        rig.node.settings.when_cut_off = WhenCutOff::Fail;
        rig.receive(|(node, epoch), out| encode_alive(node, epoch, 0, 1, out));
        rig.beat();
        assert_eq!(rig.figures().peers.len(), 1);
        let (link, config) = (Arc::clone(&rig.node.link), Arc::clone(&rig.node.config));
        let (counters, figures) = (
            Arc::clone(&rig.node.counters),
            Arc::clone(&rig.node.figures),
        );
        if has_stopped {
            link.stop();
            assert!(rig.turn().has_ended);
        }
        link.post(batch.clone(), &mut Vec::new()).unwrap();
        drop(rig);
        assert_eq!(link.is_full(), !has_stopped);
        assert_eq!(config.check_shared_frame(1, 0).is_err(), !has_stopped);
        let figures = figures.lock().unwrap();
        assert_eq!(
            (figures.is_cut_off, figures.peers.is_empty()),
            (!has_stopped, !has_stopped)
        );
        assert_eq!(counters.backplane_unsent.read(), 2);
        assert_eq!(link.post(batch.clone(), &mut Vec::new()), Ok(2));
    }
}

/// Regression: each subscription that ended let the node compare every topic of every other node with every pattern. One client
/// could keep its thread busy for so long that the others took it for dead.
#[test]
fn the_end_of_a_subscription_looks_at_its_own_topic_alone() {
    const TOPICS: usize = 3_000;
    let mut rig = Rig::start(Limits::default());
    let published = [Entry::Published { payload: b"x" }];
    for number in 0..TOPICS {
        let topic = format!("t.{number}");
        rig.subscribe(&topic);
        rig.receive_entries((StreamKind::Topic, &topic), (0, 0), &published);
    }
    rig.turn();
    let start = Instant::now();
    for _ in 0..100 {
        let unique = rig.subscribe("unique");
        rig.turn();
        rig.node.directory.unsubscribe(&unique, 0);
        rig.turn();
    }
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(rig.node.peers.all["two"].streams.len(), TOPICS);
}

/// The positions in a topic are kept as long as any subscription matches it.
#[test]
fn positions_are_forgotten_with_the_last_subscription_that_matches() {
    let mut rig = Rig::start(Limits::default());
    let patterns = ["a.b", "a.*", "a.>"];
    for last in 0..patterns.len() {
        let mut shared: Vec<Arc<SharedRoom>> =
            patterns.iter().map(|it| rig.subscribe(it)).collect();
        let stays = rig.subscribe("z");
        for topic in ["a.b", "z"] {
            let published = [Entry::Published { payload: b"x" }];
            rig.receive_entries((StreamKind::Topic, topic), (0, 0), &published);
        }
        let last = shared.remove(last);
        for (shared, left) in shared.iter().zip([2, 2]).chain([(&last, 1), (&stays, 0)]) {
            rig.node.directory.unsubscribe(shared, 0);
            rig.turn();
            assert_eq!(rig.node.peers.all["two"].streams.len(), left);
        }
    }
}
