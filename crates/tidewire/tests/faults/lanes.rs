//! A lane that ends by a panic: its clients get an end, the other lanes continue, and nothing waits for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Wake, Waker};

use tidewire::{
    Client, CloseReason, Context, Disconnected, HandlerResult, Kind, Message, Policy, RequestError,
    Server, Service,
};
use tidewire_proto::body::PresenceBody;
use tidewire_proto::message::PresenceEvent;
use tidewire_testkit::{DEADLINE, Peer, TestServer, assert_conserved};

use crate::tw1;

/// Answers with the number of its lane, relays in a room, and panics or leaves on request.
#[derive(Clone, Default)]
struct Fragile;

impl Service for Fragile {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        match (message.kind, message.payload) {
            (_, b"panic") => panic!("told to"),
            (_, b"leave") => {
                cx.stop_lane();
                Ok(())
            }
            (Kind::Request, b"join") => {
                let name = cx.id().to_string();
                let joined = cx.rooms().policy(Policy::Disconnect).join("lobby", &name)?;
                cx.set_state(joined.room);
                cx.reply(b"joined")
            }
            (Kind::Request, _) => cx.reply(&[b'0' + cx.lane() as u8]),
            (Kind::OneWay, text) => {
                let room = *cx.state().expect("a member");
                Ok(cx.rooms().say(room, text)?)
            }
            _ => Ok(()),
        }
    }

    /// This service cannot continue after a panic, so its lane ends.
    fn on_panic(&mut self, _: &mut Context<'_>) {
        panic!("told to");
    }
}

fn lane_of(peer: &mut Peer) -> u8 {
    peer.ask(b"lane?");
    peer.answer().payload[0] - b'0'
}

#[test]
fn a_lane_that_panics_hangs_neither_its_clients_nor_the_shutdown() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Fragile);
    let client = Client::connect(&server.url()).wait().unwrap();
    let mut bystander = server.peer();
    let error = client.request(b"panic").wait().unwrap_err();
    assert!(
        matches!(
            error,
            RequestError::Closed(Disconnected {
                reason: CloseReason::GoAway(_) | CloseReason::PeerReset | CloseReason::PeerClosed,
                ..
            })
        ),
        "{error:?}"
    );
    bystander.drain();
    tidewire_testkit::wait_until("the server knows", || {
        (!server.server().is_running()).then_some(())
    });
    let stopped = server.stop_unchecked();
    assert_eq!(stopped.failures.len(), 1);
    assert!(
        stopped.failures[0].contains("panic"),
        "{:?}",
        stopped.failures
    );
    assert!(
        stopped.failures[0].contains("told to"),
        "{:?}",
        stopped.failures
    );
    let metrics = stopped.metrics;
    assert_eq!(
        metrics.sessions_opened,
        metrics.sessions_closed(),
        "{metrics:#?}"
    );
    assert_eq!(metrics.room_in_flight(), 0);
}

/// Panics lane `victim` of two while both lanes have members of one room, and then sends much more than the queue
/// between lanes holds.
fn one_of_two_dies(victim: u8) {
    const MESSAGES: usize = 3000;
    let server = TestServer::over_tcp(Server::builder().lanes(2), &tw1(), |_| Fragile);
    let mut lanes: [Vec<Peer>; 2] = [Vec::new(), Vec::new()];
    while lanes[0].len() < 2 || lanes[1].len() < 2 {
        let mut peer = server.peer();
        let lane = usize::from(lane_of(&mut peer));
        peer.ask(b"join");
        assert_eq!(answer_of(&mut peer), b"joined");
        lanes[lane].push(peer);
    }
    let [mut dead, mut alive] = if victim == 0 {
        lanes
    } else {
        let [first, second] = lanes;
        [second, first]
    };
    dead[0].send(&Message::new(Kind::OneWay, 0, b"panic"));
    for peer in &mut dead {
        peer.drain();
    }
    for number in 0..MESSAGES {
        let text = number.to_string();
        alive[0].send(&Message::new(Kind::OneWay, 0, text.as_bytes()));
        // One at a time, so that each is a separate batch for the dead lane.
        assert_eq!(delivered(&mut alive[1]), text.as_bytes());
    }
    // The accepting lane is alive or has a successor, and assigns new connections only to living lanes.
    for _ in 0..4 {
        assert_eq!(lane_of(&mut server.peer()), 1 - victim);
    }
    drop(alive);
    let stopped = server.stop_unchecked();
    assert_eq!(stopped.failures.len(), 1, "{:?}", stopped.failures);
    let metrics = stopped.metrics;
    assert_eq!(
        metrics.sessions_opened,
        metrics.sessions_closed(),
        "{metrics:#?}"
    );
    assert_eq!(metrics.room_in_flight(), 0, "{metrics:#?}");
}

fn answer_of(peer: &mut Peer) -> Vec<u8> {
    loop {
        let message = peer.receive().expect("an answer, not the end");
        if message.kind == Kind::Reply {
            return message.payload;
        }
    }
}

