//! Clients that get a go-away with a reason.

use std::sync::mpsc;

use tidewire::{
    Client, CloseReason, Context, Deferred, Event, GoAwayCode, HandlerResult, Message,
    RequestError, Server, Service,
};
use tidewire_testkit::fixtures::{codec, echo, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::{event, persistent};

/// A server that keeps its requests unanswered.
fn keeper() -> (TestServer, mpsc::Receiver<Deferred>) {
    let (sender, taken) = mpsc::channel();
    let server = TestServer::over_tcp(Server::builder(), &tw1(), move |_| {
        let sender = sender.clone();
        move |cx: &mut Context<'_>, _: Message<'_>| {
            sender.send(cx.defer()).unwrap();
            Ok(())
        }
    });
    (server, taken)
}

/// Closes every session that opens.
struct Doorkeeper(GoAwayCode);

impl Service for Doorkeeper {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        cx.close_with(self.0, "no entry");
    }

    fn on_message(&mut self, _: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
        Ok(())
    }
}

/// Regression: a removed client came back a tenth of a second later.
#[test]
fn a_kicked_client_stays_away() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    for code in [GoAwayCode::Removed, GoAwayCode::Other(4_500)] {
        let client = persistent(&server);
        client.request(b"here").wait().unwrap();
        let sessions = server.server().sessions();
        let session = sessions.list().pop().unwrap();
        session.close_with(code, "spam").unwrap();
        let closed = event(&client, |event| match event {
            Event::Closed { reason, text } => Some((reason, text)),
            _ => None,
        });
        assert_eq!(closed, (CloseReason::GoAway(code), "spam".into()));
        assert_eq!(client.next_event().wait_for(DEADLINE), Some(Event::Ended));
        let late = client.request(b"again?").wait();
        assert_eq!(late.unwrap_err(), RequestError::Shutdown);
    }
    assert_eq!(server.stop().sessions_opened, 2, "nobody came back");
}

#[test]
fn a_client_comes_back_after_any_other_code() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let client = persistent(&server);
    client.request(b"here").wait().unwrap();
    let session = server.server().sessions().list().pop().unwrap();
    let code = GoAwayCode::Other(4_000);
    session.close_with(code, "later").unwrap();
    let cause = event(&client, |event| match event {
        Event::Reconnecting { cause, .. } => Some(cause),
        _ => None,
    });
    assert_eq!(cause, "the peer went away: go-away code 4000: later");
    event(&client, |event| {
        matches!(event, Event::Opened { .. }).then_some(())
    });
    assert_eq!(client.request(b"back").wait().unwrap().payload(), b"back");
    client.close().wait();
    server.stop();
}

/// The client connects to such a server once more, and never again.
#[test]
fn a_client_that_is_turned_away_for_good_while_it_reconnects_stays_away() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let client = persistent(&server);
    client.request(b"here").wait().unwrap();
    let address = server.url();
    let directory = server.stop_for_restart();
    let doorkeeper = Server::builder().listen(&address).unwrap();
    let doorkeeper = doorkeeper.start(|_| Doorkeeper(GoAwayCode::Removed));
    let doorkeeper = doorkeeper.unwrap();
    event(&client, |event| (event == Event::Ended).then_some(()));
    let stopped = doorkeeper.shutdown(DEADLINE);
    assert_eq!(stopped.metrics.sessions_opened, 1);
    drop(directory);
}

/// Idempotent requests fail as well, because no connection follows.
#[test]
fn requests_that_wait_learn_why_the_server_closed() {
    let (server, taken) = keeper();
    let client = persistent(&server);
    let plain = client.request(b"plain").send();
    let again = client.request(b"again").idempotent().send();
    let tokens = [(); 2].map(|()| taken.recv_timeout(DEADLINE).unwrap());
    let session = server.server().sessions().list().pop().unwrap();
    session.close_with(GoAwayCode::Removed, "spam").unwrap();
    for request in [plain, again] {
        match request.wait().unwrap_err() {
            RequestError::Closed(end) => {
                assert!(end.reason.is_final(), "{end}");
                assert_eq!(&*end.text, "spam");
            }
            error => panic!("{error}"),
        }
    }
    assert!(tokens.iter().all(Deferred::is_cancelled));
    event(&client, |event| (event == Event::Ended).then_some(()));
    assert_eq!(server.stop().sessions_opened, 1);
}

/// Regression: the server did not read messages that crossed its go-away, so its system reset the connection. The
/// client took that for an accident and reconnected.
#[test]
fn a_kick_lasts_for_a_client_whose_messages_cross_it() {
    for _ in 0..20 {
        let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
            |cx: &mut Context<'_>, _: Message<'_>| {
                cx.close_with(GoAwayCode::Removed, "spam");
                Ok(())
            }
        });
        let client = persistent(&server);
        let crossing = [(); 50].map(|()| client.request(&[0; 5_000]).idempotent().send());
        for request in crossing {
            assert!(request.wait().is_err());
        }
        event(&client, |event| (event == Event::Ended).then_some(()));
        assert_eq!(server.stop().sessions_opened, 1);
    }
}

#[test]
fn a_codec_without_words_closes_without_them() {
    for name in ["srmp", "srmp-rpc", "uvrpc", "length-field", "delimited"] {
        let server = TestServer::over_tcp(Server::builder(), &codec(name), |_| {
            Doorkeeper(GoAwayCode::Removed)
        });
        let builder = Client::builder().codec(codec(name));
        let client = builder.connect(&server.url()).wait().unwrap();
        let closed = event(&client, |event| match event {
            Event::Closed { reason, text } => Some((reason, text)),
            _ => None,
        });
        assert_eq!(closed, (CloseReason::PeerClosed, "".into()), "{name}");
        server.stop();
    }
}

#[test]
fn a_client_tells_the_server_why_it_closes() {
    struct Listener(mpsc::Sender<(CloseReason, String)>);

    impl Service for Listener {
        fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
            cx.reply(message.payload)
        }

        fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
            let text = cx
                .session()
                .peer_farewell()
                .map(|farewell| farewell.text.to_string());
            self.0.send((reason, text.unwrap_or_default())).unwrap();
        }
    }

    for (name, expected) in [
        (
            "tw1",
            (CloseReason::GoAway(GoAwayCode::Other(4_001)), "asleep"),
        ),
        ("srmp", (CloseReason::PeerClosed, "")),
        ("lines", (CloseReason::PeerClosed, "")),
    ] {
        let (sender, told) = mpsc::channel();
        let server = TestServer::over_tcp(Server::builder(), &codec(name), move |_| {
            Listener(sender.clone())
        });
        let builder = Client::builder().codec(codec(name));
        let client = builder.connect(&server.url()).wait().unwrap();
        client.request(b"here").wait().unwrap();
        client.close_with(GoAwayCode::Other(4_001), "asleep").wait();
        let (reason, text) = told.recv_timeout(DEADLINE).unwrap();
        assert_eq!((reason, &*text), expected, "{name}");
        server.stop();
    }
}
