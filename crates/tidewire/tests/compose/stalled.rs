//! Many clients return at the same moment, and do not read the requested messages.

use tidewire::metrics::SessionFigures;
use tidewire::{Client, History, Kind, Message, PubSub, Server, TopicEvent};
use tidewire_proto::body::SubscribeBody;
use tidewire_proto::handshake::{FEATURE_POSITIONS, Hello, PROTOCOL_VERSION};
use tidewire_testkit::fixtures::{limited, tw1};
use tidewire_testkit::{DEADLINE, Peer, TestServer, wait_until};

fn number_of(payload: &[u8]) -> u64 {
    u64::from_le_bytes(payload[..8].try_into().unwrap())
}

/// A client that requests the histories of topics, and reads nothing after the last reply.
fn who_stalls(server: &TestServer, topics: &[String]) -> Peer {
    let mut peer = Peer::silent(server.wire(), &tw1());
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: FEATURE_POSITIONS,
        frame_bytes_max: 1 << 20,
        credentials: &[],
        agent: "stalls",
    };
    let mut body = Vec::new();
    hello.encode(&mut body).unwrap();
    peer.send(&Message::new(Kind::Hello, 0, &body));
    assert_eq!(peer.receive().unwrap().kind, Kind::Welcome);
    for pattern in topics {
        let policy = None;
        body.clear();
        SubscribeBody {
            policy,
            pattern,
            group: None,
        }
        .encode(&mut body);
        peer.send(&Message::with_id(Kind::Subscribe, 0, 1, &body));
        while peer.receive().unwrap().kind != Kind::Reply {}
    }
    peer
}

/// A copy of the history for each of them would be 1.2 GB.
///
/// Regression: a session that its lane had listed three times was given three pieces of the history at once.
#[test]
fn many_returning_clients_that_do_not_read_cost_little_and_delay_no_other() {
    const KEPT: u64 = 4_000;
    const LIVE: u64 = 500;
    const STALLED: u64 = 300;
    /// Above the allowed memory of all clients, with the history and the rest: at 128 MiB a busy machine reached the
    /// level `full`.
    const MEMORY_MAX: u64 = 160 << 20;
    /// A piece of 64 KiB and a message in a buffer that may have doubled, and a share of the rest of the server. Three
    /// pieces took 267 kB. A full Unix socket counts 208 KiB for the kernel beside this.
    const EACH_MAX: u64 = (140 + 208) << 10;
    for lanes in 1..=2 {
        let history = History {
            messages_max: 100_000,
            bytes_max: 64 << 20,
            ..History::default()
        };
        let builder = limited(|limits| {
            limits.memory.set_bytes_max(MEMORY_MAX as usize);
        })
        .lanes(lanes);
        // Over TCP the kernel would keep most of each copy.
        let server = TestServer::over_ipc(builder, &tw1(), move |_| {
            PubSub::new().history("news.today", history)
        });
        let [publisher, reader] = [(); 2].map(|()| Client::connect(&server.url()).wait().unwrap());
        let publish = |topic: &str, number: u64| {
            let mut payload = number.to_le_bytes().to_vec();
            payload.resize(1_000, b'x');
            publisher.publish(topic, &payload).unwrap();
            if number.is_multiple_of(16) {
                publisher.flush().wait().unwrap();
            }
        };
        (0..KEPT).for_each(|number| publish("news.today", number));
        publisher.flush().wait().unwrap();
        let live = reader.subscribe("live").wait().unwrap();
        let mut stalled: Vec<Peer> = (0..STALLED)
            .map(|_| who_stalls(&server, &["news.today".into()]))
            .collect();
        for number in 0..LIVE {
            publish("news.today", KEPT + number);
            publish("live", number);
            match live.next_event().wait_for(DEADLINE) {
                Some(TopicEvent::Message(message)) => {
                    assert_eq!(number_of(&message.payload), number);
                }
                other => panic!("{other:?} in place of message {number}"),
            }
            let metrics = server.metrics();
            let each = metrics.memory_bytes / STALLED;
            assert!(each < EACH_MAX, "{each} bytes: {metrics:?}");
        }
        // One client reads later, and receives everything.
        for expected in 0..KEPT + LIVE {
            let mut told = std::iter::from_fn(|| stalled[0].receive());
            let told = told.find(|told| told.kind != Kind::Ping);
            let told = told.expect("it was not closed");
            // The payload follows the offset.
            assert_eq!(
                (told.kind, number_of(&told.payload[8..])),
                (Kind::Deliver, expected)
            );
        }
        drop((live, stalled));
        for client in [publisher, reader] {
            client.close().wait();
        }
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("memory_limit"), 0);
    }
}

/// A session that returns to several topics receives one piece at a time for all topics.
#[test]
fn a_client_that_returns_to_several_topics_and_does_not_read_holds_one_piece() {
    const TOPICS: usize = 6;
    const KEPT: usize = 1_000;
    let history = History {
        messages_max: KEPT,
        bytes_max: 4 << 20,
        ..History::default()
    };
    let server = TestServer::over_ipc(Server::builder().lanes(1), &tw1(), move |_| {
        PubSub::new().history("news.>", history)
    });
    let client = Client::connect(&server.url()).wait().unwrap();
    let topics: Vec<String> = (0..TOPICS).map(|number| format!("news.{number}")).collect();
    for number in 0..KEPT {
        for topic in &topics {
            client.publish(topic, &[b'x'; 1_000]).unwrap();
        }
        if number.is_multiple_of(16) {
            client.flush().wait().unwrap();
        }
    }
    client.flush().wait().unwrap();
    let stalled = who_stalls(&server, &topics);
    let inspector = server.server().inspector();
    let queued = wait_until("the socket is full", || {
        let mut queued = 0;
        let visit = |session: SessionFigures| queued = queued.max(session.queued_bytes);
        inspector.sessions(DEADLINE, visit).unwrap();
        (queued > 0).then_some(queued)
    });
    assert!(queued <= 80 << 10, "{queued}");
    drop((client, stalled));
    let metrics = server.stop();
    assert_eq!(metrics.published, (TOPICS * KEPT) as u64);
}
