//! Messages that are on their way when a server drains.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use tidewire::{
    AnyCodec, Backoff, Chat, Client, Context, Deferred, Kind, Message, PubSub, RequestError,
    Router, Server, Service,
};
use tidewire_proto::body::{ErrorBody, ErrorCode, RoomCall, SubscribeBody};
use tidewire_proto::codec::Codec;
use tidewire_testkit::{DEADLINE, Peer, TestServer, assert_conserved, wait_until};

use crate::{echo, limited, tw1};

/// Regression: lanes reach the deadline of a drain one after another. Messages for a lane that had ended were lost,
/// although they were confirmed, and were not counted.
fn publications_between_lanes_are_accounted_for(lanes: usize, drain: Duration) {
    let builder = limited(|limits| {
        limits.rooms.set_lag_bytes_max(u64::MAX);
        limits.rooms.set_lag_messages_max(u64::MAX);
    });
    let server = TestServer::over_tcp(builder.lanes(lanes), &tw1(), |_| PubSub::new());
    // Connections are assigned to the lanes in turn, so each lane has one subscriber and one publisher.
    let mut peers: Vec<Peer> = (0..lanes).map(|_| subscriber(&server)).collect();
    let mut publishers: Vec<Peer> = (0..lanes).map(|_| server.peer()).collect();
    let metrics = thread::scope(|scope| {
        for peer in &mut peers {
            // The peer ignores the go-away and reads to the end.
            scope.spawn(|| while peer.receive().is_some() {});
        }
        for peer in &mut publishers {
            scope.spawn(|| publish_to_the_end(peer));
        }
        server.wait_for("messages are on their way", |metrics| {
            metrics.published > 1_000
        });
        let stopped = server.shutdown(drain);
        assert_conserved(&stopped);
        stopped.metrics
    });
    // A message for a lane that has ended counts once, and every lane has one subscriber.
    assert_eq!(
        metrics.published * lanes as u64,
        metrics.room_offered + metrics.mail_undelivered,
        "{metrics:#?}"
    );
    let cut_off = metrics.sessions_cut_off + metrics.mail_undelivered;
    assert!(
        cut_off > 0 || metrics.room_offered == metrics.room_delivered,
        "{metrics:#?}"
    );
}

fn subscriber(server: &TestServer) -> Peer {
    let mut peer = server.peer();
    let mut body = Vec::new();
    let subscribe = SubscribeBody {
        policy: None,
        pattern: "news",
        group: None,
    };
    subscribe.encode(&mut body);
    peer.send(&Message::with_id(Kind::Subscribe, 0, 1, &body));
    assert_eq!(peer.receive().unwrap().kind, Kind::Reply);
    peer
}

/// Publishes in confirmed blocks until the connection ends, after any replies.
fn publish_to_the_end(peer: &mut Peer) {
    let mut block = Vec::new();
    for _ in 0..50 {
        let message = Message::new(Kind::Publish, 0, b"told").with_name("news");
        tw1_frame(&message, &mut block);
    }
    loop {
        let mut frames = block.clone();
        frames.extend(peer.request_frame(&[]));
        if peer.try_write(&frames).is_err() {
            return;
        }
        loop {
            match peer.receive() {
                None => return,
                Some(message) if message.kind == Kind::Reply => break,
                Some(message) if message.kind == Kind::Error && message.id > 0 => break,
                Some(_) => {}
            }
        }
    }
}

fn tw1_frame(message: &Message<'_>, out: &mut Vec<u8>) {
    tw1().encode(message, out).unwrap();
}

#[test]
fn confirmed_publications_are_not_lost_between_two_lanes_at_the_drain_deadline() {
    for _ in 0..5 {
        publications_between_lanes_are_accounted_for(2, Duration::ZERO);
    }
    publications_between_lanes_are_accounted_for(2, Duration::from_millis(50));
}

