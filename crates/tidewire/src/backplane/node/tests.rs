//! A node by hand: the test is its engine, its lane and its clock.

use std::sync::Arc;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use tidewire_proto::backplane::entry::encode_here;
use tidewire_proto::backplane::{
    ALIVE_ANSWERS, ALIVE_ASKS, ALIVE_ECHO, ALIVE_LEAVES, Content, Entry, NodeLife, Packet,
    SequenceKind, SequencePoint, ServiceRequest, encode_alive, encode_asked, encode_sequence,
};
use tidewire_proto::codec::{Codec, Decoded, Presence};
use tidewire_proto::message::{Kind, MemberId, PresenceEvent};
use tidewire_proto::topic::Pattern;

use super::*;
use crate::Server;
use crate::broker::{Addressee, BackplaneLink, Item, News, Position};
use crate::history::History;
use crate::limits::Limits;
use crate::mailbox::{BatchEntry, LaneMessage, Lanes, Mailbox, MessageQueue};
use crate::observe::LaneCounters;
use crate::room::{Directory, SharedRoom};
use crate::session::SessionId;

const OTHER: NodeLife<&str> = NodeLife {
    node: "two",
    epoch: 7,
};

const NODE_TWO: &str = "Node(\"two\")";

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

    fn append(&mut self, _: &RoomOrTopic, _: &str, _: &[u8]) -> bool {
        true
    }

    fn follow(&mut self, _: &RoomOrTopic, _: &History, _: u64) {}

    fn replace(&mut self, _: &RoomOrTopic, _: &History, _: Position) {}

    fn unfollow(&mut self, _: &RoomOrTopic) {}
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
        let link = Arc::new(BackplaneLink::new(NodeLife::new("one", 1), 60_000, true));
        let directory = Directory::new(&limits, None, Some(Arc::clone(&link)));
        let kind = tidewire_io::poller::PollerKind::Poll;
        let builder = Server::builder().limits(limits);
        let shared = builder.share_alone(kind);
        let mailbox = Mailbox::new(Arc::default()).unwrap();
        let lanes = Arc::new(Lanes::new(Some(Arc::clone(&link))));
        lanes.set(vec![Arc::clone(&mailbox)]);
        let node = Node::new(NodeParts {
            settings,
            link,
            directory: Arc::new(directory),
            config: shared.config,
            sessions: shared.sessions,
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

    fn turn(&mut self) -> Option<Instant> {
        self.node.turn(self.now, &mut self.wire)
    }

    /// Lets a heartbeat pass. Returns what the node has sent since the last look.
    fn beat(&mut self) -> Vec<(String, Vec<u8>)> {
        self.now += self.node.settings.heartbeat;
        self.turn();
        std::mem::take(&mut self.wire.sent)
    }

    /// Gives the node a heartbeat of the other one.
    fn hear(&mut self) {
        self.receive(|other, out| encode_alive(other, 0, 1, out));
    }

    /// Lets a heartbeat of both nodes pass. Returns how often the other one is asked for its members.
    fn beat_both(&mut self) -> usize {
        self.hear();
        asks(&self.beat(), NODE_TWO)
    }

    /// Lets somebody join a room of this server.
    fn join(&mut self, room: &str, name: &str) -> MemberId {
        let directory = &self.node.directory;
        let session = SessionId::new(0, directory.own_count(room), 1);
        let member = directory.names().claim(name, session).unwrap();
        directory.enter(room, &member, 0, None).unwrap();
        self.turn();
        member.id()
    }

    /// Lets somebody subscribe to a pattern.
    fn subscribe(&self, pattern: &str) -> Arc<SharedRoom> {
        let directory = &self.node.directory;
        let pattern = Pattern::parse(pattern).unwrap();
        directory
            .subscribe(&pattern, None, SessionId::new(0, 1, 1), None)
            .unwrap()
    }

    /// Gives the node a packet of the other one.
    fn receive(&mut self, encode: impl FnOnce(NodeLife<&str>, &mut Vec<u8>)) {
        let mut packet = Vec::new();
        encode(OTHER, &mut packet);
        self.node.handle_packet(&packet, self.now);
    }

    /// Gives the node entries of the other one in a room or topic.
    fn receive_entries(&mut self, to: (SequenceKind, &str), at: (u64, u64), entries: &[Entry<'_>]) {
        let position = SequencePoint {
            start: 1,
            message: at.0,
            change: at.1,
        };
        self.receive(|other, out| {
            encode_sequence(other, to, position, out);
            entries.iter().for_each(|entry| entry.encode(out));
        });
    }

    /// Lets the other node tell its members in the room "lobby".
    fn receive_here(&mut self, change: u64, members: &[(MemberId, &str)]) {
        let mut here = Vec::new();
        encode_here(
            false,
            members.len() as u32,
            members.iter().copied(),
            &mut here,
        );
        let position = SequencePoint {
            start: 1,
            message: 0,
            change,
        };
        self.receive(|other, out| {
            encode_sequence(other, (SequenceKind::Room, "lobby"), position, out);
            out.extend_from_slice(&here);
        });
    }

    /// Lets the lane take all frames.
    fn take_frames(&mut self) -> Vec<(Kind, Vec<u8>)> {
        let mut frames = Vec::new();
        let mut queue = MessageQueue::default();
        loop {
            self.mailbox.take_all(&mut queue);
            if queue.is_empty() {
                return frames;
            }
            while let Some(message) = queue.pop() {
                let LaneMessage::Batch(batch) = message else {
                    continue;
                };
                let mut rest = &batch[..];
                while let Some(BatchEntry::Room { frame, .. }) = BatchEntry::decode(&mut rest) {
                    let decoded = self.node.config.codecs.main().decode(frame, 1 << 20);
                    let Ok(Decoded::Frame { message, .. }) = decoded else {
                        panic!("{decoded:?}");
                    };
                    frames.push((message.kind, frame.to_vec()));
                }
            }
            self.turn();
        }
    }

    /// The figures of the node.
    fn figures(&self) -> NodeFigures {
        self.node.figures.lock().unwrap().clone()
    }
}

/// How often this addressee is asked for all its members.
fn asks(sent: &[(String, Vec<u8>)], addressee: &str) -> usize {
    let to_it = sent.iter().filter(|(to, _)| to == addressee);
    let packets = to_it.map(|(_, packet)| Packet::decode(packet).unwrap().content);
    packets
        .filter(|it| matches!(it, Content::Alive { flags, .. } if flags & ALIVE_ASKS != 0))
        .count()
}

/// Returns for each packet of the room "lobby" whether it asks others for their members, and the number of members.
fn told(sent: &[(String, Vec<u8>)]) -> Vec<(bool, u32)> {
    let mut told = Vec::new();
    for (_, packet) in sent.iter().filter(|(to, _)| to == "Room(\"lobby\")") {
        let Content::Sequence(sequence) = Packet::decode(packet).unwrap().content else {
            continue;
        };
        for entry in sequence.entries.flatten() {
            if let Entry::Here(here) = entry {
                told.push((here.asks, here.count));
            }
        }
    }
    told
}

/// Regression: the node divided by the room that such packets leave for entries, and its thread panicked.
#[test]
fn an_engine_that_comes_back_with_tiny_packets_leaves_the_node_cut_off() {
    let mut rig = Rig::start(Limits::default());
    rig.receive(|other, out| {
        let asked = ServiceRequest {
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
        rig.node.settings.refuses_when_cut_off = true;
        rig.hear();
        rig.beat();
        assert_eq!(rig.figures().peers.len(), 1);
        let (link, config) = (Arc::clone(&rig.node.link), Arc::clone(&rig.node.config));
        let (counters, figures) = (
            Arc::clone(&rig.node.counters),
            Arc::clone(&rig.node.figures),
        );
        if has_stopped {
            link.stop();
            assert_eq!(rig.turn(), None);
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

/// Regression: each subscription that ended let the node compare every topic of every other node with every pattern.
/// One client could keep its thread busy for so long that the others took it for dead.
#[test]
fn the_end_of_a_subscription_looks_at_its_own_topic_alone() {
    const TOPICS: usize = 3_000;
    let mut rig = Rig::start(Limits::default());
    let published = [Entry::Published { payload: b"x" }];
    for number in 0..TOPICS {
        let topic = format!("t.{number}");
        rig.subscribe(&topic);
        rig.receive_entries((SequenceKind::Topic, &topic), (0, 0), &published);
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
    assert_eq!(rig.node.peers.sequences_of("two"), TOPICS);
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
            rig.receive_entries((SequenceKind::Topic, topic), (0, 0), &published);
        }
        let last = shared.remove(last);
        for (shared, left) in shared.iter().zip([2, 2]).chain([(&last, 1), (&stays, 0)]) {
            rig.node.directory.unsubscribe(shared, 0);
            rig.turn();
            assert_eq!(rig.node.peers.sequences_of("two"), left);
        }
    }
}

const LOBBY: (SequenceKind, &str) = (SequenceKind::Room, "lobby");

const ANN: (MemberId, &str) = (MemberId(1), "ann");

/// Regression: the loss of a change was seen once, so the question that it led to, or the answer, must not be lost. A
/// member that had left stayed for ever.
#[test]
fn a_node_whose_changes_were_lost_is_asked_until_it_has_told_its_members() {
    let mut rig = Rig::start(Limits::default());
    rig.join("lobby", "bob");
    rig.receive_here(0, &[ANN]);
    (0..3).for_each(|_| drop(rig.beat()));
    rig.receive_entries(LOBBY, (0, 2), &[]);
    rig.wire.is_full = true;
    rig.turn();
    rig.wire.is_full = false;
    rig.receive_entries(LOBBY, (0, 3), &[]);
    rig.turn();
    assert_eq!(
        asks(&std::mem::take(&mut rig.wire.sent), NODE_TWO),
        1,
        "it went out once"
    );
    let again: Vec<usize> = (0..8).map(|_| rig.beat_both()).collect();
    assert_eq!(again, [0, 1, 0, 1, 0, 0, 0, 1]);
    assert_eq!(rig.node.directory.own_count("lobby"), 1);
    rig.receive_here(3, &[]);
    assert_eq!((0..99).map(|_| rig.beat_both()).sum::<usize>(), 0);
    rig.receive_entries(LOBBY, (0, 9), &[]);
    let asked: usize = (0..99).map(|_| rig.beat_both()).sum();
    assert!(
        asked < 9,
        "{asked}: one that never answers is not asked for ever"
    );
}

/// Regression: a node that was only slow was asked once for the members that had left with it.
#[test]
fn a_node_that_is_back_is_asked_until_it_has_told_its_members() {
    let mut rig = Rig::start(Limits::default());
    rig.join("lobby", "bob");
    rig.receive_here(1, &[ANN]);
    (0..9).for_each(|_| drop(rig.beat()));
    assert!(rig.figures().peers.is_empty(), "it is dead");
    rig.hear();
    let asked: usize = (0..4).map(|_| rig.beat_both()).sum();
    assert_eq!(asked, 3);
    rig.receive_here(1, &[ANN]);
    assert_eq!(rig.beat_both() + rig.beat_both(), 0);
}

/// Regression: a room asked for its members on other nodes once.
#[test]
fn a_room_that_opens_asks_until_all_have_answered_or_three_times() {
    for answers in [true, false] {
        let mut rig = Rig::start(Limits::default());
        rig.hear();
        rig.join("lobby", "bob");
        assert_eq!(told(&std::mem::take(&mut rig.wire.sent)), [(true, 1)]);
        if answers {
            rig.receive_here(0, &[ANN]);
        }
        let again: Vec<usize> = (0..5).map(|_| told(&rig.beat()).len()).collect();
        assert_eq!(again, if answers { [0; 5] } else { [0, 1, 1, 0, 0] });
    }
}

/// Regression: when the last change of a room that has closed was lost, the others heard of no members any more, and
/// kept them.
#[test]
fn a_room_that_has_closed_is_told_as_empty() {
    let mut rig = Rig::start(Limits::default());
    let bob = rig.join("lobby", "bob");
    let left = Entry::Left { member: bob };
    let mut batch = Vec::new();
    Item::encode(Addressee::Room, "lobby", Some(&left), &mut batch);
    let alias = rig.node.directory.room("lobby").unwrap().alias();
    rig.node.directory.exit(alias, bob, 0);
    rig.node.link.post(batch, &mut Vec::new()).unwrap();
    rig.turn();
    rig.wire.sent.clear();
    let told = [told(&rig.beat()), told(&rig.beat()), told(&rig.beat())].concat();
    assert_eq!(told, [(false, 0)]);
}

/// Regression: a change of presence that a slow lane had no room for was told to its members as a missing message, and
/// the member was never shown there.
#[test]
fn a_slow_lane_misses_no_member_of_another_node() {
    for flood in [0, 40_000] {
        let mut rig = Rig::start(Limits::default());
        rig.join("lobby", "bob");
        let payload = vec![b'x'; 60_000];
        let said = Entry::ChatMessage {
            member: MemberId(0),
            name: "",
            payload: &payload,
        };
        let mut offered = 0;
        while rig.node.counters.backplane_dropped.read() == 0 {
            rig.receive_entries(LOBBY, (offered, 0), &[said]);
            rig.turn();
            offered += 1;
        }
        let (member, name) = ANN;
        let (joined, left) = (Entry::Joined { member, name }, Entry::Left { member });
        for change in (0..flood).step_by(2) {
            rig.receive_entries(LOBBY, (offered, change), &[joined, left]);
        }
        rig.receive_entries(LOBBY, (offered, flood), &[joined]);
        assert_eq!(rig.node.counters.backplane_dropped.read(), 1);
        let frames = rig.take_frames();
        let count = |kind| frames.iter().filter(|frame| frame.0 == kind).count() as u64;
        assert_eq!(count(Kind::Deliver), offered - 1);
        let mut gap = Vec::new();
        let (codec, alias) = (
            rig.node.config.codecs.main(),
            rig.node.presence.room("lobby").unwrap().alias(),
        );
        codec.encode_gap(alias, 1, &mut gap).unwrap();
        assert!(frames.contains(&(Kind::Gap, gap)));
        let mut shown = Vec::new();
        rig.node.directory.roster(alias, |member, name| {
            let event = match flood {
                0 => PresenceEvent::Joined,
                _ => PresenceEvent::Here,
            };
            let presence = Presence {
                channel: alias,
                member,
                name,
                event,
            };
            shown.clear();
            codec.encode_presence(&presence, &mut shown).unwrap();
        });
        let last = frames.iter().rfind(|frame| frame.0 == Kind::Presence);
        assert_eq!(last.unwrap().1, shown);
    }
}

/// Regression: each overflow made all nodes tell all their positions at once, at the next heartbeat, which overflowed
/// again.
#[test]
fn overflows_do_not_feed_themselves() {
    const TOPICS: usize = 2_500;
    let mut rig = Rig::start(Limits::default());
    let mut batch = Vec::new();
    let published = Entry::Published { payload: b"x" };
    for number in 0..TOPICS {
        let topic = number.to_string();
        Item::encode(Addressee::Topic, &topic, Some(&published), &mut batch);
    }
    rig.node.link.post(batch, &mut Vec::new()).unwrap();
    rig.turn();
    rig.beat();
    let mut told = Vec::new();
    let mut wakes = 0;
    rig.now += rig.node.settings.heartbeat;
    while told.len() < TOPICS {
        let wake_at = rig.turn().unwrap();
        // Turns before that, for other reasons, tell no more.
        rig.turn();
        let sent = std::mem::take(&mut rig.wire.sent).into_iter();
        let before = told.len();
        told.extend(
            sent.filter(|(to, _)| to.starts_with("Topic"))
                .map(|it| it.0),
        );
        assert!(told.len() - before <= 1_000);
        (rig.now, wakes) = (wake_at, wakes + 1);
        assert!(wakes < 9);
    }
    told.sort_unstable();
    told.dedup();
    assert_eq!(told.len(), TOPICS, "each one once");
    let mut asked = 0;
    for _ in 0..64 {
        rig.node.handle_overflow();
        asked += asks(&rig.beat(), "Nodes");
    }
    assert_eq!(asked, 7, "of 64 overflows");
}

/// Regression: an answer that took longer than a heartbeat was ignored, so a slow node kept the lag that it had when it
/// was quick.
#[test]
fn the_lag_of_a_slow_node_is_measured() {
    let mut rig = Rig::start(Limits::default());
    let heartbeat = rig.node.settings.heartbeat;
    for late in [0, 3, 1] {
        rig.hear();
        let sent = rig.beat();
        let packets = sent
            .iter()
            .map(|(_, packet)| Packet::decode(packet).unwrap().content);
        let mut asked = packets.filter_map(|content| match content {
            Content::Alive { flags, beat } => (flags & ALIVE_ECHO != 0).then_some(beat),
            _ => None,
        });
        let beat = asked.next_back().unwrap();
        (0..late).for_each(|_| _ = rig.beat_both());
        rig.receive(|other, out| encode_alive(other, ALIVE_ANSWERS, beat, out));
        rig.beat();
        assert_eq!(rig.figures().peers[0].lag, Some(heartbeat * late));
    }
}

/// Regression: the members of a room whose size moved around the limit were listed and counted in turn. Each list was
/// shown as all of them joining.
#[test]
fn a_room_at_the_limit_of_presence_is_not_listed_and_counted_in_turn() {
    let mut limits = Limits::default();
    limits.rooms.set_presence_members_max(16);
    let mut rig = Rig::start(limits);
    let mut members: Vec<MemberId> = (0..17)
        .map(|it| rig.join("lobby", &format!("m{it}")))
        .collect();
    let alias = rig.node.directory.room("lobby").unwrap().alias();
    let is_list = |rig: &mut Rig| {
        rig.receive(|other, out| {
            encode_sequence(other, LOBBY, SequencePoint::default(), out);
            encode_here(true, 0, std::iter::empty(), out);
        });
        rig.wire.sent.clear();
        rig.turn();
        let Content::Sequence(sequence) = Packet::decode(&rig.wire.sent[0].1).unwrap().content
        else {
            panic!("no sequence");
        };
        let entry = sequence.entries.flatten().next();
        matches!(entry, Some(Entry::Here(here)) if here.members().next().is_some())
    };
    let mut listed = Vec::new();
    while members.len() > 13 {
        listed.push((members.len(), is_list(&mut rig)));
        let member = members.pop().unwrap();
        rig.node.directory.exit(alias, member, 0);
    }
    assert_eq!(listed, [(17, false), (16, false), (15, false), (14, true)]);
    for name in ["ann", "carl", "eve"] {
        rig.join("lobby", name);
    }
    assert!(is_list(&mut rig), "16 are not above the limit");
}

/// Regression: packets that came behind the farewell of their node counted as those of two nodes with one id.
#[test]
fn packets_behind_a_farewell_are_no_duplicates() {
    let mut rig = Rig::start(Limits::default());
    rig.receive(|other, out| encode_alive(other, ALIVE_LEAVES, 1, out));
    rig.hear();
    rig.beat();
    assert_eq!(rig.node.counters.backplane_duplicates.read(), 0);
    assert!(rig.figures().peers.is_empty());
}
