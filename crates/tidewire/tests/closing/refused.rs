//! Servers that refuse a connection for good before it is open.

use std::io::ErrorKind;
use std::net::TcpListener;

use tidewire::{
    Client, CloseReason, ConnectError, Event, GoAwayCode, Kind, Message, RequestError, Server,
};
use tidewire_proto::body::GoAwayBody;
use tidewire_testkit::fixtures::{echo, tw1};
use tidewire_testkit::{DEADLINE, Peer, TestServer, Wire};

use crate::{event, persistent};

/// Answers the next hello with a go-away, and reads until the client closes.
fn refuse_one(listener: &TcpListener, code: GoAwayCode) {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut peer = Peer::silent(Wire::Tcp(stream), &tw1());
    assert_eq!(peer.receive().unwrap().kind, Kind::Hello);
    let mut body = Vec::new();
    GoAwayBody { code, text: "spam" }.encode(&mut body);
    peer.send(&Message::new(Kind::GoAway, 0, &body));
    peer.finish_writing();
    peer.drain();
}

fn assert_no_client_returned(listener: &TcpListener) {
    listener.set_nonblocking(true).unwrap();
    let next = listener.accept().unwrap_err();
    assert_eq!(next.kind(), ErrorKind::WouldBlock);
}

fn assert_refused<T: std::fmt::Debug>(result: Result<T, RequestError>) {
    match result.unwrap_err() {
        RequestError::CannotConnect { cause } => assert!(cause.contains("spam"), "{cause}"),
        other => panic!("{other:?}"),
    }
}

/// Regression: the client ended without an event, and pending requests failed with the error that the client was shut
/// down.
#[test]
fn a_lazy_client_that_is_refused_for_good_tells_why() {
    for code in [GoAwayCode::Removed, GoAwayCode::Other(4_500)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = Client::builder().connect_lazy(&address).unwrap();
        client.send(b"offered").unwrap();
        let once = client.request(b"once").send();
        let again = client.request(b"again").idempotent().send();
        let subscription = client.subscribe("a").send();
        refuse_one(&listener, code);
        assert_refused(once.wait());
        assert_refused(again.wait());
        assert_refused(subscription.wait());
        let events: Vec<Event> = [(); 3].map(|()| client.next_event().wait()).into();
        let closed = Event::Closed {
            reason: CloseReason::GoAway(code),
            text: "spam".into(),
        };
        assert_eq!(events, [closed, Event::Lost { count: 1 }, Event::Ended]);
        let late = client.request(b"late").wait().unwrap_err();
        assert_eq!(late, RequestError::Shutdown);
        assert_no_client_returned(&listener);
    }
}

/// The same for a client that was connected before.
#[test]
fn a_client_that_is_refused_for_good_while_it_reconnects_tells_why() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let client = persistent(&server);
    let again = {
        let address = server.url();
        let directory = server.stop_for_restart();
        let again = client.request(b"again").idempotent().timeout(DEADLINE);
        let again = again.send();
        let listener = TcpListener::bind(address.trim_start_matches("tcp://")).unwrap();
        refuse_one(&listener, GoAwayCode::Removed);
        assert_no_client_returned(&listener);
        drop(directory);
        again
    };
    assert_refused(again.wait());
    let closed = event(&client, |event| match event {
        Event::Closed { reason, text } if reason.is_final() => Some((reason, text)),
        _ => None,
    });
    let expected = CloseReason::GoAway(GoAwayCode::Removed);
    assert_eq!(closed, (expected, "spam".into()));
    assert_eq!(client.next_event().wait(), Event::Ended);
}

#[test]
fn waiting_calls_learn_why_their_connection_is_refused_for_good() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connecting = Client::connect(&address);
    refuse_one(&listener, GoAwayCode::Removed);
    let error = connecting.wait().unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::Refused { .. } | ConnectError::Closed(_)
        ),
        "{error}"
    );
    assert!(error.to_string().contains("spam"), "{error}");
    assert_no_client_returned(&listener);
}
