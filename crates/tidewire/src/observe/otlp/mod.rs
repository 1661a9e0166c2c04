//! Spans of a server to a collector of OpenTelemetry, by OTLP over HTTP with protobuf.
//!
//! ```text
//! lane: a span ends ──► bounded queue ──► thread tidewire-otlp: batches ──► POST URL/v1/traces
//!                          │ full: dropped and counted
//! ```
//!
//! A lane never waits: it makes the span, and a full queue drops it. The exporter's thread takes the waiting spans
//! twice a second and posts it in batches. A batch that the collector could not take is posted again, at growing
//! intervals, while the queue fills. Every span is accounted for:
//!
//! ```text
//! offered = written + failed + dropped + in flight
//! ```
//!
//! The log has one line when the collector cannot be reached and one line when it can be reached again. A collector
//! that refuses spans, or that is too slow, has one line in ten seconds.
//!
//! Spans are those of the feature `trace`, as `tracing-opentelemetry` makes them. A peer sends no trace context, so
//! each span without a parent begins a trace. Of one session, `connect`, each `receive` and `close` have the same
//! `session`.
//!
//! The batches are our own, because `opentelemetry_sdk` does not publish its count of dropped spans. The post is our
//! own, because `opentelemetry-otlp` brings an asynchronous client, or a client with its own runtime.

mod endpoint;
mod exporter;
mod post;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use opentelemetry::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, Span, SpanData, SpanProcessor};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use super::log::{LogError, LogMetrics};
use crate::limits::{OTLP_FLUSH_TIMEOUT, OTLP_QUEUE_SPANS_MAX};
use exporter::Exporter;
use post::Collector;
use tidewire_proto::setting::SettingError;

/// The settings of an export of spans before it starts.
///
/// ```no_run
/// use tidewire::log::LogBuilder;
/// use tidewire::otlp::OtlpBuilder;
///
/// let export = OtlpBuilder::new("http://127.0.0.1:4318")?.start()?;
/// let log = LogBuilder::new().start_with(export.layer())?;
/// // … run a server …
/// let metrics = export.finish();
/// assert_eq!(metrics.in_flight(), 0);
/// # drop(log);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OtlpBuilder {
    collector: Collector,
    service_name: Option<String>,
    level: LevelFilter,
    queue_spans_max: usize,
}

/// A running export of spans. Dropping it, or [`SpanExport::finish`], exports the spans that wait. Later spans are
/// dropped. [`OtlpBuilder`] has an example.
#[derive(Debug)]
#[must_use = "dropping it ends the export"]
pub struct SpanExport {
    tally: Arc<Tally>,
    provider: SdkTracerProvider,
    level: LevelFilter,
    /// The exporter's thread ends at the deadline that it finds here.
    ending: Sender<Instant>,
    ended: Receiver<()>,
}

impl OtlpBuilder {
    /// An export to the collector at `url`, such as `http://127.0.0.1:4318`. The default path is OTLP's, `/v1/traces`.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn new(url: &str) -> Result<Self, SettingError> {
        Ok(Self {
            collector: Collector::new(endpoint::parse(url)?),
            service_name: None,
            level: LevelFilter::DEBUG,
            queue_spans_max: OTLP_QUEUE_SPANS_MAX,
        })
    }

    /// Sets headers of each request, written as in `OTEL_EXPORTER_OTLP_HEADERS`: `name=value`, with commas between
    /// several, and `%` before the two hexadecimal digits of other bytes.
    ///
    /// # Errors
    /// [`SettingError`](crate::SettingError) if this is no list of headers.
    pub fn headers(mut self, list: &str) -> Result<Self, SettingError> {
        self.collector.set_headers(endpoint::headers(list)?);
        Ok(self)
    }

    /// Sets the name of the service if neither `OTEL_SERVICE_NAME` nor `OTEL_RESOURCE_ATTRIBUTES` has one.
    #[must_use]
    pub fn service_name(mut self, name: &str) -> Self {
        self.service_name = Some(name.to_owned());
        self
    }

    /// Sets the level of the spans. Default: `debug`, which is `connect` and `close`. With `trace` there is a span for
    /// each message.
    #[must_use]
    pub fn level(mut self, level: LevelFilter) -> Self {
        self.level = level;
        self
    }

    /// Sets the number of spans that may wait, at least 1. Default 8,192, which are some 8 MB.
    #[must_use]
    pub fn queue_spans_max(mut self, spans: usize) -> Self {
        self.queue_spans_max = spans.max(1);
        self
    }

    /// Starts the exporter's thread. The collector need not run yet. Sampling and other attributes of the service are
    /// those of `OTEL_TRACES_SAMPLER`, `OTEL_TRACES_SAMPLER_ARG` and `OTEL_RESOURCE_ATTRIBUTES`.
    ///
    /// # Errors
    /// [`LogError::ExportThread`] if the system has no thread for it.
    pub fn start(self) -> Result<SpanExport, LogError> {
        let mut resource = Resource::builder().build();
        if let Some(name) = self.service_name.filter(|_| is_unnamed(&resource)) {
            resource = Resource::builder().with_service_name(name).build();
        }
        let tally = Arc::new(Tally::default());
        let (queue, spans) = bounded(self.queue_spans_max);
        let (ending, endings) = bounded(1);
        let exporter = Exporter::new(spans, endings, self.collector, &resource, &tally);
        let (closes_at_end, ended) = bounded(0);
        let thread = std::thread::Builder::new().name("tidewire-otlp".to_owned());
        thread
            .spawn(move || {
                exporter.run();
                drop::<Sender<()>>(closes_at_end);
            })
            .map_err(LogError::ExportThread)?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            .with_span_processor(Queue {
                spans: queue,
                tally: Arc::clone(&tally),
            })
            .build();
        Ok(SpanExport {
            tally,
            provider,
            level: self.level,
            ending,
            ended,
        })
    }
}

