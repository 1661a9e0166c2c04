//! The form of `bench.json`, as far as runs are compared.
//!
//! A round of the benchmark is a run here, and a row a step: every row has one figure of each round, Tidewire's share
//! of its limit in that round, and the processor time of a message in its server. The share is the surest of the three,
//! because the machine was the same for both; a row that climbs has none, because its rounds are not made beside each
//! other. Times of single messages are not compared: of these a file has only medians of all rounds. Like reports,
//! files are read by the keys that are needed.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Metric;
use super::metric::{Figures, NoFigure};
use super::run::{Machine, Run, StepRun};

#[derive(Deserialize)]
pub(super) struct FileBench {
    env: BenchMachine,
    suites: Vec<FileSuite>,
}

#[derive(Deserialize)]
struct BenchMachine {
    #[serde(flatten)]
    machine: Machine,
    pinning: String,
}

#[derive(Deserialize)]
struct FileSuite {
    name: String,
    /// Drafts of the form lack the key. Their cost and memory meant something else, so they are refused.
    #[serde(rename = "elapsed_secs")]
    _elapsed_secs: f64,
    rows: Vec<FileRow>,
}

#[derive(Deserialize)]
struct FileRow {
    id: String,
    params: BTreeMap<String, serde_json::Value>,
    metric: String,
    unit: String,
    lower_is_better: bool,
    runs: Vec<Option<f64>>,
    verified: bool,
    #[serde(default)]
    server_cpu_ns_per_msg_runs: Vec<Option<f64>>,
    /// Where there are any, the row climbs.
    #[serde(default)]
    tries: Vec<IgnoredAny>,
    #[serde(default)]
    stolen_pct: Vec<Option<f64>>,
    #[serde(default)]
    waited_pct: Vec<Option<f64>>,
    limit: Option<FileLimit>,
}

#[derive(Deserialize)]
struct FileLimit {
    runs: Vec<Option<f64>>,
}

impl FileBench {
    pub(super) fn runs(&self) -> Vec<Run> {
        let rows = || {
            let suites = self.suites.iter();
            suites.flat_map(|suite| suite.rows.iter().map(move |row| (suite, row)))
        };
        let rounds = rows().map(|(_, row)| row.runs.len()).max().unwrap_or(0);
        let run = |round: usize| Run {
            env: self.env.machine.clone(),
            steps: rows()
                .filter(|(_, row)| round < row.runs.len())
                .map(|(suite, row)| row.step(&suite.name, &self.env.pinning, round))
                .collect(),
        };
        (0..rounds).map(run).collect()
    }
}

impl FileRow {
    fn step(&self, suite: &str, pinning: &str, round: usize) -> StepRun {
        let number = |key: &str| self.params.get(key).and_then(serde_json::Value::as_f64);
        StepRun {
            step_name: format!("{suite}: {}, {}", self.id, self.unit),
            concurrency: number("connections").unwrap_or(0.0) as u32,
            secs: number("measure_ms").unwrap_or(0.0) / 1e3,
            setting: self.setting(pinning),
            figures: self.figures(round),
            invalid: (!self.verified)
                .then(|| "messages of this row are not accounted for".to_owned()),
            problems: self.problems(round),
        }
    }

    fn setting(&self, pinning: &str) -> BTreeMap<String, String> {
        let value = |value: &serde_json::Value| match value.as_str() {
            Some(text) => text.to_owned(),
            None => value.to_string(),
        };
        let params = self.params.iter();
        let mut setting: BTreeMap<String, String> = params
            .map(|(key, found)| (key.clone(), value(found)))
            .collect();
        setting.insert("figure".to_owned(), self.metric.clone());
        setting.insert("pinning".to_owned(), pinning.to_owned());
        setting
    }

