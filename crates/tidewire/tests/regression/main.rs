//! Fixed bugs, each with a test of its name.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod client;
mod histories;
mod reading;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tidewire::limits::ConnectionLimits;
use tidewire::{
    Chat, Client, CloseReason, Context, HandlerResult, Kind, Limits, Message, Moment, Policy,
    PubSub, RequestError, SendError, Server, Service, SessionId,
};
use tidewire_proto::body::{ErrorCode, RoomCall};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_testkit::fixtures::{echo, limited, lines, tw1};
use tidewire_testkit::{DEADLINE, Peer, RoomEvent, TestServer};

/// Regression: reading pauses when the output is full. After the output had gone, the buffered frames waited for an
/// event that no peer would cause, and the lane slept with complete requests.
#[test]
fn a_paused_session_goes_on_with_the_frames_it_holds() {
    const REQUESTS: usize = 100;
    let builder = limited(|limits| {
        limits.connections.set_queue_bytes_max(1000);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut peer = server.peer();
    let frames: Vec<u8> = (0..REQUESTS)
        .flat_map(|number| peer.request_frame(&[number as u8; 100]))
        .collect();
    peer.write(&frames);
    for number in 0..REQUESTS {
        assert_eq!(peer.answer().payload, [number as u8; 100]);
    }
    drop(peer);
    assert!(server.stop().reads_paused > 0);
}

/// Regression: while a session's message is handled, its output lies in another place. A whisper to oneself appended to
/// another buffer, which was then replaced.
#[test]
fn a_whisper_to_oneself_arrives() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Chat::new());
    let mut ada = server.peer();
    ada.join("lobby", "ada").unwrap();
    let mut body = Vec::new();
    let to_herself = RoomCall::Whisper {
        to: "ada",
        text: b"note",
    };
    to_herself.encode(&mut body).unwrap();
    ada.send(&Message::with_id(Kind::Request, ada.room(), 77, &body));
    let (first, second) = (ada.receive().unwrap(), ada.receive().unwrap());
    assert_eq!(
        (first.kind, &first.payload[..]),
        (Kind::Deliver, &b"note"[..])
    );
    assert_eq!((second.kind, second.id), (Kind::Reply, 77));
    drop(ada);
    server.stop();
}

