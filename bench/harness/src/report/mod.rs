//! The results of a benchmark in the form of `bench.json`, and how several runs become one figure.

mod climb;
mod contender;
mod html;
mod legend;
mod limit;
mod markdown;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidewire_load::compare::{BENCH_SCHEMA_VERSION, STOLEN_PCT_MAX, WAITED_PCT_MAX};
use tidewire_load::environment::Environment;
use tidewire_load::statistics::{Bootstrap, MedianInterval, RatioInterval, Sides};

pub(super) use self::limit::LimitFigures;
pub use self::write::{ReadBenchError, WrittenBench};
use super::climb::Try;
use super::contract::{Measured, Times, Work};
use super::hold::all_hold;
use super::plan::{RowPlan, Source};
use super::run::Outcome;

/// Everything that a benchmark found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// Version of this form.
    pub schema_version: u32,
    /// Where and how it was made.
    pub env: BenchEnvironment,
    /// Suites, in the order in which they ran.
    pub suites: Vec<SuiteResult>,
}

/// Where and how a benchmark was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchEnvironment {
    /// Machine and build.
    #[serde(flatten)]
    pub machine: Environment,
    /// When it began, RFC 3339.
    pub started_at: String,
    /// How processes were pinned, as a sentence.
    pub pinning: String,
    /// Runs of each contender in a row.
    pub repeat: usize,
    /// Whether rows were shortened.
    pub quick: bool,
    /// Whether the user ended it early.
    pub interrupted: bool,
    /// Peers that did not take part, and why.
    pub missing_peers: Vec<String>,
}

/// The results of a suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuiteResult {
    /// Name of the suite.
    pub name: String,
    /// How long it took, in seconds.
    pub elapsed_secs: f64,
    /// Its rows.
    pub rows: Vec<RowResult>,
}

/// The results of a row. The figures at its top are Tidewire's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// Name within the suite.
    pub id: String,
    /// The work of Tidewire.
    pub params: Work,
    /// Name of the figure.
    pub metric: String,
    /// Unit of the figure.
    pub unit: String,
    /// Whether a smaller figure is the better one.
    pub lower_is_better: bool,
    /// Whether messages may be dropped as long as somebody counts them.
    pub may_drop: bool,
    /// Tidewire's figures.
    #[serde(flatten)]
    pub tidewire: Figures,
    /// How much of the limit Tidewire reaches, 1 being all of it: the median of the rounds' ratios. In a row that
    /// climbs, here as in the other ratios, the ratio of the medians, because rounds are made again there and stand by
    /// themselves.
    pub limit_ratio: Option<f64>,
    /// Interval of that median, as near to 95 % as so few rounds come.
    pub limit_ratio_ci95: Option<[f64; 2]>,
    /// Processor time of a message in the limit's server by that in Tidewire's: what the limit ratio would be if only
    /// the servers counted. The median of the rounds' ratios.
    pub limit_server_cpu_ratio: Option<f64>,
    /// Interval of that median.
    pub limit_server_cpu_ratio_ci95: Option<[f64; 2]>,
    /// The bare loop's figures; of several, those of the best.
    pub limit: Option<Figures>,
    /// Name of the bare loop that is the limit, if the row has several.
    #[serde(default)]
    pub limit_loop: Option<String>,
    /// The figures of the other bare loops, by name.
    #[serde(default)]
    pub other_limits: BTreeMap<String, Figures>,
    /// Names of the programs that are faster than the limit, beyond doubt: their ratio is above 1.05, and its interval
    /// above 1. Empty in rows whose `limit` is another way of doing the work and not a bare loop.
    #[serde(default)]
    pub limit_passed_by: Vec<String>,
    /// The figures of the rivals that did the same work, by name.
    pub peers: BTreeMap<String, PeerFigures>,
}

