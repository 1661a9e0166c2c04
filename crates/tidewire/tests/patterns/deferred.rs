//! Deferred answers: every way they can end, each counted.

use std::time::Duration;

use tidewire::{
    CloseReason, Context, HandlerError, HandlerResult, Kind, Message, RequestError, Server,
};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::{DEADLINE, TestServer, assert_conserved};

use crate::{CODECS, Desk, ask, client_of, codec, echo, limited};

#[test]
fn an_answer_from_another_thread_wakes_the_lane() {
    let desk = Desk::open("tw1");
    let client = client_of(&desk.server, "tw1");
    for round in 0..20_u8 {
        let request = client.request(&[round]).send();
        let (deferred, payload) = desk.take();
        assert!(!deferred.is_cancelled());
        deferred.reply(&payload).unwrap();
        assert_eq!(request.wait().unwrap().payload(), [round]);
    }
    client.close().wait();
    let metrics = desk.server.stop();
    assert_eq!((metrics.deferred, metrics.deferred_answered), (20, 20));
}

#[test]
fn a_token_dropped_without_an_answer_answers_with_an_error() {
    for name in CODECS {
        let desk = Desk::open(name);
        let client = client_of(&desk.server, name);
        let request = ask(&client, name, b"hello");
        drop(desk.take());
        match (name, request.wait()) {
            // The codec cannot express an error, so the connection has to end.
            ("length-field" | "delimited", result) => {
                assert!(matches!(result, Err(RequestError::Closed(_))), "{result:?}");
            }
            ("lines", result) => {
                let payload = result.unwrap().into_payload();
                assert_eq!(payload, b"! the request was given up without an answer");
            }
            ("srmp", Err(RequestError::Refused { text, .. })) => {
                assert_eq!(text, "the request was given up without an answer");
            }
            (_, Err(RequestError::Refused { code, .. })) => {
                assert_eq!(code, ErrorCode::Internal, "{name}");
            }
            (_, result) => panic!("{name}: {result:?}"),
        }
        client.close().wait();
        desk.server.stop();
    }
}

#[test]
fn an_error_is_given_by_code_and_text() {
    let desk = Desk::open("tw1");
    let client = client_of(&desk.server, "tw1");
    let request = client.request(b"hello").send();
    desk.take().0.refuse(ErrorCode::Draining, "not now");
    let refused = RequestError::Refused {
        code: ErrorCode::Draining,
        number: 10,
        text: "not now".to_owned(),
    };
    assert_eq!(request.wait(), Err(refused));
    client.close().wait();
    desk.server.stop();
}

#[test]
fn an_answer_to_a_session_that_ended_is_counted() {
    let desk = Desk::open("tw1");
    let mut peer = desk.server.peer();
    peer.ask(b"hello");
    let (deferred, _) = desk.take();
    peer.into_wire().vanish().unwrap();
    desk.server
        .wait_for("the session ends", |metrics| metrics.sessions_closed() == 1);
    assert!(deferred.is_cancelled());
    deferred.reply(b"too late").unwrap();
    desk.server
        .wait_for("it is counted", |metrics| metrics.deferred_undelivered == 1);
    assert_eq!(desk.server.stop().deferred_answered, 0);
}

#[test]
fn a_request_dropped_by_its_caller_is_cancelled() {
    let desk = Desk::open("tw1");
    let client = client_of(&desk.server, "tw1");
    let request = client.request(b"never mind").send();
    let (deferred, _) = desk.take();
    assert!(!deferred.is_cancelled());
    drop(request);
    // Check the token itself: the counter may change earlier or later.
    desk.server
        .wait_for("the cancel arrives", |_| deferred.is_cancelled());
    deferred.reply(b"too late").unwrap();
    let request = client.request(b"hello").send();
    let (deferred, _) = desk.take();
    assert!(!deferred.is_cancelled(), "a token used again starts anew");
    deferred.reply(b"in time").unwrap();
    assert_eq!(request.wait().unwrap().payload(), b"in time");
    assert_eq!(client.metrics().replies_unmatched, 0);
    client.close().wait();
    let metrics = desk.server.stop();
    assert_eq!(
        (metrics.deferred_answered, metrics.deferred_undelivered),
        (1, 1)
    );
    assert_eq!(metrics.requests_cancelled, 1);
}

