//! Spans of connections over TCP with the feature `trace`, as a subscriber sees them.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::HashMap;
use std::fmt;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, OnceLock};

use tidewire::{AnyCodec, Client, Server};
use tidewire_testkit::fixtures::echo;
use tidewire_testkit::{Peer, TestServer, Wire};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Subscriber};
use tracing_subscriber::layer::{Context as LayerContext, Layer};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

/// A recorded span.
#[derive(Clone, Debug, Default)]
struct RecordedSpan {
    name: &'static str,
    parent: Option<&'static str>,
    level: String,
    fields: HashMap<&'static str, String>,
    ended: bool,
}

impl RecordedSpan {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn bytes(&self) -> u64 {
        self.field("bytes").parse().unwrap()
    }
}

/// Records every span of the process in the order of their beginnings.
struct Collector;

static SPANS: Mutex<Vec<(u64, RecordedSpan)>> = Mutex::new(Vec::new());

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, cx: LayerContext<'_, S>) {
        if attributes.metadata().target() != "tidewire::span" {
            return;
        }
        let span = cx.span(id).unwrap();
        let mut seen = RecordedSpan {
            name: attributes.metadata().name(),
            parent: span.parent().map(|parent| parent.name()),
            level: attributes.metadata().level().to_string(),
            ..RecordedSpan::default()
        };
        attributes.record(&mut Fields(&mut seen.fields));
        SPANS.lock().unwrap().push((id.into_u64(), seen));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _cx: LayerContext<'_, S>) {
        with_open(id, |seen| values.record(&mut Fields(&mut seen.fields)));
    }

    fn on_close(&self, id: Id, _cx: LayerContext<'_, S>) {
        with_open(&id, |seen| seen.ended = true);
    }
}

/// Changes the last span with this id: the subscriber reuses the id of an ended span.
fn with_open(id: &Id, change: impl FnOnce(&mut RecordedSpan)) {
    let mut spans = SPANS.lock().unwrap();
    let found = spans
        .iter_mut()
        .rev()
        .find(|(number, seen)| *number == id.into_u64() && !seen.ended);
    if let Some((_, seen)) = found {
        change(seen);
    }
}

struct Fields<'a>(&'a mut HashMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

fn collect() {
    static STARTED: OnceLock<()> = OnceLock::new();
    STARTED.get_or_init(|| tracing_subscriber::registry().with(Collector).init());
}

/// Returns the spans of sessions with this peer. All of them must have ended.
fn spans_with(peer: &str) -> Vec<RecordedSpan> {
    let spans = SPANS.lock().unwrap();
    let found: Vec<RecordedSpan> = spans
        .iter()
        .filter(|(_, seen)| seen.field("peer") == peer)
        .map(|(_, seen)| seen.clone())
        .collect();
    assert!(found.iter().all(|seen| seen.ended), "{found:#?}");
    found
}

