//! The figures of a running load test for Prometheus: those of the live view, as text over HTTP.
//!
//! The coordinator sets a handful of atomic gauges about once a second, and the HTTP server of `tidewire-admin` answers
//! scrapes from them on a thread of its own; no lane uses either. Latencies are gauges of the last second and not
//! histograms: the report has exact histograms, and buckets made of quantiles would be guesses.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidewire::address::Address;
use tidewire::socket::SocketOptions;
use tidewire::system::listen_tcp;
use tidewire_admin::{CONTENT_TYPE, HttpServer, serve_text};
use tidewire_load::facts::StepFacts;
use tidewire_load::run::{Observer, Phase, Progress};
use tidewire_load::scenario::Step;

use super::view::View;

/// Lists the figures of a scrape: the name of each, its kind and its help.
macro_rules! figures {
    ($($name:ident: $kind:ty = $help:literal;)+) => {
        /// The figures of a scrape.
        #[derive(Clone, Debug, Default)]
        pub(super) struct Metrics { $($name: $kind,)+ }

        impl Metrics {
            fn registry(&self) -> Registry {
                let mut registry = Registry::with_prefix("tidewire_load");
                $(registry.register(stringify!($name), $help, self.$name.clone());)+
                registry
            }
        }
    };
}

figures! {
    offered_rate: Number = "Messages a second that were due";
    sent_rate: Number = "Messages a second in the last second";
    received_rate: Number = "Messages a second in the last second";
    send_lag_p99_seconds: Number = "99th percentile of sent less intended in the last second";
    client_cpu_cores: Number = "Processor time in the last second, in cores";
    server_cpu_cores: Number = "Processor time in the last second, in cores";
    step: Gauge = "Number of the step, from 1";
    steady: Gauge = "1 in the steady window";
    valid: Gauge = "1 if nothing speaks against the measurement of this step so far, or only against its times";
    agents: Gauge = "Agents logged in";
    to_come: Gauge = "Expected messages of this step that have not arrived";
    errors: Gauge = "Connections, logins and sends of this step that failed";
    sent: Counter = "Messages sent";
    lost: Counter = "Expected messages of the steps that ended that did not arrive";
    unconfirmed: Counter = "Expected messages of finished steps whose arrival is unknown";
    received: Counter = "Distinct messages received";
    latency_seconds: Family<[(&'static str, &'static str); 1], Number> =
        "Scheduled latency of what arrived in the last second";
}

/// Listens at the first address that can be used.
fn listen_at_first(address: &str) -> io::Result<TcpListener> {
    let address: Address = address.parse().map_err(io::Error::other)?;
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for endpoint in address.resolve_all().map_err(io::Error::other)? {
        let Some(at) = endpoint.socket_address() else {
            continue;
        };
        match listen_tcp(at, &SocketOptions::default()) {
            Ok(listener) => return Ok(listener),
            Err(error) => refused = io::Error::other(error),
        }
    }
    Err(refused)
}

impl Metrics {
    /// Answers scrapes at this HOST:PORT, or at the first address of the name that can be used, as long as the returned
    /// server lives.
    pub(super) fn serve(address: &str) -> io::Result<(Self, HttpServer)> {
        let metrics = Self::default();
        let registry = metrics.registry();
        let listener = listen_at_first(address)?;
        let server = serve_text(listener, CONTENT_TYPE, move || {
            let mut text = String::new();
            // Writing to memory cannot fail.
            let _ = encode(&mut text, &registry);
            text
        })?;
        Ok((metrics, server))
    }

    fn set(&self, progress: &Progress) {
        let cores = |used: Option<f64>| used.map_or(f64::NAN, |used| used / 100.0);
        let seconds = |ms: Option<f64>| ms.map_or(f64::NAN, |ms| ms / 1e3);
        self.steady.set(i64::from(progress.phase == Phase::Steady));
        self.valid.set(i64::from(progress.verdict.is_valid()));
        self.agents.set(progress.logins.cast_signed());
        let second = &progress.second;
        let offered = second.offered_tps().unwrap_or(f64::NAN);
        self.offered_rate.set(offered);
        self.sent_rate.set(second.send_tps());
        let received = second.receive_tps().unwrap_or(f64::NAN);
        self.received_rate.set(received);
        let to_come = progress.expected.saturating_sub(progress.received);
        self.to_come.set(to_come.cast_signed());
        let times = [second.p50_ms, second.p99_ms, second.p999_ms];
        for (quantile, ms) in ["0.5", "0.99", "0.999"].into_iter().zip(times) {
            let labels = [("quantile", quantile)];
            self.latency_seconds.get_or_create(&labels).set(seconds(ms));
        }
        self.send_lag_p99_seconds
            .set(seconds(second.send_lag_p99_ms));
        self.client_cpu_cores.set(cores(second.client_cpu_pct));
        self.server_cpu_cores.set(cores(second.server_cpu_pct));
        self.errors.set(progress.errors.cast_signed());
    }
}

/// A view whose run is also exported.
#[derive(Debug)]
pub(super) struct MetricsView<'a> {
    view: &'a mut View,
    metrics: Option<&'a Metrics>,
    /// The counts of this step that the counters already contain.
    sent: u64,
    received: u64,
}

impl<'a> MetricsView<'a> {
    pub(super) fn new(view: &'a mut View, metrics: Option<&'a Metrics>) -> Self {
        Self {
            view,
            metrics,
            sent: 0,
            received: 0,
        }
    }
}

impl Observer for MetricsView<'_> {
    fn step_started(&mut self, number: usize, step: &Step) {
        (self.sent, self.received) = (0, 0);
        if let Some(metrics) = self.metrics {
            metrics.step.set(number as i64 + 1);
        }
        self.view.step_started(number, step);
    }

    fn progress(&mut self, progress: &Progress) {
        if let Some(metrics) = self.metrics {
            metrics.set(progress);
            metrics.sent.inc_by(progress.sent - self.sent);
            metrics.received.inc_by(progress.received - self.received);
            (self.sent, self.received) = (progress.sent, progress.received);
        }
        self.view.progress(progress);
    }

    fn step_ended(&mut self, facts: &StepFacts) {
        let report = facts.judge();
        if let Some(metrics) = self.metrics {
            metrics.lost.inc_by(report.lost);
            metrics.unconfirmed.inc_by(report.unconfirmed);
        }
        self.view.show(&report);
    }
}

/// A gauge with a fraction; NaN if the figure is not known.
type Number = Gauge<f64, AtomicU64>;