/// A cancel for an unknown id must have no effect, and must not reach a service that would echo it.
#[test]
fn a_cancel_of_nothing_is_counted_and_ignored() {
    let server = TestServer::over_tcp(Server::builder(), &codec("tw1"), |_| echo);
    let mut peer = server.peer();
    for id in 0..1000 {
        peer.send(&Message::with_id(Kind::Cancel, 0, id, b""));
    }
    peer.ask(b"hello");
    assert_eq!(peer.answer().payload, b"hello");
    drop(peer);
    assert_eq!(server.stop().requests_cancelled, 1000);
}

/// Two replies with one id could be matched either way, so the session ends instead.
#[test]
fn an_id_that_is_still_waiting_cannot_be_used_again() {
    for name in ["tw1", "srmp", "srmp-rpc", "uvrpc"] {
        let desk = Desk::open(name);
        let mut peer = desk.server.peer();
        let request = |id| Message::with_id(Kind::Request, 0, id, b"hello");
        peer.send(&request(7));
        peer.send(&request(8));
        let (first, second) = (desk.take(), desk.take());
        // The request is answered, so its id is free again.
        second.0.reply(b"eight").unwrap();
        assert_eq!(peer.answer().id, 8, "{name}");
        peer.send(&request(8));
        let (again, _) = desk.take();
        peer.send(&request(7));
        let (reused, _) = desk.take();
        assert!(reused.is_cancelled(), "{name}");
        desk.server
            .wait_for("the session ends", |metrics| metrics.sessions_closed() == 1);
        assert!(again.is_cancelled() && first.0.is_cancelled(), "{name}");
        for deferred in [first.0, again, reused] {
            deferred.reply(b"to nobody").unwrap();
        }
        assert!(peer.drain().iter().all(|last| last.kind == Kind::GoAway));
        drop(peer);
        let Desk { server, .. } = desk;
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("request_id_reused"), 1, "{name}");
        let sums = (metrics.deferred, metrics.deferred_answered);
        assert_eq!((sums, metrics.deferred_undelivered), ((4, 1), 3), "{name}");
    }
}

/// A caller that cancels a request may reuse its id at once.
#[test]
fn a_cancelled_id_may_be_used_again() {
    let desk = Desk::open("tw1");
    let mut peer = desk.server.peer();
    let request = Message::with_id(Kind::Request, 0, 7, b"hello");
    peer.send(&request);
    let (cancelled, _) = desk.take();
    peer.send(&Message::with_id(Kind::Cancel, 0, 7, b""));
    peer.send(&request);
    let (wanted, _) = desk.take();
    assert!(cancelled.is_cancelled());
    // The answer to the first request must not remove the second request.
    cancelled.reply(b"unwanted").unwrap();
    wanted.reply(b"wanted").unwrap();
    assert_eq!(peer.answer().payload, b"wanted");
    drop(peer);
    let metrics = desk.server.stop();
    let sums = (metrics.deferred_answered, metrics.deferred_undelivered);
    assert_eq!(sums, (1, 1));
}

#[test]
fn a_session_with_many_unanswered_requests_is_not_read() {
    const REQUESTS: u8 = 100;
    const LIMIT: usize = 4;
    for name in ["tw1", "lines", "srmp"] {
        let builder = limited(|limits| {
            limits.connections.set_deferred_max(LIMIT);
        });
        let desk = Desk::with(builder, name);
        let mut peer = desk.server.peer();
        let frames: Vec<u8> = (0..REQUESTS)
            .flat_map(|number| peer.request_frame(&[b'a' + number % 26]))
            .collect();
        peer.write(&frames);
        let mut held: Vec<_> = (0..LIMIT).map(|_| desk.take()).collect();
        desk.server
            .wait_for("reading pauses", |metrics| metrics.reads_paused == 1);
        assert!(desk.taken.try_recv().is_err(), "{name}: no more is read");
        for number in 0..REQUESTS {
            let (deferred, payload) = held.remove(0);
            deferred.reply(&payload).unwrap();
            assert_eq!(peer.receive().unwrap().payload, [b'a' + number % 26]);
            if usize::from(number) + LIMIT < usize::from(REQUESTS) {
                held.push(desk.take());
            }
            assert!(desk.taken.try_recv().is_err(), "{name}: never above it");
        }
        drop(peer);
        desk.server.stop();
    }
}

