//! Backends that do not answer, are not there, or go away.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidewire::upstream::{Upstream, UpstreamError};
use tidewire::{
    AnyCodec, Client, CloseReason, Context, Deferred, HandlerResult, Kind, Message, RequestError,
    Server,
};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::{TestServer, wait_until};

use crate::{assert_conserved, client, gateway, serve, tw1};

/// A backend that keeps its requests unanswered.
fn keeper(codec: &AnyCodec) -> (TestServer, Arc<Mutex<Vec<Deferred>>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let server = serve(codec, |_| {
        let kept = Arc::clone(&kept);
        move |cx: &mut Context<'_>, _: Message<'_>| -> HandlerResult {
            kept.lock().unwrap().push(cx.defer());
            Ok(())
        }
    });
    (server, kept)
}

fn wait_asked(kept: &Mutex<Vec<Deferred>>, count: usize) {
    wait_until("they are asked", || {
        (kept.lock().unwrap().len() == count).then_some(())
    });
}

fn refusal(client: &Client) -> (ErrorCode, String) {
    match client.request(b"?").wait().unwrap_err() {
        RequestError::Refused { code, text, .. } => (code, text),
        error => panic!("{error}"),
    }
}

#[test]
fn a_backend_that_is_down_fails_fast_and_is_asked_again_when_it_is_up() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", holder.local_addr().unwrap());
    drop(holder);
    let upstream = Upstream::new(&url)
        .unwrap()
        .pause_max(Duration::from_millis(20));
    let server = serve(&tw1(), |_| gateway(&upstream));
    let client = client(&tw1(), &server);
    for _ in 0..20 {
        let (code, text) = refusal(&client);
        assert_eq!(
            (code, &*text),
            (ErrorCode::Internal, "the upstream is down; try again later")
        );
    }
    let backend = Server::builder().listen(&url).unwrap();
    let backend = backend
        .start(|_| |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))
        .unwrap();
    wait_until("the backend is found", || client.request(b"?").wait().ok());
    client.close().wait();
    let metrics = server.stop();
    assert!(metrics.upstream_refused + metrics.upstream_failed >= 20);
    assert_conserved(&metrics);
    drop(backend);
}

#[test]
fn requests_have_a_deadline_and_late_replies_match_nothing() {
    for name in ["tw1", "srmp", "length-field"] {
        let codec = AnyCodec::by_name(name).unwrap();
        let (backend, kept) = keeper(&codec);
        let upstream = Upstream::new(&backend.url()).unwrap();
        let upstream = upstream.timeout(Duration::from_millis(50));
        let server = serve(&codec, |_| {
            let upstream = upstream.clone();
            move |cx: &mut Context<'_>, message: Message<'_>| {
                let deferred = cx.defer();
                cx.request(&upstream, "", message.payload, move |_, answer| {
                    let text = answer.map_or_else(
                        |error| error.to_string(),
                        |payload| String::from_utf8_lossy(payload).into_owned(),
                    );
                    deferred.reply(text.as_bytes()).unwrap();
                })?;
                Ok(())
            }
        });
        let client = client(&codec, &server);
        let text = UpstreamError::TimedOut.to_string();
        for _ in 0..2 {
            assert_eq!(
                client.request(b"?").wait().unwrap().payload(),
                text.as_bytes()
            );
        }
        for (number, late) in kept.lock().unwrap().drain(..).enumerate() {
            late.reply(format!("late {number}").as_bytes()).unwrap();
        }
        // The late answers are read before this request is sent, or before its own answer.
        let request = client.request(b"?").send();
        wait_asked(&kept, 1);
        let token = kept.lock().unwrap().pop().unwrap();
        token.reply(b"in time").unwrap();
        let reply = request.wait().unwrap();
        assert!(
            reply.payload() == b"in time" || reply.payload() == text.as_bytes(),
            "{name}"
        );
        client.close().wait();
        let metrics = server.stop();
        assert!(metrics.upstream_timed_out >= 2);
        assert_conserved(&metrics);
        backend.stop();
    }
}

#[test]
fn no_more_requests_are_on_their_way_than_allowed() {
    let (backend, kept) = keeper(&tw1());
    let upstream = Upstream::new(&backend.url()).unwrap().in_flight_max(3);
    let server = serve(&tw1(), |_| gateway(&upstream));
    let client = client(&tw1(), &server);
    let waiting = [(); 3].map(|()| client.request(b"?").send());
    wait_asked(&kept, 3);
    let (code, text) = refusal(&client);
    assert_eq!(
        (code, text),
        (ErrorCode::LimitReached, UpstreamError::TooMany.to_string())
    );
    for token in kept.lock().unwrap().drain(..) {
        token.reply(b"done").unwrap();
    }
    for request in waiting {
        assert_eq!(request.wait().unwrap().payload(), b"done");
    }
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(
        (metrics.upstream_requests, metrics.upstream_refused),
        (3, 1)
    );
    assert_conserved(&metrics);
    backend.stop();
}

