//! Answers of an upstream reach the session that sent the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewire::address::AddressError;
use tidewire::upstream::Upstream;
use tidewire::{
    AnyCodec, Context, HandlerError, HandlerResult, Kind, Message, Moment, OwnedMessage,
    RequestError, Server, Service, SessionId,
};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::echo;

use crate::{assert_conserved, client, gateway, serve, tw1};

#[test]
fn replies_of_every_codec_find_their_way_back() {
    for name in [
        "tw1",
        "srmp",
        "srmp-rpc",
        "length-field",
        "delimited",
        "uvrpc",
    ] {
        let codec = AnyCodec::by_name(name).unwrap();
        let backend = serve(&codec, |_| echo);
        let upstream = Upstream::new(&backend.url()).unwrap();
        let server = serve(&codec, |_| gateway(&upstream));
        let clients = [(); 3].map(|()| client(&codec, &server));
        let method = match name {
            "srmp-rpc" | "uvrpc" => "ask",
            _ => "",
        };
        for round in 0..20 {
            let requests: Vec<_> = (0..50)
                .map(|number| {
                    let payload = format!("{round}/{number}");
                    let client = &clients[number % 3];
                    (
                        client.request(payload.as_bytes()).method(method).send(),
                        payload,
                    )
                })
                .collect();
            for (request, payload) in requests {
                assert_eq!(
                    request.wait().unwrap().payload(),
                    payload.as_bytes(),
                    "{name}"
                );
            }
        }
        clients.iter().for_each(|client| client.close().wait());
        let metrics = server.stop();
        assert_eq!(metrics.upstream_requests, 1_000, "{name}");
        assert_eq!(metrics.upstream_answered, 1_000, "{name}");
        assert_eq!(metrics.upstream_connections, 1, "one of the lane");
        assert_conserved(&metrics);
        backend.stop();
    }
}

#[test]
fn an_upstream_is_reached_over_every_stream() {
    let builders = [
        TestServer::over_tcp(Server::builder(), &tw1(), |_| echo),
        TestServer::over_ipc(Server::builder(), &tw1(), |_| echo),
        TestServer::over_inproc(Server::builder(), &tw1(), |_| echo),
    ];
    for backend in builders {
        let upstream = Upstream::new(&backend.url()).unwrap();
        let server =
            TestServer::over_tcp(Server::builder().lanes(2), &tw1(), |_| gateway(&upstream));
        let clients = [(); 2].map(|()| client(&tw1(), &server));
        for client in &clients {
            assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
        }
        clients.iter().for_each(|client| client.close().wait());
        let metrics = server.stop();
        assert_eq!(metrics.upstream_connections, 2, "one of each lane");
        assert_conserved(&metrics);
        backend.stop();
    }
    let udp = Upstream::new("udp://127.0.0.1:1");
    assert!(matches!(udp, Err(AddressError::Datagrams)));
    assert!(matches!(
        Upstream::new("tcp://"),
        Err(AddressError::BadPort { .. } | AddressError::Empty { .. })
    ));
}

#[test]
fn a_refusal_comes_back_with_its_code_and_text() {
    let backend = serve(&tw1(), |_| {
        |_: &mut Context<'_>, _: Message<'_>| -> HandlerResult {
            Err(HandlerError::new(ErrorCode::NotFound, "no such thing"))
        }
    });
    let upstream = Upstream::new(&backend.url()).unwrap();
    let server = serve(&tw1(), |_| gateway(&upstream));
    let client = client(&tw1(), &server);
    let error = client.request(b"?").wait().unwrap_err();
    let RequestError::Refused { code, text, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((code, &*text), (ErrorCode::NotFound, "no such thing"));
    client.close().wait();
    assert_conserved(&server.stop());
    backend.stop();
}

/// A callback has the session of the request, and may send further requests.
#[test]
fn a_callback_may_ask_another_upstream_and_send_to_its_session() {
    let backends = ["one", "two"].map(|word| {
        serve(&tw1(), move |_| {
            move |cx: &mut Context<'_>, message: Message<'_>| {
                cx.reply(&[message.payload, word.as_bytes()].concat())
            }
        })
    });
    let upstreams = [0, 1].map(|index: usize| Upstream::new(&backends[index].url()).unwrap());
    let server = serve(&tw1(), |_| {
        let [one, two] = upstreams.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| {
            let (deferred, two) = (cx.defer(), two.clone());
            let asker = cx.id();
            cx.request(&one, "", message.payload, move |cx, first| {
                assert_eq!(cx.id(), asker);
                cx.send(Message::new(Kind::OneWay, 0, b"half way")).unwrap();
                cx.request(&two, "", first.unwrap(), move |_, second| {
                    deferred.reply(second.unwrap()).unwrap();
                })
                .unwrap();
            })?;
            Ok(())
        }
    });
    let mut peer = server.peer();
    peer.send(&Message::with_id(Kind::Request, 0, 7, b"zero "));
    let heard = |message: OwnedMessage| (message.kind, message.payload);
    assert_eq!(
        heard(peer.receive().unwrap()),
        (Kind::OneWay, b"half way".to_vec())
    );
    assert_eq!(
        heard(peer.receive().unwrap()),
        (Kind::Reply, b"zero onetwo".to_vec())
    );
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.upstream_answered, 2);
    assert_conserved(&metrics);
    backends
        .map(TestServer::stop)
        .iter()
        .for_each(assert_conserved);
}

/// A service that sends one request, without a session.
struct Asks {
    upstream: Upstream,
    has_asked: bool,
    answered: Arc<AtomicU64>,
}

impl Service for Asks {
    fn on_message(&mut self, _: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
        Ok(())
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if !std::mem::replace(&mut self.has_asked, true) {
            let answered = Arc::clone(&self.answered);
            let asked = cx.request(&self.upstream, "", b"seven", move |cx, answer| {
                assert_eq!((cx.id(), answer), (SessionId::NONE, Ok(&b"seven"[..])));
                answered.store(1, Ordering::SeqCst);
            });
            assert_eq!(asked, Ok(()));
        }
        None
    }
}

#[test]
fn a_service_may_ask_for_itself_and_broadcasts_do_not_reach_its_upstream() {
    let backend = serve(&tw1(), |_| echo);
    let upstream = Upstream::new(&backend.url()).unwrap();
    let answered = Arc::new(AtomicU64::new(0));
    let server = serve(&tw1(), |_| Asks {
        upstream: upstream.clone(),
        has_asked: false,
        answered: Arc::clone(&answered),
    });
    server.wait_for("the answer", |_| answered.load(Ordering::SeqCst) == 1);
    let sessions = server.server().sessions();
    assert_eq!(sessions.list().len(), 0);
    let message = Message::new(Kind::OneWay, 0, b"all");
    let broadcast = sessions.broadcast_where(|_| true, message).unwrap();
    let report = broadcast.wait();
    assert_eq!(report.matched, 0);
    assert_eq!(backend.metrics().frames_in, 2, "a hello and a request");
    assert_conserved(&server.stop());
    backend.stop();
}