/// The figures of one contender in a row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Median of its runs; nothing when it has none.
    pub median: Option<f64>,
    /// Interval of the median, as near to 95 % as so few runs come.
    pub ci95: Option<[f64; 2]>,
    /// The figure of each round, from the first on; nothing where its run had none.
    pub runs: Vec<Option<f64>>,
    /// Bytes of the messages that came, a second, with their framing where the codec is the benchmark's: the median.
    /// Nothing where messages have no size, or the figure is no rate.
    #[serde(default)]
    pub bytes_per_sec: Option<f64>,
    /// Messages that came in each of them.
    pub messages: Vec<u64>,
    /// Processor time that the host took from the machine during each run, in percent; nothing where it does not say.
    pub stolen_pct: Vec<Option<f64>>,
    /// Longest time in each run for which the server or the driver waited for a core that others had, in percent of the
    /// window; nothing of a window too short for that.
    pub waited_pct: Vec<Option<f64>>,
    /// Whether every run has a figure and messages, and each message was checked and came, or was counted as dropped
    /// where that is allowed.
    pub verified: bool,
    /// Whether only the number of messages was checked, in some run.
    pub counted: bool,
    /// Messages lost in all runs.
    pub lost: u64,
    /// Messages of `lost` that somebody counted as dropped.
    pub dropped: u64,
    /// Whether every run delivered the rate that it was offered; nothing where no rate is offered.
    pub holds: Option<bool>,
    /// Processor time of the server for each message, in nanoseconds: the median of the runs.
    pub server_cpu_ns_per_msg: Option<f64>,
    /// The same of each run.
    pub server_cpu_ns_per_msg_runs: Vec<Option<f64>>,
    /// The same of the driver.
    pub client_cpu_ns_per_msg: Option<f64>,
    /// Processor time of the server in percent of the window, 100 being one core: the median of the runs.
    pub server_busy_pct: Option<f64>,
    /// The same of the driver.
    pub client_busy_pct: Option<f64>,
    /// The bytes that both sides asked their allocators for.
    pub allocated_bytes_per_msg: AllocatedBytes,
    /// Largest resident memory of the server, or of the driver where there is no server, in bytes.
    pub rss_bytes_max: Option<u64>,
    /// Largest resident memory of the driver, in bytes.
    pub client_rss_bytes_max: Option<u64>,
    /// Times of single messages: the median of the runs' values.
    pub latency: Option<Times>,
    /// In a row that climbs, the runs on the way to the highest rate that is held, and the rounds there that did not
    /// hold.
    #[serde(default)]
    pub tries: Vec<Try>,
    /// Further figures that only this suite has: the median of the runs' values.
    pub figures: BTreeMap<String, f64>,
    /// Why runs are missing.
    pub error: Option<String>,
}

/// Bytes for each message, where they are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatedBytes {
    /// By the server.
    pub server: Option<f64>,
    /// By the driver.
    pub client: Option<f64>,
}

/// The figures of a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerFigures {
    /// Version of what was measured.
    pub version: String,
    /// How many times as good as it Tidewire is: the median of the rounds' ratios.
    pub ratio: Option<f64>,
    /// Interval of that median.
    pub ratio_ci95: Option<[f64; 2]>,
    /// Whether this mode of it drops messages in silence.
    pub drops: bool,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
}

impl BenchReport {
    /// The form that this version writes.
    pub const SCHEMA_VERSION: u32 = BENCH_SCHEMA_VERSION;

    /// The faults that make the benchmark fail: rows of ours that are not wholly verified, as `suite, row: why`.
    pub fn faults(&self) -> Vec<String> {
        let suites = self.suites.iter();
        let rows = suites.flat_map(|suite| suite.rows.iter().map(move |row| (&suite.name, row)));
        let faults = rows.flat_map(|(suite, row)| {
            let ours = [
                ("tidewire", Some(&row.tidewire)),
                ("bare", row.limit.as_ref()),
            ];
            ours.into_iter().filter_map(move |(who, figures)| {
                Some(format!("{suite}, {}: {who} {}", row.id, figures?.fault()?))
            })
        });
        faults.collect()
    }
}