#[test]
fn questions_of_a_session_are_withdrawn_when_it_ends() {
    let (backend, kept) = keeper(&tw1());
    let upstream = Upstream::new(&backend.url()).unwrap();
    let server = serve(&tw1(), |_| gateway(&upstream));
    let mut peer = server.peer();
    for id in 1..=5 {
        peer.send(&Message::with_id(Kind::Request, 0, id, b"?"));
    }
    wait_asked(&kept, 5);
    server.server().sessions().list()[0].close().unwrap();
    wait_until("the backend is told", || {
        let is_told = kept.lock().unwrap().iter().all(Deferred::is_cancelled);
        is_told.then_some(())
    });
    drop(peer);
    // The backend still holds unwanted requests. The gateway does not wait for it.
    let metrics = server.stop();
    kept.lock().unwrap().clear();
    assert_eq!(metrics.upstream_cancelled, 5);
    assert_conserved(&metrics);
    backend.stop();
}

#[test]
fn requests_fail_with_their_connection_and_the_next_ones_make_another() {
    let (backend, kept) = keeper(&tw1());
    // Each connection lasts longer than this, so there is no pause after it.
    let upstream = Upstream::new(&backend.url()).unwrap();
    let upstream = upstream.pause_max(Duration::ZERO);
    let server = serve(&tw1(), |_| gateway(&upstream));
    let client = client(&tw1(), &server);
    for round in 1..=3 {
        let request = client.request(b"?").send();
        wait_asked(&kept, 1);
        backend.server().sessions().list()[0].close().unwrap();
        let RequestError::Refused { code, text, .. } = request.wait().unwrap_err() else {
            panic!("no refusal");
        };
        assert_eq!(code, ErrorCode::Internal);
        let reason = UpstreamError::Closed(CloseReason::PeerClosed).to_string();
        assert_eq!(text, reason);
        kept.lock().unwrap().clear();
        server.wait_for("the connection is gone", |metrics| {
            metrics.upstream_failed == round
        });
    }
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.upstream_connections, 3);
    assert_conserved(&metrics);
    backend.stop();
}

#[test]
fn a_server_that_stops_resolves_its_requests() {
    let (backend, kept) = keeper(&tw1());
    let upstream = Upstream::new(&backend.url()).unwrap();
    let server = serve(&tw1(), |_| gateway(&upstream));
    let client = client(&tw1(), &server);
    let request = client.request(b"?").send();
    wait_asked(&kept, 1);
    let stopped = server.shutdown(Duration::ZERO);
    assert_eq!(stopped.metrics.upstream_requests, 1);
    assert_conserved(&stopped.metrics);
    assert!(request.wait().is_err());
    kept.lock().unwrap().clear();
    backend.stop();
}

/// A drain answers the accepted requests, also those that wait for an upstream.
#[test]
fn a_drain_waits_for_the_answers_of_upstreams() {
    let (backend, kept) = keeper(&tw1());
    let upstream = Upstream::new(&backend.url()).unwrap();
    let server = serve(&tw1(), |_| gateway(&upstream));
    let mut peer = server.peer();
    peer.send(&Message::with_id(Kind::Request, 0, 1, b"?"));
    wait_asked(&kept, 1);
    let draining = std::thread::spawn(move || server.shutdown(Duration::from_secs(60)));
    assert_eq!(peer.receive().unwrap().kind, Kind::GoAway);
    for token in kept.lock().unwrap().drain(..) {
        token.reply(b"at last").unwrap();
    }
    assert_eq!(peer.receive().unwrap().payload, b"at last");
    peer.finish_writing();
    assert_eq!(peer.receive(), None);
    let metrics = draining.join().unwrap().metrics;
    assert_eq!(metrics.upstream_answered, 1);
    assert_eq!(metrics.sessions_cut_off, 0);
    assert_conserved(&metrics);
    backend.stop();
}

/// Regression: where answers are matched by order, a cancelled request occupies the window until its answer comes. No
/// request was sent at that moment, so others waited until their deadlines.
#[test]
fn an_abandoned_answer_lets_the_next_request_go() {
    let codec = AnyCodec::by_name("length-field").unwrap();
    let (backend, kept) = keeper(&codec);
    let upstream = Upstream::new(&backend.url()).unwrap().in_flight_max(1);
    let server = serve(&codec, |_| gateway(&upstream));
    let hasty = client(&codec, &server);
    let given_up = hasty.request(b"first").send();
    wait_asked(&kept, 1);
    server.server().sessions().list()[0].close().unwrap();
    assert!(given_up.wait().is_err());
    server.wait_for("it is taken back", |metrics| {
        metrics.upstream_cancelled == 1
    });
    let patient = client(&codec, &server);
    let request = patient.request(b"second").send();
    server.wait_for("it waits", |metrics| metrics.upstream_requests == 2);
    for answer in [&b"late"[..], b"right"] {
        wait_until("it is asked", || {
            (!kept.lock().unwrap().is_empty()).then_some(())
        });
        let deferred = kept.lock().unwrap().remove(0);
        deferred.reply(answer).unwrap();
    }
    assert_eq!(request.wait().unwrap().payload(), b"right");
    hasty.close().wait();
    patient.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.upstream_timed_out, 0);
    assert_conserved(&metrics);
    backend.stop();
}
