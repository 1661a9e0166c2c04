//! Quiet sessions of codecs without pings: pings of WebSocket keep them open, also behind a proxy, and detect dead
//! sessions.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use tidewire::{Chat, Client, Kind, Message, Server};
use tidewire_proto::body::JoinBody;
use tidewire_proto::codec::Codec;
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::{codec, limited};

use super::refused::open;
use super::{ask, serve_as};

const SHORT: Duration = Duration::from_millis(50);
const IDLE: Duration = Duration::from_secs(1);

/// Regression: such a session sent no byte for 190 s, and nginx cut it after 60 s.
#[test]
fn pings_of_websocket_keep_a_quiet_session_of_a_codec_without_pings() {
    for name in ["json", "lines"] {
        let builder = limited(|limits| {
            limits.connections.set_heartbeat(SHORT);
            limits.connections.set_idle_timeout(IDLE);
        });
        let server = serve_as(builder, name);
        let client = Client::builder().codec(codec(name));
        let client = client.connect(&server.url()).wait().unwrap();
        ask(&client, b"before");
        let before = server.metrics();
        let quiet_since = Instant::now();
        server.wait_for("silence for longer than the idle timeout", |_| {
            quiet_since.elapsed() > IDLE * 3 / 2
        });
        let after = server.metrics();
        assert_eq!(after.sessions_closed(), 0, "{name}: the pongs kept it open");
        assert_eq!(after.frames_in, before.frames_in, "{name}");
        ask(&client, b"after");
        client.close().wait();
        server.stop();
    }
}

#[test]
fn a_peer_that_answers_no_ping_of_websocket_is_closed() {
    let builder = limited(|limits| {
        limits.connections.set_heartbeat(SHORT);
        limits.connections.set_ping_timeout(SHORT);
    });
    let server = serve_as(builder, "lines");
    let mut stream = open(&server);
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard[..2], [0x89, 0], "a ping without a payload");
    assert_eq!(heard[heard.len() - 2..], [0x03, 0xF0], "close code 1008");
    drop(stream);
    assert_eq!(server.stop().closed_by("idle_timeout"), 1);
}

/// Regression: a silent peer of a codec without pings kept its name for the whole idle timeout, although WebSocket has
/// pings.
#[test]
fn a_name_of_a_silent_peer_without_pings_goes_to_a_newcomer() {
    let json = codec("json");
    let server = TestServer::over_websocket(Server::builder(), &json, |_| Chat::new());
    let mut gone = open(&server);
    let (mut body, mut join) = (Vec::new(), Vec::new());
    let (room, name) = ("lobby", "ann");
    JoinBody { room, name }.encode(&mut body).unwrap();
    let message = Message::with_id(Kind::Join, 0, 1, &body);
    json.encode(&message, &mut join).unwrap();
    // A text message with a mask of zeros.
    let length = u8::try_from(join.len()).unwrap();
    gone.write_all(&[&[0x81, 0x80 | length, 0, 0, 0, 0][..], &join].concat())
        .unwrap();
    // The first byte of the reply: the peer is in the room.
    gone.read_exact(&mut [0]).unwrap();
    let client = Client::builder().codec(json);
    let client = client.connect(&server.url()).wait().unwrap();
    client.join("lobby").named("ann").wait().unwrap();
    assert_eq!(server.stop().closed_by("replaced"), 1);
}
