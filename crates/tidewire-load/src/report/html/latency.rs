//! The latency of messages: by percentile, over time, and as a heat map.

use super::course::{Course, Span};
use crate::format::{few, milliseconds, thousands};
use crate::page::figure::{Cell, Chart, NO_VALUE, Table};
use crate::page::plot::{Plot, SHADES, Shades};
use crate::page::scale::{Axis, compact};
use crate::report::table::marked;
use crate::report::{Distribution, StepDetail, StepReport};
use crate::statistics::{LatencyHistogram, Percentile, Quantile};

/// Draws latency by percentile, with `scheduled` and `service` in one chart.
pub(super) fn by_percentile(step: &StepReport) -> Result<Chart, String> {
    let detail = &step.detail;
    let times = &detail.times;
    let scheduled = Curve::of(&times.scheduled)?;
    let service = times.service.as_ref().map(Curve::of).transpose()?;
    // Without a schedule both latencies are the same, so one line is enough.
    let service = service.filter(|service| service.points != scheduled.points);
    let all = || {
        let service = service.iter().flat_map(|curve| &curve.points);
        scheduled.points.iter().chain(service)
    };
    let most = all().map(|(x, _)| *x).fold(10.0, f64::max);
    let mut x = Axis::logarithmic("percentile", [1.0, most].into_iter());
    x.ticks = PERCENTILE_TICKS
        .iter()
        .map(|(x, text)| (*x, (*text).to_owned()))
        .filter(|(tick, _)| *tick <= x.scale.ends().1)
        .collect();
    let y = Axis::logarithmic("ms, logarithmic", all().map(|(_, ms)| *ms));
    let mut plot = Plot::new("Latency by percentile", x, y);
    if let Some(from) = scheduled.lost_from {
        plot.band(from, most * 10.0, "never arrived");
    }
    let table = curve_table(&scheduled, service.as_ref());
    let curves = [
        ("service", "s2 dashed", &service),
        ("scheduled", "s1", &Some(scheduled)),
    ];
    for (name, class, curve) in curves {
        let Some(curve) = curve else { continue };
        plot.line(name, class, vec![curve.points.clone()]);
    }
    add_percentile_columns(&mut plot, detail);
    Ok(plot.drawn(about_percentiles(detail), table))
}

/// Draws p50, p99 and p99.9 of each second.
pub(super) fn over_time(step: &StepReport) -> Result<Chart, String> {
    let detail = &step.detail;
    let course = Course::of(detail)?;
    let figures: [(&str, &str, FigureOfSpan); 3] = [
        ("p50", "q1", |span| span.p50_ms),
        ("p99", "q2", |span| span.p99_ms),
        ("p99.9", "q3", |span| span.p999_ms),
    ];
    let limit = detail.slo.limits.p99_ms;
    let values = course
        .spans
        .iter()
        .flat_map(|span| [span.p50_ms, span.p99_ms, span.p999_ms])
        .flatten();
    if values.clone().next().is_none() {
        return Err(NOTHING_BACK.to_owned());
    }
    let y = Axis::logarithmic("ms, logarithmic", values.chain(limit));
    let mut plot = course.plot("p50, p99 and p99.9 over time", y);
    if let Some(limit) = limit {
        plot.rule(limit, "limit", format!("limit of p99: {limit} ms"));
    }
    for (name, class, figure) in figures {
        plot.line(name, class, course.pieces(figure));
    }
    let mut table = Table::new("time, phase, p50 ms, p99 ms, p99.9 ms".split(", ")).with_words(1);
    for span in &course.spans {
        let [p50, p99, p999] = figures.map(|(_, _, figure)| optional(figure(span)));
        let time = span.time(course.runs);
        let told = format!("p50 {p50} ms\np99 {p99} ms\np99.9 {p999} ms");
        let tip = format!("{time}, {}\n{told}", span.phase);
        plot.column(span.from, span.to, tip);
        let mut cells: Vec<Cell> = vec![time.into(), span.phase.to_owned().into()];
        cells.extend(figures.map(|(_, _, figure)| Cell::from(figure(span))));
        table.row(cells);
    }
    let about = format!(
        "The scheduled latency of the messages that arrived in each second. The tail of a single second has few messages.{}{}",
        course.about_spans(),
        course.about_rest()
    );
    Ok(plot.drawn(about, table))
}