impl RowResult {
    /// Puts the runs of a row together.
    pub(super) fn of(
        plan: &RowPlan,
        tidewire: Figures,
        limits: LimitFigures,
        mut peers: BTreeMap<String, PeerFigures>,
    ) -> Self {
        let metric = &plan.metric;
        let as_good = |new, base| metric.times_as_good(new, base);
        let ratio = if plan.climbs.is_empty() {
            ratio_of_rounds
        } else {
            ratio_of_medians
        };
        let limit = limits.best;
        let ratio_to_limit = |one: &Figures| ratio(&one.runs, &limit.as_ref()?.runs, &as_good);
        let limit_ratio = ratio_to_limit(&tidewire);
        let limit_passed_by = if plan.is_beside {
            Vec::new()
        } else {
            limit::passed_by(limit_ratio, &peers, ratio_to_limit)
        };
        let limit_server_cpu = limit.as_ref().and_then(|limit| {
            let [ours, limit] = [&tidewire, limit].map(|one| &one.server_cpu_ns_per_msg_runs);
            ratio(ours, limit, &|ours, limit| limit / ours)
        });
        for peer in peers.values_mut() {
            let ratio = ratio(&tidewire.runs, &peer.figures.runs, &as_good);
            peer.ratio = ratio.map(|ratio| ratio.value);
            peer.ratio_ci95 = ratio.map(|ratio| ratio.ci95);
        }
        Self {
            id: plan.id.clone(),
            params: plan.work.clone(),
            metric: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            lower_is_better: metric.lower_is_better,
            may_drop: plan.may_drop,
            tidewire,
            limit_ratio: limit_ratio.map(|ratio| ratio.value),
            limit_ratio_ci95: limit_ratio.map(|ratio| ratio.ci95),
            limit_server_cpu_ratio: limit_server_cpu.map(|ratio| ratio.value),
            limit_server_cpu_ratio_ci95: limit_server_cpu.map(|ratio| ratio.ci95),
            limit,
            limit_loop: limits.name,
            other_limits: limits.others,
            limit_passed_by,
            peers,
        }
    }

    /// The marks of Tidewire's runs and of the limit's, a word each.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks = self.tidewire.marks();
        let of_limit = self.limit.iter().flat_map(Figures::marks);
        let passed = (!self.limit_passed_by.is_empty()).then_some("limit passed");
        for mark in of_limit.chain(passed) {
            if !marks.contains(&mark) {
                marks.push(mark);
            }
        }
        marks
    }
}

