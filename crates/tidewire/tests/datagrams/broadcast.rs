//! UVRPC's broadcast: subscribers register at a port, and each publication is a datagram.

use std::time::Duration;

use tidewire::{
    AnyCodec, Client, Context, HandlerResult, Kind, Message, PubSub, Server, ServerBuilder,
    Service, TopicEvent,
};
use tidewire_proto::codec::uvrpc::{BroadcastMessage, REGISTRATION};
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

use crate::{arrived, codec, limited, port_of, received, unknown_peer};

/// Takes registrations, and publishes each request's payload under the name of its method.
struct Publisher(PubSub);

impl Service for Publisher {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.kind == Kind::Subscribe {
            return self.0.on_message(cx, message);
        }
        cx.topics().publish(message.name, message.payload)?;
        cx.reply(&[])
    }
}

pub(crate) fn serve(builder: ServerBuilder) -> TestServer {
    let builder = builder.trust_datagram_peers(true);
    TestServer::over_udp(builder, &codec("uvrpc"), |_| Publisher(PubSub::new()))
}

pub(crate) fn client(server: &TestServer) -> Client {
    Client::builder()
        .codec(AnyCodec::by_name("uvrpc").unwrap())
        .connect(&server.url())
        .wait()
        .unwrap()
}

#[test]
fn registered_subscribers_get_a_datagram_for_each_publication() {
    const MESSAGES: u64 = 50;
    for lanes in [1, 2] {
        let server = serve(Server::builder().lanes(lanes));
        let subscribers = [
            unknown_peer(port_of(&server)),
            unknown_peer(port_of(&server)),
        ];
        for _ in 0..3 {
            for socket in &subscribers {
                socket.send(REGISTRATION).unwrap();
            }
        }
        server.wait_for("both are registered", |metrics| {
            metrics.frames_in == 6 && metrics.registrations == 2
        });
        let publisher = client(&server);
        publisher.request(b"hi").method("t").wait().unwrap();
        for socket in &subscribers {
            // The example of the format's specification.
            let vector = "04000000E4FFFFFF080000000C000000010000007400000002000000686900000800\
                          0C0004000800";
            let hex: String = received(socket)
                .iter()
                .map(|byte| format!("{byte:02X}"))
                .collect();
            assert_eq!(hex, vector);
        }
        for number in 0..MESSAGES {
            let payload = number.to_le_bytes();
            publisher.request(&payload).method("a.b").wait().unwrap();
        }
        for socket in &subscribers {
            for number in 0..MESSAGES {
                let datagram = received(socket);
                let message = BroadcastMessage::decode(&datagram).unwrap();
                assert_eq!(
                    (message.topic, message.data),
                    ("a.b", &number.to_le_bytes()[..])
                );
            }
            assert_eq!(arrived(socket), Vec::<Vec<u8>>::new(), "each of them once");
            socket.send(&[]).unwrap();
        }
        server.wait_for("both are gone", |metrics| metrics.sessions_closed() == 2);
        publisher
            .request(b"nobody hears")
            .method("t")
            .wait()
            .unwrap();
        publisher.close().wait();
        let metrics = server.stop();
        assert_eq!(metrics.room_offered, 2 * (MESSAGES + 1));
        assert_eq!(metrics.room_delivered, 2 * (MESSAGES + 1));
    }
}

#[test]
fn a_client_picks_its_topics_and_registers_again_with_a_new_connection() {
    let server = serve(Server::builder());
    let subscriber = client(&server);
    let sensors = subscriber.subscribe("sensor.*").wait().unwrap();
    let all = subscriber.subscribe(">").wait().unwrap();
    server.wait_for("it is registered", |metrics| {
        (metrics.registrations, metrics.frames_in) == (1, 2)
    });
    let publisher = client(&server);
    for topic in ["sensor.1", "news", "sensor.1.raw", "sensor.2"] {
        publisher
            .request(topic.as_bytes())
            .method(topic)
            .wait()
            .unwrap();
    }
    let topics = |subscription: &tidewire::Subscription, count: usize| -> Vec<String> {
        (0..count)
            .map(|_| match subscription.next_event().wait_for(DEADLINE) {
                Some(TopicEvent::Message(message)) => {
                    assert_eq!(message.topic.as_bytes(), message.payload);
                    message.topic.to_string()
                }
                other => panic!("no message: {other:?}"),
            })
            .collect()
    };
    assert_eq!(topics(&sensors, 2), ["sensor.1", "sensor.2"]);
    assert_eq!(
        topics(&all, 4),
        ["sensor.1", "news", "sensor.1.raw", "sensor.2"]
    );
    // A dropped subscription gets no more messages. The other subscription does.
    drop(sensors);
    publisher
        .request(b"sensor.3")
        .method("sensor.3")
        .wait()
        .unwrap();
    assert_eq!(topics(&all, 1), ["sensor.3"]);
    publisher.close().wait();
    subscriber.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.room_offered, metrics.room_delivered);
}

#[test]
fn registrations_are_capped_expire_and_need_trust() {
    const REGISTRATIONS: usize = 3;
    const PEERS: usize = 10;
    let server = serve(limited(|limits| {
        limits.udp.set_registrations_max(REGISTRATIONS);
        limits
            .connections
            .set_idle_timeout_without_heartbeat(Duration::from_millis(300));
    }));
    let sockets: Vec<_> = (0..PEERS).map(|_| unknown_peer(port_of(&server))).collect();
    for socket in &sockets {
        socket.send(REGISTRATION).unwrap();
    }
    let metrics = server.wait_for("all are decided on", |metrics| {
        metrics.registrations + metrics.registrations_refused == PEERS as u64
    });
    assert_eq!(metrics.registrations, REGISTRATIONS as u64);
    // Registrations of silent subscribers expire and make room.
    let late = unknown_peer(port_of(&server));
    let mut decided = PEERS as u64;
    // One at a time: unread registrations would fill the socket of a busy lane, and publications would then be lost.
    wait_until("a place is free", || {
        late.send(REGISTRATION).unwrap();
        decided += 1;
        let metrics = server.wait_for("it is decided on", |metrics| {
            metrics.registrations + metrics.registrations_refused == decided
        });
        (metrics.registrations > REGISTRATIONS as u64).then_some(())
    });
    let publisher = client(&server);
    publisher.request(b"hi").method("t").wait().unwrap();
    let message = received(&late);
    assert_eq!(BroadcastMessage::decode(&message).unwrap().topic, "t");
    publisher.close().wait();
    server.stop();

    let strict = TestServer::over_udp(Server::builder(), &codec("uvrpc"), |_| PubSub::new());
    let socket = unknown_peer(port_of(&strict));
    socket.send(REGISTRATION).unwrap();
    strict.wait_for("it is refused", |metrics| {
        metrics.registrations_refused == 1
    });
    assert_eq!(
        arrived(&socket),
        Vec::<Vec<u8>>::new(),
        "and not even told so"
    );
    let metrics = strict.stop();
    assert_eq!((metrics.registrations, metrics.refused), (0, 1));
}
