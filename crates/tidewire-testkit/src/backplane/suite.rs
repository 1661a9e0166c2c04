//! The behaviours that every backplane gives the servers it connects.

use std::time::Duration;

use tidewire::backplane::{BackplaneError, NodeSettings};
use tidewire::{
    AnyCodec, Chat, Client, Event, Limits, PubSub, RequestError, ServeError, Server, ServerBuilder,
    Subscription, TopicEvent,
};
use tidewire_proto::body::RoomCall;
use tidewire_proto::message::PresenceEvent;

use super::Engine;
use crate::harness::TestServer;
use crate::peer::{Peer, RoomEvent};
use crate::wait::wait_until;

/// The settings of a test's node: short heartbeats, and a silence that a busy machine does not reach.
#[must_use]
pub fn settings(id: &str) -> NodeSettings {
    let mut settings = NodeSettings::new(id).expect("a valid id");
    settings.heartbeat = Duration::from_millis(50);
    settings.silence_max = Duration::from_secs(10);
    settings
}

/// Starts a chat server of two lanes as a node.
pub fn chat<E: Engine>(engine: &E, id: &str) -> TestServer {
    let builder = Server::builder().lanes(2);
    chat_of(builder, engine, settings(id))
}

/// Starts a chat server as a node with these settings.
pub fn chat_of<E: Engine>(
    builder: ServerBuilder,
    engine: &E,
    settings: NodeSettings,
) -> TestServer {
    let builder = builder.backplane(engine.backplane(), settings);
    TestServer::over_tcp(builder, &AnyCodec::default(), |_| Chat::new())
}

/// Connects a member.
#[must_use]
pub fn member(server: &TestServer, name: &str) -> Peer {
    let mut peer = server.peer();
    peer.join("lobby", name).expect("a free name");
    peer
}

/// Two nodes with a member each that know each other.
fn pair<E: Engine>(engine: &E) -> ([TestServer; 2], [Peer; 2]) {
    let servers = [chat(engine, "one"), chat(engine, "two")];
    let mut ann = member(&servers[0], "ann");
    let mut bob = member(&servers[1], "bob");
    ann.hear_of("bob");
    bob.hear_of("ann");
    (servers, [ann, bob])
}

/// Waits until a member knows all these, in any order.
fn hear_of_all(peer: &mut Peer, names: &[&str]) {
    let mut unknown: Vec<&str> = names.to_vec();
    while !unknown.is_empty() {
        let (_, known) = next_presence(peer);
        unknown.retain(|name| *name != known);
    }
}

/// Messages cross nodes in the order of their author, and each is counted once.
pub fn members_on_two_nodes_hear_each_other_in_order<E: Engine>(engine: &mut E) {
    const ROUNDS: usize = 200;
    let (servers, mut peers) = pair(engine);
    for round in 0..ROUNDS {
        for peer in &mut peers {
            peer.say(format!("message {round}").as_bytes());
        }
    }
    for (peer, other) in peers.iter_mut().zip(["bob", "ann"]) {
        for round in 0..ROUNDS {
            let (from, payload) = peer.next_message();
            assert_eq!(from, other);
            assert_eq!(payload, format!("message {round}").as_bytes());
        }
    }
    drop(peers);
    for server in servers {
        let metrics = server.stop();
        let rounds = ROUNDS as u64;
        assert_eq!(
            (metrics.backplane_sent, metrics.backplane_received),
            (rounds, rounds)
        );
        assert_eq!((metrics.backplane_lost, metrics.backplane_unsent), (0, 0));
    }
}

/// Three nodes with two members each: every member gets every message of the others once.
pub fn a_message_reaches_every_node_once<E: Engine>(engine: &mut E) {
    let servers = ["one", "two", "three"].map(|id| chat(engine, id));
    let names = ["a1", "b2", "c3", "d4", "e5", "f6"];
    let mut peers: Vec<Peer> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let mut peer = member(&servers[index % 3], name);
        hear_of_all(&mut peer, &names[..index]);
        for earlier in &mut peers {
            earlier.hear_of(name);
        }
        peers.push(peer);
    }
    for (peer, name) in peers.iter_mut().zip(names) {
        peer.say(name.as_bytes());
    }
    for (peer, own) in peers.iter_mut().zip(names) {
        let mut heard: Vec<String> = (1..names.len()).map(|_| peer.next_message().0).collect();
        heard.sort_unstable();
        let others: Vec<&str> = names.into_iter().filter(|name| *name != own).collect();
        assert_eq!(heard, others);
    }
    drop(peers);
    for server in servers {
        assert_eq!(server.stop().backplane_lost, 0);
    }
}