fn delivered(peer: &mut Peer) -> Vec<u8> {
    loop {
        let message = peer.receive().expect("a message, not the end");
        if message.kind == Kind::Deliver {
            return message.payload;
        }
    }
}

#[test]
fn the_other_lane_continues_when_the_second_dies() {
    one_of_two_dies(1);
}

#[test]
fn the_other_lane_continues_when_the_accepting_lane_dies() {
    one_of_two_dies(0);
}

#[test]
fn a_dead_lane_does_not_delay_the_shutdown() {
    let server = TestServer::over_tcp(Server::builder().lanes(2), &tw1(), |_| Fragile);
    let mut peers: Vec<Peer> = (0..4).map(|_| server.peer()).collect();
    peers[0].send(&Message::new(Kind::OneWay, 0, b"panic"));
    peers[0].drain();
    drop(peers);
    let started = std::time::Instant::now();
    let stopped = server.stop_unchecked();
    assert!(
        started.elapsed() < DEADLINE,
        "it did not wait for the deadline"
    );
    assert_eq!(stopped.failures.len(), 1);
}

/// The lanes end one after another, by a panic or by the service. While one lane lives, the server accepts connections.
#[test]
fn the_last_lane_accepts_connections_like_the_first() {
    let server = TestServer::over_ipc(Server::builder().lanes(4), &tw1(), |_| Fragile);
    let mut living: Vec<u8> = vec![0, 1, 2, 3];
    for end in [&b"panic"[..], b"leave", b"panic"] {
        // The first living lane is the one that accepts.
        let accepting = living.remove(0);
        let mut peer = server.peer();
        while lane_of(&mut peer) != accepting {
            peer = server.peer();
        }
        peer.send(&Message::new(Kind::OneWay, 0, end));
        peer.drain();
        let mut reached: Vec<u8> = (0..6).map(|_| lane_of(&mut server.peer())).collect();
        reached.sort_unstable();
        reached.dedup();
        assert_eq!(reached, living);
    }
    let stopped = server.stop_unchecked();
    assert_eq!(stopped.failures.len(), 2, "{:?}", stopped.failures);
    let metrics = stopped.metrics;
    assert_eq!(
        metrics.sessions_opened,
        metrics.sessions_closed(),
        "{metrics:#?}"
    );
}

/// Regression: messages from a lane to other lanes were not posted when it ended.
#[test]
fn members_of_a_lane_that_leaves_are_said_to_have_left() {
    let server = TestServer::over_tcp(Server::builder().lanes(2), &tw1(), |_| Fragile);
    // Connections are assigned to the lanes in turn.
    let mut peers = [server.peer(), server.peer()];
    for peer in &mut peers {
        peer.ask(b"join");
        assert_eq!(answer_of(peer), b"joined");
    }
    let [mut leaving, mut staying] = peers;
    leaving.send(&Message::new(Kind::OneWay, 0, b"leave"));
    leaving.drain();
    loop {
        let message = staying.receive().expect("a notice, not the end");
        if message.kind == Kind::Presence {
            let body = PresenceBody::decode(&message.payload).unwrap();
            if body.event == PresenceEvent::Left {
                break;
            }
        }
    }
    drop(staying);
    assert_conserved(&server.stop_unchecked());
}

/// Regression: the waker of a task may be the last reference to it, and the task may own the last client. The client's
/// lane dropped the waker, then joined its own thread, and panicked.
#[test]
fn the_last_client_may_go_with_a_waker_on_its_own_lane() {
    struct Task {
        client: Option<Client>,
        ended: mpsc::Sender<(Option<String>, std::thread::Result<()>)>,
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Task {
        fn drop(&mut self) {
            let client = self.client.take();
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(client)));
            let thread = std::thread::current().name().map(str::to_owned);
            // The test may have ended.
            let _ = self.ended.send((thread, dropped));
        }
    }

    let (open, gate) = mpsc::channel::<()>();
    let mut service = Some(move |cx: &mut Context<'_>, message: Message<'_>| {
        let _ = gate.recv();
        cx.reply(message.payload)
    });
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| service.take().unwrap());
    let client = Client::connect(&server.url()).wait().unwrap();
    let mut request = client.request(b"the only one").send();
    let (ended, is_ended) = mpsc::channel();
    let client = Some(client);
    let waker = Waker::from(Arc::new(Task { client, ended }));
    let mut task = std::task::Context::from_waker(&waker);
    assert!(Pin::new(&mut request).poll(&mut task).is_pending());
    // The lane has the last reference now.
    drop(waker);
    open.send(()).unwrap();
    let (thread, dropped) = is_ended.recv_timeout(DEADLINE).unwrap();
    assert_eq!(thread.as_deref(), Some("tidewire-lane-0"));
    assert!(dropped.is_ok(), "{dropped:?}");
    assert_eq!(request.wait().unwrap().payload(), b"the only one");
    server.wait_for("the lane of the client ends", |metrics| {
        metrics.sessions_closed() == 1
    });
    server.stop();
}
