//! Connections that reach the maximum age of their server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidewire::{CloseReason, Event, GoAwayCode, Server};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_testkit::fixtures::{codec, echo, tw1};
use tidewire_testkit::{TestServer, wait_until};

use crate::persistent;

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn a_client_comes_back_without_an_error() {
    let age = Duration::from_millis(30);
    let builder = Server::builder().connection_age_max(age, HOUR);
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let client = persistent(&server);
    let mut answered = 0;
    let mut returns = 0;
    while returns < 3 {
        let payload = format!("{answered}");
        let reply = client.request(payload.as_bytes()).idempotent().wait();
        assert_eq!(reply.unwrap().payload(), payload.as_bytes());
        answered += 1;
        while let Some(event) = client.next_event().wait_for(Duration::ZERO) {
            assert_ne!(event, Event::Ended);
            if let Event::Closed { reason, text } = event {
                assert_eq!(reason, CloseReason::GoAway(GoAwayCode::Shutdown));
                assert!(text.contains("its maximum age"), "{text}");
                returns += 1;
            }
        }
    }
    drop(client);
    let metrics = server.stop();
    assert!(metrics.connections_retired >= 3, "{metrics:?}");
    assert!(metrics.closed_by("connection_age") >= 3, "{metrics:?}");
    assert_eq!(metrics.sessions_closed(), metrics.sessions_opened);
}

#[test]
fn a_peer_that_stays_is_closed_after_the_grace_period() {
    let short = Duration::from_millis(20);
    let builder = Server::builder().connection_age_max(short, short);
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let mut stream = TcpStream::connect(server.url().trim_start_matches("tcp://")).unwrap();
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 1 << 20,
        credentials: &[],
        agent: "deaf",
    };
    let mut frame = Vec::new();
    hello.encode_frame(&mut frame).unwrap();
    stream.write_all(&frame).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    let text = String::from_utf8_lossy(&heard);
    assert_eq!(
        text.matches("its maximum age").count(),
        1,
        "told once: {text}"
    );
    wait_until("it is counted", || {
        (server.metrics().closed_by("connection_age") == 1).then_some(())
    });
    assert_eq!(server.stop().connections_retired, 1);
}

#[test]
fn a_codec_without_go_away_ends_and_a_young_connection_does_not() {
    let age = Duration::from_millis(20);
    for (max, ends) in [(age, true), (HOUR, false)] {
        let builder = Server::builder().connection_age_max(max, HOUR);
        let server = TestServer::over_tcp(builder, &codec("raw"), |_| echo);
        let mut stream = TcpStream::connect(server.url().trim_start_matches("tcp://")).unwrap();
        stream.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"hello");
        if ends {
            // The server ends its side, and waits for the end of the peer.
            assert_eq!(stream.read(&mut heard).unwrap(), 0);
        }
        drop(stream);
        wait_until("the session ends", || {
            (server.metrics().sessions_closed() == 1).then_some(())
        });
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("connection_age"), u64::from(ends));
        assert_eq!(metrics.connections_retired, u64::from(ends));
    }
}
