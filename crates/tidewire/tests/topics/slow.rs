//! A subscriber that stops reading: its policy decides, and it gets the exact number of lost messages.

use tidewire::{Client, Kind, Limits, Policy, PubSub, Server, TopicEvent};
use tidewire_proto::body::GapBody;
use tidewire_testkit::{Peer, TestServer, XorLayer, layers_of};

use crate::{ask, publish, subscribe, tw1};

const MESSAGES: usize = 3000;
const MESSAGE_BYTES: usize = 400;
const LAG_MESSAGES_MAX: u64 = 300;

fn payload(number: usize) -> Vec<u8> {
    let mut text = format!("{number}:").into_bytes();
    text.resize(MESSAGE_BYTES, b'.');
    text
}

fn number_of(payload: &[u8]) -> usize {
    assert_eq!(payload.len(), MESSAGE_BYTES, "a whole message");
    let text = String::from_utf8_lossy(payload);
    text.split_once(':').unwrap().0.parse().unwrap()
}

struct Scene {
    server: TestServer,
    publisher: Peer,
    /// Reads all the time.
    quick: Peer,
    /// Reads nothing at first.
    slow: Peer,
}

impl Scene {
    /// Uses a Unix socket with a small fixed buffer, so a stall takes effect soon. With two lanes, the slow subscriber
    /// and the publisher are on different lanes.
    fn set(policy: Policy, lanes: usize, layers: u8) -> Self {
        let mut limits = Limits::default();
        limits.rooms.set_lag_messages_max(LAG_MESSAGES_MAX);
        limits
            .rooms
            .set_block_deadline(std::time::Duration::from_secs(60));
        let builder = Server::builder()
            .limits(limits)
            .lanes(lanes)
            .layers(move |_| layers_of(layers, XorLayer::accepting));
        let server = TestServer::over_ipc(builder, &tw1(), |_| PubSub::new().allow_blocking(true))
            .with_layers(layers);
        let publisher = server.peer();
        let (mut slow, mut quick) = (server.peer(), server.peer());
        subscribe(&mut slow, "load.*", Some(policy)).unwrap();
        let patient = match policy {
            Policy::Block => Policy::Block,
            _ => Policy::Disconnect,
        };
        subscribe(&mut quick, "load.*", Some(patient)).unwrap();
        Self {
            server,
            publisher,
            quick,
            slow,
        }
    }

    /// Publishes in pieces. The quick subscriber reads each piece before the next.
    fn publish_all(&mut self) {
        for start in (0..MESSAGES).step_by(100) {
            for number in start..start + 100 {
                publish(&mut self.publisher, "load.test", &payload(number));
            }
            for number in start..start + 100 {
                let message = self.quick.receive().expect("the quick one stays");
                assert_eq!(number_of(&message.payload), number);
            }
        }
    }

    /// Resumes reading as the slow subscriber. Checks that every gap is announced with its exact size. Returns the
    /// number of received messages.
    fn catch_up(&mut self) -> usize {
        let (mut next, mut heard) = (0, 0);
        while next < MESSAGES {
            let message = self.slow.receive().expect("the slow one stays");
            if message.kind == Kind::Gap {
                next += GapBody::decode(&message.payload).unwrap().lost as usize;
            } else {
                assert_eq!(number_of(&message.payload), next, "a hole not announced");
                (next, heard) = (next + 1, heard + 1);
            }
        }
        assert_eq!(next, MESSAGES);
        heard
    }

    fn end(self) -> tidewire::metrics::Metrics {
        drop((self.publisher, self.quick, self.slow));
        self.server.stop()
    }
}

#[test]
fn drops_of_a_policy_are_announced_exactly() {
    for policy in [Policy::DropOldest, Policy::DropNewest, Policy::Conflate] {
        // With layers, a frame that a layer has accepted in part is completed, even if later frames are dropped.
        for (lanes, layers) in [(1, 0), (2, 0), (1, 1), (2, 2)] {
            let mut scene = Scene::set(policy, lanes, layers);
            scene.publish_all();
            let heard = scene.catch_up();
            assert!(heard > 0 && heard < MESSAGES, "{policy}: {heard}");
            let metrics = scene.end();
            assert_eq!(metrics.published as usize, MESSAGES, "{policy}");
            assert_eq!(
                metrics.room_dropped[1] as usize,
                MESSAGES - heard,
                "{policy}"
            );
            assert_eq!(metrics.room_delivered as usize, MESSAGES + heard);
        }
    }
}

#[test]
fn a_disconnecting_policy_ends_only_the_slow_session() {
    for layers in [0, 1] {
        let mut scene = Scene::set(Policy::Disconnect, 2, layers);
        scene.publish_all();
        scene.server.wait_for("the slow one is closed", |metrics| {
            metrics.closed_by("slow_subscriber") == 1
        });
        let metrics = scene.end();
        assert_eq!(metrics.room_dropped[1], 0);
        assert!(metrics.room_dropped[0] > 0, "counted as closed");
    }
}

