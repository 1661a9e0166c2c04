//! Spans that reach a collector by OTLP, and the counts of spans that do not.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod collector;
mod endpoint;

use std::collections::HashMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use tidewire::log::{Log, LogBuilder, LogMetrics};
use tidewire::otlp::{OtlpBuilder, SpanExport};
use tidewire::{AnyCodec, Server};
use tidewire_testkit::fixtures::echo;
use tidewire_testkit::{TestServer, wait_until};
use tracing::level_filters::LevelFilter;
use tracing::subscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

use collector::{Collector, Reply, attribute};

fn export_to(url: &str) -> SpanExport {
    OtlpBuilder::new(url).unwrap().start().unwrap()
}

fn make_spans(export: &SpanExport, count: usize) {
    subscriber::with_default(registry().with(export.layer()), || {
        for session in 0..count {
            drop(tracing::debug_span!(target: "tidewire::span", "connect", session));
        }
    });
}

/// All checks that need the subscriber of the process, because a process has only one.
#[test]
fn the_spans_of_a_session_reach_the_collector_and_losses_reach_the_log() {
    let collector = Collector::start([]);
    let export = OtlpBuilder::new(collector.url())
        .unwrap()
        .headers("x-tenant=seven")
        .unwrap()
        .service_name("ferry")
        .level(LevelFilter::TRACE)
        .start()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    // The log's level does not filter the spans.
    let log = LogBuilder::new().filter("info").unwrap().file(&path);
    let log = log.start_with(export.layer()).unwrap();

    let codec = AnyCodec::by_name("tw1").unwrap();
    let server = TestServer::over_tcp(Server::builder(), &codec, |_| echo);
    let mut peer = server.peer();
    let request = peer.request_frame(b"hello");
    peer.write(&request);
    assert_eq!(peer.answer().payload, b"hello");
    drop(peer);
    server.stop();
    let metrics = export.finish();
    assert_eq!(metrics.written, metrics.offered, "{metrics:?}");

    let requests = collector.requests();
    assert_eq!(requests[0].path, "/v1/traces");
    assert_eq!(requests[0].header("content-type"), "application/x-protobuf");
    assert_eq!(requests[0].header("x-tenant"), "seven");
    let resource = requests[0].message.resource_spans[0].resource.clone();
    let resource = resource.unwrap().attributes;
    assert_eq!(attribute(&resource, "service.name"), "ferry");
    let spans = collector.spans();
    assert_eq!(spans.len() as u64, metrics.written);
    let by_name: HashMap<&str, _> = spans.iter().map(|it| (it.name.as_str(), it)).collect();
    for name in ["connect", "receive", "handle", "send", "close"] {
        let span = by_name[name];
        assert_eq!(attribute(&span.attributes, "codec"), "tw1", "{name}");
        assert!(attribute(&span.attributes, "peer").starts_with("tcp://127.0.0.1:"));
        assert!(attribute(&span.attributes, "thread.name").contains("lane"));
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
        let session = attribute(&span.attributes, "session");
        assert_eq!(
            session,
            attribute(&by_name["connect"].attributes, "session")
        );
    }
    let handles = spans.iter().filter(|it| it.name == "handle");
    let receives: Vec<_> = spans.iter().filter(|it| it.name == "receive").collect();
    for handle in handles {
        let parent = receives
            .iter()
            .find(|it| it.span_id == handle.parent_span_id);
        assert_eq!(parent.unwrap().trace_id, handle.trace_id);
    }
    assert_eq!(attribute(&by_name["connect"].attributes, "opened"), "true");
    assert_eq!(
        attribute(&by_name["close"].attributes, "reason"),
        "peer_closed"
    );

    tells_of_an_outage_once(log, &path);
}

/// The log has one line at the beginning of an outage, and one at its end.
fn tells_of_an_outage_once(log: Log, path: &Path) {
    let collector = Collector::start([Reply::Status(503), Reply::Status(429)]);
    // Some collectors have the key in the query of the URL.
    let export = export_to(&format!("{}/v1/traces?key=secret", collector.url()));
    make_spans(&export, 3);
    collector.wait_for_spans(3);
    assert_eq!(export.finish().written, 3);
    log.finish();
    let text = std::fs::read_to_string(path).unwrap();
    let told: Vec<_> = text
        .lines()
        .filter(|line| line.contains(collector.url()))
        .collect();
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told[0].contains("spans cannot be exported") && told[0].contains("503"));
    assert!(told[1].contains("spans are exported again"));
    assert!(!text.contains("secret"), "{text}");
}

