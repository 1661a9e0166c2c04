//! Servers of one process as nodes of a cluster: the conformance suite of backplanes, and losses that only this engine
//! makes on demand.

mod duplicates;
mod lost_ends;
mod overflows;
mod stored;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tidewire::backplane::Subject;
use tidewire::{
    Chat, Client, ErrorCode, HandlerError, History, Limits, PubSub, Server, TopicEvent,
};
use tidewire_proto::backplane::{Entry, NodeLife, SequenceKind, SequencePoint, encode_sequence};
use tidewire_proto::body::RoomCall;
use tidewire_proto::message::{MemberId, PresenceEvent};
use tidewire_testkit::backplane::histories::{Reader, chat_with_history};
use tidewire_testkit::backplane::services::{
    ask, assert_requests_conserved, front, front_of, worker,
};
use tidewire_testkit::backplane::suite::{chat, chat_of, member, settings};
use tidewire_testkit::backplane::{Engine, InprocEngine};
use tidewire_testkit::fixtures::{codec, tw1};
use tidewire_testkit::{DEADLINE, Peer, RoomEvent, TestServer, wait_until};

tidewire_testkit::backplane_suite!(Some(InprocEngine::default()));

/// Returns the messages that were lost before the next message, and that message.
fn next_with_gaps(peer: &mut Peer) -> (u64, Vec<u8>) {
    let mut lost = 0;
    loop {
        match peer.hear().expect("an event, not the end") {
            RoomEvent::Gap(count) => lost += count,
            RoomEvent::Message { payload, .. } => return (lost, payload),
            _ => {}
        }
    }
}

#[test]
fn lost_packets_are_told_as_gaps_with_the_exact_number() {
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(b"0");
    assert_eq!(next_with_gaps(&mut bob), (0, b"0".to_vec()));
    let mut offered = 1;
    let mut told = 0;
    for _ in 0..20 {
        engine.lose(1);
        let lost_from = offered;
        wait_until("a packet is lost", || {
            ann.say(offered.to_string().as_bytes());
            offered += 1;
            engine.has_lost_all().then_some(())
        });
        ann.say(offered.to_string().as_bytes());
        offered += 1;
        loop {
            let (lost, payload) = next_with_gaps(&mut bob);
            told += lost;
            let number: u64 = String::from_utf8(payload).unwrap().parse().unwrap();
            assert!(number >= lost_from);
            if number + 1 == offered {
                break;
            }
        }
    }
    drop((ann, bob));
    let sent = one.stop().backplane_sent;
    let metrics = two.stop();
    assert_eq!(sent, offered);
    assert_eq!(metrics.backplane_lost, told, "every loss was told");
    assert_eq!(
        metrics.backplane_received + told,
        offered,
        "every message is accounted for"
    );
}

#[test]
fn the_loss_of_the_last_message_is_reported_without_a_next_message() {
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(b"first");
    assert_eq!(next_with_gaps(&mut bob), (0, b"first".to_vec()));
    let mut told = 0;
    while told == 0 {
        engine.lose(1);
        ann.say(b"last");
        // The packet that is lost may tell members or a position alone. Then the message arrives, and another packet
        // must be lost.
        told = loop {
            match bob.hear().expect("an event, not the end") {
                RoomEvent::Gap(lost) => break lost,
                RoomEvent::Message { .. } => break 0,
                _ => {}
            }
        };
    }
    assert_eq!(told, 1);
    drop((ann, bob));
    one.stop();
    two.stop();
}

/// The members of a silent node leave, and return with it. Messages from the time between are reported as a gap.
#[test]
fn a_dead_node_leaves_with_its_members_and_comes_back_without_a_silent_gap() {
    let engine = InprocEngine::default();
    let quick = |id: &str| {
        let mut settings = settings(id);
        settings.silence_max = Duration::from_millis(500);
        chat_of(Server::builder(), &engine, settings)
    };
    let (one, two) = (quick("one"), quick("two"));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(b"before");
    assert_eq!(next_with_gaps(&mut bob), (0, b"before".to_vec()));
    engine.silence("one", true);
    let left = RoomEvent::Presence(PresenceEvent::Left, "ann".to_owned());
    while bob.hear() != Some(left.clone()) {}
    ann.say(b"unheard");
    one.wait_for("the message is lost", |metrics| metrics.backplane_sent == 2);
    engine.silence("one", false);
    let (mut lost, mut is_back) = (0, false);
    while lost == 0 || !is_back {
        match bob.hear().expect("an event, not the end") {
            RoomEvent::Gap(count) => lost += count,
            RoomEvent::Presence(PresenceEvent::Joined, name) => is_back |= name == "ann",
            _ => {}
        }
    }
    assert_eq!(lost, 1);
    drop((ann, bob));
    one.stop();
    two.stop();
}

