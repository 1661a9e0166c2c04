//! The choice of a lane for a connection, over each transport.

use std::io::Write;
use std::net::TcpStream;

use tidewire::{Client, Context, HandlerResult, Message, Server};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{Peer, TestServer, Wire, wait_until};

use crate::proxied::{behind_loopback, header};

/// Tells the lane of the session.
fn tell_lane(cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    cx.reply(&[cx.lane() as u8])
}

/// Regression: the lanes got connections in turn, so a health check after each connection that stays sent all of these
/// to one lane.
#[test]
fn connections_that_stay_are_spread_over_the_lanes_after_any_ends() {
    let folder = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}", folder.path().join("lanes").display());
    for address in [
        "tcp://127.0.0.1:0",
        "ws://127.0.0.1:0/",
        "inproc://sessions-lanes",
        &ipc,
    ] {
        let builder = Server::builder().lanes(2).listen(address).unwrap();
        let server = builder.start(|_| tell_lane).unwrap();
        let url = server.to_string();
        let mut staying = Vec::new();
        for number in 0..10 {
            staying.push(Client::connect(&url).wait().unwrap());
            Client::connect(&url).wait().unwrap().close().wait();
            wait_until("the other one has ended", || {
                (server.metrics().sessions_closed() > number).then_some(())
            });
        }
        let lane_of = |client: &Client| client.request(b"").wait().unwrap().payload()[0];
        let on_first = staying.iter().filter(|it| lane_of(it) == 0).count();
        assert_eq!(on_first, 5, "{address}");
    }
}

/// Behind a proxy the lane is chosen when the header has come.
#[test]
fn connections_of_a_proxy_are_spread_in_the_same_way() {
    let builder = behind_loopback(Server::builder().lanes(2));
    let server = TestServer::over_tcp(builder, &tw1(), |_| tell_lane);
    let at = server.address().socket_address().unwrap();
    let connect = |host: u8| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&header(host, 0)).unwrap();
        Peer::greet(Wire::Tcp(stream), &tw1())
    };
    let mut staying = Vec::new();
    for number in 0..10 {
        staying.push(connect(number));
        drop(connect(100 + number));
        server.wait_for("the other one has ended", |metrics| {
            metrics.sessions_closed() > u64::from(number)
        });
    }
    let lanes = staying.iter_mut().map(|peer| {
        peer.ask(b"");
        peer.answer().payload[0]
    });
    assert_eq!(lanes.filter(|lane| *lane == 0).count(), 5);
    drop(staying);
    assert_eq!(server.stop().sessions_opened, 20);
}
