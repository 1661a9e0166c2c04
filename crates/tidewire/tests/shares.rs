//! Tables of sessions, topics and kept values, attacked from one address and from fifty. A victim of another address
//! connects before the attack, another victim later. Memory has unit tests in `session/relief`.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::{IpAddr, Ipv4Addr};

use tidewire::metrics::Metrics;
use tidewire::{Client, Endpoint, History, Kind, Limits, Message, PubSub, TopicEvent};
use tidewire_proto::body::SubscribeBody;
use tidewire_testkit::fixtures::{limited, tw1};
use tidewire_testkit::{DEADLINE, Peer, TestServer, Wire, connect_from, hello_frame};

const ATTACKERS: [usize; 2] = [1, 50];

/// Victims have these numbers in 127.0.1.0/24; attackers have those from 100 on.
const BEFORE: usize = 1;
const AFTER: usize = 2;

fn serve(history: Option<History>, change: impl FnOnce(&mut Limits)) -> TestServer {
    let service = move |_| match history {
        Some(history) => PubSub::new().history(">", history),
        None => PubSub::new(),
    };
    TestServer::over_tcp(limited(change).lanes(1), &tw1(), service)
}

/// Connects from an address. `None` if the server refuses.
fn connect(server: &TestServer, number: usize) -> Option<Peer> {
    let Endpoint::Tcp(port) = *server.address() else {
        panic!("not over TCP");
    };
    let source = IpAddr::from(Ipv4Addr::new(127, 0, 1, number as u8));
    let stream = connect_from(source, port).unwrap();
    let mut peer = Peer::silent(Wire::Tcp(stream), &tw1());
    peer.try_write(&hello_frame()).ok()?;
    let answer = peer.receive()?;
    (answer.kind == Kind::Welcome).then_some(peer)
}

fn attacker(round: usize, attackers: usize) -> usize {
    100 + round % attackers
}

/// Subscribes. Returns whether the server agrees.
fn subscribe(peer: &mut Peer, pattern: &str) -> bool {
    let mut body = Vec::new();
    let policy = None;
    SubscribeBody {
        policy,
        pattern,
        group: None,
    }
    .encode(&mut body);
    peer.send(&Message::with_id(Kind::Subscribe, 0, 1, &body));
    let answer = std::iter::from_fn(|| peer.receive()).find(|it| it.id == 1);
    answer.expect("an answer, not the end").kind == Kind::Reply
}

fn publish(peer: &mut Peer, topic: &str, payload: &[u8]) {
    peer.send(&Message::new(Kind::Publish, 0, payload).with_name(topic));
}

/// Asks, so that everything that the peer sent before is handled.
fn settle(peer: &mut Peer) {
    peer.ask(b"");
    while peer.receive().expect("an answer, not the end").id == 0 {}
}

fn assert_conserved(metrics: &Metrics) {
    let dropped: u64 = metrics.room_dropped.iter().sum();
    assert_eq!(metrics.room_offered, metrics.room_delivered + dropped);
}

/// Regression: a few addresses filled the table of sessions, and newcomers of all others were refused.
#[test]
fn the_address_with_the_most_sessions_makes_room_for_newcomers_of_others() {
    for attackers in ATTACKERS {
        let server = serve(None, |limits| {
            limits.sessions.set_max(200);
        });
        let mut before = connect(&server, BEFORE).unwrap();
        let mut held = Vec::new();
        for round in 0..400 {
            held.extend(connect(&server, attacker(round, attackers)));
        }
        assert_eq!(held.len(), 199);
        let mut after: Vec<Peer> = (0..2).map(|_| connect(&server, AFTER).unwrap()).collect();
        for peer in after.iter_mut().chain([&mut before]) {
            settle(peer);
        }
        let displaced = server.metrics().closed_by("displaced");
        assert_eq!(displaced, 2, "one for each newcomer");
        settle(&mut held[0]);
        drop((held, after, before));
        assert_conserved(&server.stop());
    }
}

#[test]
fn the_last_quarter_of_the_topics_is_for_addresses_that_have_few() {
    for attackers in ATTACKERS {
        let server = serve(None, |limits| {
            limits.topics.set_max(1_024);
            limits.topics.set_per_address_max(512);
        });
        let mut before = connect(&server, BEFORE).unwrap();
        assert!(subscribe(&mut before, "before"));
        let mut held = Vec::new();
        for round in 0..200 {
            let mut peer = connect(&server, attacker(round, attackers)).unwrap();
            let mut topics = (0..256).map(|number| format!("a.{round}.{number}"));
            let refused = topics.position(|topic| !subscribe(&mut peer, &topic));
            held.push(peer);
            if refused == Some(0) && round > attackers {
                break;
            }
        }
        let mut after = connect(&server, AFTER).unwrap();
        assert!(subscribe(&mut after, "after"));
        for topic in ["after", "before"] {
            publish(&mut before, topic, b"news");
        }
        settle(&mut before);
        assert_eq!(after.receive().unwrap().payload, b"news");
        let metrics = server.metrics();
        assert_eq!((metrics.room_offered, metrics.rooms_refused > 0), (2, true));
        drop((held, after, before));
        assert_conserved(&server.stop());
    }
}

/// Regression: 1,100 publications to new topics from one address erased the last values of all others.
#[test]
fn publications_to_many_new_topics_erase_no_values_of_others() {
    const VALUES: usize = 20;
    for attackers in ATTACKERS {
        let history = History {
            names_max: 256,
            ..History::last(1)
        };
        let server = serve(Some(history), |_| ());
        let before = Client::connect(&server.url()).wait().unwrap();
        for number in 0..VALUES {
            before.publish(&format!("v.{number}"), b"value").unwrap();
        }
        before.flush().wait().unwrap();
        let mut held: Vec<Peer> = (0..attackers)
            .map(|round| connect(&server, attacker(round, attackers)).unwrap())
            .collect();
        let mut flood = |name: &str| {
            for (round, peer) in held.iter_mut().enumerate() {
                (0..600).for_each(|it| publish(peer, &format!("{name}.{round}.{it}"), b"x"));
                settle(peer);
            }
        };
        flood("a");
        let mut after = connect(&server, AFTER).unwrap();
        publish(&mut after, "after", b"value");
        settle(&mut after);
        flood("b");
        let values = (0..VALUES).map(|number| format!("v.{number}"));
        for topic in values.chain(["after".to_owned()]) {
            let subscription = before.subscribe(&topic).wait().unwrap();
            let event = subscription.next_event().wait_for(DEADLINE).unwrap();
            let is_kept = matches!(&event, TopicEvent::Message(it) if it.payload == b"value");
            assert!(is_kept, "{topic}: {event:?}");
        }
        before.close().wait();
        drop((held, after));
        assert_conserved(&server.stop());
    }
}