/// With any loss of requests and answers, each request ends in exactly one way, at its deadline at the latest.
#[test]
fn lost_requests_and_answers_end_at_the_deadline() {
    const REQUESTS: u64 = 40;
    let engine = InprocEngine::default();
    let workers = ["one", "two"].map(|id| worker(&engine, id));
    let front = front(&engine, "front", Duration::from_millis(200));
    let client = Client::connect(&front.url()).wait().unwrap();
    let (mut answered, mut timed_out) = (0, 0);
    for number in 0..REQUESTS {
        match number % 4 {
            0 => engine.lose_directed(0, 1),
            2 => engine.lose_directed(1, 1),
            _ => {}
        }
        match ask(&client, "echo") {
            Ok(_) => answered += 1,
            Err(error) => {
                assert!(error.to_string().contains("in time"), "{error}");
                timed_out += 1;
            }
        }
        assert!(engine.has_lost_all());
    }
    assert!(timed_out >= REQUESTS / 2, "a request or an answer of each");
    drop(client);
    let metrics = front.stop();
    assert_requests_conserved(&metrics);
    assert_eq!(
        (metrics.backplane_answered, metrics.backplane_timed_out),
        (answered, timed_out)
    );
    let taken = workers.map(|worker| worker.server.stop().backplane_taken);
    assert_eq!(taken[0] + taken[1] + REQUESTS / 4, REQUESTS);
}

/// A node that neither sends nor receives is dead after its silence, and callers with requests at this node are told.
#[test]
fn requests_of_a_silent_node_fail_when_it_is_dead() {
    let engine = InprocEngine::default();
    let worker = worker(&engine, "one");
    let mut settings = settings("front");
    settings.silence_max = Duration::from_millis(500);
    let front = front_of(&engine, settings, Duration::from_secs(60));
    let client = Client::connect(&front.url()).wait().unwrap();
    let waiting = client.request(b"").method("hold").send();
    let held = worker.held();
    worker.beat_twice();
    engine.silence("one", true);
    let error = waiting.wait().unwrap_err();
    assert!(error.to_string().contains("is gone"), "{error}");
    drop((held, client));
    let metrics = front.stop();
    assert_requests_conserved(&metrics);
    assert_eq!(metrics.backplane_orphaned, 1);
    worker.server.stop();
}

#[test]
fn a_hundred_rooms_open_and_close_without_a_trace() {
    let mut engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let client = Client::connect(&one.url()).wait().unwrap();
    for round in 0..2 {
        for room in 0..100 {
            let joined = client
                .join(&format!("room{room}"))
                .named("ann")
                .wait()
                .unwrap();
            assert_eq!(joined.size_at_join(), Some(1), "round {round}");
            joined.leave().wait().unwrap();
        }
        engine.cut();
        engine.mend();
    }
    drop(client);
    one.stop();
    two.stop();
}

