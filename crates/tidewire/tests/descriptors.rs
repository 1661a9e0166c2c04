//! A process without free descriptors: refused peers are told the reason and counted, and the log says how to raise the
//! limit. The server survives and continues.
//!
//! It is the only test of its process, because the limit belongs to the process.

use std::net::{IpAddr, Ipv4Addr};

use tidewire::{AnyCodec, Context, Endpoint, Message, Server};
use tidewire_proto::body::{GoAwayBody, GoAwayCode};
use tidewire_testkit::logs::Logs;
use tidewire_testkit::{Peer, TestServer, Wire, connect_from, descriptors};

/// Regression: newcomers waited without an answer until another session closed.
#[test]
fn a_server_without_descriptors_refuses_newcomers_and_serves_again_when_some_are_free() {
    let logs = Logs::capture();
    let codec = AnyCodec::by_name("tw1").unwrap();
    let echo = |cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload);
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut early = server.peer();
    descriptors::lower_limit(500).unwrap();
    // One descriptor is left for the client's side. The server has only its spare descriptor.
    let held = descriptors::exhaust(1);
    for number in 1..=3 {
        let mut refused = Peer::silent(Wire::connect(server.address()).unwrap(), &codec);
        let told = refused.receive().expect("a go-away, not silence");
        let told = GoAwayBody::decode(&told.payload).unwrap();
        assert_eq!(told.code, GoAwayCode::LimitReached);
        assert!(told.text.contains("descriptor"), "{}", told.text);
        assert!(refused.receive().is_none(), "and then the end");
        let metrics = server.wait_for("it is counted", |it| it.sessions_refused >= number);
        assert!(metrics.accept_errors >= number);
        assert_eq!(metrics.sessions_opened, 1);
    }
    let text = logs.text();
    for part in ["no descriptor is left", "ulimit -n", "limit 500"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    // Connected peers are served as before.
    for _ in 0..10 {
        early.ask(b"still there?");
        assert_eq!(early.answer().payload, b"still there?");
    }
    drop(held);
    // An address with many sessions makes room for an address without a session.
    let from = |number: u8| {
        let Endpoint::Tcp(port) = *server.address() else {
            panic!("not over TCP");
        };
        let source = IpAddr::from(Ipv4Addr::new(127, 0, 1, number));
        Peer::greet(Wire::Tcp(connect_from(source, port).unwrap()), &codec)
    };
    for (turn, attackers) in [(1, 1), (2, 50)] {
        let attacker = |round: u8| from(100 + round % attackers);
        let mut many: Vec<Peer> = (0..100).map(attacker).collect();
        let held = descriptors::exhaust(1);
        let mut newcomer = from(2);
        newcomer.ask(b"in");
        assert_eq!(newcomer.answer().payload, b"in");
        let mut newest = many.pop().unwrap();
        while newest.receive().is_some() {}
        for peer in [&mut many[98], &mut early] {
            peer.ask(b"still there?");
            assert_eq!(peer.answer().payload, b"still there?");
        }
        server.wait_for("the end of the newest session is counted", |it| {
            it.closed_by("displaced") == turn
        });
        drop((held, many, newest, newcomer));
        server.wait_for("all of them are gone", |it| {
            it.sessions_opened - it.sessions_closed() == 1
        });
    }
    let mut late = server.peer();
    late.ask(b"in at last");
    assert_eq!(late.answer().payload, b"in at last");
    drop((early, late));
    let metrics = server.stop();
    assert_eq!(metrics.sessions_opened, 2 + 2 * 101);
    assert_eq!(metrics.sessions_refused, 3);
}