#[test]
fn a_peer_that_ends_its_side_still_gets_its_replies() {
    for name in ["tw1", "lines"] {
        let desk = Desk::open(name);
        let mut peer = desk.server.peer();
        peer.ask(b"one");
        peer.ask(b"two");
        peer.finish_writing();
        let (first, second) = (desk.take(), desk.take());
        // After two requests of another session, the lane has processed this one's end.
        let mut other = desk.server.peer();
        for _ in 0..2 {
            other.ask(b"more");
            desk.take().0.reply(b"done").unwrap();
            other.answer();
        }
        drop(other);
        second.0.reply(b"2").unwrap();
        first.0.reply(b"1").unwrap();
        let mut answers = [peer.receive().unwrap(), peer.receive().unwrap()].map(|it| it.payload);
        answers.sort();
        assert_eq!(answers, [b"1", b"2"], "{name}");
        assert_eq!(peer.receive(), None, "{name}: then it ends");
        let metrics = desk.server.stop();
        assert_eq!(metrics.closed_by("peer_closed"), 2, "{name}");
    }
}

/// A draining server answers the requests that it has accepted.
#[test]
fn a_shutdown_waits_for_deferred_answers() {
    for name in CODECS {
        let desk = Desk::open(name);
        let client = client_of(&desk.server, name);
        let request = ask(&client, name, b"hello");
        let (deferred, _) = desk.take();
        let server = desk.server;
        let stopping = std::thread::spawn(move || server.stop_unchecked());
        // The answer must arrive, whether the drain has begun or not.
        std::thread::yield_now();
        deferred.reply(b"done").unwrap();
        assert_eq!(request.wait().unwrap().payload(), b"done", "{name}");
        let stopped = stopping.join().unwrap();
        assert_conserved(&stopped);
        assert_eq!(stopped.metrics.deferred_answered, 1, "{name}");
        drop(client);
    }
}

/// The same with an answer that comes after the drain has begun.
#[test]
fn a_draining_lane_keeps_a_session_that_is_owed_an_answer() {
    for name in ["tw1", "lines"] {
        let desk = Desk::open(name);
        let mut peer = desk.server.peer();
        peer.ask(b"hello");
        let (deferred, _) = desk.take();
        let address = desk.server.wire();
        let server = desk.server;
        let stopping = std::thread::spawn(move || server.stop_unchecked());
        // The drain closes the idle session, which shows that the drain has begun.
        let mut bystander = tidewire_testkit::Peer::silent(address, &codec(name));
        bystander.drain();
        if name == "tw1" {
            assert_eq!(peer.receive().unwrap().kind, Kind::GoAway);
            peer.finish_writing();
        }
        deferred.reply(b"done").unwrap();
        assert_eq!(peer.receive().unwrap().payload, b"done", "{name}");
        assert_eq!(peer.receive(), None, "{name}");
        drop((peer, bystander));
        assert_conserved(&stopping.join().unwrap());
    }
}

#[test]
fn an_answer_that_fits_no_frame_is_an_error_on_both_sides() {
    let desk = Desk::with(
        limited(|limits| {
            limits.connections.set_frame_bytes_max(600);
        }),
        "tw1",
    );
    let client = client_of(&desk.server, "tw1");
    let request = client.request(b"much?").send();
    assert!(desk.take().0.reply(&[7; 600]).is_err());
    let refused = request.wait();
    let code = ErrorCode::Internal;
    assert!(
        matches!(&refused, Err(RequestError::Refused { code: is, .. }) if *is == code),
        "{refused:?}"
    );
    client.close().wait();
    desk.server.stop();
}