#[test]
fn confirmed_publications_are_not_lost_between_four_lanes_at_the_drain_deadline() {
    for _ in 0..5 {
        publications_between_lanes_are_accounted_for(4, Duration::ZERO);
    }
    publications_between_lanes_are_accounted_for(4, Duration::from_millis(50));
}

/// Sends new frames to a server that has sent a go-away, each with its id or without one. Returns the errors that come
/// back. Then the peer ends its side.
fn refused_after_go_away(
    server: TestServer,
    mut peer: Peer,
    new: &[Message<'_>],
) -> Vec<(Kind, u32, u16, Option<ErrorCode>)> {
    let stopping = thread::spawn(move || server.shutdown(DEADLINE));
    while peer.receive().expect("a go-away, not the end").kind != Kind::GoAway {}
    for message in new {
        peer.send(message);
    }
    peer.finish_writing();
    let answers = peer.drain().into_iter().map(|answer| {
        let code =
            (answer.kind == Kind::Error).then(|| ErrorBody::decode(&answer.payload).unwrap().code);
        (answer.kind, answer.id, answer.channel, code)
    });
    let answers = answers.collect();
    let stopped = stopping.join().unwrap();
    assert_conserved(&stopped);
    let metrics = stopped.metrics;
    let refused = new
        .iter()
        .filter(|message| !matches!(message.kind, Kind::Leave | Kind::Unsubscribe));
    assert_eq!(metrics.refused, refused.count() as u64, "{metrics:#?}");
    assert_eq!(
        (metrics.chat_messages, metrics.published),
        (0, 0),
        "{metrics:#?}"
    );
    assert_eq!(metrics.sessions_cut_off, 0);
    answers
}

const REFUSED: Option<ErrorCode> = Some(ErrorCode::Draining);

/// Regression: docs/protocol.md said that new requests are refused after a go-away, but all of them were answered until
/// the deadline.
#[test]
fn an_echo_refuses_new_requests_after_go_away() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let mut peer = server.peer();
    peer.ask(b"before");
    assert_eq!(peer.answer().payload, b"before");
    let new = [
        Message::with_id(Kind::Request, 3, 7, b"new"),
        Message::new(Kind::OneWay, 3, b"new"),
        Message::with_id(Kind::Request, 0, 8, b"new"),
    ];
    assert_eq!(
        refused_after_go_away(server, peer, &new),
        [(Kind::Error, 7, 3, REFUSED), (Kind::Error, 8, 0, REFUSED)]
    );
}

#[test]
fn methods_are_refused_after_go_away() {
    let router = || Router::new().on("echo", echo);
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| router());
    let peer = server.peer();
    let new = [Message::with_id(Kind::Request, 0, 7, b"new").with_name("echo")];
    assert_eq!(
        refused_after_go_away(server, peer, &new),
        [(Kind::Error, 7, 0, REFUSED)]
    );
}

#[test]
fn publications_and_subscriptions_are_refused_after_go_away() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let peer = subscriber(&server);
    let mut body = Vec::new();
    let (policy, pattern) = (None, "more");
    SubscribeBody {
        policy,
        pattern,
        group: None,
    }
    .encode(&mut body);
    let new = [
        Message::new(Kind::Publish, 0, b"new").with_name("news"),
        Message::with_id(Kind::Subscribe, 0, 7, &body),
        // The server can no longer confirm that everything was passed on.
        Message::with_id(Kind::Request, 0, 8, &[]),
        Message::with_id(Kind::Unsubscribe, 1, 9, &[]),
    ];
    assert_eq!(
        refused_after_go_away(server, peer, &new),
        [
            (Kind::Error, 0, 0, REFUSED),
            (Kind::Error, 7, 0, REFUSED),
            (Kind::Error, 8, 0, REFUSED),
            (Kind::Reply, 9, 1, None),
        ]
    );
}