fn pubsub<E: Engine>(engine: &E, id: &str) -> TestServer {
    let builder = Server::builder().backplane(engine.backplane(), settings(id));
    TestServer::over_tcp(builder, &AnyCodec::default(), |_| PubSub::new())
}

fn client(server: &TestServer) -> Client {
    Client::connect(&server.url()).wait().expect("a connection")
}

/// Messages of topics reach subscribers of exact topics and of patterns on another node, from the reply to their
/// subscription on, in order and once.
pub fn subscribers_get_what_is_published_at_another_node<E: Engine>(engine: &mut E) {
    let servers = [pubsub(engine, "one"), pubsub(engine, "two")];
    let [publisher, subscriber] = [&servers[0], &servers[1]].map(client);
    for patterns in [
        &["price.eur"][..],
        &["price.*"],
        &["price.>", "price.eur"],
        &["*.eur", "*.>"],
        &[">"],
    ] {
        let subscribe = |pattern: &&str| subscriber.subscribe(pattern).wait().expect("a pattern");
        let subscriptions: Vec<Subscription> = patterns.iter().map(subscribe).collect();
        publisher.publish("other", b"no").expect("a valid topic");
        for number in 0..50 {
            let payload = format!("{patterns:?} {number}");
            publisher
                .publish("price.eur", payload.as_bytes())
                .expect("a valid topic");
        }
        for subscription in &subscriptions {
            let mut next = 0;
            while next < 50 {
                let event = subscription.next_event().wait_for(PATIENCE);
                let Some(TopicEvent::Message(message)) = event else {
                    panic!("{event:?}");
                };
                if message.payload == b"no" {
                    continue;
                }
                assert_eq!(&*message.topic, "price.eur");
                assert_eq!(message.payload, format!("{patterns:?} {next}").as_bytes());
                next += 1;
            }
        }
    }
    drop((publisher, subscriber));
    for server in servers {
        server.stop();
    }
}

