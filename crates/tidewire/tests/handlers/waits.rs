//! Waits on a lane: each form fails at once with its reason, and the lane's sessions continue.

use std::time::Duration;

use tidewire::{
    Client, ConnectError, Context, HandlerResult, Message, PubSub, RequestError, RoomId, Server,
};
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::tw1;

/// Waits on the lane in the form that a message names. Answers with the error.
fn wait_as(client: &Client, cx: &mut Context<'_>, form: &[u8]) -> Option<String> {
    let text = |error: RequestError| {
        assert_eq!(error, RequestError::OnLane);
        error.to_string()
    };
    match form {
        b"connect" => {
            let error = Client::connect("tcp://127.0.0.1:1").wait().unwrap_err();
            assert!(matches!(error, ConnectError::OnLane), "{error:?}");
            Some(error.to_string())
        }
        b"call" => client.request(b"").method("slow").wait().err().map(text),
        b"request" => client.request(b"later").send().wait().err().map(text),
        b"subscribe" => client.subscribe("topic").wait().err().map(text),
        b"join" => client.join("room").named("name").wait().err().map(text),
        b"leave" => client.room(RoomId(1)).leave().wait().err().map(text),
        b"flush" => client.flush().wait().err().map(text),
        b"event" => {
            assert!(client.next_event().wait_for(Duration::ZERO).is_some());
            let _ = client.next_event().wait();
            None
        }
        b"event for" => {
            let _ = client.next_event().wait_for(Duration::from_secs(1));
            None
        }
        b"broadcast" => {
            let sessions = cx.sessions();
            let sent =
                sessions.broadcast_where(|_| false, Message::new(tidewire::Kind::OneWay, 0, b""));
            let _ = sent.unwrap().wait();
            None
        }
        b"close" => {
            client.close().wait();
            None
        }
        _ => Some("no such form".to_owned()),
    }
}

/// Regression: a wait in a handler stopped all sessions of its lane for the whole timeout, and printed nothing.
#[test]
fn a_wait_on_a_lane_fails_at_once_and_says_why() {
    let target = TestServer::over_tcp(Server::builder(), &tw1(), |_| PubSub::new());
    let client = Client::connect(&target.url()).wait().unwrap();
    let gateway = {
        let client = client.clone();
        move |cx: &mut Context<'_>, message: Message<'_>| -> HandlerResult {
            let text = wait_as(&client, cx, message.payload);
            cx.reply(text.unwrap_or_default().as_bytes())
        }
    };
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| gateway.clone());
    for form in [
        "connect",
        "call",
        "request",
        "subscribe",
        "join",
        "leave",
        "flush",
    ] {
        let mut peer = server.peer();
        peer.ask(form.as_bytes());
        let text = String::from_utf8(peer.answer().payload).unwrap();
        // The confirmation of a flush may come before the handler waits. Then there is nothing to wait for.
        let is_over = form == "flush" && text.is_empty();
        assert!(
            is_over || text.contains("this thread is a lane"),
            "{form}: {text}"
        );
    }
    // These calls have no place for an error. The panic ends only the session that waits.
    let mut bystander = server.peer();
    for (number, form) in ["event", "event for", "broadcast", "close"]
        .iter()
        .enumerate()
    {
        let mut peer = server.peer();
        peer.ask(form.as_bytes());
        peer.drain();
        server.wait_for(form, |metrics| metrics.handler_panics == number as u64 + 1);
        bystander.ask(b"still there?");
        assert_eq!(bystander.answer().payload, b"no such form");
    }
    drop(bystander);
    assert_eq!(server.stop().closed_by("handler_panicked"), 4);
    drop(client);
    target.stop();
}