/// With three lanes the publisher's lane has no subscriber, and the publisher is still paused.
#[test]
fn a_blocking_policy_holds_publishers_until_the_slow_one_has_everything() {
    for (lanes, layers) in [(1, 0), (2, 0), (3, 0), (2, 1)] {
        let mut scene = Scene::set(Policy::Block, lanes, layers);
        // The fourth session on three lanes is on the first lane again, the publisher's.
        let mut neighbour = scene.server.peer();
        let mut publisher = scene.publisher;
        let publishing = std::thread::spawn(move || {
            for number in 0..MESSAGES {
                publish(&mut publisher, "load.test", &payload(number));
            }
            // The answer comes after the last message was passed on.
            ask(&mut publisher, Kind::Request, 0, &[]).unwrap();
            publisher
        });
        scene.server.wait_for("the publisher is held", |metrics| {
            metrics.publishers_held > 0
        });
        // Read again, because counters that change while they are read may be inconsistent.
        let held = scene.server.metrics();
        // While the slow subscriber reads nothing, the publisher's lane takes no more of the publisher's messages.
        for _ in 0..100 {
            ask(&mut neighbour, Kind::Request, 0, &[]).unwrap();
        }
        let still = scene.server.metrics();
        assert_eq!(
            (still.published, still.publishers_held),
            (held.published, 1),
            "with {lanes} lanes"
        );
        drop(neighbour);
        let mut quick = scene.quick;
        let reading = std::thread::spawn(move || {
            for number in 0..MESSAGES {
                let message = quick.receive().expect("the quick one stays");
                assert_eq!(number_of(&message.payload), number);
            }
            quick
        });
        for number in 0..MESSAGES {
            let message = scene.slow.receive().expect("the slow one stays");
            assert_eq!(
                (message.kind, number_of(&message.payload)),
                (Kind::Deliver, number)
            );
        }
        scene.quick = reading.join().unwrap();
        scene.publisher = publishing.join().unwrap();
        let metrics = scene.end();
        assert_eq!(metrics.room_dropped_total(), 0);
        assert_eq!(metrics.room_delivered as usize, 2 * MESSAGES);
    }
}

/// The subscriber and the publishers are on three lanes, with and without a log of the pattern.
#[test]
fn a_subscriber_on_another_lane_is_told_the_newest_of_each_topic() {
    const SYMBOLS: usize = 500;
    const ROUNDS: usize = 40;
    let builder = Server::builder().lanes(3);
    let server = TestServer::over_ipc(builder, &tw1(), |_| PubSub::new());
    let mut publishers = [(); 2].map(|()| server.peer());
    let mut slow = server.peer();
    subscribe(&mut slow, "md.>", Some(Policy::ConflateByTopic)).unwrap();
    for round in 0..ROUNDS {
        for symbol in 0..SYMBOLS {
            let topic = format!("md.{symbol}");
            publish(&mut publishers[symbol % 2], &topic, &payload(round));
        }
    }
    for publisher in &mut publishers {
        ask(publisher, Kind::Request, 0, &[]).unwrap();
    }
    let (mut heard, mut lost, mut newest) = (0, 0, vec![0; SYMBOLS]);
    while heard + lost < SYMBOLS * ROUNDS {
        let message = slow.receive().expect("the slow one stays");
        if message.kind == Kind::Gap {
            lost += GapBody::decode(&message.payload).unwrap().lost as usize;
        } else {
            let symbol: usize = message.name[3..].parse().unwrap();
            newest[symbol] = number_of(&message.payload);
            heard += 1;
        }
    }
    assert!(lost > 0 && newest.iter().all(|round| *round == ROUNDS - 1));
    drop((publishers, slow));
    let metrics = server.stop();
    assert_eq!(metrics.room_delivered, heard as u64);
    assert_eq!(metrics.room_dropped_by("replaced"), lost as u64);
    assert_eq!(metrics.room_in_flight(), 0);
}

/// Messages that it did not get count by the reason of its end, and its table is freed.
#[test]
fn a_conflated_subscriber_that_leaves_or_closes_is_accounted_for() {
    for leaves in [true, false] {
        let server = TestServer::over_ipc(Server::builder(), &tw1(), |_| PubSub::new());
        let (mut publisher, mut slow) = (server.peer(), server.peer());
        let alias = subscribe(&mut slow, "md.>", Some(Policy::ConflateByTopic)).unwrap();
        for number in 0..MESSAGES {
            publish(
                &mut publisher,
                &format!("md.{}", number % 10),
                &payload(number),
            );
        }
        ask(&mut publisher, Kind::Request, 0, &[]).unwrap();
        if leaves {
            slow.send(&tidewire::Message::with_id(
                Kind::Unsubscribe,
                alias,
                2,
                b"",
            ));
            while slow.receive().expect("an answer, not the end").kind != Kind::Reply {}
        }
        drop((slow, publisher));
        let metrics = server.stop();
        assert_eq!(metrics.room_offered as usize, MESSAGES);
        assert_eq!(metrics.room_in_flight(), 0, "{metrics:?}");
        assert!(metrics.room_dropped_total() > 0);
    }
}

/// The server chooses conflation, and the client sees it. A pattern without a wildcard has one topic.
#[test]
fn conflation_by_topic_may_be_the_choice_of_the_server() {
    let builder = Server::builder().slow_subscribers(Policy::ConflateByTopic);
    let server = TestServer::over_tcp(builder, &tw1(), |_| PubSub::new());
    let client = Client::connect(&server.url()).wait().unwrap();
    for pattern in ["md.*", "md.a"] {
        let subscription = client.subscribe(pattern).wait().unwrap();
        client.publish("md.a", b"1").unwrap();
        let TopicEvent::Message(message) = subscription.next_event().wait() else {
            panic!("no message");
        };
        assert_eq!((&*message.topic, &message.payload[..]), ("md.a", &b"1"[..]));
        client.flush().wait().unwrap();
    }
    client.close().wait();
    assert_eq!(server.stop().room_dropped_total(), 0);
}
