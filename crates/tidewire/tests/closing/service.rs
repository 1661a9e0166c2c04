//! Services that close sessions: when they may, and which replies come before the end.

use std::sync::mpsc;

use tidewire::{
    CloseReason, Context, Deferred, GoAwayCode, HandlerResult, Kind, Message, OwnedMessage, Server,
    Service,
};
use tidewire_proto::body::GoAwayBody;
use tidewire_testkit::fixtures::{codec, tw1};
use tidewire_testkit::{DEADLINE, TestServer, wait_until};

/// Returns the replies and the farewell of a session with a service that defers, replies and closes within a few
/// requests.
fn said(name: &str, close: fn(&mut Context<'_>)) -> Vec<Vec<u8>> {
    let (sender, taken) = mpsc::channel::<Option<Deferred>>();
    let server = TestServer::over_tcp(Server::builder(), &codec(name), move |_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            if message.payload == b"later" {
                sender.send(Some(cx.defer())).unwrap();
                return Ok(());
            }
            cx.reply(message.payload)?;
            close(cx);
            sender.send(None).unwrap();
            Ok(())
        }
    });
    let mut peer = server.peer();
    for payload in [&b"later"[..], b"now", b"after the close"] {
        peer.ask(payload);
    }
    let deferred = taken.recv_timeout(DEADLINE).unwrap();
    assert!(taken.recv_timeout(DEADLINE).unwrap().is_none());
    deferred.unwrap().reply(b"later").unwrap();
    let payloads = peer.drain().into_iter().map(|message| message.payload);
    let payloads = payloads.collect();
    assert!(taken.try_recv().is_err(), "nothing after it was handled");
    drop(peer);
    assert_eq!(server.stop().closed_by("service"), 1);
    payloads
}

/// Regression: both answers were lost, because the close did not wait for queued answers.
#[test]
fn a_reply_and_a_close_after_a_deferred_answer_are_delivered() {
    for name in ["length-field", "delimited", "lines"] {
        let answers = said(name, |cx| cx.close());
        assert_eq!(answers, [b"later", &b"now"[..]], "{name}");
    }
    for name in ["tw1", "srmp", "srmp-rpc", "uvrpc"] {
        // No answer is queued after the first request, so the request is given up.
        let answers = said(name, |cx| cx.close());
        assert_eq!(answers, [b"now"], "{name}");
    }
}

/// The farewell is the last frame, and only the first close has an effect.
#[test]
fn the_first_words_of_two_are_the_last() {
    let mut frames = said("tw1", |cx| {
        cx.close_with(GoAwayCode::Other(4_000), "first");
        cx.close_with(GoAwayCode::Removed, "second");
        cx.close();
    });
    let body = frames.pop().unwrap();
    let body = GoAwayBody::decode(&body).unwrap();
    assert_eq!((body.code, body.text), (GoAwayCode::Other(4_000), "first"));
    assert_eq!(frames, [b"now"]);
}

/// Regression: without ids the reply was taken for the answer to a request that the close had given up.
#[test]
fn a_reply_after_the_close_is_not_taken_for_an_earlier_one() {
    for (name, expected) in [("tw1", &["now"][..]), ("length-field", &[]), ("lines", &[])] {
        let server = TestServer::over_tcp(Server::builder(), &codec(name), |_| {
            let mut kept = None;
            move |cx: &mut Context<'_>, message: Message<'_>| {
                if message.payload == b"later" {
                    kept = Some(cx.defer());
                    return Ok(());
                }
                cx.close();
                assert!(kept.as_ref().is_some_and(Deferred::is_cancelled));
                cx.reply(message.payload)
            }
        });
        let mut peer = server.peer();
        peer.ask(b"later");
        peer.ask(b"now");
        assert_eq!(texts(peer.drain()), expected, "{name}");
        drop(peer);
        let metrics = server.stop();
        assert_eq!((metrics.closed_by("service"), metrics.deferred), (1, 1));
    }
}