/// Returns a packet of the room "lobby" by a node that does not exist.
fn forged(position: SequencePoint, entries: &[Entry<'_>]) -> Vec<u8> {
    let mut packet = Vec::new();
    encode_sequence(
        NodeLife::new("evil", 7),
        (SequenceKind::Room, "lobby"),
        position,
        &mut packet,
    );
    entries.iter().for_each(|entry| entry.encode(&mut packet));
    packet
}

/// Regression: two packets with huge positions ended the node, and members without number were listed.
#[test]
fn hostile_packets_neither_stop_a_node_nor_fill_its_memory() {
    const MEMBERS: u32 = 10_000;
    let engine = InprocEngine::default();
    let mut limits = Limits::default();
    limits.rooms.set_presence_members_max(100);
    let builder = Server::builder().limits(limits);
    let one = chat_of(builder, &engine, settings("one"));
    let mut ann = member(&one, "ann");
    let lobby = Subject::Room("lobby");
    let at = |message, change| SequencePoint {
        start: 1,
        message,
        change,
    };
    engine.inject(lobby, &forged(at(0, 0), &[]));
    engine.inject(lobby, &forged(at(u64::MAX, 0), &[]));
    let next = SequencePoint {
        start: 2,
        ..at(u64::MAX, u64::MAX)
    };
    engine.inject(lobby, &forged(next, &[]));
    let names: Vec<String> = (0..MEMBERS).map(|number| format!("m{number}")).collect();
    for (number, name) in (1..).zip(&names) {
        let member = MemberId(number);
        let joined = Entry::Joined { member, name };
        engine.inject(lobby, &forged(at(0, u64::from(number)), &[joined]));
        // The name of a node is no name of a member.
        let entry = Entry::ChatMessage {
            member: MemberId(u32::MAX),
            name: "",
            payload: b"x",
        };
        engine.inject(lobby, &forged(at(0, 0), &[entry]));
    }
    for packet in [&b""[..], b"TB", b"TB\x01\x02", &[0xFF; 100]] {
        engine.inject(Subject::Nodes, packet);
    }
    one.wait_for("all are handled", |metrics| {
        metrics.backplane_malformed >= 4
    });
    let room = RoomCall::List;
    let listed = ann.call(&room).expect("a list").payload.len();
    assert!(listed < 300 * 16, "{listed} bytes of members");
    let mut bob = member(&one, "bob");
    ann.say(b"still here");
    loop {
        match bob.hear().expect("an event, not the end") {
            RoomEvent::Message { payload, .. } => break assert_eq!(payload, b"still here"),
            RoomEvent::Presence(..) | RoomEvent::Gap(_) => {}
            other => panic!("{other:?}"),
        }
    }
    drop((ann, bob));
    one.stop();
}

/// Regression: members of two other nodes with one name had one name here, too, and a whisper reached either.
#[test]
fn members_of_two_other_nodes_with_one_name_are_distinguished() {
    let engine = InprocEngine::default();
    let [one, two, three] = ["one", "two", "three"].map(|id| chat(&engine, id));
    let mut carl = member(&three, "carl");
    let mut first = member(&one, "ann");
    carl.hear_of("ann");
    let mut second = member(&two, "ann");
    carl.hear_of("ann@two");
    for to in ["ann", "ann@two"] {
        let text = to.as_bytes();
        let call = RoomCall::Whisper { to, text };
        carl.call(&call).expect("a member");
    }
    for (peer, expected) in [(&mut first, "ann"), (&mut second, "ann@two")] {
        loop {
            match peer.hear().expect("an event, not the end") {
                RoomEvent::Message { payload, .. } => {
                    break assert_eq!(payload, expected.as_bytes());
                }
                RoomEvent::Presence(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    drop((first, second, carl));
    for server in [one, two, three] {
        server.stop();
    }
}

/// Nodes do not compare their clocks, so a clock that is an hour ahead makes no difference.
#[test]
fn a_clock_that_is_an_hour_ahead_makes_no_difference() {
    const MESSAGES: u64 = 50;
    let engine = InprocEngine::default();
    let late = Duration::from_secs(3_600);
    let one = chat(&engine, "one");
    let builder = Server::builder().backplane(engine.backplane_ahead(late), settings("two"));
    let two = TestServer::over_tcp(builder, &tw1(), |_| Chat::new());
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    bob.hear_of("ann");
    for number in 0..MESSAGES {
        let payload = number.to_le_bytes();
        ann.say(&payload);
        assert_eq!(bob.next_message().1, payload);
        bob.say(&payload);
        assert_eq!(ann.next_message().1, payload);
    }
    for server in [&one, &two] {
        let inspector = server.server().inspector();
        let lag = wait_until("the lag is measured", || {
            inspector.node()?.peers.first()?.lag
        });
        assert!(lag < late, "{lag:?}");
    }
    drop((ann, bob));
    for server in [one, two] {
        let metrics = server.stop();
        assert_eq!(metrics.backplane_received, MESSAGES);
        assert_eq!(metrics.backplane_lost, 0);
    }
}

/// The longest message that a packet carries reaches the other node, and one more byte is refused.
#[test]
fn messages_at_the_limit_of_packets_cross_and_longer_ones_are_refused() {
    // 64 KiB are a packet of this engine, 1,024 of them for its header, and 104 for that of a frame.
    const LONGEST: usize = 64 * 1024 - 1_024 - 104;
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    for bytes in [LONGEST, LONGEST - 1, 0] {
        ann.say(&vec![b'x'; bytes]);
        assert_eq!(bob.next_message().1.len(), bytes);
    }
    ann.say(&vec![b'x'; LONGEST + 1]);
    let refusal = ann.hear();
    assert!(
        matches!(refusal, Some(RoomEvent::Refused(_))),
        "{refusal:?}"
    );
    drop((ann, bob));
    assert_eq!(one.stop().backplane_unsent, 0);
    assert_eq!(two.stop().backplane_lost, 0);
}

/// Regression: the other node took less than the node of the publisher, so the longest messages were lost there.
#[test]
fn published_messages_at_the_limit_of_packets_cross() {
    const LONGEST: usize = 64 * 1024 - 1_024 - 13 - "lobby".len();
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| {
        let builder = Server::builder().backplane(engine.backplane(), settings(id));
        TestServer::over_tcp(builder, &tw1(), |_| PubSub::new())
    });
    let reader = Client::connect(&two.url()).wait().unwrap();
    let subscription = reader.subscribe("lobby").wait().unwrap();
    let publisher = Client::connect(&one.url()).wait().unwrap();
    publisher.publish("lobby", &vec![b'x'; LONGEST]).unwrap();
    let event = subscription.next_event().wait_for(DEADLINE);
    assert!(
        matches!(event, Some(TopicEvent::Message(message)) if message.payload.len() == LONGEST)
    );
    drop((publisher, subscription, reader));
    assert_eq!(one.stop().backplane_unsent, 0);
    assert_eq!(two.stop().backplane_lost, 0);
}

/// Regression: such a message counted as malformed, and once more as dropped for each lane with members. Only its
/// payload was compared with the limit, so a frame with header and name could be longer than clients take.
#[test]
fn a_kept_message_that_is_too_long_for_one_node_is_told_and_counted_there_once() {
    const LIMIT: usize = 4_096;
    let engine = InprocEngine::default();
    let history = History::last(10);
    let one = chat_with_history(&engine, "one", history);
    let mut keeps = settings("two");
    keeps.keeps_histories = true;
    let mut limits = Limits::default();
    limits.connections.set_frame_bytes_max(LIMIT);
    let builder = Server::builder().lanes(2).limits(limits);
    let builder = builder.backplane(engine.backplane(), keeps);
    let two = TestServer::over_tcp(builder, &tw1(), move |_| Chat::new().history(history));
    let author = Reader::join(&one, "ann", None);
    // Two sessions in a row are assigned to two lanes.
    let mut readers = ["bob", "carl"].map(|name| Reader::join(&two, name, None));
    author.say(&"x".repeat(LIMIT - 50));
    author.say("the end");
    for reader in &mut readers {
        assert_eq!((reader.hear(), reader.lost), ("the end".to_owned(), 1));
    }
    drop((author, readers));
    one.stop();
    let metrics = two.stop();
    assert_eq!((metrics.backplane_lost, metrics.backplane_dropped), (1, 0));
    assert_eq!(metrics.backplane_malformed, 0);
}

/// Regression: the hook was called after the node had subscribed to the room, so any client could make a node subscribe
/// to any number of rooms.
#[test]
fn a_join_that_the_hook_refuses_subscribes_to_nothing_and_one_that_waits_is_asked_once() {
    let engine = InprocEngine::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let chat = Chat::new().on_join({
        let asked = Arc::clone(&asked);
        move |_, room, _| {
            asked.fetch_add(1, Ordering::SeqCst);
            match room {
                "secret" => Err(HandlerError::new(ErrorCode::Forbidden, "not for you")),
                _ => Ok(()),
            }
        }
    });
    let builder = Server::builder().backplane(engine.backplane(), settings("one"));
    let server = TestServer::over_tcp(builder, &tw1(), move |_| chat.clone());
    let mut ann = server.peer();
    let refusal = ann.join("secret", "ann").unwrap_err();
    assert!(refusal.contains("not for you"), "{refusal}");
    assert_eq!(engine.subscribers(Subject::Room("secret")), 0);
    ann.join("open", "ann").unwrap();
    assert_eq!(engine.subscribers(Subject::Room("open")), 1);
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    drop(ann);
    server.stop();
}

/// Nodes with other codecs tell gaps in their own way.
#[test]
fn gaps_are_told_in_lines_and_json() {
    for name in ["lines", "json"] {
        let engine = InprocEngine::default();
        let start = |id| {
            let builder = Server::builder().backplane(engine.backplane(), settings(id));
            TestServer::over_tcp(builder, &codec(name), |_| Chat::new())
        };
        let (one, two) = (start("one"), start("two"));
        let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
        ann.hear_of("bob");
        ann.say(b"first");
        assert_eq!(next_with_gaps(&mut bob), (0, b"first".to_vec()));
        // The packet that is lost may tell a position alone, which loses no message.
        let (mut said, mut told, mut heard) = (1, 0, 1);
        while told == 0 {
            engine.lose(1);
            ann.say(said.to_string().as_bytes());
            said += 1;
            wait_until("a packet is lost", || engine.has_lost_all().then_some(()));
            ann.say(b"last");
            said += 1;
            loop {
                let (lost, payload) = next_with_gaps(&mut bob);
                told += lost;
                heard += 1;
                if payload == b"last" {
                    break;
                }
            }
        }
        assert_eq!(told + heard, said, "{name}");
        drop((ann, bob));
        one.stop();
        assert_eq!(two.stop().backplane_lost, told);
    }
}

/// Opens this many rooms on a node, limited only by aliases. Returns the number of refused rooms.
fn open_rooms(rooms: usize) -> usize {
    const EACH: usize = 500;
    let engine = InprocEngine::default();
    let mut limits = Limits::default();
    // The last quarter of all rooms is for addresses with few.
    limits.rooms.set_max(2 * rooms);
    limits.rooms.set_per_address_max(rooms);
    limits.rooms.set_per_session_max(EACH);
    // The peers answer no pings, and on a busy machine many rooms take longer than a session may be silent.
    limits
        .connections
        .set_idle_timeout(Duration::from_secs(3_600));
    let [one, two] = ["one", "two"].map(|id| {
        let builder = Server::builder().limits(limits);
        chat_of(builder, &engine, settings(id))
    });
    let mut refused = 0;
    let mut peers = Vec::new();
    for start in (0..rooms).step_by(EACH) {
        let mut peer = one.peer();
        for room in start..rooms.min(start + EACH) {
            if let Err(text) = peer.join(&format!("room-{room}"), &format!("p{start}")) {
                assert!(text.contains("limit"), "{text}");
                refused += 1;
            }
        }
        peers.push(peer);
    }
    // The last room that was opened spans the nodes.
    let mut bob = two.peer();
    bob.join("room-0", "bob").expect("a free name");
    // The node announces all its rooms first, so the server may ping bob in between.
    loop {
        match bob.hear().expect("an event, not the end") {
            RoomEvent::Presence(_, name) if name == "p0" => break,
            _ => {}
        }
    }
    drop((bob, peers));
    two.stop();
    assert_eq!(one.stop().rooms_refused, refused as u64);
    refused
}

#[test]
fn many_rooms_span_nodes() {
    assert_eq!(open_rooms(600), 0);
}

/// `cargo test --release -p tidewire --test backplane -- --ignored hundred_thousand`
#[test]
#[ignore = "takes a minute"]
fn a_hundred_thousand_rooms_are_refused_beyond_the_aliases() {
    // One alias belongs to the backplane itself.
    assert_eq!(open_rooms(100_000), 100_000 - (65_535 - 1_023 - 1));
}

/// Lets this many members join one room over two nodes at once.
fn crowd(members: usize) {
    const THREADS: usize = 4;
    let engine = InprocEngine::default();
    let mut limits = Limits::default();
    limits.sessions.set_max(members + 10);
    let servers = ["one", "two"].map(|id| {
        let builder = Server::builder().limits(limits);
        let builder = builder.backplane(engine.backplane(), settings(id));
        TestServer::over_inproc(builder, &tw1(), |_| Chat::new())
    });
    let join = |thread: usize| {
        let server = &servers[thread % 2];
        let share = members / THREADS;
        let peers = (0..share).map(|number| member(server, &format!("m{thread}-{number}")));
        peers.collect::<Vec<Peer>>()
    };
    let mut crowd: Vec<Vec<Peer>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || join(thread)))
            .collect();
        let threads = threads.into_iter();
        threads
            .map(|thread| thread.join().expect("all join"))
            .collect()
    });
    for server in &servers {
        let client = Client::connect(&server.url()).wait().expect("a server");
        wait_until("each node knows the number of all", || {
            let joined = client
                .join("lobby")
                .named("counter")
                .wait()
                .expect("a free name");
            joined.leave().wait().expect("a member");
            (joined.size_at_join() == Some(members + 1)).then_some(())
        });
    }
    crowd[0][0].say(b"hello, all");
    let others = (members / 2) as u64;
    servers[1].wait_for("the other node has it", |metrics| {
        metrics.backplane_received == 1 && metrics.room_delivered >= others
    });
    drop(crowd);
    for server in servers {
        assert_eq!(server.stop().backplane_lost, 0);
    }
}