/// Draws the heat map: the number of messages by second and latency.
pub(super) fn heat_map(step: &StepReport) -> Result<Chart, String> {
    let course = Course::of(&step.detail)?;
    let counts = || course.spans.iter().flat_map(|span| &span.heat);
    let densest = course
        .spans
        .iter()
        .flat_map(|span| span.heat.iter().map(|(_, count)| span.density(*count)))
        .fold(0.0, f64::max);
    if densest <= 0.0 {
        return Err(NOTHING_BACK.to_owned());
    }
    let edges = counts().flat_map(|(edge, _)| [*edge, lower_edge(*edge)]);
    let mut plot = course.plot(
        "Latency heat map",
        Axis::logarithmic("ms, logarithmic", edges),
    );
    let mut table =
        Table::new("time, messages, fastest ms, most around ms, slowest ms".split(", "));
    for span in &course.spans {
        let time = span.time(course.runs);
        for (edge, count) in span.heat.iter().filter(|(_, count)| *count > 0) {
            let (low, high) = (lower_edge(*edge), *edge);
            let level = level(span.density(*count), densest);
            let ([least, most], count) = ([low, high].map(milliseconds), thousands(*count));
            let tip = format!("{time}\n{least} to {most} ms\n{count} messages");
            plot.cell((span.from, span.to), (low, high), level, tip);
        }
        let total = span
            .heat
            .iter()
            .fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        let most = span.heat.iter().max_by_key(|(_, count)| *count);
        let (first, last) = (span.heat.first(), span.heat.last());
        table.row(vec![
            Cell::from(time),
            thousands(total).into(),
            first.map(|(edge, _)| lower_edge(*edge)).into(),
            most.map(|(edge, _)| edge * 10_f64.powf(-0.05)).into(),
            last.map(|(edge, _)| *edge).into(),
        ]);
    }
    // The faintest shade also stands for all smaller numbers.
    let faintest = densest / SHADE_RATIO.powi(i32::from(SHADES) - 1);
    plot.shades = Some(Shades {
        least: match faintest {
            faintest if faintest < 0.01 => "under 0.01".to_owned(),
            faintest => format!("up to {}", short(faintest)),
        },
        most: format!("{} messages/s", short(densest)),
    });
    let about = "The scheduled latency of the messages that arrived in each second. The colour is the number of messages a second \
                 in a tenth of a decade. Each shade is four times the one before, so that a few slow ones stay visible.";
    Ok(plot.drawn(about, table))
}

/// A time in milliseconds, or a dash where it is not known.
pub(super) fn optional(ms: Option<f64>) -> String {
    ms.map_or_else(|| NO_VALUE.to_owned(), milliseconds)
}

impl Span {
    /// Messages a second in a cell.
    fn density(&self, count: u64) -> f64 {
        count as f64 / (self.to - self.from).max(1e-9)
    }
}

/// Reads a figure of a span, if the span has it.
type FigureOfSpan = fn(&Span) -> Option<f64>;

/// A distribution as points over 1 / (1 − q), up to the last percentile with enough samples.
struct Curve {
    points: Vec<(f64, f64)>,
    /// The position from which on messages never arrived.
    lost_from: Option<f64>,
}

impl Curve {
    fn of(times: &Distribution) -> Result<Self, String> {
        let histogram = times
            .histogram
            .decode()
            .map_err(|error| format!("a histogram cannot be read ({error})"))?;
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (x, quantile) in quantiles() {
            if let Percentile::Known { ms } = Percentile::of(&histogram, times.missing, quantile) {
                points.push((x, ms));
            }
        }
        if points.len() < 2 {
            return Err(few_messages(&histogram, times.missing));
        }
        let samples = histogram.count().saturating_add(times.missing) as f64;
        let lost_from = (times.missing > 0).then(|| samples / times.missing as f64);
        Ok(Self { points, lost_from })
    }
}

fn few_messages(histogram: &LatencyHistogram, missing: u64) -> String {
    match histogram.count() {
        0 => NOTHING_BACK.to_owned(),
        count => format!(
            "{} messages arrived and {} did not, too few that did for a percentile",
            thousands(count),
            thousands(missing)
        ),
    }
}

/// Sixteen to a decade of 1 / (1 − q), as far as parts per million reach.
fn quantiles() -> impl Iterator<Item = (f64, Quantile)> {
    let mut last_ppm = 0;
    (0..=96).filter_map(move |index| {
        let x = 10_f64.powf(f64::from(index) / 16.0);
        let ppm = (((1.0 - 1.0 / x) * 1e6).round() as u32).clamp(1, 999_999);
        if ppm == last_ppm {
            return None;
        }
        last_ppm = ppm;
        Some((x, Quantile::from_ppm(ppm)?))
    })
}

fn about_percentiles(detail: &StepDetail) -> String {
    let kind = match (&detail.times.service, detail.workload.model.as_str()) {
        (Some(_), "open") => {
            "A tool that waits for replies would not see the gap between scheduled and service."
        }
        (_, "closed") => {
            "The loop is closed: a slow server got fewer messages, so users that do not wait would see higher latencies."
        }
        _ => "scheduled begins when a message was due or, without a schedule, sent.",
    };
    let missing = match detail.times.scheduled.missing {
        0 => String::new(),
        missing => format!(
            " {} messages never arrived and rank above all times.",
            thousands(missing)
        ),
    };
    format!("{kind}{missing} Only percentiles with ten messages or more above them.")
}