/// Regression: a session's only timer was set for the handshake timeout, so shorter heartbeats and timeouts fired too
/// late.
#[test]
fn a_heartbeat_shorter_than_the_handshake_timeout_is_kept() {
    let builder = limited(|limits| {
        limits
            .connections
            .set_handshake_timeout(Duration::from_secs(24 * 60 * 60));
        limits.connections.set_heartbeat(Duration::from_millis(20));
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut peer = server.peer();
    assert_eq!(peer.receive().unwrap().kind, Kind::Ping);
    drop(peer);
    server.stop();
}

/// Regression: `peers_that_read_nothing_are_paused` took the ping that a slow machine gets in front of an answer for
/// the answer.
#[test]
fn the_raw_peer_skips_pings_in_front_of_an_answer() {
    let builder = limited(|limits| {
        limits.connections.set_heartbeat(Duration::from_millis(20));
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut peer = server.peer();
    server.wait_for("a ping follows the welcome", |metrics| metrics.writes > 1);
    peer.ask(b"behind a ping");
    assert_eq!(peer.answer().payload, b"behind a ping");
    drop(peer);
    server.stop();
}

/// Regression: a heartbeat of zero means none, but it sent a ping at every tick of the clock.
#[test]
fn a_heartbeat_of_zero_sends_no_pings() {
    let builder = limited(|limits| {
        limits.connections.set_heartbeat(Duration::ZERO);
        limits
            .connections
            .set_idle_timeout(Duration::from_millis(200));
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut peer = server.peer();
    let kinds: Vec<Kind> = peer.drain().iter().map(|frame| frame.kind).collect();
    assert_eq!(kinds, [Kind::GoAway]);
    drop(peer);
    assert_eq!(server.stop().closed_by("idle_timeout"), 1);
}

/// Regression: durations were cut to 64 bits of nanoseconds and added with overflow, so switching a limit off ended the
/// lane.
#[test]
fn durations_of_centuries_switch_limits_off() {
    let forever = |limits: &mut Limits| {
        limits.connections.set_handshake_timeout(Duration::MAX);
        limits.connections.set_idle_timeout(Duration::MAX);
        limits
            .connections
            .set_idle_timeout_without_heartbeat(Duration::MAX);
        limits.connections.set_heartbeat(Duration::MAX);
        limits.connections.set_frame_timeout(Duration::MAX);
        limits.rooms.set_block_deadline(Duration::MAX);
    };
    let builder = limited(forever).coalesce_max(Duration::MAX);
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut limits = Limits::default();
    forever(&mut limits);
    let client = Client::builder()
        .limits(limits.connections)
        .request_timeout(Duration::MAX)
        .connect(&server.url())
        .wait()
        .unwrap();
    assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
    client.close().wait();
    server.stop();
}

/// Regression: messages that a leaving member had not received were counted as dropped by its policy.
#[test]
fn leaving_is_not_counted_as_a_drop_by_the_policy() {
    // The sweep never comes in time, so the message stays in the log until its receiver leaves.
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Chat::new());
    let mut ada = server.peer();
    ada.join("lobby", "ada").unwrap();
    let mut bob = server.peer();
    bob.join("lobby", "bob").unwrap();
    ada.hear_of("bob");
    for _ in 0..200 {
        ada.say(b"listen");
        bob.leave().unwrap();
        bob.join("lobby", "bob").unwrap();
    }
    drop((ada, bob));
    let metrics = server.stop();
    assert_eq!(metrics.room_dropped_by("policy"), 0, "{metrics:#?}");
}

/// Regression: a frame limit below the overhead of a codec caused a subtraction overflow, and `say` ended the lane.
#[test]
fn a_tiny_frame_limit_refuses_instead_of_ending_the_lane() {
    let builder = limited(|limits| {
        limits.connections.set_frame_bytes_max(64);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| Chat::new());
    let mut peer = server.peer();
    peer.join("r", "a").unwrap();
    peer.say(b"hi");
    assert!(matches!(peer.hear(), Some(RoomEvent::Refused(_))));
    drop(peer);
    assert_eq!(server.stop().refused, 1);
}

/// Regression: a frame larger than the receiver accepts was sent anyway, and the receiver ended the connection.
#[test]
fn a_frame_larger_than_agreed_is_an_error_at_its_sender() {
    let huge = |cx: &mut Context<'_>, _: Message<'_>| cx.reply(&[7; 4000]);
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| huge);
    let mut limits = ConnectionLimits::default();
    limits.set_frame_bytes_max(1000);
    let client = Client::builder()
        .limits(limits)
        .connect(&server.url())
        .wait()
        .unwrap();
    let reply = client.request(b"much?").wait();
    assert!(
        matches!(reply, Err(RequestError::Refused { .. })),
        "{reply:?}"
    );
    let request = client.request(&[7; 1000]).wait();
    assert!(
        matches!(request, Err(RequestError::Encode(_))),
        "{request:?}"
    );
    assert_eq!(
        client.metrics().sessions_closed(),
        0,
        "the connection goes on"
    );
    client.close().wait();
    assert_eq!(server.stop().refused, 1);
}

/// The smaller of both limits applies, also if the peer is no Tidewire client.
#[test]
fn the_frame_limit_of_a_hello_is_kept() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let mut peer = Peer::silent(server.wire(), &tw1());
    let mut hello = Vec::new();
    Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 512,
        credentials: &[],
        agent: "small",
    }
    .encode_frame(&mut hello)
    .unwrap();
    peer.write(&hello);
    assert_eq!(peer.receive().unwrap().kind, Kind::Welcome);
    peer.ask(&[1; 500]);
    assert_eq!(peer.answer().payload, [1; 500]);
    peer.ask(&[1; 501]);
    assert_eq!(peer.receive().unwrap().kind, Kind::Error);
    drop(peer);
    server.stop();
}

/// Reports each message's session to the test, and on "hold" blocks its lane until the test continues it.
struct Gatekeeper {
    seen: mpsc::Sender<(SessionId, Vec<u8>)>,
    go_on: mpsc::Receiver<SessionId>,
}

impl Service for Gatekeeper {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self.seen.send((cx.id(), message.payload.to_vec())).unwrap();
        if message.payload == b"hold" {
            let other = self.go_on.recv().unwrap();
            cx.send_to(other, &Message::new(Kind::OneWay, 0, b"are you there?"))?;
            cx.flush(other);
        }
        Ok(())
    }
}

/// Regression: a failed write to a closed peer ended its session at once, and its last messages were not read. Over a
/// Unix socket that lost the last messages of every client that sent and closed.
#[test]
fn messages_of_a_peer_before_its_close_arrive_although_writing_fails() {
    let (seen_sender, seen) = mpsc::channel();
    let (go_on, go_on_receiver) = mpsc::channel();
    let mut service = Some(Gatekeeper {
        seen: seen_sender,
        go_on: go_on_receiver,
    });
    let server = TestServer::over_ipc(Server::builder(), &tw1(), move |_| service.take().unwrap());
    let mut holder = server.peer();
    let mut leaver = server.peer();
    let hear = |text: &[u8]| {
        let (session, payload) = seen.recv_timeout(DEADLINE).unwrap();
        assert_eq!(payload, text);
        session
    };
    leaver.send(&Message::new(Kind::OneWay, 0, b"hello"));
    let leaving = hear(b"hello");
    holder.send(&Message::new(Kind::OneWay, 0, b"hold"));
    hear(b"hold");
    // The lane is blocked: it cannot read this before it writes.
    leaver.send(&Message::new(Kind::OneWay, 0, b"bye"));
    drop(leaver);
    go_on.send(leaving).unwrap();
    assert_eq!(hear(b"bye"), leaving);
    drop(holder);
    server.stop();
}

/// Regression: a request that was queued while the client's lane ended stayed in the queue, and its caller waited for
/// ever.
#[test]
fn requests_that_race_with_the_end_of_their_client_all_resolve() {
    for _ in 0..50 {
        let server = tidewire::serve("tcp://127.0.0.1:0", echo).unwrap();
        let client = Client::connect(&server.to_string()).wait().unwrap();
        let asking: Vec<_> = (0..2)
            .map(|_| {
                let client = client.clone();
                std::thread::spawn(move || {
                    let mut answered = 0;
                    // The loop ends when the client has ended. A request that never resolves would hang here.
                    loop {
                        match client.request(b"still there?").wait() {
                            Ok(_) => answered += 1,
                            Err(RequestError::Shutdown) => return answered,
                            Err(_) => {}
                        }
                    }
                })
            })
            .collect();
        client.request(b"first").wait().unwrap();
        drop(server);
        for thread in asking {
            let _answered: u64 = thread.join().unwrap();
        }
    }
}

/// Regression: lines that a client had sent before the end of the stream were read and not answered. The end of the
/// stream is all that a line client sees of a drain.
#[test]
fn lines_that_arrived_before_the_drain_are_answered() {
    const LINES: usize = 2000;
    let (seen_sender, seen) = mpsc::channel();
    let (go_on, go_on_receiver) = mpsc::channel();
    let receiver = std::sync::Mutex::new(go_on_receiver);
    let mut service = Some(move |cx: &mut Context<'_>, message: Message<'_>| {
        if message.payload == b"hold" {
            seen_sender.send(()).unwrap();
            let () = receiver.lock().unwrap().recv().unwrap();
        }
        cx.reply(message.payload)
    });
    let builder = limited(|limits| {
        limits.connections.set_queue_bytes_max(100);
    });
    let server = TestServer::over_tcp(builder, &lines(), move |_| service.take().unwrap());
    let mut holder = server.peer();
    let mut peer = server.peer();
    // The lane must have the second session before the lane is blocked.
    peer.ask(b"hello");
    assert_eq!(peer.answer().payload, b"hello");
    holder.ask(b"hold");
    seen.recv_timeout(DEADLINE).unwrap();
    let text: Vec<u8> = (0..LINES)
        .flat_map(|number| format!("{number}\n").into_bytes())
        .collect();
    peer.write(&text);
    let stopping = std::thread::spawn(move || server.stop());
    go_on.send(()).unwrap();
    for number in 0..LINES {
        assert_eq!(peer.answer().payload, number.to_string().as_bytes());
    }
    assert_eq!(peer.receive(), None);
    drop((peer, holder));
    stopping.join().unwrap();
}

/// Regression: a service could not close a session whose write side had ended. The session stayed until the idle
/// timeout.
#[test]
fn a_service_can_close_a_session_that_drains() {
    struct Quits {
        session: SessionId,
        quit: Arc<AtomicBool>,
    }
    impl Service for Quits {
        fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
            self.session = cx.id();
            cx.reply(message.payload)
        }
        fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
            if self.quit.swap(false, Ordering::SeqCst) {
                cx.close_session(self.session);
            }
            None
        }
        fn has_work(&self) -> bool {
            self.quit.load(Ordering::SeqCst)
        }
    }
    let quit = Arc::new(AtomicBool::new(false));
    let server = TestServer::over_tcp(Server::builder(), &lines(), |_| Quits {
        session: SessionId::NONE,
        quit: Arc::clone(&quit),
    });
    let waker = server.server().waker(0);
    let mut peer = server.peer();
    peer.ask(b"hello");
    assert_eq!(peer.answer().payload, b"hello");
    let stopping = std::thread::spawn(move || server.stop());
    assert_eq!(peer.receive(), None, "our side ends first");
    quit.store(true, Ordering::SeqCst);
    waker.wake();
    let metrics = stopping.join().unwrap();
    assert_eq!(metrics.closed_by("service"), 1, "{metrics:#?}");
}