fn next_presence(peer: &mut Peer) -> (PresenceEvent, String) {
    loop {
        match peer.hear().expect("an event, not the end") {
            RoomEvent::Presence(event, name) => return (event, name),
            RoomEvent::Message { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Joins, leaves, lists and the orderly end of a node.
pub fn presence_spans_nodes<E: Engine>(engine: &mut E) {
    let ([one, two], [mut ann, mut bob]) = pair(engine);
    let roster = ann.call(&RoomCall::List).expect("a list");
    let text = String::from_utf8_lossy(&roster.payload).into_owned();
    assert!(text.contains("ann") && text.contains("bob"), "{text}");
    bob.leave().expect("bob is a member");
    assert_eq!(
        next_presence(&mut ann),
        (PresenceEvent::Left, "bob".to_owned())
    );
    let names = ["cleo", "dan"];
    let others = names.map(|name| member(&two, name));
    for name in names {
        assert_eq!(
            next_presence(&mut ann),
            (PresenceEvent::Joined, name.to_owned())
        );
    }
    drop(two);
    let mut gone = [next_presence(&mut ann), next_presence(&mut ann)];
    gone.sort_by(|one, other| one.1.cmp(&other.1));
    assert_eq!(
        gone,
        names.map(|name| (PresenceEvent::Left, name.to_owned()))
    );
    drop((ann, bob, others));
    one.stop();
}

/// Of two members of the same name, the member of another node is shown with its node, in any order of joins.
pub fn a_name_of_another_node_is_shown_with_it<E: Engine>(engine: &mut E) {
    let ([one, two], [mut ann, bob]) = pair(engine);
    let other = member(&one, "bob");
    let expected = [
        (PresenceEvent::Joined, "bob"),
        (PresenceEvent::Left, "bob"),
        (PresenceEvent::Joined, "bob@two"),
    ];
    for (event, name) in expected {
        assert_eq!(next_presence(&mut ann), (event, name.to_owned()));
    }
    let last = member(&two, "ann");
    assert_eq!(
        next_presence(&mut ann),
        (PresenceEvent::Joined, "ann@two".to_owned())
    );
    drop((ann, bob, other, last));
    one.stop();
    two.stop();
}

/// A message for one member finds its node, and no other member receives it.
pub fn whispers_cross_nodes<E: Engine>(engine: &mut E) {
    let ([one, two], [mut ann, mut bob]) = pair(engine);
    let mut cleo = member(&two, "cleo");
    ann.hear_of("cleo");
    let (to, text) = ("bob", &b"psst"[..]);
    ann.call(&RoomCall::Whisper { to, text })
        .expect("bob is there");
    let heard = loop {
        match bob.hear().expect("an event, not the end") {
            RoomEvent::Presence(..) => {}
            other => break other,
        }
    };
    let payload = b"psst".to_vec();
    let (from, private) = ("ann".to_owned(), true);
    assert_eq!(
        heard,
        RoomEvent::Message {
            from,
            payload,
            private
        }
    );
    ann.say(b"aloud");
    assert_eq!(cleo.next_message().1, b"aloud");
    let (to, text) = ("nobody-here", &b"psst"[..]);
    assert!(ann.call(&RoomCall::Whisper { to, text }).is_err());
    drop((ann, bob, cleo));
    one.stop();
    two.stop();
}

/// A second node with the same id does not start, and the first continues.
pub fn a_node_id_in_use_is_refused<E: Engine>(engine: &mut E) {
    let first = chat(engine, "one");
    let mut again = settings("one");
    // The first node answers at once, but the machine may be busy.
    again.claim = Duration::from_secs(60);
    let second = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .expect("an address")
        .backplane(engine.backplane(), again)
        .start(|_| Chat::new());
    let error = second.expect_err("the id is in use");
    assert!(
        matches!(&error, ServeError::Backplane(BackplaneError::DuplicateNode { id }) if id == "one"),
        "{error}"
    );
    first.stop();
}

/// Waits for an announcement of the room itself.
pub fn announcement(peer: &mut Peer) -> String {
    let (_, payload) = peer.next_message();
    String::from_utf8(payload).expect("text")
}

/// Local delivery continues without the engine, members are told, and every loss is announced by a gap.
pub fn a_node_that_is_cut_off_serves_its_members_and_tells_gaps<E: Engine>(engine: &mut E) {
    const MISSED: u64 = 5;
    let ([one, two], [mut ann, mut bob]) = pair(engine);
    // The first message is the place from which bob's node counts.
    ann.say(b"before");
    assert_eq!(bob.next_message().1, b"before");
    let mut cleo = member(&one, "cleo");
    bob.hear_of("cleo");
    engine.cut();
    for peer in [&mut ann, &mut bob, &mut cleo] {
        let text = announcement(peer);
        assert!(text.contains("cut off"), "{text}");
    }
    for number in 0..MISSED {
        ann.say(format!("local {number}").as_bytes());
        assert_eq!(cleo.next_message().1, format!("local {number}").as_bytes());
    }
    // The node receives the messages after the members of its lanes.
    one.wait_for("the messages are counted as unsent", |metrics| {
        metrics.backplane_unsent == MISSED
    });
    engine.mend();
    for peer in [&mut ann, &mut cleo] {
        let text = announcement(peer);
        assert!(text.contains("again"), "{text}");
    }
    // The gap comes with the place that the node tells when it is back.
    let mut lost = 0;
    while lost < MISSED {
        if let RoomEvent::Gap(count) = bob.hear().expect("an event, not the end") {
            lost += count;
        }
    }
    assert_eq!(lost, MISSED);
    ann.say(b"after");
    assert_eq!(bob.next_message().1, b"after");
    drop((ann, bob, cleo));
    let metrics = one.stop();
    assert_eq!(
        (metrics.backplane_unsent, metrics.backplane_sent),
        (MISSED, 2)
    );
    assert!(metrics.backplane_reconnects >= 1);
    let metrics = two.stop();
    assert_eq!(
        (metrics.backplane_lost, metrics.backplane_received),
        (MISSED, 2)
    );
}

/// With `refuses_when_cut_off` a publisher gets an error until the engine is back.
pub fn publishers_of_a_node_that_is_cut_off_are_refused_on_request<E: Engine>(engine: &mut E) {
    let mut strict = settings("one");
    strict.refuses_when_cut_off = true;
    let server = chat_of(Server::builder(), engine, strict);
    let mut ann = member(&server, "ann");
    engine.cut();
    assert!(announcement(&mut ann).contains("cut off"));
    ann.say(b"refused");
    let refusal = ann.hear();
    assert!(
        matches!(&refusal, Some(RoomEvent::Refused(text)) if text.contains("cut off")),
        "{refusal:?}"
    );
    engine.mend();
    assert!(announcement(&mut ann).contains("again"));
    let mut bob = member(&server, "bob");
    ann.say(b"accepted");
    assert_eq!(bob.next_message().1, b"accepted");
    drop((ann, bob));
    server.stop();
}

/// With `refuses_when_cut_off`, publications to a topic fail while the engine is unreachable, and the publisher is
/// told.
pub fn publishers_to_topics_are_refused_on_request_while_the_node_is_cut_off<E: Engine>(
    engine: &mut E,
) {
    let mut strict = settings("one");
    strict.refuses_when_cut_off = true;
    let builder = Server::builder().backplane(engine.backplane(), strict);
    let server = TestServer::over_tcp(builder, &AnyCodec::default(), |_| PubSub::new());
    let [publisher, subscriber] = [&server, &server].map(client);
    let subscription = subscriber.subscribe("price").wait().expect("a topic");
    let next = || loop {
        let event = subscription.next_event().wait_for(PATIENCE);
        let Some(TopicEvent::Message(message)) = event else {
            panic!("{event:?}");
        };
        if message.payload != b"probe" {
            return message.payload;
        }
    };
    let refusal = |text: &str| {
        publisher
            .publish("price", text.as_bytes())
            .expect("a topic");
        // A refusal comes before the confirmation, which is then a refusal, too.
        match publisher.flush().wait() {
            Ok(_) | Err(RequestError::Refused { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        loop {
            let event = publisher.next_event().wait_for(Duration::ZERO)?;
            if let Event::Refused { text, .. } = event {
                return Some(text);
            }
        }
    };
    assert_eq!(refusal("before"), None);
    assert_eq!(next(), b"before");
    engine.cut();
    wait_until("it is refused", || refusal("probe"));
    assert!(refusal("refused").is_some_and(|text| text.contains("cut off")));
    engine.mend();
    wait_until("it is accepted", || {
        refusal("probe").is_none().then_some(())
    });
    assert_eq!(refusal("after"), None);
    assert_eq!(next(), b"after");
    drop((publisher, subscriber));
    server.stop();
}

/// In a room above the limit of presence, other nodes know the number of members, and messages have their names.
pub fn large_rooms_have_counts<E: Engine>(engine: &mut E) {
    let mut limits = Limits::default();
    limits.rooms.set_presence_members_max(2);
    let builder = || Server::builder().limits(limits);
    let one = chat_of(builder(), engine, settings("one"));
    let two = chat_of(builder(), engine, settings("two"));
    let mut crowd: Vec<Peer> = (0..5).map(|it| member(&one, &format!("m{it}"))).collect();
    let mut bob = member(&two, "bob");
    let client = client(&two);
    wait_until("the other node knows the number", || {
        let joined = client
            .join("lobby")
            .named("zoe")
            .wait()
            .expect("a free name");
        if joined.size_at_join() == Some(7) {
            return Some(());
        }
        joined.leave().wait().expect("zoe is a member");
        None
    });
    wait_until("a message crosses", || {
        crowd[0].say(b"hi");
        match bob.hear().expect("an event, not the end") {
            RoomEvent::Message { from, .. } => {
                assert_eq!(from, "m0");
                Some(())
            }
            _ => None,
        }
    });
    drop((crowd, bob, client));
    one.stop();
    two.stop();
}

/// How long a test waits for an event before it fails.
const PATIENCE: Duration = Duration::from_secs(30);