fn curve_table(scheduled: &Curve, service: Option<&Curve>) -> Table {
    let mut table = Table::new("percentile, scheduled ms, service ms".split(", "));
    let decimals = percentile_decimals(scheduled.points.last().map_or(1.0, |(x, _)| *x));
    for (x, ms) in &scheduled.points {
        let service = service.and_then(|curve| curve.points.iter().find(|(other, _)| other == x));
        let percentile = format!("p{:.decimals$}", 100.0 * (1.0 - 1.0 / x));
        table.row(vec![
            Cell::from(percentile),
            (*ms).into(),
            service.map(|(_, ms)| *ms).into(),
        ]);
    }
    table
}

/// Returns the decimals with which every percentile up to this 1 / (1 − q) is shown: two significant digits of the
/// distance to 100 % distinguish neighbours. A quantile is a number of parts per million, so four decimals show all of
/// it.
fn percentile_decimals(most: f64) -> usize {
    // A power of ten that is calculated may lie just above it.
    let digits = ((most / 100.0).log10() - 1e-9).ceil().max(0.0);
    (digits as usize + 1).min(4)
}

/// Writes the percentiles of every latency of a step, with an explanation of each name.
pub(super) fn percentiles_of(step: &StepReport, page: &mut String) {
    let detail = &step.detail;
    page.push_str("<h3>Percentiles</h3>\n");
    percentile_table(step).write(page);
    page.push_str("<p class=\"note\">");
    for (name, _) in detail.times.named() {
        let meaning = match name {
            "scheduled" => "from when a message was due until it arrived",
            "across" => "the part of scheduled that went from one node of a cluster to another",
            "service" => "from when it was sent until it arrived",
            "send lag" => "from when it was due until it was sent",
            "client lag" => "the part of the send lag in which the message could have been sent",
            _ => "the time of the call that writes it",
        };
        page.push_str(&format!("<b>{name}</b>: {meaning}. "));
    }
    page.push_str(
        "n/a: fewer than ten messages lie above this percentile. inf: that share of the messages never arrived.</p>\n",
    );
}

fn percentile_table(step: &StepReport) -> Table {
    let mut table =
        Table::new("ms, p50, p90, p95, p99, p99.9, p99.99, max, mean, missing".split(", "));
    for (name, times) in step.detail.times.named() {
        let mut cells = vec![Cell::from(marked(step, name))];
        cells.extend(percentiles(times).map(|(_, _, value)| value.into()));
        cells.extend([times.max_ms, times.mean_ms].map(Cell::from));
        cells.push(thousands(times.missing).into());
        table.row(cells);
    }
    table
}

fn percentiles(times: &Distribution) -> [(f64, &'static str, Percentile); 6] {
    [
        (2.0, "p50", times.p50),
        (10.0, "p90", times.p90),
        (20.0, "p95", times.p95),
        (100.0, "p99", times.p99),
        (1e3, "p99.9", times.p999),
        (1e4, "p99.99", times.p9999),
    ]
}

/// Returns a part of the width for each percentile of the table. It reaches half-way to the neighbours.
fn add_percentile_columns(plot: &mut Plot, detail: &StepDetail) {
    let places = percentiles(&detail.times.scheduled);
    let mut from = 1.0;
    for (index, (x, name, _)) in places.iter().enumerate() {
        let next = places.get(index + 1);
        let to = next.map_or(1e6, |next| (x * next.0).sqrt());
        let mut tip = (*name).to_owned();
        let shown = ["scheduled", "service"];
        let times = detail.times.named();
        for (row, times) in times.filter(|(row, _)| shown.contains(row)) {
            tip.push_str(&format!("\n{row} {} ms", percentiles(times)[index].2));
        }
        plot.column(from, to, tip);
        from = to;
    }
}

fn lower_edge(edge: f64) -> f64 {
    edge * 10_f64.powf(-0.1)
}

/// Returns the shade of a cell. The densest cell has the fullest shade; each lower shade stands for a fourth of the
/// messages.
fn level(density: f64, densest: f64) -> u8 {
    let steps = (densest / density).log(SHADE_RATIO).floor();
    SHADES - steps.clamp(0.0, f64::from(SHADES - 1)) as u8
}

/// Formats a number for little room.
fn short(number: f64) -> String {
    match number {
        number if number < 10.0 => few(number),
        number if number < 1e6 => thousands(number.round() as u64),
        number => {
            // Three significant digits, as everywhere.
            let unit = 10_f64.powf(number.log10().floor() - 2.0);
            compact((number / unit).round() * unit)
        }
    }
}

/// A shade stands for this many times as many messages as the one before.
const SHADE_RATIO: f64 = 4.0;

const NOTHING_BACK: &str = "no message came back, so there are no latencies";

const PERCENTILE_TICKS: [(f64, &str); 7] = [
    (2.0, "50"),
    (10.0, "90"),
    (100.0, "99"),
    (1e3, "99.9"),
    (1e4, "99.99"),
    (1e5, "99.999"),
    (1e6, "99.9999"),
];