    fn figures(&self, round: usize) -> Figures {
        let of = |runs: &[Option<f64>]| runs.get(round).copied().flatten();
        let ours = of(&self.runs);
        let limit = self.limit.as_ref().and_then(|limit| of(&limit.runs));
        let share = ours.zip(limit).map(|(ours, limit)| {
            if self.lower_is_better {
                limit / ours
            } else {
                ours / limit
            }
        });
        let share = share.filter(|share| share.is_finite() && self.tries.is_empty());
        let figure = if self.lower_is_better {
            Metric::LessIsBetter
        } else {
            Metric::MoreIsBetter
        };
        let measured = |figure: Option<f64>| figure.ok_or(NoFigure::NotMeasured);
        Figures::from([
            (figure, measured(ours)),
            (Metric::LimitPct, measured(share.map(|share| share * 100.0))),
            (
                Metric::ServerCpuNs,
                measured(of(&self.server_cpu_ns_per_msg_runs)),
            ),
        ])
    }

    fn problems(&self, round: usize) -> Vec<String> {
        let above = |shares: &[Option<f64>], most: f64| {
            let share = shares.get(round).copied().flatten();
            share.filter(|share| *share > most)
        };
        let stolen = above(&self.stolen_pct, STOLEN_PCT_MAX)
            .map(|pct| format!("the host took {pct:.1} % of the time"));
        let waited = above(&self.waited_pct, WAITED_PCT_MAX)
            .map(|pct| format!("it waited {pct:.1} % of the time for a core that others had"));
        stolen.into_iter().chain(waited).collect()
    }
}

/// Version of the form of `bench.json`.
pub const BENCH_SCHEMA_VERSION: u32 = 1;

/// A run from which the host took more of the machine's time than this, in percent, is disturbed.
pub const STOLEN_PCT_MAX: f64 = 3.0;

