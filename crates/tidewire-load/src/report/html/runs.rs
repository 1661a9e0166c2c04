//! Runs and parts, one by one.

use crate::format::{per_second, thousands};
use crate::page::figure::{Cell, Chart, Table};
use crate::page::plot::Plot;
use crate::page::scale::Axis;
use crate::report::{RunFigures, StepReport};
use crate::statistics::{Bootstrap, MedianInterval};

/// Every run or part as a dot, with the median and its interval.
pub(super) fn runs(step: &StepReport) -> Result<Chart, String> {
    let runs = &step.detail.runs;
    if runs.is_empty() {
        return Err("the step was run once, and seconds of one run are no repetitions".to_owned());
    }
    let nothing_back = runs
        .iter()
        .all(|run| run.receive_tps.is_none_or(|rate| rate <= 0.0));
    let rate = |run: &RunFigures| {
        if nothing_back {
            run.send_tps
        } else {
            run.receive_tps.unwrap_or(0.0)
        }
    };
    let rates: Vec<f64> = runs.iter().map(rate).collect();
    let most = rates.iter().copied().fold(0.0, f64::max);
    let mut x = Axis::until("run or part", runs.len() as f64 + 0.5);
    let numbers = (1..=runs.len()).map(|run| (run as f64, run.to_string()));
    x.ticks = numbers.collect();
    let mut plot = Plot::new("Runs", x, Axis::from_zero("messages a second", most));
    let mut about = "Each dot is a run, or a part of a run.".to_owned();
    if let Some(interval) = MedianInterval::of(&rates, Bootstrap::default()) {
        let name = format!("median {}", per_second(interval.median));
        plot.rule(interval.median, "median", name);
        about.push_str(&format!(
            " The dotted line is their median. The true median lies between {} and {} with a chance of {:.0} %.",
            per_second(interval.low),
            per_second(interval.high),
            interval.coverage * 100.0
        ));
    }
    let mut table = Table::new(HEAD.split(", ")).with_words(10);
    for (place, run) in (1..).zip(runs) {
        let (number, verdict, p99) = (run.run, run.verdict(), run.p99);
        let told = per_second(rate(run));
        let tip = format!("run {number}: {verdict}\n{told}\np99 {p99} ms");
        let class = if run.valid { "s1" } else { "s2 broken" };
        plot.dot((f64::from(place), rate(run)), class, tip);
        table.row(row(run));
    }
    Ok(plot.drawn(about, table))
}

fn row(run: &RunFigures) -> Vec<Cell> {
    vec![
        run.run.to_string().into(),
        run.send_tps.into(),
        run.receive_tps.into(),
        thousands(run.expected).into(),
        thousands(run.lost).into(),
        thousands(run.unconfirmed).into(),
        run.p50.into(),
        run.p99.into(),
        run.p999.into(),
        run.server_ns_per_message.into(),
        run.verdict().to_owned().into(),
    ]
}

const HEAD: &str = "run, sent/s, received/s, expected, lost, unconfirmed, p50 ms, p99 ms, p99.9 ms, server ns, verdict";
