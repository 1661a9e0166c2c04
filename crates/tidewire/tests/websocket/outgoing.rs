//! Connections that handlers and upstreams make by `ws://` and `wss://`.

use std::sync::mpsc::{Sender, channel};

use tidewire::tls::Encryption;
use tidewire::upstream::Upstream;
use tidewire::{
    Client, ConnectError, Context, Endpoint, HandlerResult, Kind, Message, Moment, Server, Service,
};
use tidewire_testkit::certificates::usual;
use tidewire_testkit::fixtures::{codec, echo};
use tidewire_testkit::{DEADLINE, TestServer};

use super::{ask, serve};

/// An echo server of TW1 by `wss://`.
fn serve_encrypted() -> TestServer {
    let builder = Server::builder().tls(usual().1.server());
    TestServer::over_secure_websocket(builder, &codec("tw1"), |_| echo)
}

/// Connects in its first turn, sends, and passes on the reply.
struct Dialer {
    to: Option<Endpoint>,
    seen: Sender<(Vec<u8>, Option<Encryption>)>,
}

impl Service for Dialer {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if let Some(to) = self.to.take() {
            cx.connections().connect(&to).unwrap();
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        cx.send(Message::new(Kind::OneWay, 0, b"hello")).unwrap();
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let seen = (message.payload.to_vec(), cx.session().encryption());
        self.seen.send(seen).unwrap();
        Ok(())
    }
}

#[test]
fn handlers_connect_by_websocket_with_and_without_tls() {
    for name in ["tw1", "lines"] {
        for is_encrypted in [false, true] {
            let backend = match is_encrypted {
                true => {
                    let builder = Server::builder().tls(usual().1.server());
                    TestServer::over_secure_websocket(builder, &codec(name), |_| echo)
                }
                false => serve(name),
            };
            let (seen, heard) = channel();
            let to = backend.address().clone();
            let builder = Server::builder()
                .codec(codec(name))
                .outgoing_tls(usual().0.client());
            let dialer = builder
                .start(|_| Dialer {
                    to: Some(to.clone()),
                    seen: seen.clone(),
                })
                .unwrap();
            let (payload, encryption) = heard.recv_timeout(DEADLINE).unwrap();
            assert_eq!(payload, b"hello", "{name} {is_encrypted}");
            assert_eq!(encryption.is_some(), is_encrypted);
            drop(dialer);
            backend.stop();
        }
    }
}

/// Connects without settings of TLS.
struct Careless(Option<Endpoint>, Sender<ConnectError>);

impl Service for Careless {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if let Some(to) = self.0.take() {
            self.1
                .send(cx.connections().connect(&to).unwrap_err())
                .unwrap();
        }
        None
    }
}

#[test]
fn a_handler_without_settings_of_tls_does_not_connect_by_wss() {
    let backend = serve_encrypted();
    let (failed, failure) = channel();
    let to = backend.address().clone();
    let server = Server::builder()
        .start(|_| Careless(Some(to.clone()), failed.clone()))
        .unwrap();
    let failure = failure.recv_timeout(DEADLINE).unwrap();
    assert!(matches!(failure, ConnectError::NoTls), "{failure:?}");
    assert_eq!(backend.metrics().sessions_opened, 0);
    drop(server);
    backend.stop();
}

#[test]
fn an_upstream_may_be_a_websocket() {
    for backend in [serve("tw1"), serve_encrypted()] {
        let upstream = Upstream::new(&backend.url()).unwrap();
        let upstream = upstream.tls(usual().0.client()).unwrap();
        let gateway = TestServer::over_tcp(Server::builder(), &codec("tw1"), move |_| {
            let upstream = upstream.clone();
            move |cx: &mut Context<'_>, message: Message<'_>| cx.forward(&upstream, &message)
        });
        let client = Client::connect(&gateway.url()).wait().unwrap();
        for number in 0..100 {
            ask(&client, format!("request {number}").as_bytes());
        }
        drop(client);
        gateway.stop();
        backend.stop();
    }
}
