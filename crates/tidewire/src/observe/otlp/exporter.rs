//! The exporter's thread: it waits for spans, makes batches and posts them until they are taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, select};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanData;
use prost::Message as _;

use super::Tally;
use super::post::{Collector, PostError};
use crate::limits::{OTLP_BATCH_SPANS_MAX, OTLP_POST_TIMEOUT, nanoseconds};
use crate::observe::QuietLog;

#[derive(Debug)]
pub(super) struct Exporter {
    spans: Receiver<SpanData>,
    endings: Receiver<Instant>,
    /// The deadline of the end, once the export is told to end.
    deadline: Option<Instant>,
    collector: Collector,
    resource: ResourceAttributesWithSchema,
    tally: Arc<Tally>,
    reporter: Reporter,
}

/// Tells the log about spans that are lost, without filling it.
#[derive(Debug)]
struct Reporter {
    started: Instant,
    is_failing: bool,
    dropped_told: u64,
    losses: QuietLog,
    refusals: QuietLog,
}

impl Exporter {
    pub(super) fn new(
        spans: Receiver<SpanData>,
        endings: Receiver<Instant>,
        collector: Collector,
        resource: &Resource,
        tally: &Arc<Tally>,
    ) -> Self {
        Self {
            spans,
            endings,
            deadline: None,
            collector,
            resource: resource.into(),
            tally: Arc::clone(tally),
            reporter: Reporter {
                started: Instant::now(),
                is_failing: false,
                dropped_told: 0,
                losses: QuietLog::default(),
                refusals: QuietLog::default(),
            },
        }
    }

    pub(super) fn run(mut self) {
        while self.deadline.is_none() {
            let Some(first) = self.wait() else { break };
            // Lanes wake this thread only while it waits for the first span, so at most twice a second.
            self.sleep(GATHER_INTERVAL);
            self.export_waiting(Some(first));
        }
        self.export_waiting(None);
    }

    /// Waits for a span. Returns `None` at the end.
    fn wait(&mut self) -> Option<SpanData> {
        select! {
            recv(self.spans) -> span => span.ok(),
            recv(self.endings) -> deadline => {
                // The channel closes if its sender is dropped without a deadline. The export then ends at once.
                self.deadline = Some(deadline.unwrap_or_else(|_| Instant::now()));
                None
            }
        }
    }

    /// Exports the waiting spans in batches. Later spans wait for the next call, unless they fill a batch.
    fn export_waiting(&mut self, first: Option<SpanData>) {
        let mut waiting = first.into_iter().collect::<Vec<_>>();
        loop {
            let room = OTLP_BATCH_SPANS_MAX - waiting.len();
            waiting.extend(self.spans.try_iter().take(room));
            let is_last = waiting.len() < OTLP_BATCH_SPANS_MAX;
            if !waiting.is_empty() {
                self.export(std::mem::take(&mut waiting));
            }
            if is_last {
                return;
            }
        }
    }

    /// Exports one batch: posts it until it is taken or refused, or until the end.
    fn export(&mut self, spans: Vec<SpanData>) {
        let count = spans.len() as u64;
        let request = ExportTraceServiceRequest {
            resource_spans: group_spans_by_resource_and_scope(spans, &self.resource),
        };
        let batch = request.encode_to_vec();
        let mut pause = RETRY_INTERVAL;
        loop {
            let Some(timeout) = self.time_left() else {
                add(&self.tally.dropped, count);
                return;
            };
            let result = self.collector.post(&batch, timeout);
            self.reporter.tell(&result, &self.collector, &self.tally);
            match result {
                Ok(refused) => {
                    let refused = refused.min(count);
                    add(&self.tally.failed, refused);
                    add(&self.tally.written, count - refused);
                    return;
                }
                Err(error) if !error.may_pass() => {
                    add(&self.tally.failed, count);
                    return;
                }
                // At the end each batch has one chance.
                Err(_) if self.deadline.is_some() => {
                    add(&self.tally.dropped, count);
                    return;
                }
                Err(_) => {
                    self.sleep(pause);
                    pause = (pause * 2).min(RETRY_INTERVAL_MAX);
                }
            }
        }
    }

    fn time_left(&self) -> Option<Duration> {
        let Some(deadline) = self.deadline else {
            return Some(OTLP_POST_TIMEOUT);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Sleeps, unless the export is told to end.
    fn sleep(&mut self, time: Duration) {
        if self.deadline.is_none() {
            match self.endings.recv_timeout(time) {
                Ok(deadline) => self.deadline = Some(deadline),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.deadline = Some(Instant::now()),
            }
        }
    }
}

impl Reporter {
    fn tell(&mut self, result: &Result<u64, PostError>, collector: &Collector, tally: &Tally) {
        let now_ns = nanoseconds(self.started.elapsed());
        let dropped = tally.dropped.load(Ordering::SeqCst);
        let collector = collector.place();
        match result {
            Err(error) if error.may_pass() => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(
                        %collector, %error,
                        "spans cannot be exported; they wait, and are dropped when too many do"
                    );
                }
                return;
            }
            Err(error) => {
                if self.refusals.may_log(now_ns).is_some() {
                    let refused = tally.failed.load(Ordering::SeqCst);
                    tracing::warn!(%collector, %error, refused, "the collector refuses spans");
                }
            }
            Ok(1..) => {
                if self.refusals.may_log(now_ns).is_some() {
                    let refused = tally.failed.load(Ordering::SeqCst);
                    tracing::warn!(%collector, refused, "the collector refuses some spans");
                }
            }
            Ok(0) => {}
        }
        let lost = dropped - self.dropped_told;
        if std::mem::take(&mut self.is_failing) {
            self.dropped_told = dropped;
            tracing::info!(%collector, lost, "spans are exported again");
        } else if lost > 0 && self.losses.may_log(now_ns).is_some() {
            self.dropped_told = dropped;
            tracing::warn!(
                %collector, lost,
                "spans were dropped: they end faster than the collector takes them; sample them, or export fewer levels"
            );
        }
    }
}

fn add(count: &AtomicU64, spans: u64) {
    count.fetch_add(spans, Ordering::SeqCst);
}

const GATHER_INTERVAL: Duration = Duration::from_millis(500);

/// The pause before a batch is posted again. It doubles up to the maximum, so that a collector that starts is not
/// stormed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(30);
