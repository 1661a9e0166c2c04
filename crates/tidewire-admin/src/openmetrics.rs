//! All counters in OpenMetrics, for Prometheus.
//!
//! Labels are lanes, reasons, kinds of memory and ends of requests, a fixed number after the start of the server. A
//! name that a peer chose is never a label. The ids of other nodes are labels, too; operators choose them.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tidewire::CloseReason;
use tidewire::backplane::{NodeFigures, PeerFigures};
use tidewire::metrics::{LaneFigures, Metrics};

use crate::http::RequestCounts;
use crate::sampler::{ANSWER_TIME_MAX, Sampler};

/// The content type of OpenMetrics.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The content type of the older text format of Prometheus.
pub(crate) const CLASSIC_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Makes the text of a scrape.
pub(crate) struct Exporter {
    registry: Registry,
    /// The requests of the admin server itself.
    pub(crate) requests: Arc<RequestCounts>,
}

impl Exporter {
    pub(crate) fn new(sampler: Arc<Sampler>) -> Self {
        let mut registry = Registry::default();
        let requests = Arc::<RequestCounts>::default();
        let figures = Figures {
            sampler,
            requests: Arc::clone(&requests),
        };
        registry.register_collector(Box::new(figures));
        Self { registry, requests }
    }

    /// Reads the server now. It waits for the lanes.
    pub(crate) fn scrape(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[derive(Debug)]
struct Figures {
    sampler: Arc<Sampler>,
    requests: Arc<RequestCounts>,
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let sampler = &self.sampler;
        let lanes = sampler.inspector.lane_metrics();
        let sum = sampler.inspector.metrics();
        let figures = sampler.inspector.lanes(ANSWER_TIME_MAX);
        let mut out = Output(&mut encoder);
        out.counters(&lanes)?;
        out.reasons(&sum)?;
        out.lanes(&figures)?;
        out.memory(&sum, &figures)?;
        if let Some(node) = sampler.inspector.node() {
            out.node(&node)?;
        }
        let ends = self.requests.read();
        let ends = ends.map(|(end, count)| ([("end", end)], count));
        let help = "Requests to the admin server, by their end";
        out.owned_counter("admin_requests", help, &ends)?;
        let open = sum.sessions_opened.saturating_sub(sum.sessions_closed());
        out.gauge("sessions_open", "Sessions that are open", open as f64)?;
        let is_ready = sampler.inspector.is_ready() && figures.iter().all(Option::is_some);
        let ready = "1 if new clients are wanted and every lane turns";
        out.gauge("ready", ready, f64::from(u8::from(is_ready)))?;
        if let Some(expires) = sampler.expiry() {
            let since = expires.duration_since(SystemTime::UNIX_EPOCH);
            let seconds = since.map_or(0.0, |since| since.as_secs_f64());
            let help = "When the server's certificate expires, in seconds since 1970";
            out.gauge("certificate_expiry_timestamp_seconds", help, seconds)?;
        }
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let help = "The version of the server, as a label";
        out.gauges("build_info", help, [(version, 1.0)])
    }
}

struct Output<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Output<'_, '_> {
    fn counters(&mut self, lanes: &[Metrics]) -> fmt::Result {
        let labels: Vec<_> = (0..lanes.len())
            .map(|lane| [("lane", lane.to_string())])
            .collect();
        let counts: Vec<Vec<u64>> = lanes
            .iter()
            .map(|lane| lane.counters().map(|(_, _, count)| count).collect())
            .collect();
        for (index, (name, documented, _)) in Metrics::default().counters().enumerate() {
            let of_lanes = labels
                .iter()
                .zip(&counts)
                .map(|(label, it)| (label, it[index]));
            self.counter(name, &plain(documented), of_lanes)?;
        }
        Ok(())
    }