fn only<'a>(spans: &'a [RecordedSpan], name: &str) -> &'a RecordedSpan {
    let found: Vec<&RecordedSpan> = spans.iter().filter(|seen| seen.name == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

fn bytes_of(spans: &[RecordedSpan], name: &str) -> u64 {
    let of_name = spans.iter().filter(|seen| seen.name == name);
    of_name.map(RecordedSpan::bytes).sum()
}

fn serve(codec: &str) -> TestServer {
    collect();
    let codec = AnyCodec::by_name(codec).unwrap();
    TestServer::over_tcp(Server::builder(), &codec, |_| echo)
}

/// Returns the local address of a wire, as spans show it.
fn local_address(peer: &Peer) -> String {
    match peer.wire() {
        Wire::Tcp(stream) => format!("tcp://{}", stream.local_addr().unwrap()),
        other => panic!("not TCP: {other:?}"),
    }
}

#[test]
fn a_request_leaves_the_five_spans_of_its_session() {
    let server = serve("tw1");
    let mut peer = server.peer();
    let address = local_address(&peer);
    let request = peer.request_frame(b"hello");
    peer.write(&request);
    assert_eq!(peer.answer().payload, b"hello");
    peer.finish_writing();
    assert_eq!(peer.receive(), None);
    drop(peer);
    let metrics = server.stop();

    let spans = spans_with(&address);
    let connect = only(&spans, "connect");
    assert_eq!(connect.level, Level::DEBUG.to_string());
    assert_eq!(connect.field("outgoing"), "false");
    assert_eq!(connect.field("opened"), "true");
    let session = connect.field("session");
    assert!(!session.is_empty());
    assert!(spans.iter().all(|seen| seen.field("session") == session));
    assert!(spans.iter().all(|seen| seen.field("codec") == "tw1"));

    let handle = only(&spans, "handle");
    assert_eq!(handle.level, Level::TRACE.to_string());
    assert_eq!(handle.parent, Some("receive"));
    assert_eq!(handle.field("kind"), "Request");
    assert_eq!(handle.bytes(), request.len() as u64);

    // Every byte is in one of the batches.
    assert_eq!(bytes_of(&spans, "receive"), metrics.bytes_in);
    assert_eq!(bytes_of(&spans, "send"), metrics.bytes_out);
    assert_eq!(only(&spans, "close").field("reason"), "peer_closed");
}

#[test]
fn a_client_leaves_them_too() {
    let server = serve("tw1");
    let client = Client::connect(&server.url()).wait().unwrap();
    assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
    let address = server.url();
    client.close().wait();
    // The client's own counters, because the server may send a farewell to a client that has gone.
    let metrics = client.metrics();
    server.stop();

    let spans = spans_with(&address);
    assert_eq!(only(&spans, "connect").field("outgoing"), "true");
    assert_eq!(only(&spans, "connect").field("opened"), "true");
    assert_eq!(only(&spans, "handle").field("kind"), "Reply");
    assert_eq!(bytes_of(&spans, "receive"), metrics.bytes_in);
    assert_eq!(bytes_of(&spans, "send"), metrics.bytes_out);
    assert_eq!(only(&spans, "close").field("reason"), "service");
}

#[test]
fn a_session_that_never_opens_connects_and_closes() {
    let server = serve("tw1");
    let mut stream = TcpStream::connect(server.url().trim_start_matches("tcp://")).unwrap();
    let address = format!("tcp://{}", stream.local_addr().unwrap());
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    // The go-away, or a reset if it came too late. Both are the end.
    let _ = stream.read_to_end(&mut Vec::new());
    drop(stream);
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("handshake"), 1);

    let spans = spans_with(&address);
    assert_eq!(only(&spans, "connect").field("opened"), "", "it never was");
    assert_eq!(only(&spans, "close").field("reason"), "handshake");
    assert!(spans.iter().all(|seen| seen.name != "handle"));
}

/// Without a handshake a session is open when it is accepted. Messages that arrive together are handled in one batch.
#[test]
fn messages_that_come_together_are_received_together() {
    let server = serve("length-field");
    let mut peer = server.peer();
    let address = local_address(&peer);
    let frames: Vec<u8> = [&b"one"[..], b"two", b"three"]
        .iter()
        .flat_map(|payload| peer.request_frame(payload))
        .collect();
    peer.write(&frames);
    for payload in [&b"one"[..], b"two", b"three"] {
        assert_eq!(peer.answer().payload, payload);
    }
    peer.finish_writing();
    assert_eq!(peer.receive(), None);
    drop(peer);
    server.stop();

    let spans = spans_with(&address);
    assert_eq!(only(&spans, "connect").field("opened"), "true");
    let handled: Vec<&RecordedSpan> = spans.iter().filter(|seen| seen.name == "handle").collect();
    assert_eq!(handled.len(), 3);
    let sizes: Vec<u64> = handled.iter().map(|seen| seen.bytes()).collect();
    assert_eq!(sizes, [5, 5, 7]);
    assert_eq!(bytes_of(&spans, "receive"), frames.len() as u64);
    assert_eq!(bytes_of(&spans, "send"), frames.len() as u64);
}