impl Figures {
    /// Puts the runs of one contender together. Without runs and without an error it did not take part.
    pub(super) fn of(plan: &RowPlan, outcomes: &[Outcome], error: Option<String>) -> Self {
        let figure = |run: &Outcome| plan.metric.of(&run.measured).filter(|one| one.is_finite());
        let runs: Vec<Option<f64>> = outcomes.iter().map(figure).collect();
        let known: Vec<f64> = runs.iter().copied().flatten().collect();
        let interval = MedianInterval::of(&known, Bootstrap::default());
        let is_accounted_for = |run: &Outcome| is_accounted_for(&run.measured, plan.may_drop);
        let median_per_message = |amount: &dyn Fn(&Outcome) -> Option<f64>| {
            median_over(outcomes, &|run| per_message(run, amount(run)))
        };
        let server_cpu_ns = |run: &Outcome| per_message(run, run.server_cpu_ns);
        let measured: Vec<&Measured> = outcomes.iter().map(|run| &run.measured).collect();
        let client_rss_bytes_max = outcomes.iter().map(|run| run.driver_rss_bytes_max).max();
        let server_rss_bytes_max = outcomes
            .iter()
            .filter_map(|run| run.server_rss_bytes_max)
            .max();
        Self {
            median: interval.map(|interval| interval.median),
            ci95: interval.map(|interval| [interval.low, interval.high]),
            stolen_pct: outcomes.iter().map(|run| run.stolen_pct).collect(),
            waited_pct: outcomes.iter().map(|run| run.waited_pct).collect(),
            verified: known.len() == runs.len() && outcomes.iter().all(is_accounted_for),
            counted: outcomes.iter().any(|run| run.measured.counted),
            lost: outcomes.iter().map(|run| run.measured.lost).sum(),
            dropped: outcomes.iter().map(|run| run.measured.dropped).sum(),
            holds: all_hold(&measured),
            server_cpu_ns_per_msg: median_over(outcomes, &server_cpu_ns),
            server_cpu_ns_per_msg_runs: outcomes.iter().map(server_cpu_ns).collect(),
            client_cpu_ns_per_msg: median_per_message(&|run| Some(run.driver_cpu_ns)),
            server_busy_pct: median_over(outcomes, &|run| run.server_busy_pct),
            client_busy_pct: median_over(outcomes, &|run| Some(run.driver_busy_pct)),
            allocated_bytes_per_msg: AllocatedBytes {
                server: median_per_message(&|run| Some(run.server_allocated_bytes? as f64)),
                client: median_per_message(&|run| Some(run.measured.allocated_bytes? as f64)),
            },
            rss_bytes_max: server_rss_bytes_max.or(client_rss_bytes_max),
            client_rss_bytes_max,
            latency: latency(outcomes),
            figures: figures(outcomes),
            messages: outcomes.iter().map(|run| run.measured.messages).collect(),
            bytes_per_sec: None,
            tries: Vec::new(),
            error,
            runs,
        }
    }

    /// Says how many bytes so many messages are, each of which has so many.
    pub(super) fn weigh(&mut self, plan: &RowPlan, message_bytes: usize) {
        let is_rate = plan.metric.source == Source::Rate && message_bytes > 0;
        let bytes_per_sec = self.median.map(|rate| rate * message_bytes as f64);
        self.bytes_per_sec = bytes_per_sec.filter(|_| is_rate);
    }

    /// The marks of these runs, a word each.
    pub fn marks(&self) -> Vec<&'static str> {
        let any = |shares: &[Option<f64>], most| shares.iter().flatten().any(|pct| *pct > most);
        let marks = [
            ("stolen", any(&self.stolen_pct, STOLEN_PCT_MAX)),
            ("waited", any(&self.waited_pct, WAITED_PCT_MAX)),
            ("driver-bound", self.is_driver_bound()),
        ];
        let set = marks.into_iter().filter(|(_, is_set)| *is_set);
        set.map(|(mark, _)| mark).collect()
    }

    /// Whether it was the driver that could not go faster: then the figure says nothing of the server.
    fn is_driver_bound(&self) -> bool {
        let busy = self.server_busy_pct.zip(self.client_busy_pct);
        busy.is_some_and(|(server, client)| client >= DRIVER_BOUND_PCT_MIN && client > server)
    }

    /// The fault of these figures; `None` also when the contender did not take part.
    pub fn fault(&self) -> Option<String> {
        if let Some(error) = &self.error {
            return Some(format!("failed: {error}"));
        }
        let runs = self.runs.len();
        let without_figure = self.runs.iter().filter(|run| run.is_none()).count();
        let without_message = self.messages.iter().filter(|count| **count == 0).count();
        let (lost, dropped) = (self.lost, self.dropped);
        Some(match lost {
            _ if without_figure > 0 => format!("has no figure in {without_figure} of {runs} runs"),
            _ if without_message > 0 => {
                format!("got no message in {without_message} of {runs} runs")
            }
            _ if runs == 0 || self.verified => return None,
            0 => "was not verified".to_owned(),
            lost => format!("lost {lost} messages, {dropped} of them counted as dropped"),
        })
    }
}

fn is_accounted_for(measured: &Measured, may_drop: bool) -> bool {
    let allowed = if may_drop { measured.dropped } else { 0 };
    measured.verified && measured.messages > 0 && measured.lost <= allowed
}