/// Regression: publishers of a blocking room were resumed only if the subscriber's own lane had paused some, else at
/// the deadline.
#[test]
fn a_block_ends_when_the_subscriber_catches_up_although_the_publisher_is_on_another_lane() {
    const END: &[u8] = b"the end";
    let builder = limited(|limits| {
        limits.rooms.set_lag_messages_max(100);
        limits
            .rooms
            .set_block_deadline(Duration::from_secs(24 * 60 * 60));
    });
    let server = TestServer::over_ipc(builder.lanes(2), &tw1(), |_| {
        Chat::new().policy(Policy::Block)
    });
    // Two sessions in a row are assigned to two lanes.
    let mut reader = server.peer();
    reader.join("lobby", "reader").unwrap();
    let mut publisher = server.peer();
    publisher.join("lobby", "publisher").unwrap();
    // The publisher's lane may read any number of messages before the reader's lane checks, so the test sends until it
    // is paused.
    let is_held = Arc::new(AtomicBool::new(false));
    let publishing = std::thread::spawn({
        let is_held = Arc::clone(&is_held);
        move || {
            let mut number = 0;
            while !is_held.load(Ordering::SeqCst) {
                let mut text = format!("{number} ").into_bytes();
                text.resize(400, b' ');
                publisher.say(&text);
                number += 1;
            }
            publisher.say(END);
            (publisher, number)
        }
    });
    server.wait_for("the publisher is held", |metrics| {
        metrics.publishers_held > 0
    });
    is_held.store(true, Ordering::SeqCst);
    reader.hear_of("publisher");
    let mut heard = 0;
    loop {
        let (_, text) = reader.next_message();
        if text == END {
            break;
        }
        assert!(text.starts_with(format!("{heard} ").as_bytes()), "{heard}");
        heard += 1;
    }
    let (publisher, said) = publishing.join().unwrap();
    assert_eq!(heard, said, "everything said was heard");
    drop((publisher, reader));
    assert_eq!(
        server.stop().room_dropped_by("policy"),
        0,
        "nothing by the policy"
    );
}

