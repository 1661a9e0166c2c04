//! A process without free descriptors: accepting fails, is counted, and the log says how to raise the limit. The server
//! survives and continues.
//!
//! It is the only test of its process, because the limit belongs to the process.

use tidewire::{AnyCodec, Context, Message, Server};
use tidewire_testkit::logs::Logs;
use tidewire_testkit::{Peer, TestServer, Wire, descriptors};

#[test]
fn a_server_without_descriptors_says_so_and_serves_again_when_some_are_free() {
    let logs = Logs::capture();
    let codec = AnyCodec::by_name("tw1").unwrap();
    let echo = |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload);
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut early = server.peer();
    descriptors::lower_limit(200).unwrap();
    // One descriptor is left for the client's side. The server finds none for its side.
    let held = descriptors::exhaust(1);
    let wire = Wire::connect(server.address()).unwrap();
    let metrics = server.wait_for("accepting fails", |metrics| metrics.accept_errors > 0);
    assert_eq!(metrics.sessions_opened, 1);
    let text = logs.text();
    for part in ["no descriptor is left", "ulimit -n", "limit 200"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    // Connected peers are served as before.
    for _ in 0..10 {
        early.ask(b"still there?");
        assert_eq!(early.answer().payload, b"still there?");
    }
    // The server does not spin and does not give up: it tries again after a pause.
    server.wait_for("accepting is tried again", |later| {
        later.accept_errors > metrics.accept_errors
    });
    drop(held);
    let mut late = Peer::greet(wire, &codec);
    late.ask(b"in at last");
    assert_eq!(late.answer().payload, b"in at last");
    let client = tidewire::Client::connect(&server.url()).wait().unwrap();
    assert_eq!(
        client.request(b"me too").wait().unwrap().payload(),
        b"me too"
    );
    client.close().wait();
    drop((early, late));
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, 3);
}
