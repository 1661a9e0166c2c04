//! Clients over UDP: lost hellos, and servers that are not there or go away.

use std::net::UdpSocket;
use std::time::Duration;

use tidewire::limits::ConnectionLimits;
use tidewire::{
    Backoff, Client, CloseReason, ConnectError, Event, Kind, Message, RequestError, Server,
};
use tidewire_proto::codec::Codec;
use tidewire_proto::handshake::{PROTOCOL_VERSION, Welcome};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::{codec, echo, frame, payloads};

fn welcome() -> Vec<u8> {
    let mut frame = Vec::new();
    Welcome {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 65_507,
        heartbeat_ms: 0,
        session: 7,
        agent: "test",
        expires_in_ms: 0,
    }
    .encode_frame(&mut frame)
    .unwrap();
    frame
}

#[test]
fn a_hello_is_repeated_until_the_welcome_comes_and_duplicates_do_no_harm() {
    let tw1 = codec("tw1");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let address = format!("udp://{}", socket.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let tw1 = codec("tw1");
        let mut buffer = [0; 2048];
        // Three hellos are lost.
        for _ in 0..3 {
            let (length, _) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[4], Kind::Hello as u8, "{length} bytes");
        }
        let (_, client) = socket.recv_from(&mut buffer).unwrap();
        let challenge = frame(&tw1, &Message::new(Kind::Ping, 0, b"cookie42"));
        socket.send_to(&challenge, client).unwrap();
        let answer = loop {
            let (length, _) = socket.recv_from(&mut buffer).unwrap();
            if buffer[4] == Kind::Pong as u8 {
                break buffer[..length].to_vec();
            }
        };
        assert_eq!(payloads(&tw1, &answer)[0], b"cookie42");
        assert_eq!(payloads(&tw1, &answer).len(), 2, "and the hello again");
        // A message overtakes the welcome, which then comes three times.
        let early = frame(&tw1, &Message::new(Kind::OneWay, 0, b"early"));
        socket.send_to(&early, client).unwrap();
        for _ in 0..3 {
            socket.send_to(&welcome(), client).unwrap();
        }
        let late = frame(&tw1, &Message::new(Kind::OneWay, 0, b"in order"));
        socket.send_to(&late, client).unwrap();
        loop {
            let (length, _) = socket.recv_from(&mut buffer).unwrap();
            if length == 0 {
                return;
            }
        }
    });
    let client = Client::connect(&address).wait().unwrap();
    assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    let Some(Event::Message(message)) = client.next_event().wait_for(DEADLINE) else {
        panic!("nothing came");
    };
    assert_eq!(message.payload, b"in order");
    let metrics = client.metrics();
    assert!(metrics.hellos_repeated >= 3, "{metrics:#?}");
    assert_eq!(metrics.sessions_opened, 1);
    client.close().wait();
    server.join().unwrap();
    assert!(tw1.format().begins_with_hello());
}

#[test]
fn a_server_that_is_not_there_is_reported_at_once_and_a_silent_one_in_time() {
    let nobody = {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap()
    };
    let error = Client::connect(&format!("udp://{nobody}"))
        .wait()
        .unwrap_err();
    assert!(matches!(&error, ConnectError::Socket(_)), "{error:?}");
    let mut story = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        story = format!("{story}: {error}");
        cause = error.source();
    }
    assert!(story.contains("is the server running?"), "{story}");

    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", silent.local_addr().unwrap());
    let mut limits = ConnectionLimits::default();
    limits.set_handshake_timeout(Duration::from_millis(250));
    let error = Client::builder()
        .limits(limits)
        .connect(&address)
        .wait()
        .unwrap_err();
    let timed_out = ConnectError::Closed(CloseReason::HandshakeTimeout).to_string();
    assert_eq!(error.to_string(), timed_out, "{error:?}");
}

#[test]
fn requests_to_a_server_that_went_without_a_word_fail() {
    let codec = codec("srmp");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", socket.local_addr().unwrap());
    let client = Client::builder()
        .codec(codec)
        .connect(&address)
        .wait()
        .unwrap();
    assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    drop(socket);
    let failure = client.request(b"anybody?").wait().unwrap_err();
    let reset = RequestError::Closed(CloseReason::PeerReset.into());
    assert_eq!(failure, reset);
}

#[test]
fn a_client_finds_its_server_again_that_forgot_it() {
    let tw1 = codec("tw1");
    let server = TestServer::over_udp(Server::builder(), &tw1, |_| echo);
    let address = server.url();
    let client = Client::builder()
        .reconnect(Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(20),
        })
        .connect(&address)
        .wait()
        .unwrap();
    assert_eq!(client.request(b"one").wait().unwrap().payload(), b"one");
    drop(server);
    let again = Server::builder()
        .listen(&address)
        .unwrap()
        .start(|_| echo)
        .unwrap();
    let mut opened = 0;
    while opened < 2 {
        let event = client
            .next_event()
            .wait_for(DEADLINE)
            .expect("an event in time");
        opened += usize::from(matches!(event, Event::Opened { .. }));
    }
    assert_eq!(client.request(b"two").wait().unwrap().payload(), b"two");
    client.close().wait();
    tidewire_testkit::assert_conserved(&again.shutdown(DEADLINE));
}

/// After a lost reply, each request would get the reply of the next request.
#[test]
fn requests_are_refused_where_a_lost_reply_would_shift_the_others() {
    for name in ["length-field", "delimited", "lines", "raw"] {
        let codec = codec(name);
        let server =
            TestServer::over_udp(Server::builder().trust_datagram_peers(true), &codec, |_| {
                echo
            });
        let client = Client::builder()
            .codec(codec)
            .connect(&server.url())
            .wait()
            .unwrap();
        let refused = client.request(b"?").wait();
        assert_eq!(refused, Err(RequestError::CannotMatch), "{name}");
        client.send(b"!").unwrap();
        assert!(
            matches!(
                client.next_event().wait_for(DEADLINE),
                Some(Event::Opened { .. })
            ),
            "{name}"
        );
        // Messages that need no matching are sent: the echo comes as a message.
        let Some(Event::Message(message)) = client.next_event().wait_for(DEADLINE) else {
            panic!("{name}: no echo");
        };
        assert_eq!(message.payload, b"!", "{name}");
        client.close().wait();
        assert_eq!(server.stop().frames_in, 1, "{name}");
    }
}