    fn reasons(&mut self, sum: &Metrics) -> fmt::Result {
        let closed = CloseReason::NAMES.iter().zip(sum.closed);
        let dropped = Metrics::ROOM_DROP_REASONS.iter().zip(sum.room_dropped);
        let datagrams = Metrics::DATAGRAM_DROP_REASONS
            .iter()
            .zip(sum.datagrams_dropped);
        let label = |(reason, count): (&&'static str, u64)| ([("reason", *reason)], count);
        let pairs: Vec<_> = closed.map(label).collect();
        self.owned_counter("sessions_closed", "Sessions closed, by reason", &pairs)?;
        let pairs: Vec<_> = dropped.map(label).collect();
        let help = "Frames of rooms and topics that a subscriber did not get, by reason";
        self.owned_counter("room_dropped", help, &pairs)?;
        let pairs: Vec<_> = datagrams.map(label).collect();
        self.owned_counter("datagrams_dropped", "Datagrams dropped, by reason", &pairs)
    }

    fn lanes(&mut self, lanes: &[Option<LaneFigures>]) -> fmt::Result {
        let label = |lane: usize| [("lane", lane.to_string())];
        let of = |figure: fn(&LaneFigures) -> f64| {
            let lanes = lanes.iter().enumerate();
            lanes.filter_map(move |(lane, it)| Some((label(lane), figure(it.as_ref()?))))
        };
        let turns = lanes.iter().enumerate();
        let turns = turns.map(|(lane, it)| (label(lane), f64::from(u8::from(it.is_some()))));
        self.gauges("lane_turns", "1 if the lane answered this scrape", turns)?;
        let help = "Time from the question of this scrape to the lane's answer: a turn, and waking the lane";
        let answer = of(|it| it.answered_after.as_secs_f64());
        self.gauges("lane_answer_seconds", help, answer)?;
        let help = "Sessions of the lane, with unfinished handshakes";
        self.gauges("lane_sessions", help, of(|it| it.sessions as f64))?;
        let help = "Processor time of the lane's thread";
        let cpu: Vec<_> = of(|it| it.cpu.as_secs_f64()).collect();
        let name = "tidewire_lane_cpu_seconds";
        let kind = ConstCounter::new(0.0).metric_type();
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (label, seconds) in &cpu {
            ConstCounter::new(*seconds).encode(metric.encode_family(label)?)?;
        }
        Ok(())
    }

    fn node(&mut self, node: &NodeFigures) -> fmt::Result {
        let help = "1 while the server is cut off from the other nodes";
        self.gauge("node_cut_off", help, f64::from(u8::from(node.is_cut_off)))?;
        let help = "Other nodes that live";
        self.gauge("node_peers", help, node.peers.len() as f64)?;
        let label = |peer: &PeerFigures| [("node", peer.id.clone())];
        let lags = node.peers.iter();
        let lags = lags.filter_map(|peer| Some((label(peer), peer.lag?.as_secs_f64())));
        let help = "Time from a question to the answer of another node, when it was last asked";
        self.gauges("node_lag_seconds", help, lags)?;
        let received = node.peers.iter().map(|peer| (label(peer), peer.received));
        let received: Vec<_> = received.collect();
        self.owned_counter(
            "node_received",
            "Messages of another node that came",
            &received,
        )?;
        let lost = node.peers.iter().map(|peer| (label(peer), peer.lost));
        let help = "Messages of another node that are missing";
        let lost: Vec<_> = lost.collect();
        self.owned_counter("node_lost", help, &lost)
    }

    fn memory(&mut self, sum: &Metrics, lanes: &[Option<LaneFigures>]) -> fmt::Result {
        let total = |bytes: fn(&LaneFigures) -> usize| {
            lanes.iter().flatten().map(bytes).sum::<usize>() as f64
        };
        let known = [
            ("sessions", total(|it| it.session_bytes)),
            ("kept", total(|it| it.kept_bytes)),
            ("common", total(|it| it.common_bytes)),
        ];
        let rest = total(|it| it.memory_bytes) - known.iter().map(|(_, bytes)| bytes).sum::<f64>();
        let kinds = known.into_iter().chain([("rooms", rest.max(0.0))]);
        let help = "Bytes held for peers, by kind";
        let kinds = kinds.map(|(kind, bytes)| ([("kind", kind)], bytes));
        self.gauges("memory_kind_bytes", help, kinds)?;
        let help = "Bytes held for peers";
        self.gauge("memory_bytes", help, sum.memory_bytes as f64)?;
        let help = "The limit of the bytes held for peers";
        self.gauge("memory_bytes_max", help, sum.memory_bytes_max as f64)?;
        let help = "Times that the pressure of memory changed by a level";
        let kind = ConstCounter::new(0_u64).metric_type();
        let name = "tidewire_memory_pressure_changes";
        let metric = self.0.encode_descriptor(name, help, None, kind)?;
        ConstCounter::new(sum.memory_pressure_changes).encode(metric)
    }

    fn owned_counter<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: &[(L, u64)],
    ) -> fmt::Result {
        self.counter(
            name,
            help,
            values.iter().map(|(label, count)| (label, *count)),
        )
    }