/// Regression: a lane that had ended was still sent connections and batches. Its queue filled up, and the other lanes
/// stopped reading.
#[test]
fn a_lane_that_panicked_is_counted_out() {
    struct Fragile;

    impl Service for Fragile {
        fn on_message(&mut self, _: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
            panic!("told to")
        }

        fn on_panic(&mut self, _: &mut Context<'_>) {
            panic!("it cannot go on")
        }
    }

    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Fragile);
    let client = Client::connect(&server.url()).wait().unwrap();
    assert!(matches!(
        client.request(b"go").wait(),
        Err(RequestError::Closed(end)) if matches!(end.reason, CloseReason::GoAway(_))
    ));
    let stopped = server.stop_unchecked();
    assert_eq!(stopped.metrics.sessions_opened, 1);
    assert_eq!(stopped.metrics.sessions_closed(), 1);
    assert_eq!(stopped.failures, ["the service panicked: told to"]);
}

/// Regression: a room frames a message once for all members. A member with a smaller frame limit was cut off by the
/// first long message.
#[test]
fn a_connection_with_smaller_frames_is_refused_by_rooms_and_not_cut_off_by_them() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Chat::new());
    let mut limits = ConnectionLimits::default();
    limits.set_frame_bytes_max(4096);
    let small = Client::builder()
        .limits(limits)
        .connect(&server.url())
        .wait()
        .unwrap();
    assert!(matches!(
        small.join("lobby").named("bob").wait(),
        Err(RequestError::Refused {
            code: ErrorCode::LimitReached,
            ..
        })
    ));
    let ada = Client::connect(&server.url()).wait().unwrap();
    let room = ada.join("lobby").named("ada").wait().unwrap();
    room.say(&[1; 10_000]).unwrap();
    assert_eq!(room.members().wait().unwrap().len(), 1);
    // The refused connection is not affected, and its requested name is free.
    assert!(room.whisper("bob", b"are you there?").wait().is_err());
    assert!(matches!(
        small.join("lobby").named("").wait(),
        Err(RequestError::Refused { .. })
    ));
    small.close().wait();
    ada.close().wait();
    server.stop();
}