/// A request gets one answer, from the token, also if the handler returns another.
#[test]
fn a_handler_that_fails_after_deferring_answers_once() {
    let fails = |cx: &mut Context<'_>, _: Message<'_>| -> HandlerResult {
        cx.defer().refuse(ErrorCode::LimitReached, "by the token");
        Err(HandlerError::new(ErrorCode::Internal, "by the handler"))
    };
    let server = TestServer::over_tcp(Server::builder(), &codec("tw1"), |_| fails);
    let mut peer = server.peer();
    peer.ask(b"one");
    peer.ask(b"two");
    peer.finish_writing();
    let answers = peer.drain();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(
        answers
            .iter()
            .all(|answer| answer.payload.ends_with(b"by the token"))
    );
    drop(peer);
    assert_eq!(server.stop().refused, 2);
}

/// In a codec without ids and errors, a refusal ends the session, but only after the answers to earlier requests.
#[test]
fn a_refusal_without_words_waits_for_its_turn() {
    let (sender, taken) = std::sync::mpsc::channel();
    let mut service = Some(move |cx: &mut Context<'_>, message: Message<'_>| {
        if message.payload == b"refuse" {
            return Err(HandlerError::new(ErrorCode::NotFound, "no"));
        }
        sender.send(cx.defer()).unwrap();
        Ok(())
    });
    let server = TestServer::over_tcp(Server::builder(), &codec("length-field"), |_| {
        service.take().unwrap()
    });
    let mut peer = server.peer();
    for payload in [&b"one"[..], b"two", b"refuse", b"three"] {
        peer.ask(payload);
    }
    let first = taken.recv_timeout(DEADLINE).unwrap();
    let second = taken.recv_timeout(DEADLINE).unwrap();
    server.wait_for("the refusal", |metrics| metrics.refused == 1);
    first.reply(b"1").unwrap();
    second.reply(b"2").unwrap();
    let payloads: Vec<_> = peer.drain().into_iter().map(|it| it.payload).collect();
    assert_eq!(payloads, [b"1", b"2"]);
    assert!(taken.try_recv().is_err(), "nothing after it was handled");
    drop(peer);
    let metrics = server.stop();
    let closed = CloseReason::Service.name();
    assert_eq!(metrics.closed_by(closed), 1);
}

/// A token that outlives its server is harmless.
#[test]
fn an_answer_after_the_end_of_the_server_goes_nowhere() {
    let desk = Desk::open("tw1");
    let client = client_of(&desk.server, "tw1");
    let request = client.request(b"hello").send();
    let (deferred, _) = desk.take();
    let Desk { server, taken } = desk;
    client.close().wait();
    assert!(request.wait().is_err());
    // Dropped instead of shut down: a shutdown would wait for the answer until its deadline.
    drop((server, taken));
    assert!(deferred.is_cancelled());
    deferred.reply(b"anyone?").unwrap();
}

#[test]
fn nothing_is_deferred_for_longer_than_the_idle_timeout_of_a_peer_that_left() {
    let builder = limited(|limits| {
        limits
            .connections
            .set_idle_timeout_without_heartbeat(Duration::from_millis(50));
    });
    let desk = Desk::with(builder, "lines");
    let mut peer = desk.server.peer();
    peer.ask(b"hello");
    peer.finish_writing();
    let (deferred, _) = desk.take();
    desk.server
        .wait_for("it is closed", |metrics| metrics.sessions_closed() == 1);
    assert!(deferred.is_cancelled());
    drop(deferred);
    let metrics = desk
        .server
        .wait_for("it is counted", |metrics| metrics.deferred_undelivered == 1);
    assert_eq!(metrics.closed_by("idle_timeout"), 1);
    drop(peer);
    desk.server.stop();
}
