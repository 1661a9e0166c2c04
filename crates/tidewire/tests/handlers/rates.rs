//! Sessions that exceed their rate, over every transport.

use tidewire::limits::{RateLimit, WhenExceeded};
use tidewire::{Client, Kind, Message, RequestError, ServeError, Server};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::TestServer;
use tidewire_testkit::fixtures::{codec, echo, lines, tw1};

/// Regression: each of these servers started, and no message ever came through.
#[test]
fn a_rate_of_zero_is_an_error_at_the_start() {
    let start = |limit: RateLimit| {
        let builder = Server::builder()
            .listen("inproc://rates/zero")
            .unwrap()
            .rate_limit(limit);
        match builder.start(|_| echo) {
            Err(ServeError::Setting(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let limit = RateLimit::new(WhenExceeded::Close);
    let error = start(limit.messages_per_second(0));
    assert!(
        error.to_string().starts_with("a limit of 0 messages"),
        "{error}"
    );
    let error = start(limit.bytes_per_second(0));
    assert!(
        error.to_string().starts_with("a limit of 0 bytes"),
        "{error}"
    );
    let error = ServeError::from(start(limit));
    // Regression: the text was "bad rate limit", which does not say what to do.
    assert!(
        error.to_string().contains("give messages_per_second"),
        "{error}"
    );
}

#[test]
fn a_paused_session_loses_nothing_over_any_stream() {
    const MESSAGES: u32 = 200;
    // The burst is 20 messages: the others come in rounds.
    let limit = RateLimit::new(WhenExceeded::Pause)
        .messages_per_second(1_000)
        .burst(std::time::Duration::ZERO);
    for codec in [tw1(), codec("srmp")] {
        for transport in [
            TestServer::over_tcp,
            TestServer::over_ipc,
            TestServer::over_inproc,
        ] {
            let builder = Server::builder().rate_limit(limit);
            let server = transport(builder, &codec, |_| echo);
            let builder = Client::builder().codec(codec.clone());
            let client = builder.connect(&server.url()).wait().unwrap();
            let requests: Vec<_> = (0..MESSAGES)
                .map(|number| client.request(&number.to_le_bytes()).send())
                .collect();
            for (number, request) in (0..MESSAGES).zip(requests) {
                assert_eq!(request.wait().unwrap().payload(), number.to_le_bytes());
            }
            client.close().wait();
            let metrics = server.stop();
            assert!(metrics.rate_paused > 0, "{metrics:#?}");
            assert_eq!((metrics.refused, metrics.rate_refused), (0, 0));
        }
    }
}

#[test]
fn refused_requests_are_answered_and_refused_messages_counted() {
    let limit = RateLimit::new(WhenExceeded::Refuse)
        .messages_per_second(1)
        .burst(std::time::Duration::from_secs(3_600));
    let server = TestServer::over_tcp(Server::builder().rate_limit(limit), &tw1(), |_| echo);
    let client = Client::connect(&server.url()).wait().unwrap();
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..3_700 {
        match client.request(b"hello").wait() {
            Ok(_) => answered += 1,
            Err(RequestError::Refused { code, .. }) => {
                assert_eq!(code, ErrorCode::LimitReached);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(answered >= 3_600 && refused > 0, "{answered} and {refused}");
    client.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.rate_refused, refused);
    assert_eq!(metrics.refused, refused);
}

/// In a line codec, a refusal is an answer like any other.
#[test]
fn a_codec_without_ids_is_told_of_a_refusal_in_its_turn() {
    let limit = RateLimit::new(WhenExceeded::Refuse).messages_per_second(1);
    let server = TestServer::over_tcp(Server::builder().rate_limit(limit), &lines(), |_| echo);
    let mut peer = server.peer();
    peer.write(b"one\ntwo\n");
    peer.expect_text("one\n! this session sends more than it may; send more slowly\n");
    drop(peer);
    assert_eq!(server.stop().rate_refused, 1);
}

#[test]
fn a_session_that_exceeds_its_bytes_is_closed_for_that_reason() {
    let limit = RateLimit::new(WhenExceeded::Close).bytes_per_second(10_000);
    let server = TestServer::over_tcp(Server::builder().rate_limit(limit), &tw1(), |_| echo);
    let mut peer = server.peer();
    for _ in 0..3 {
        peer.ask(&[7; 6_000]);
    }
    assert_eq!(peer.answer().payload, [7; 6_000]);
    assert_eq!(peer.answer().payload, [7; 6_000]);
    let last: Vec<Kind> = peer.drain().iter().map(|message| message.kind).collect();
    assert_eq!(last, [Kind::GoAway]);
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("rate_limit"), 1);
}

/// Datagrams cannot be held back, so they are dropped during a pause. Each is counted.
#[test]
fn datagrams_above_the_rate_are_dropped_and_counted() {
    const MESSAGES: u64 = 200;
    let limit = RateLimit::new(WhenExceeded::Pause)
        .messages_per_second(1)
        .burst(std::time::Duration::from_secs(60));
    let server = TestServer::over_udp(Server::builder().rate_limit(limit), &tw1(), |_| {
        |_: &mut tidewire::Context<'_>, message: Message<'_>| {
            assert_eq!(message.kind, Kind::OneWay);
            Ok(())
        }
    });
    let mut peer = server.peer();
    let before = server.metrics();
    for _ in 0..MESSAGES {
        peer.send(&Message::new(Kind::OneWay, 0, b"news"));
    }
    let dropped = |metrics: &tidewire::metrics::Metrics| {
        metrics.datagrams_dropped_by("paused") + metrics.kernel_drops
    };
    let metrics = server.wait_for("all datagrams came", |metrics| {
        let handled = metrics.frames_in - before.frames_in;
        handled + dropped(metrics) == MESSAGES
    });
    assert!(metrics.rate_paused > 0 && metrics.datagrams_dropped_by("paused") > 0);
    assert!(metrics.frames_in - before.frames_in >= 60);
    drop(peer);
    server.stop();
}