#[test]
fn a_crowd_joins_one_room_over_two_nodes() {
    crowd(1_000);
}

/// `ulimit -n 120000; cargo test --release -p tidewire --test backplane -- --ignored fifty_thousand`
#[test]
#[ignore = "takes minutes, some GB and 120,000 descriptors"]
fn fifty_thousand_members_join_one_room_over_two_nodes() {
    crowd(50_000);
}

/// A node reads packets that are lost on the way from the engine from the stream. Members see no gap.
#[test]
fn lost_packets_of_a_kept_room_are_filled_from_the_stream() {
    const MESSAGES: usize = 60;
    let engine = InprocEngine::default();
    let [one, two] = ["one", "two"].map(|id| chat_with_history(&engine, id, History::last(100)));
    let ann = Reader::join(&one, "ann", None);
    let mut near = Reader::join(&one, "near", None);
    let mut far = Reader::join(&two, "far", None);
    for number in 0..MESSAGES {
        // Both nodes lose it, and detect the loss by the next packet, or because the author's node waits for it.
        if number % 3 == 1 {
            engine.lose(1);
        }
        ann.say(&number.to_string());
    }
    ann.say("last");
    let expected: Vec<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
    let taken = [&mut near, &mut far].map(|reader| {
        let taken = reader.take(MESSAGES + 1);
        assert_eq!(reader.lost, 0);
        taken
    });
    assert_eq!(taken[0], taken[1]);
    let texts: Vec<String> = taken[0].iter().map(|(_, text)| text.clone()).collect();
    assert_eq!(texts[..MESSAGES], expected);
    drop((ann, near, far));
    for server in [one, two] {
        assert_eq!(server.stop().backplane_lost, 0);
    }
}

/// A join while the node is cut off from a history that it does not have is refused with the reason.
#[test]
fn a_join_of_a_history_that_is_out_of_reach_is_refused() {
    let mut engine = InprocEngine::default();
    let server = chat_with_history(&engine, "one", History::last(100));
    let ann = Reader::join(&server, "ann", None);
    engine.cut();
    let client = Client::connect(&server.url()).wait().unwrap();
    let error = wait_until("the node knows that it is cut off", || {
        let room = format!("other-{}", fastrand::u32(..));
        match client.join(&room).named("bob").wait() {
            Ok(joined) => {
                joined.leave().wait().unwrap();
                None
            }
            Err(error) => Some(error.to_string()),
        }
    });
    assert!(error.contains("cut off"), "{error}");
    // The room that is open here can be joined.
    let bob = Reader::join(&server, "bob", None);
    engine.mend();
    drop((ann, bob, client));
    server.stop();
}