    fn counter<'l, L: EncodeLabelSet + 'l>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (&'l L, u64)>,
    ) -> fmt::Result {
        let name = format!("tidewire_{name}");
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut metric = self.0.encode_descriptor(&name, help, None, kind)?;
        for (label, count) in values {
            ConstCounter::new(count).encode(metric.encode_family(label)?)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let name = format!("tidewire_{name}");
        let gauge = ConstGauge::new(value);
        let metric = self
            .0
            .encode_descriptor(&name, help, None, gauge.metric_type())?;
        gauge.encode(metric)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let name = format!("tidewire_{name}");
        let kind = ConstGauge::new(0.0).metric_type();
        let mut metric = self.0.encode_descriptor(&name, help, None, kind)?;
        for (label, value) in values {
            ConstGauge::new(value).encode(metric.encode_family(&label)?)?;
        }
        Ok(())
    }
}

/// Rewrites OpenMetrics as the older format, which most tools read: there a counter has the same name in its help and
/// type as in its series.
pub(crate) fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut help = None;
    for line in text.lines() {
        let described = line.strip_prefix("# HELP ");
        if let Some(described) = described.and_then(|it| it.split_once(' ')) {
            help = Some(described);
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|it| it.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take() {
                out += &format!("# HELP {name}{suffix} {help}\n");
            }
            out += &format!("# TYPE {name}{suffix} {kind}\n");
        } else if line != "# EOF" {
            out += line;
            out.push('\n');
        }
    }
    out
}

/// A documentation comment without the markup of links and code, in one line and without the last full stop.
fn plain(documented: &str) -> String {
    let mut text = String::new();
    let mut rest = documented;
    while let Some((before, link)) = rest.split_once("](") {
        text.push_str(before);
        rest = link.split_once(')').map_or("", |(_, rest)| rest);
    }
    text.push_str(rest);
    text.retain(|it| !matches!(it, '[' | ']' | '`'));
    text.trim().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{classic, plain};

    #[test]
    fn older_readers_find_the_help_of_counters() {
        let text = "# HELP a Help of a\n# TYPE a counter\na_total{x=\"1\"} 7\n# HELP b Of b\n# TYPE b gauge\nb 1\n# \
            EOF\n";
        let expected = "# HELP a_total Help of a\n# TYPE a_total counter\na_total{x=\"1\"} 7\n# HELP b Of b\n# TYPE b \
            gauge\nb 1\n";
        assert_eq!(classic(text), expected);
    }

    #[test]
    fn help_texts_have_no_markup() {
        let documented = " As [`X`](crate::X) says; see\n [`Y`](crate::Y::z).";
        assert_eq!(plain(documented), "As X says; see\n Y");
        assert_eq!(plain(" Frames decoded."), "Frames decoded");
    }
}