#[test]
fn messages_are_refused_after_go_away() {
    let chat = Chat::new();
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| chat.clone());
    let mut peer = server.peer();
    peer.join("lobby", "ada").unwrap();
    let room = peer.room();
    let mut list = Vec::new();
    RoomCall::List.encode(&mut list).unwrap();
    let new = [
        Message::new(Kind::Say, room, b"new"),
        Message::with_id(Kind::Request, room, 7, &list),
        Message::with_id(Kind::Leave, room, 8, &[]),
    ];
    assert_eq!(
        refused_after_go_away(server, peer, &new),
        [
            (Kind::Error, 0, room, REFUSED),
            (Kind::Error, 7, room, REFUSED),
            (Kind::Reply, 8, room, None),
        ]
    );
}

/// In codecs without a go-away the end of the server's stream says it. Input after that is not handled silently.
#[test]
fn bytes_after_the_end_of_a_servers_stream_are_not_handled() {
    for codec in ["raw", "delimited", "length-field", "srmp", "lines"] {
        let codec = AnyCodec::by_name(codec).unwrap();
        let handled = Arc::new(AtomicU64::new(0));
        let server = TestServer::over_tcp(Server::builder(), &codec, |_| {
            let handled = Arc::clone(&handled);
            move |cx: &mut Context<'_>, message: Message<'_>| {
                handled.fetch_add(1, Ordering::Relaxed);
                cx.reply(message.payload)
            }
        });
        let mut peer = server.peer();
        peer.ask(b"before");
        assert_eq!(peer.answer().payload, b"before");
        let stopping = thread::spawn(move || server.shutdown(DEADLINE));
        assert_eq!(peer.receive(), None, "{}", codec.name());
        peer.ask(b"after");
        peer.finish_writing();
        let metrics = stopping.join().unwrap().metrics;
        assert_eq!((metrics.refused, handled.load(Ordering::Relaxed)), (1, 1));
    }
}

/// Answers at once, or when the test does.
fn holding(held: mpsc::Sender<Deferred>) -> impl Service + Clone {
    move |cx: &mut Context<'_>, message: Message<'_>| match message.payload {
        b"hold" => {
            held.send(cx.defer()).unwrap();
            Ok(())
        }
        other => cx.reply(other),
    }
}

/// Regression: the client sent new requests to the server that goes away, which does not answer them. Or it failed
/// requests that may wait for the next connection.
#[test]
fn a_client_sends_nothing_new_after_go_away() {
    let (held, is_held) = mpsc::channel();
    let server = TestServer::over_ipc(Server::builder(), &tw1(), |_| holding(held.clone()));
    let url = server.url();
    let client = Client::connect(&url).wait().unwrap();
    let patient = Client::builder()
        .request_timeout(DEADLINE)
        .reconnect(Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(20),
        });
    let patient = patient.connect(&url).wait().unwrap();
    let pending = [
        client.request(b"hold").send(),
        patient.request(b"hold").send(),
    ];
    let answers = [(); 2].map(|()| is_held.recv_timeout(DEADLINE).unwrap());
    let mut directory = None;
    thread::scope(|scope| {
        let stopping = scope.spawn(|| server.stop_for_restart());
        for client in [&client, &patient] {
            wait_until("nothing new is sent", || {
                match client.request(b"new").wait() {
                    Err(RequestError::NotConnected) => Some(()),
                    // The request crossed the go-away, or came before it.
                    Err(RequestError::Refused {
                        code: ErrorCode::Draining,
                        ..
                    })
                    | Ok(_) => None,
                    Err(error) => panic!("{error:?}"),
                }
            });
        }
        let waiting = patient.request(b"again").idempotent().send();
        for answer in answers {
            answer.reply(b"done").unwrap();
        }
        for request in pending {
            assert_eq!(request.wait().unwrap().payload(), b"done");
        }
        directory = stopping.join().unwrap();
        let restarted = Server::builder()
            .listen(&url)
            .unwrap()
            .start(|_| echo)
            .unwrap();
        assert_eq!(waiting.wait().unwrap().payload(), b"again");
        patient.close().wait();
        assert_conserved(&restarted.shutdown(DEADLINE));
    });
    drop(directory);
}