/// Offered spans, all of which have a fate.
fn finished(export: SpanExport, offered: u64) -> LogMetrics {
    let metrics = export.finish();
    assert_eq!(metrics.offered, offered);
    assert_eq!(metrics.in_flight(), 0, "{metrics:?}");
    metrics
}

#[test]
fn spans_that_wait_at_the_end_are_exported_in_batches() {
    let collector = Collector::start([]);
    let export = export_to(collector.url());
    make_spans(&export, 1300);
    assert_eq!(finished(export, 1300).written, 1300);
    let sizes: Vec<usize> = collector
        .requests()
        .iter()
        .map(|it| it.spans().len())
        .collect();
    assert_eq!(sizes.iter().sum::<usize>(), 1300);
    assert!(sizes.iter().all(|size| *size <= 512), "{sizes:?}");
}

/// Regression: while a batch was posted a few more spans came, and were posted at once as a batch of their own.
#[test]
fn a_busy_server_sends_full_batches() {
    let collector = Collector::start([]);
    let export = export_to(collector.url());
    let before = Instant::now();
    while before.elapsed() < Duration::from_millis(1_200) {
        make_spans(&export, 10);
        thread::sleep(Duration::from_millis(1));
    }
    export.finish();
    let gathered = before.elapsed().as_millis() / 500 + 2;
    let requests = collector.requests();
    let short = requests.iter().filter(|it| it.spans().len() < 512).count();
    assert!(
        short as u128 <= gathered,
        "{short} short batches of {}",
        requests.len()
    );
}

#[test]
fn a_full_queue_drops_spans_and_counts_them() {
    // The port had a listener and has none now.
    let gone = Collector::start([]).into_url();
    let export = OtlpBuilder::new(&gone).unwrap().queue_spans_max(8);
    let export = export.start().unwrap();
    make_spans(&export, 10_000);
    let metrics = export.metrics();
    assert!(metrics.in_flight() <= 8 + 512, "bounded: {metrics:?}");
    assert_eq!(finished(export, 10_000).dropped, 10_000);
}

#[test]
fn the_end_does_not_wait_for_a_collector_that_never_answers() {
    let collector = Collector::start([Reply::Never]);
    let export = export_to(collector.url());
    make_spans(&export, 5);
    let metrics = export.finish();
    assert_eq!((metrics.offered, metrics.written), (5, 0));
    assert_eq!(metrics.dropped + metrics.in_flight(), 5, "lost, and told");
}

/// Regression: `finish` waited for the exporter a second time, when it dropped the export.
#[test]
fn the_end_waits_once_for_a_post_that_is_on_its_way() {
    let collector = Collector::start([Reply::Never]);
    let export = export_to(collector.url());
    make_spans(&export, 5);
    wait_until("the post", || {
        (!collector.requests().is_empty()).then_some(())
    });
    let before = Instant::now();
    let metrics = export.finish();
    assert_eq!(metrics.written, 0);
    // A post may take 5 s, and the end half as long.
    let waited = before.elapsed();
    assert!(waited < Duration::from_millis(3_500), "{waited:?}");
}

#[test]
fn spans_that_a_collector_refuses_are_counted_and_not_sent_again() {
    let replies = [Reply::Partial(2), Reply::Status(404), Reply::Garbage];
    let collector = Collector::start(replies);
    let export = export_to(collector.url());
    for (refused, exported) in [(2, 3), (7, 3), (7, 8)] {
        make_spans(&export, 5);
        collector.wait_for_spans(5);
        let is_counted = || {
            let metrics = export.metrics();
            let counted = (metrics.failed, metrics.written);
            (counted == (refused, exported)).then_some(())
        };
        wait_until("the outcomes", is_counted);
    }
    assert_eq!(finished(export, 15).dropped, 0);
    assert_eq!(collector.requests().len(), 3);
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Collector::start([]);
    let collector = Collector::start([Reply::Redirect(elsewhere.url().to_owned())]);
    let export = export_to(collector.url());
    make_spans(&export, 1);
    assert_eq!(finished(export, 1).failed, 1);
    assert!(elsewhere.requests().is_empty());
    assert!(
        collector.requests()[0]
            .header("user-agent")
            .starts_with("tidewire/")
    );
}

#[test]
fn a_span_after_the_end_is_dropped() {
    let collector = Collector::start([]);
    let export = export_to(collector.url());
    let layer = export.layer();
    let metrics = finished(export, 0);
    assert_eq!(metrics, LogMetrics::default());
    subscriber::with_default(registry().with(layer), || {
        drop(tracing::debug_span!(target: "tidewire::span", "close"));
    });
    assert!(collector.requests().is_empty());
}