/// A run in which a program waited more of the window than this for a core that others had, in percent, is disturbed.
pub const WAITED_PCT_MAX: f64 = 5.0;

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::super::{CompareError, Comparison, Kind, Pairing, RunSet, RunSetError, Verdict};
    use super::*;
    use crate::statistics::Bootstrap;

    /// A file whose row has these figures and a limit of 1,000 in every round.
    fn file(runs: [f64; 5]) -> Value {
        json!({
            "schema_version": 1,
            "env": {
                "cpu": "Ordinary 3000", "cores": 2, "kernel": "6.1", "version": "0.1.0",
                "commit": "abc", "pinning": "not pinned",
            },
            "suites": [{"name": "echo", "elapsed_secs": 12.5, "rows": [{
                "id": "tcp, 1 × 1", "params": {"connections": 1, "measure_ms": 1_000, "codec": "tw1"},
                "metric": "messages_per_sec", "unit": "msg/s", "lower_is_better": false,
                "runs": runs, "verified": true,
                "server_cpu_ns_per_msg_runs": [500.0, 501.0, 502.0, 499.0, 500.0],
                "waited_pct": [0.0, 90.0, null, 0.0, 0.0],
                "limit": {"runs": LIMIT},
            }]}],
        })
    }

    fn set(file: &Value) -> RunSet {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bench.json");
        fs::write(&path, file.to_string()).unwrap();
        // By its directory as by its name.
        let set = RunSet::read(directory.path()).unwrap();
        assert_eq!((set.kind, set.len()), (Kind::Bench, 5));
        assert_eq!(RunSet::read(&path).unwrap().len(), 5);
        set
    }

    fn compare(base: &Value, new: &Value) -> Comparison {
        let (base, new) = (set(base), set(new));
        let quick = Bootstrap {
            resamples: 200,
            seed: 9,
        };
        Comparison::of(&base, &new, Pairing::None, None, quick).unwrap()
    }

    fn verdicts(comparison: &Comparison) -> Vec<(Metric, Verdict)> {
        let metrics = comparison.steps[0].metrics.iter();
        metrics.map(|one| (one.metric, one.verdict)).collect()
    }

    const LIMIT: [f64; 5] = [1_000.0; 5];

    const BASE: [f64; 5] = [900.0, 905.0, 895.0, 902.0, 899.0];

    #[test]
    fn rows_are_judged_by_their_figures_their_shares_of_the_limit_and_their_cost() {
        let slower = BASE.map(|figure| figure * 0.8);
        let found = compare(&file(BASE), &file(slower));
        assert_eq!(found.steps[0].step_name, "echo: tcp, 1 × 1, msg/s");
        assert_eq!(
            verdicts(&found),
            [
                (Metric::ServerCpuNs, Verdict::NoChangeFound),
                (Metric::MoreIsBetter, Verdict::Worse),
                (Metric::LimitPct, Verdict::Worse),
            ]
        );
        let notes = found.steps[0].notes.join("\n");
        assert!(notes.contains("it waited 90.0 % of the time"), "{notes}");
        assert!(found.to_text().contains("more is better"));
        // Of times, fewer are better, and the share of the limit turns round.
        let times = |runs| {
            let mut file = file(runs);
            file["suites"][0]["rows"][0]["lower_is_better"] = json!(true);
            file
        };
        let found = compare(&times(BASE), &times(slower));
        assert_eq!(
            verdicts(&found)[1..],
            [
                (Metric::LessIsBetter, Verdict::Better),
                (Metric::LimitPct, Verdict::Better),
            ]
        );
    }

    #[test]
    fn rows_that_climb_have_no_share_of_the_limit_in_a_round() {
        let climbing = |runs| {
            let mut file = file(runs);
            file["suites"][0]["rows"][0]["tries"] = json!([{"holds": true}]);
            file
        };
        let slower = BASE.map(|figure| figure * 0.8);
        let found = compare(&climbing(BASE), &climbing(slower));
        assert_eq!(
            verdicts(&found),
            [
                (Metric::ServerCpuNs, Verdict::NoChangeFound),
                (Metric::MoreIsBetter, Verdict::Worse),
            ]
        );
    }

    #[test]
    fn rows_that_did_something_else_or_are_not_verified_are_not_compared() {
        let obstacle = |change: &dyn Fn(&mut Value)| {
            let mut new = file(BASE);
            change(&mut new["suites"][0]["rows"][0]);
            let found = compare(&file(BASE), &new);
            assert_eq!(found.judged(), 0);
            found.steps[0].obstacle.clone().unwrap().to_string()
        };
        let longer = obstacle(&|row| row["params"]["measure_ms"] = json!(150));
        assert!(longer.contains("measure_ms 1000 and 150"), "{longer}");
        let lost = obstacle(&|row| row["verified"] = json!(false));
        assert!(lost.contains("not accounted for"), "{lost}");
        let renamed = obstacle(&|row| row["id"] = json!("tcp, 2 × 1"));
        assert!(renamed.contains("lacks this step"), "{renamed}");
    }

    #[test]
    fn files_from_before_the_meaning_of_cost_was_fixed_are_refused() {
        let mut draft = file(BASE);
        let suite = draft["suites"][0].as_object_mut().unwrap();
        assert!(suite.remove("elapsed_secs").is_some());
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str, file: &Value| {
            let place = directory.path().join(name);
            fs::create_dir(&place).unwrap();
            fs::write(place.join("bench.json"), file.to_string()).unwrap();
        };
        // Also where it stands between others.
        for (name, file) in [("1", &file(BASE)), ("2", &draft), ("3", &file(BASE))] {
            place(name, file);
        }
        let error = RunSet::read(directory.path()).unwrap_err();
        assert!(matches!(error, RunSetError::NotAReport(..)), "{error}");
        let text = error.to_string();
        assert!(text.contains("2/bench.json is no report"), "{text}");
        assert!(text.contains("missing field `elapsed_secs`"), "{text}");
    }

    #[test]
    fn kinds_are_not_mixed() {
        let bench = set(&file(BASE));
        let load = RunSet {
            kind: Kind::Load,
            ..bench.clone()
        };
        let error =
            Comparison::of(&bench, &load, Pairing::None, None, Bootstrap::default()).unwrap_err();
        assert!(matches!(error, CompareError::Unlike { .. }));
        assert!(
            error
                .to_string()
                .contains("benchmarks cannot be compared with load tests")
        );
    }
}
