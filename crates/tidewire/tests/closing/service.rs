//! When a service may close, and what comes before the close.

use std::sync::mpsc;

use tidewire::{
    CloseReason, Context, Deferred, GoAwayCode, HandlerResult, Kind, Message, Server, Service,
};
use tidewire_proto::body::GoAwayBody;
use tidewire_testkit::fixtures::{codec, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

/// The answers and the last words of a session whose service defers, replies and closes within a few requests.
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

/// Both answers were lost: the close did not wait for the line of answers.
#[test]
fn a_reply_and_a_close_behind_a_deferred_answer_are_delivered() {
    for name in ["length-field", "delimited", "lines"] {
        let answers = said(name, |cx| cx.close());
        assert_eq!(answers, [b"later", &b"now"[..]], "{name}");
    }
    for name in ["tw1", "srmp", "srmp-rpc", "uvrpc"] {
        // Nothing waits for the first one, so it is given up.
        let answers = said(name, |cx| cx.close());
        assert_eq!(answers, [b"now"], "{name}");
    }
}

/// The words come last, and the first close counts.
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

/// What is answered later than the close is not waited for, but a reply of the same handler still goes out.
#[test]
fn a_reply_after_the_close_needs_no_place_in_line() {
    for name in ["tw1", "length-field", "lines"] {
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
        let payloads = peer.drain().into_iter().map(|message| message.payload);
        assert_eq!(payloads.collect::<Vec<_>>(), [b"now"], "{name}");
        drop(peer);
        let metrics = server.stop();
        assert_eq!((metrics.closed_by("service"), metrics.deferred), (1, 1));
    }
}

/// A text of any length is cut at a character.
#[test]
fn long_words_are_cut() {
    let mut frames = said("tw1", |cx| {
        cx.close_with(GoAwayCode::Removed, &"é".repeat(1_000));
    });
    let body = frames.pop().unwrap();
    let body = GoAwayBody::decode(&body).unwrap();
    assert_eq!(body.text, "é".repeat(127));
}

/// Closes itself and its neighbour once more while it ends.
struct Stubborn {
    neighbour: mpsc::Sender<tidewire::SessionId>,
    sessions: Vec<tidewire::SessionId>,
}

impl Service for Stubborn {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.sessions.push(cx.session());
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        cx.reply(message.payload)
    }

    fn on_close(&mut self, cx: &mut Context<'_>, _: CloseReason) {
        cx.close();
        cx.close_with(GoAwayCode::Removed, "once more");
        let id = cx.session();
        assert!(
            cx.sessions()
                .close_with(id, GoAwayCode::Removed, "")
                .is_ok()
        );
        for session in self.sessions.drain(..) {
            cx.close_session_with(session, GoAwayCode::Other(4_000), "with it");
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