/// Regression: the remaining requests of a departed peer were answered until the output was full. Then reading paused
/// for ever, and the session stayed until the idle timeout.
#[test]
fn a_peer_that_left_with_many_requests_under_way_leaves_no_ghost() {
    let builder = limited(|limits| {
        limits.connections.set_idle_timeout(Duration::MAX);
        limits.connections.set_heartbeat(Duration::MAX);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| {
        let big = vec![9; 100_000];
        move |cx: &mut Context<'_>, _: Message<'_>| -> HandlerResult { cx.reply(&big) }
    });
    let mut peer = server.peer();
    let frames: Vec<u8> = (0..600).flat_map(|_| peer.request_frame(b"x")).collect();
    peer.write(&frames);
    server.wait_for("a pause", |metrics| metrics.reads_paused > 0);
    drop(peer);
    server.wait_for("the end of the session", |metrics| {
        metrics.sessions_closed() == 1
    });
    server.stop();
}

/// Regression: messages that a client had accepted were dropped when the server read slowly, although the connection
/// was up all the time.
#[test]
fn a_slow_server_costs_a_client_patience_and_no_messages() {
    const MESSAGES: usize = 600;
    let (taken, count) = mpsc::channel();
    let (release, wait) = mpsc::channel::<()>();
    let mut wait = Some(wait);
    let server = TestServer::over_tcp(Server::builder(), &tw1(), move |_| {
        let (taken, wait) = (taken.clone(), wait.take());
        move |_: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
            // Reads nothing until the client has reached its limits.
            if let Some(wait) = &wait {
                let _ = wait.recv();
            }
            let _ = taken.send(message.payload.len());
            Ok(())
        }
    });
    let mut limits = ConnectionLimits::default();
    limits.set_queue_bytes_max(64 * 1024);
    let client = Client::builder()
        .limits(limits)
        .connect(&server.url())
        .wait()
        .unwrap();
    let (mut release, mut refused) = (Some(release), 0);
    for _ in 0..MESSAGES {
        while let Err(error) = client.send(&[7; 64 * 1024]) {
            // The message was not queued, so the caller sends it again.
            assert_eq!(error, SendError::QueueFull);
            release = None;
            refused += 1;
            std::thread::yield_now();
        }
    }
    drop(release);
    assert!(refused > 0, "what waits is bounded");
    for number in 0..MESSAGES {
        assert_eq!(
            count.recv_timeout(DEADLINE),
            Ok(64 * 1024),
            "message {number}"
        );
    }
    let lost = std::iter::from_fn(|| client.next_event().wait_for(Duration::ZERO))
        .any(|event| matches!(event, tidewire::Event::Lost { .. }));
    assert!(!lost);
    client.close().wait();
    server.stop();
}

