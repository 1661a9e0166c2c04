//! The library's log does not grow with the number of messages: only level `trace` writes a line for each.
//!
//! A process has one log, so this is a test program with one test.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

use tidewire::log::LogBuilder;
use tidewire::{Client, HandlerError, Kind};
use tidewire_proto::body::ErrorCode;
use tidewire_testkit::logs::Logs;

/// Sends requests that are answered, requests that are refused, and messages that are too large.
fn talk(rounds: usize) {
    let server = tidewire::serve("tcp://127.0.0.1:0", |cx, message| match message.payload {
        b"refuse" => Err(HandlerError::new(ErrorCode::Unsupported, "no")),
        payload if message.kind == Kind::Request => cx.reply(payload),
        _ => Ok(()),
    })
    .unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    let too_large = vec![0; 2 << 20];
    for _ in 0..rounds {
        assert!(client.request(b"echo").wait().is_ok());
        assert!(client.request(b"refuse").wait().is_err());
        client.send(b"one way").unwrap();
        assert!(client.send(&too_large).is_err());
    }
    assert!(client.request(b"the end").wait().is_ok());
    client.close().wait();
    let metrics = server.shutdown(std::time::Duration::from_secs(10)).metrics;
    assert_eq!(metrics.refused, rounds as u64);
}

#[test]
fn lines_do_not_grow_with_messages_above_trace() {
    let logs = Logs::default();
    let (writer, log) = LogBuilder::new().open_to(logs.clone());
    let subscriber = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_max_level(tracing::Level::TRACE)
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let lines = |rounds: usize| -> usize {
        let before = logs.text().len();
        talk(rounds);
        // The lines of an ended thread are in the queue. A line of this thread after them marks their end.
        let mark = format!("{rounds} rounds are over");
        tracing::error!("{mark}");
        loop {
            let text = logs.text();
            let text = &text[before..];
            if text.contains(&mark) {
                return text.lines().filter(|line| !line.contains("TRACE")).count();
            }
            std::thread::yield_now();
        }
    };
    let (few, many) = (lines(1), lines(100));
    assert!(few > 1, "something is logged at all");
    assert_eq!(few, many, "{}", logs.text());
    let metrics = log.finish();
    assert_eq!(metrics.offered, metrics.written);
}
