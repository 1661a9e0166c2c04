//! Server-sent events: the snapshots that a dashboard shows.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::Value;
use tidewire_admin::Settings;

use crate::Site;

/// A listener, after the head of its answer.
fn listen(site: &Site) -> BufReader<TcpStream> {
    let mut stream = site.connect();
    let request = format!(
        "GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n",
        site.address()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(lines.read_line(&mut head).unwrap() > 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("text/event-stream"), "{head}");
    lines
}

/// The next snapshot.
fn next(lines: &mut BufReader<TcpStream>) -> Value {
    loop {
        let mut line = String::new();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the events ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).unwrap();
        }
    }
}

#[test]
fn all_listeners_get_the_same_snapshots() {
    let site = Site::start(Settings::default());
    let mut listeners: Vec<_> = (0..5).map(|_| listen(&site)).collect();
    let mut firsts = listeners
        .iter_mut()
        .map(|it| next(it)["at_ms"].as_u64().unwrap());
    let newest = firsts.by_ref().max().unwrap();
    for listener in &mut listeners {
        // Each receives every snapshot after its first, so also the newest of them or a later snapshot.
        let mut at = 0;
        while at < newest {
            at = next(listener)["at_ms"].as_u64().unwrap();
        }
    }
    let one = next(&mut listeners[0]);
    assert!(one["interval_seconds"].as_f64().unwrap() > 0.0);
}

/// Each listener holds a connection and a buffer, so their number has a limit.
#[test]
fn listeners_beyond_the_limit_are_refused_until_one_leaves() {
    let site = Site::start(Settings::default());
    let mut listeners: Vec<_> = (0..32).map(|_| listen(&site)).collect();
    assert_eq!(site.get("/api/events").status, 503);
    assert_eq!(site.get("/healthz").status, 200);
    listeners.pop();
    tidewire_testkit::wait_until("the place is free", || {
        let mut stream = site.connect();
        let request = format!(
            "GET /api/events HTTP/1.1\r\nHost: {}\r\n\r\n",
            site.address()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.starts_with("HTTP/1.1 200").then_some(())
    });
    drop(listeners);
}