/// A publish/subscribe server that stops at a one-way message until its client continues it.
struct StopsReading {
    topics: PubSub,
    go_on: mpsc::Receiver<()>,
}

impl Service for StopsReading {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.kind == Kind::OneWay {
            let _ = self.go_on.recv();
            return Ok(());
        }
        self.topics.on_message(cx, message)
    }
}

/// Regression: dropping a subscription waited in a busy loop for room in the client's queue, until the server read
/// again.
#[test]
fn dropping_a_subscription_does_not_wait_for_a_slow_server() {
    const REFUSED_IN_A_ROW: usize = 5_000;
    let (release, go_on) = mpsc::channel();
    let mut go_on = Some(go_on);
    let server = TestServer::over_tcp(Server::builder(), &tw1(), move |_| StopsReading {
        topics: PubSub::new(),
        go_on: go_on.take().unwrap(),
    });
    let mut limits = ConnectionLimits::default();
    limits.set_queue_bytes_max(64 * 1024);
    let client = Client::builder()
        .limits(limits)
        .pending_max(10_000)
        .connect(&server.url())
        .wait()
        .unwrap();
    let subscription = client.subscribe("a.b").wait().unwrap();
    let mut refused = 0;
    // The lane may have taken the queue just now, so a single refusal is not enough.
    while refused < REFUSED_IN_A_ROW {
        match client.send(&[7; 64 * 1024]) {
            Ok(()) => refused = 0,
            Err(_) => refused += 1,
        }
        std::thread::yield_now();
    }
    let mut waiting = Vec::new();
    loop {
        let mut request = client.request(b"").send();
        match request.try_wait() {
            None => waiting.push(request),
            Some(outcome) => {
                assert_eq!(outcome.unwrap_err(), RequestError::WindowFull);
                break;
            }
        }
    }
    drop(subscription);
    // The server continues only now, and all accepted requests are processed in order.
    drop(release);
    let mut answered = 0;
    for request in waiting {
        match request.wait() {
            Ok(_) => answered += 1,
            // The lane of a busy machine refused it after it was looked at.
            Err(error) => assert_eq!(error, RequestError::WindowFull),
        }
    }
    assert!(answered > 0);
    drop(client.subscribe("a.b").wait().unwrap());
    client.close().wait();
    server.stop();
}
