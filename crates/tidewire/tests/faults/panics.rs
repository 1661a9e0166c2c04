//! A handler that panics: only its session ends, with a count and a reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tidewire::{
    Client, CloseReason, Context, GoAwayCode, HandlerResult, Kind, Message, Moment, ServeError,
    Server, ServerBuilder, Service,
};
use tidewire_testkit::TestServer;

use crate::{last_words, tw1};

/// Counts its messages, answers with the count, and panics in the hook that a message names.
#[derive(Clone, Default)]
struct Fragile {
    handled: u32,
    /// Shared, so that it outlives what a panic tears.
    turns_panic: Arc<AtomicBool>,
    closed: Arc<AtomicU32>,
    begins_anew: bool,
}

impl Service for Fragile {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        assert_ne!(cx.lane(), 1, "no session opens on this lane");
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self.handled += 1;
        match message.payload {
            b"panic" => panic!("told to"),
            b"timer" => cx.timers().set(Duration::ZERO, 7).map(drop)?,
            b"lane timer" => cx.timers().set_for_lane(Duration::ZERO, 7).map(drop)?,
            b"turns" => self.turns_panic.store(true, Ordering::Relaxed),
            b"state" => drop(cx.set_state(Bomb)),
            b"bye" => cx.close(),
            _ => {}
        }
        cx.reply(self.handled.to_string().as_bytes())
    }

    fn on_timer(&mut self, _: &mut Context<'_>, token: u64) {
        panic!("timer {token}");
    }

    fn on_close(&mut self, _: &mut Context<'_>, reason: CloseReason) {
        self.closed.fetch_add(1, Ordering::Relaxed);
        assert_ne!(reason, CloseReason::Service, "told to by a good-bye");
    }

    fn on_panic(&mut self, _: &mut Context<'_>) {
        if self.begins_anew {
            self.handled = 0;
        }
    }

    fn on_turn(&mut self, _: &mut Context<'_>) -> Option<Moment> {
        assert!(!self.turns_panic.load(Ordering::Relaxed), "in each turn");
        None
    }
}

/// State of a session that panics when the session drops it.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("it is dropped");
    }
}

/// Regression: one handler that panicked ended its lane, with all sessions of the server.
#[test]
fn a_handler_that_panics_ends_its_session_after_the_answers_before_and_no_other_session() {
    type Over = fn(ServerBuilder, &tidewire::AnyCodec, fn(usize) -> Fragile) -> TestServer;
    let over: [Over; 3] = [
        TestServer::over_tcp,
        TestServer::over_ipc,
        TestServer::over_udp,
    ];
    for over in over {
        let server = over(Server::builder(), &tw1(), |_| Fragile::default());
        let mut bystander = server.peer();
        bystander.ask(b"first");
        assert_eq!(bystander.answer().payload, b"1");
        let before = server.wait_for("it is counted", |metrics| metrics.frames_in > 0);
        let mut peer = server.peer();
        let mut frames = Vec::new();
        // Four equal headers in a row, so that the last ones are predicted.
        for payload in [b"12345", b"12345", b"12345", b"panic", b"never"] {
            frames.extend(peer.request_frame(payload));
        }
        peer.write(&frames);
        let heard = peer.drain();
        let replies = heard.iter().filter(|frame| frame.kind == Kind::Reply);
        let replies: Vec<_> = replies.map(|frame| frame.payload.clone()).collect();
        assert_eq!(replies, [b"2", b"3", b"4"], "{}: {heard:?}", server.url());
        assert_eq!(last_words(&heard), Some(GoAwayCode::Shutdown));
        bystander.ask(b"again");
        assert_eq!(bystander.answer().payload, b"6", "the service goes on");
        drop((peer, bystander));
        let stopped = server.stop_unchecked();
        assert!(stopped.failures.is_empty(), "{:?}", stopped.failures);
        let metrics = stopped.metrics;
        assert_eq!(metrics.handler_panics, 1);
        assert_eq!(metrics.closed_by("handler_panicked"), 1);
        assert_eq!(metrics.closed_by("lane_failed"), 0);
        assert_eq!(metrics.sessions_opened, metrics.sessions_closed());
        // One frame of the bystander; of the peer a hello, perhaps the answer to a challenge, and five requests.
        let frames = metrics.frames_in - before.frames_in;
        assert!((7..=9).contains(&frames), "{frames} frames");
    }
}

#[test]
fn a_service_that_may_be_torn_begins_anew() {
    for (begins_anew, expected) in [(false, b"3"), (true, b"1")] {
        let fragile = Fragile {
            begins_anew,
            ..Fragile::default()
        };
        let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| fragile.clone());
        let mut peer = server.peer();
        peer.ask(b"first");
        assert_eq!(peer.answer().payload, b"1");
        peer.ask(b"panic");
        peer.drain();
        let mut next = server.peer();
        next.ask(b"how many?");
        assert_eq!(next.answer().payload, expected);
        drop(next);
        server.stop();
    }
}

#[test]
fn a_panic_of_any_hook_ends_no_other_session() {
    for payload in [&b"timer"[..], b"lane timer", b"bye", b"state"] {
        let fragile = Fragile::default();
        let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| fragile.clone());
        let mut bystander = server.peer();
        let mut peer = server.peer();
        peer.ask(payload);
        assert_eq!(peer.answer().payload, b"1");
        // State is dropped when its session ends.
        let peer = Some(peer).filter(|_| payload != b"state");
        let what = String::from_utf8_lossy(payload);
        server.wait_for(&what, |metrics| metrics.handler_panics == 1);
        drop(peer);
        server.wait_for("the end", |metrics| metrics.sessions_closed() == 1);
        bystander.ask(b"still there?");
        assert_eq!(bystander.answer().payload, b"2");
        assert_eq!(fragile.closed.load(Ordering::Relaxed), 1);
        drop(bystander);
        server.stop();
    }
}

#[test]
fn a_panic_at_the_opening_ends_the_session_that_opens() {
    let builder = Server::builder().lanes(2);
    let server = TestServer::over_tcp(builder, &tw1(), |_| Fragile::default());
    // Connections go to both lanes.
    let clients = [(); 2].map(|()| Client::connect(&server.url()).wait());
    server.wait_for("the panic", |metrics| {
        metrics.closed_by("handler_panicked") == 1
    });
    let [one, other] = clients.map(|client| client.map(|it| it.request(b"here?").wait()));
    let answered = [one, other]
        .into_iter()
        .filter(|it| matches!(it, Ok(Ok(_))));
    assert_eq!(answered.count(), 1);
    assert!(server.server().is_running());
    server.stop();
}

/// Regression: a program whose only lane had failed ended with success, because the failure was in a value that `?`
/// drops.
#[test]
fn a_lane_whose_turns_panic_again_and_again_ends_and_waiting_for_it_is_an_error() {
    let fragile = Fragile::default();
    let server = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let server = server.start(|_| fragile.clone()).unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    // The reply is written at the end of the turn that panics, or never.
    let _ = client.request(b"turns").wait();
    let error = server.wait().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("in each turn") && text.contains("start the server again"),
        "{text}"
    );
    let ServeError::LaneFailed { stopped } = error else {
        unreachable!("{text}");
    };
    assert_eq!(stopped.failures.len(), 1);
    assert_eq!(stopped.metrics.handler_panics, 3);
    assert_eq!(stopped.metrics.closed_by("lane_failed"), 1);
}