impl SpanExport {
    /// Returns the layer for the program's subscriber, which hands the spans to this export; see
    /// [`LogBuilder::start_with`](crate::log::LogBuilder::start_with). The layer has its own filter and takes no lines
    /// of the log.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + 'static
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("tidewire"))
            // The lanes' names are attributes; places in our source say nothing to an operator.
            .with_location(false)
            .with_tracked_inactivity(false)
            .with_level(false)
            .with_target(false)
            // Nothing here reads the context of the thread.
            .with_context_activation(false)
            .with_filter(Targets::new().with_target("tidewire::span", self.level))
    }

    /// The outcomes of the spans so far.
    #[must_use]
    pub fn metrics(&self) -> LogMetrics {
        self.tally.metrics()
    }

    /// Exports the spans that wait, and ends the export. It waits some 2 s for a collector that does not answer. Spans
    /// in flight are then lost.
    pub fn finish(mut self) -> LogMetrics {
        self.end();
        self.tally.metrics()
    }

    fn end(&mut self) {
        // `finish` ends the export and then drops it. It waits once.
        if self.tally.is_closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let deadline = Instant::now() + OTLP_FLUSH_TIMEOUT;
        // The thread may have ended.
        let _ = self.ending.try_send(deadline);
        // Nothing is ever sent here: the channel is closed at the end, or the time is over.
        let _ = self.ended.recv_deadline(deadline + OTLP_POST_MARGIN);
    }
}

impl Drop for SpanExport {
    fn drop(&mut self) {
        self.end();
    }
}

/// Counts the spans by outcome. Lanes, the exporter's thread and readers share it.
#[derive(Debug, Default)]
struct Tally {
    offered: AtomicU64,
    written: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    is_closed: AtomicBool,
}

impl Tally {
    fn metrics(&self) -> LogMetrics {
        // Outcomes are read before offers, so that a span that ends in between is in flight and not missing.
        let [written, failed, dropped, offered] =
            [&self.written, &self.failed, &self.dropped, &self.offered]
                .map(|count| count.load(Ordering::SeqCst));
        LogMetrics {
            offered,
            written,
            dropped,
            failed,
        }
    }
}

#[derive(Debug)]
struct Queue {
    spans: Sender<SpanData>,
    tally: Arc<Tally>,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _span: &mut Span, _cx: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.tally.offered.fetch_add(1, Ordering::SeqCst);
        let is_lost = self.tally.is_closed.load(Ordering::SeqCst)
            || matches!(
                self.spans.try_send(span),
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_))
            );
        if is_lost {
            self.tally.dropped.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Whether the environment has no name of the service.
fn is_unnamed(resource: &Resource) -> bool {
    let name = resource.get(&"service.name".into());
    name.is_none_or(|name| name.as_str().starts_with("unknown_service"))
}

/// The time of the thread after its deadline to count unsent spans.
const OTLP_POST_MARGIN: Duration = Duration::from_millis(500);