/// Regression: the late answer to a request that a close had given up replaced another reply.
#[test]
fn a_late_answer_to_a_request_given_up_takes_no_place_in_line() {
    let (sender, taken) = mpsc::channel::<Deferred>();
    let server = TestServer::over_tcp(Server::builder(), &codec("length-field"), move |_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            match message.payload {
                b"first" | b"given up" => sender.send(cx.defer()).unwrap(),
                b"last" => {
                    cx.close();
                    cx.reply(b"last")?;
                }
                payload => cx.reply(payload)?,
            }
            Ok(())
        }
    });
    let mut peer = server.peer();
    for payload in ["first", "second", "given up", "last"] {
        peer.ask(payload.as_bytes());
    }
    let [first, given_up] = [(); 2].map(|()| taken.recv_timeout(DEADLINE).unwrap());
    wait_until("it is given up", || given_up.is_cancelled().then_some(()));
    // This thread sends both answers, so they arrive in this order.
    given_up.reply(b"given up").unwrap();
    first.reply(b"first").unwrap();
    assert_eq!(texts(peer.drain()), ["first", "second"]);
    drop(peer);
    let metrics = server.stop();
    let answers = (metrics.deferred_answered, metrics.deferred_undelivered);
    assert_eq!((metrics.deferred, answers), (2, (1, 1)));
}

fn texts(messages: Vec<OwnedMessage>) -> Vec<String> {
    let payloads = messages.into_iter().map(|message| message.payload);
    payloads
        .map(|payload| String::from_utf8(payload).unwrap())
        .collect()
}

/// A text of any length is cut at a character boundary.
#[test]
fn long_words_are_cut() {
    let mut frames = said("tw1", |cx| {
        cx.close_with(GoAwayCode::Removed, &"é".repeat(1_000));
    });
    let body = frames.pop().unwrap();
    let body = GoAwayBody::decode(&body).unwrap();
    assert_eq!(body.text, "é".repeat(127));
}

/// Closes itself and its neighbour again while it ends.
struct Stubborn {
    neighbour: mpsc::Sender<tidewire::SessionId>,
    sessions: Vec<tidewire::SessionId>,
}

impl Service for Stubborn {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.sessions.push(cx.id());
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        cx.reply(message.payload)
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        cx.close();
        cx.close_with(GoAwayCode::Removed, "once more");
        let id = cx.id();
        assert!(
            cx.sessions()
                .close_with(id, GoAwayCode::Removed, "")
                .is_ok()
        );
        for session in self.sessions.drain(..) {
            let code = GoAwayCode::Other(4_000);
            cx.sessions().close_with(session, code, "with it").unwrap();
        }
        self.neighbour.send(id).unwrap();
    }
}

#[test]
fn a_close_from_inside_on_close_does_nothing_to_a_session_that_has_ended() {
    let (neighbour, ended) = mpsc::channel();
    let builder = Server::builder().lanes(1);
    let server = TestServer::over_tcp(builder, &tw1(), move |_| Stubborn {
        neighbour: neighbour.clone(),
        sessions: Vec::new(),
    });
    let (mut first, mut second) = (server.peer(), server.peer());
    for peer in [&mut first, &mut second] {
        peer.ask(b"here");
        peer.answer();
    }
    drop(first);
    let last = second.drain().pop().unwrap();
    assert_eq!(last.kind, Kind::GoAway, "it was closed by its neighbour");
    let body = GoAwayBody::decode(&last.payload).unwrap();
    assert_eq!(body.text, "with it");
    let ids = [(); 2].map(|()| ended.recv_timeout(DEADLINE).unwrap());
    assert_ne!(ids[0], ids[1], "each ended once");
    drop(second);
    let metrics = server.stop();
    assert_eq!(metrics.sessions_closed(), 2);
    assert_eq!(metrics.closed_by("service"), 1);
}
