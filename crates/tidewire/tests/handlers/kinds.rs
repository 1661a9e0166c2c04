//! Services that implement a method for each kind instead of one method for all.

use tidewire::{AnyCodec, Context, HandlerResult, Kind, Message, RequestError, Server, Service};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::fixtures::{codec, tw1};
use tidewire_testkit::{Peer, TestServer};

struct Requests;

impl Service for Requests {
    fn on_request(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        assert_eq!(message.kind, Kind::Request);
        cx.reply(b"a request")
    }
}

struct OneWays;

impl Service for OneWays {
    fn on_one_way(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        assert_eq!(message.kind, Kind::OneWay);
        Ok(cx.send(Message::new(Kind::OneWay, 0, b"a message"))?)
    }
}

/// A service without any method.
struct Mute;

impl Service for Mute {}

fn serve<S: Service>(codec: &AnyCodec, make: impl FnMut(usize) -> S) -> TestServer {
    TestServer::over_tcp(Server::builder(), codec, make)
}

fn refused_code(peer: &mut Peer) -> ErrorCode {
    let answer = peer.receive().unwrap();
    assert_eq!(answer.kind, Kind::Error);
    let body = tidewire_proto::body::ErrorBody::decode(&answer.payload).unwrap();
    body.code
}

#[test]
fn a_service_of_requests_refuses_and_counts_the_other_kinds() {
    let server = serve(&tw1(), |_| Requests);
    let mut peer = server.peer();
    peer.send(&Message::new(Kind::OneWay, 0, b"nobody takes this"));
    peer.ask(b"hello");
    assert_eq!(peer.answer().payload, b"a request");
    assert_eq!(server.metrics().refused, 1);
    // Another kind gets a typed error, with its own id.
    peer.send(&Message::with_id(Kind::Subscribe, 0, 7, b"\x00a.b"));
    assert_eq!(refused_code(&mut peer), ErrorCode::Unsupported);
    assert_eq!(server.metrics().refused, 2);
    drop(peer);
    server.stop();
}

#[test]
fn a_service_of_one_way_messages_refuses_requests_with_a_typed_error() {
    let server = serve(&tw1(), |_| OneWays);
    let client = tidewire::Client::connect(&server.url()).wait().unwrap();
    match client.request(b"hello").wait() {
        Err(RequestError::Refused { code, text, .. }) => {
            assert_eq!(code, ErrorCode::Unsupported);
            assert_eq!(text, "this service takes no requests");
        }
        other => panic!("{other:?}"),
    }
    client.close().wait();
    let mut peer = server.peer();
    peer.send(&Message::new(Kind::OneWay, 0, b"hello"));
    assert_eq!(peer.receive().unwrap().payload, b"a message");
    drop(peer);
    assert_eq!(server.stop().refused, 1);
}

/// In codecs without kinds the sender may wait for an answer, so a refusal is sent.
#[test]
fn messages_of_codecs_without_kinds_are_one_way() {
    let server = serve(&codec("lines"), |_| OneWays);
    let mut peer = server.peer();
    peer.write(b"hello\n");
    peer.expect_text("a message\n");
    drop(peer);
    server.stop();

    let server = serve(&codec("lines"), |_| Requests);
    let mut peer = server.peer();
    peer.write(b"hello\n");
    peer.expect_text("! this service takes no one-way messages\n");
    drop(peer);
    assert_eq!(server.stop().refused, 1);
}

#[test]
fn a_service_without_any_method_refuses_everything() {
    let server = serve(&tw1(), |_| Mute);
    let mut peer = server.peer();
    peer.ask(b"hello");
    assert_eq!(refused_code(&mut peer), ErrorCode::Unsupported);
    drop(peer);
    assert_eq!(server.stop().refused, 1);
}

#[test]
fn a_closure_handles_every_kind_whichever_method_is_called() {
    struct Inner<S>(S);
    impl<S: Service> Service for Inner<S> {
        fn on_request(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
            self.0.on_request(cx, message)
        }
        fn on_one_way(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
            self.0.on_one_way(cx, message)
        }
    }
    let echo = |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload);
    let server = serve(&tw1(), |_| Inner(echo));
    let mut peer = server.peer();
    peer.ask(b"hello");
    assert_eq!(peer.answer().payload, b"hello");
    peer.send(&Message::new(Kind::OneWay, 0, b"again"));
    assert_eq!(peer.receive().unwrap().payload, b"again");
    drop(peer);
    assert_eq!(server.stop().refused, 0);
}