/// How many times as good one side is as the other.
#[derive(Clone, Copy)]
struct Ratio {
    value: f64,
    ci95: [f64; 2],
}

/// How one side's rounds stand to the other's: the median of the rounds' ratios, because what the machine does in a
/// round happens to both. A round in which one has no figure is left out. Nothing where a figure is 0, since no number
/// says how many times that is.
fn ratio_of_rounds(
    new: &[Option<f64>],
    base: &[Option<f64>],
    of_two: &dyn Fn(f64, f64) -> f64,
) -> Option<Ratio> {
    let rounds = new.iter().zip(base);
    let ratios: Vec<f64> = rounds
        .filter_map(|(new, base)| Some(of_two((*new)?, (*base)?)))
        .collect();
    let found = MedianInterval::of(&ratios, Bootstrap::default())?;
    let ratio = Ratio {
        value: found.median,
        ci95: [found.low, found.high],
    };
    are_numbers(&ratios).then_some(ratio)
}

/// How two sides stand to each other whose rounds were not made beside each other: the ratio of their medians, with
/// runs drawn from each side by itself. Nothing where one of them may be 0.
fn ratio_of_medians(
    new: &[Option<f64>],
    base: &[Option<f64>],
    of_two: &dyn Fn(f64, f64) -> f64,
) -> Option<Ratio> {
    let [new, base] = [new, base].map(|runs| runs.iter().copied().flatten().collect::<Vec<f64>>());
    let (base, new) = (&base[..], &new[..]);
    let found = RatioInterval::of(Sides::Unpaired { base, new }, Bootstrap::default())?;
    // The ratio found is new by base. `of_two` turns it over where the smaller value is the better one.
    let [value, one, other] = [found.ratio, found.low, found.high].map(|ratio| of_two(ratio, 1.0));
    let ratio = Ratio {
        value,
        ci95: [one.min(other), one.max(other)],
    };
    are_numbers(&[value, one, other]).then_some(ratio)
}

fn are_numbers(ratios: &[f64]) -> bool {
    ratios.iter().all(|ratio| ratio.is_finite() && *ratio > 0.0)
}

/// An amount of a run for each of its messages.
fn per_message(run: &Outcome, amount: Option<f64>) -> Option<f64> {
    let messages = run.measured.messages;
    (messages > 0).then_some(amount? / messages as f64)
}

fn median_over(outcomes: &[Outcome], value: &dyn Fn(&Outcome) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = outcomes.iter().filter_map(value).collect();
    let once = Bootstrap {
        resamples: 1,
        seed: 1,
    };
    MedianInterval::of(&values, once).map(|interval| interval.median)
}

fn latency(outcomes: &[Outcome]) -> Option<Times> {
    let of = |value: &dyn Fn(&Times) -> f64| {
        median_over(outcomes, &|run| run.measured.latency.as_ref().map(value))
    };
    Some(Times {
        samples: outcomes
            .iter()
            .filter_map(|run| Some(run.measured.latency?.samples))
            .sum(),
        mean_us: of(&|times| times.mean_us)?,
        p50_us: of(&|times| times.p50_us)?,
        p95_us: of(&|times| times.p95_us)?,
        p99_us: of(&|times| times.p99_us)?,
        p999_us: of(&|times| times.p999_us)?,
        max_us: of(&|times| times.max_us)?,
    })
}

fn figures(outcomes: &[Outcome]) -> BTreeMap<String, f64> {
    let names = outcomes.iter().flat_map(|run| run.measured.figures.keys());
    let of = |name: &String| {
        let value = median_over(outcomes, &|run| run.measured.figures.get(name).copied())?;
        Some((name.clone(), value))
    };
    names.filter_map(of).collect()
}

/// A driver that is so busy, in percent, and busier than its server, cannot do more.
const DRIVER_BOUND_PCT_MIN: f64 = 90.0;
