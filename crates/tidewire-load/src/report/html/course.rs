//! The seconds of a step along one axis.
//! Runs and parts stand side by side, because a sum would hide the run that differs. A long step has more seconds
//! than a chart has room for, so neighbouring seconds are merged into a span. Counts are added. Percentiles cannot be
//! added, so a span has those of its worst second.

use crate::page::plot::Plot;
use crate::page::scale::Axis;
use crate::report::{Second, StepDetail};

pub(super) struct Course {
    pub(super) spans: Vec<Span>,
    /// Length of all runs and parts together, in seconds.
    pub(super) secs: f64,
    pub(super) runs: usize,
    /// The most seconds that are merged into a span.
    pub(super) seconds_each: usize,
}

/// One or more neighbouring seconds of a run.
pub(super) struct Span {
    pub(super) run: u32,
    /// Beginning and end on the axis, in seconds.
    pub(super) from: f64,
    pub(super) to: f64,
    /// End in seconds since the barrier of its run.
    pub(super) at_secs: f64,
    pub(super) phase: &'static str,
    /// Messages a second.
    pub(super) offered: Option<f64>,
    pub(super) sent: f64,
    pub(super) received: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) p999_ms: Option<f64>,
    pub(super) heat: Vec<(f64, u64)>,
}

impl Course {
    /// Returns the course of a step, or the reason why it is not known.
    pub(super) fn of(detail: &StepDetail) -> Result<Self, String> {
        let mut seconds: Vec<&Second> = detail.series.iter().filter(|one| one.secs > 0.0).collect();
        if seconds.is_empty() {
            return Err("the step has no figures by the second".to_owned());
        }
        seconds.sort_by_key(|second| second.run);
        let runs: Vec<&[&Second]> = seconds.chunk_by(|one, next| one.run == next.run).collect();
        let seconds_each = seconds.len().div_ceil(SPANS_MAX);
        let mut spans: Vec<Span> = Vec::new();
        let mut offset = 0.0;
        for run in &runs {
            for phase in run.chunk_by(|one, next| one.phase == next.phase) {
                let groups = phase.chunks(seconds_each);
                spans.extend(groups.map(|group| Span::of(group, offset)));
            }
            offset = spans.last().map_or(offset, |span| span.to);
        }
        Ok(Self {
            secs: offset,
            runs: runs.len(),
            spans,
            seconds_each,
        })
    }

    /// Whether a span is a whole second of its phase or more. The last entry of a run ends with the run: it is a part
    /// of a second, and a line to it would look like a fall.
    fn is_whole(&self, index: usize) -> bool {
        let span = &self.spans[index];
        let is_last = self
            .spans
            .get(index + 1)
            .is_none_or(|next| next.run != span.run);
        let longest = self.spans.iter().map(|span| span.to - span.from);
        let longest = longest.fold(0.0, f64::max);
        !is_last || span.to - span.from >= longest * WHOLE_FROM
    }

    /// Returns a curve of rates that ends when the sending ends. Sending ends within the first entry of a drain, and a
    /// run ends within its last entry. Both are incomplete; a line to them would look like a fall.
    pub(super) fn sending(&self, figure: impl Fn(&Span) -> Option<f64>) -> Vec<Vec<(f64, f64)>> {
        self.pieces(|span| figure(span).filter(|_| span.phase != DRAIN))
    }

    /// Returns a sentence about the part of a second that is not drawn, if there is one.
    pub(super) fn about_rest(&self) -> &'static str {
        if (0..self.spans.len()).all(|index| self.is_whole(index)) {
            ""
        } else {
            " The part of a second at the end is in the table only."
        }
    }

    /// Returns a curve over time, interrupted between runs and where a figure is not known.
    pub(super) fn pieces(&self, figure: impl Fn(&Span) -> Option<f64>) -> Vec<Vec<(f64, f64)>> {
        let mut pieces: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut last_run = None;
        for (index, span) in self.spans.iter().enumerate() {
            let Some(value) = figure(span).filter(|_| self.is_whole(index)) else {
                last_run = None;
                continue;
            };
            if last_run != Some(span.run) {
                pieces.push(Vec::new());
            }
            last_run = Some(span.run);
            let place = (f64::midpoint(span.from, span.to), value);
            if let Some(piece) = pieces.last_mut() {
                piece.push(place);
            }
        }
        pieces
    }

    /// Returns the phases that do not count, with begin, end and name.
    pub(super) fn phases(&self) -> impl Iterator<Item = (f64, f64, &'static str)> {
        self.spans
            .chunk_by(|one, next| one.run == next.run && one.phase == next.phase)
            .filter(|spans| spans[0].phase != STEADY)
            .map(|spans| (spans[0].from, spans[spans.len() - 1].to, spans[0].phase))
    }

    /// Returns a plot over the course, in which the phases that do not count are shaded.
    pub(super) fn plot(&self, label: &str, y: Axis) -> Plot {
        let title = match self.runs {
            0 | 1 => "seconds since the start".to_owned(),
            runs => format!("seconds, {runs} runs or parts side by side"),
        };
        let mut plot = Plot::new(label, Axis::until(title, self.secs), y);
        for (from, to, phase) in self.phases() {
            plot.band(from, to, phase);
        }
        plot
    }

    /// Returns a sentence about the length of the spans, if seconds were merged.
    pub(super) fn about_spans(&self) -> String {
        if self.seconds_each > 1 {
            format!(
                " Each point is {} seconds; of percentiles, the worst of them.",
                self.seconds_each
            )
        } else {
            String::new()
        }
    }
}

impl Span {
    fn of(group: &[&Second], offset: f64) -> Self {
        let (first, last) = (group[0], group[group.len() - 1]);
        let secs: f64 = group.iter().map(|second| second.secs).sum();
        let worst = |figure: fn(&Second) -> Option<f64>| {
            group
                .iter()
                .filter_map(|second| figure(second))
                .reduce(f64::max)
        };
        let sent: u64 = group.iter().map(|second| second.sent).sum();
        let received: Option<u64> = group.iter().map(|second| second.received).sum();
        let offered: Option<f64> = group.iter().map(|second| second.offered).sum();
        let mut heat: Vec<(f64, u64)> = group
            .iter()
            .flat_map(|one| one.heat.iter().copied())
            .collect();
        heat.sort_by(|one, other| one.0.total_cmp(&other.0));
        heat.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 = kept.1.saturating_add(next.1);
            }
            same
        });
        Self {
            run: first.run,
            from: offset + (first.at_secs - first.secs).max(0.0),
            to: offset + last.at_secs.max(0.0),
            at_secs: last.at_secs,
            phase: match first.phase.as_str() {
                "warm_up" => "warm-up",
                "drain" => DRAIN,
                _ => STEADY,
            },
            offered: offered.map(|offered| offered / secs),
            sent: sent as f64 / secs,
            received: received.map(|received| received as f64 / secs),
            p50_ms: worst(|second| second.p50_ms),
            p99_ms: worst(|second| second.p99_ms),
            p999_ms: worst(|second| second.p999_ms),
            heat,
        }
    }

    /// Returns the time of the span as text for the table and the pointer.
    pub(super) fn time(&self, runs: usize) -> String {
        if runs > 1 {
            format!("run {}, {:.1} s", self.run, self.at_secs)
        } else {
            format!("{:.1} s", self.at_secs)
        }
    }
}

const STEADY: &str = "steady";
const DRAIN: &str = "drain";

/// A span that is shorter than this share of the longest one is a part of a second.
const WHOLE_FROM: f64 = 0.9;

/// The most points that a reader can distinguish in a chart.
const SPANS_MAX: usize = 180;
