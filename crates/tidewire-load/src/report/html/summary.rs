//! The summary before all charts: the verdict, its reasons, every step in a line, the limits.

use std::fmt::Write as _;

use super::delivery::share_of;
use crate::format::{markup, thousands};
use crate::page::figure::{Cell, Table};
use crate::report::table::bad_news;
use crate::report::verdict::capitalised;
use crate::report::{Conclusion, Report, StepReport, StepVerdict};
use crate::slo::{LimitFigure, Objective};

/// How the run ended, in a word and a sentence.
pub(super) fn verdict(report: &Report, page: &mut String) {
    let (mark, class) = match report.conclusion() {
        Conclusion::Passed if report.is_doubtful() => ('!', "doubt"),
        Conclusion::Passed => ('✓', "ok"),
        Conclusion::Interrupted => ('■', "bad"),
        _ => ('✗', "bad"),
    };
    let (word, sentence) = (
        capitalised(report.verdict()),
        capitalised(&report.explanation()),
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        page,
        "<div class=\"verdict {class}\" id=\"verdict\"><strong>{mark} {word}</strong> <span>{sentence}.</span></div>"
    );
}

/// The news that made it end so, worst first.
pub(super) fn news(report: &Report, page: &mut String) {
    let all = (1..).zip(&report.steps);
    let all = all.map(|(number, step)| (number, step, bad_news(step)));
    let all: Vec<(usize, _, _)> = all.filter(|(.., news)| !news.is_empty()).collect();
    if all.is_empty() {
        return;
    }
    page.push_str("<dl class=\"news\" id=\"news\">\n");
    for (number, step, news) in all {
        let name = markup(&step.step_name);
        // Writing to a string cannot fail.
        let _ = write!(page, "<dt><a href=\"#step-{number}\">{name}</a></dt>");
        for news in news {
            let _ = writeln!(page, "<dd class=\"{}\">{}</dd>", class(step), markup(&news));
        }
    }
    page.push_str("</dl>\n");
}

/// Every step in a line.
pub(super) fn overview(report: &Report, page: &mut String) {
    let mut table = Table::new("step, verdict, model, agents, offered/s, sent/s, received/s, lost, unconfirmed, p50 ms, p99 ms, p99.9 ms".split(", "))
    .with_words(1)
    .with_words(2);
    for (number, step) in (1..).zip(&report.steps) {
        let (times, work) = (&step.detail.times.scheduled, &step.detail.workload);
        table.row(vec![
            step_link(number, step),
            with_disturbance(step).into(),
            format!("{} {}, {}", work.pattern, work.codec, work.model).into(),
            thousands(u64::from(step.concurrency)).into(),
            step.theoretical_tps.into(),
            step.steady.send_tps.into(),
            step.steady.receive_tps.into(),
            thousands(step.lost).into(),
            thousands(step.unconfirmed).into(),
            times.p50.into(),
            times.p99.into(),
            times.p999.into(),
        ]);
    }
    section(page, ("overview", "Steps"), &table, "No step was begun.");
}

/// A table under a heading, or a sentence in place of an empty one.
fn section(page: &mut String, (id, title): (&str, &str), table: &Table, left_out: &str) {
    let _ = writeln!(page, "<section id=\"{id}\"><h2>{title}</h2>");
    if table.is_empty() {
        let _ = write!(page, "<p class=\"left-out\">{left_out}</p>");
    } else {
        table.write(page);
    }
    page.push_str("</section>\n");
}

fn step_link(number: usize, step: &StepReport) -> Cell {
    Cell::Link {
        text: step.step_name.clone(),
        id: format!("step-{number}"),
    }
}

/// The class of a step's verdict: nothing failed where the measurement alone is in doubt.
pub(super) fn class(step: &StepReport) -> &'static str {
    match step.verdict() {
        StepVerdict::Passed => "ok",
        StepVerdict::PassedInvalid => "doubt",
        _ => "bad",
    }
}

pub(super) fn step_verdict(step: &StepReport) -> String {
    let verdict = step.verdict();
    let mark = match verdict {
        StepVerdict::Passed => '✓',
        StepVerdict::PassedInvalid => '!',
        _ => '✗',
    };
    format!("{mark} {}", verdict.name())
}

/// The same, with a word about times that are not to be believed.
fn with_disturbance(step: &StepReport) -> String {
    let verdict = step_verdict(step);
    match step.is_disturbed() {
        true => format!("{verdict}; times disturbed"),
        false => verdict,
    }
}

pub(super) fn limits(report: &Report, page: &mut String) {
    let mut table = Table::new("step, verdict, limit, found".split(", "))
        .with_words(1)
        .with_words(2);
    for (number, step) in (1..).zip(&report.steps) {
        for limit in step_limits(step) {
            let mut cells = vec![step_link(number, step)];
            cells.extend(limit.map(Cell::from));
            table.row(cells);
        }
    }
    let left_out = "The table of limits is left out: the scenario sets none.";
    section(page, ("slo", "Limits"), &table, left_out);
}

/// The verdict, the limit and the figure of each limit of a step.
fn step_limits(step: &StepReport) -> Vec<[String; 3]> {
    let detail = &step.detail;
    let fates = [
        step.expected_received,
        step.total_received,
        step.unconfirmed,
    ];
    let figures = detail.times.scheduled.slo_figures(fates);
    let [lost, delivered] = shares(step);
    let row = |objective: Objective| {
        let limit = detail.slo.limits.limit(objective)?;
        let found = figures.found(objective);
        let verdict = if objective.is_kept(limit, found) {
            "✓ kept"
        } else {
            "✗ broken"
        };
        let name = objective.name();
        let (limit, found) = match (objective, found) {
            (_, LimitFigure::Percentile(found)) => {
                (format!("{name} ≤ {limit} ms"), format!("{found} ms"))
            }
            (Objective::DeliveryRatio, _) => (format!("{name} ≥ {limit}"), delivered.clone()),
            _ => (format!("{name} ≤ {limit} %"), lost.clone()),
        };
        Some([verdict.to_owned(), limit, found])
    };
    Objective::ALL.into_iter().filter_map(row).collect()
}

/// The lost messages in percent, and the delivered ones as a share.
fn shares(step: &StepReport) -> [String; 2] {
    let expected = step.expected_received;
    if expected == 0 {
        return ["nothing expected", "nothing expected"].map(str::to_owned);
    }
    let mut lost = share_of(step.lost, expected);
    if step.unconfirmed > 0 {
        let at_worst = share_of(step.lost.saturating_add(step.unconfirmed), expected);
        lost.push_str(&format!(", {at_worst} if what is unconfirmed was lost"));
    }
    let delivered = step.total_received as f64 / expected as f64;
    [lost, format!("{delivered:.6}")]
}
