//! Custom codecs that differ from all built-in codecs in the properties of their format.

use std::net::UdpSocket;
use std::time::Duration;

use tidewire::{AnyCodec, Endpoint, Kind, Limits, Message, Server};
use tidewire_proto::codec::{Codec, Decoded, Format, Opening, Tw1};
use tidewire_proto::error::{DecodeError, EncodeError};
use tidewire_testkit::{Peer, TestServer, hello_frame};

use crate::echo;

/// The frames of the native protocol, with another format.
struct Native(&'static Format);

impl Codec for Native {
    fn format(&self) -> &'static Format {
        self.0
    }

    fn decode<'a>(&self, input: &'a [u8], limit: usize) -> Result<Decoded<'a>, DecodeError> {
        Tw1.decode(input, limit)
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        Tw1.encode(message, out)
    }
}

fn receive(peer: &mut Peer) -> (Kind, Vec<u8>) {
    let message = peer.receive().expect("a frame, not the end");
    (message.kind, message.payload)
}

#[test]
fn a_codec_without_a_hello_may_have_pings_and_a_go_away() {
    const FORMAT: Format = Format {
        has_pings: true,
        has_go_away: true,
        ..Format::new("native")
    };
    let codec = AnyCodec::custom(Native(&FORMAT));
    let mut limits = Limits::default();
    limits.connections.set_heartbeat(Duration::from_millis(20));
    let server = TestServer::over_tcp(Server::builder().limits(limits), &codec, |_| echo);
    let mut peer = server.peer();
    assert_eq!(receive(&mut peer), (Kind::Ping, vec![]), "of a silent peer");
    peer.send(&Message::new(Kind::Ping, 0, b"there?"));
    while receive(&mut peer) != (Kind::Pong, b"there?".to_vec()) {}
    let stopping = std::thread::spawn(move || server.stop());
    while receive(&mut peer).0 != Kind::GoAway {}
    drop(peer);
    assert_eq!(stopping.join().unwrap().sessions_opened, 1);
}

/// Regression: without a challenge, a hello with a forged source opened a session without a limit on its output.
#[test]
fn an_address_that_no_challenge_proves_is_sent_no_more_than_came_from_there() {
    const FORMAT: Format = Format {
        opening: Opening::Hello,
        has_go_away: true,
        ..Format::new("native")
    };
    let codec = AnyCodec::custom(Native(&FORMAT));
    assert!(!codec.format().proves_addresses());
    let amplify = |cx: &mut tidewire::Context<'_>, _: Message<'_>| cx.reply(&[b'x'; 1_000]);
    let server = TestServer::over_udp(Server::builder(), &codec, |_| amplify);
    let Endpoint::Udp(address) = server.address() else {
        panic!("not over UDP");
    };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    let mut request = Vec::new();
    let message = Message::with_id(Kind::Request, 0, 1, b"give me much");
    codec.encode(&message, &mut request).unwrap();
    let sent = socket.send(&hello_frame()).unwrap() + socket.send(&request).unwrap();
    let metrics = server.wait_for("the long reply is dropped", |metrics| {
        metrics.datagrams_dropped_by("over_budget") > 0
    });
    assert!(metrics.bytes_out <= sent as u64, "{metrics:#?}");
    // An empty datagram ends the session.
    socket.send(&[]).unwrap();
    server.stop();
}
