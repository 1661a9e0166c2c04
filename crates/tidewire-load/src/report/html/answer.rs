//! The answer, which the page opens with: how the run ended and the figures that a reader looks for first.
//!
//! A run of several steps has one answer, too: the figures of the first step that did not pass, or else of the step
//! with the highest rate. Its course stands here and not among the other charts of the step, so that it is drawn once.

use std::fmt::Write as _;

use super::latency::percentiles_of;
use super::{course_of_step, summary};
use crate::format::{markup, thousands};
use crate::page::figure::Figure;
use crate::report::table::BELIEVE_DISTURBED;
use crate::report::{Report, StepReport, StepVerdict};

/// Writes the verdict, the large figures, the news, and the course of the step that decides.
pub(super) fn write(report: &Report, page: &mut String) {
    page.push_str("<section id=\"answer\">\n");
    summary::verdict(report, page);
    let deciding = deciding_step(report);
    if let Some(index) = deciding {
        write_tiles(report, index, page);
    }
    summary::news(report, page);
    if let Some(index) = deciding {
        let step = &report.steps[index];
        Figure::write_all(&course_of_step(index + 1, step), page);
        percentiles_of(step, page);
    }
    page.push_str("</section>\n");
}

/// Index of the step whose figures stand at the top.
pub(super) fn deciding_step(report: &Report) -> Option<usize> {
    let steps = || report.steps.iter().enumerate();
    let failed = steps().find(|(_, step)| {
        !matches!(
            step.verdict(),
            StepVerdict::Passed | StepVerdict::PassedInvalid
        )
    });
    let doubtful = || steps().find(|(_, step)| step.is_doubtful());
    let fastest = || steps().max_by(|(_, one), (_, other)| rate(one).1.total_cmp(&rate(other).1));
    failed
        .or_else(doubtful)
        .or_else(fastest)
        .map(|(index, _)| index)
}

fn write_tiles(report: &Report, index: usize, page: &mut String) {
    let step = &report.steps[index];
    if report.steps.len() > 1 {
        let why = match step.verdict() {
            StepVerdict::Passed => "the step with the highest rate",
            StepVerdict::PassedInvalid => "the first step whose measurement is INVALID",
            _ => "the first step that did not pass",
        };
        let (number, name) = (index + 1, markup(&step.step_name));
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "<p class=\"note\">Figures of <a href=\"#step-{number}\">{name}</a>, {why}.</p>"
        );
    }
    page.push_str("<dl class=\"tiles\" id=\"tiles\">");
    let (what, rate) = rate(step);
    // Figures that are not to be believed are marked where they are large.
    let doubt = if step.is_doubtful() { ", INVALID" } else { "" };
    tile(
        page,
        what,
        &figure_of_rate(rate),
        &format!("a second{doubt}"),
    );
    // The times alone are in doubt on a busy machine.
    let doubt = if step.is_disturbed() {
        ", disturbed"
    } else {
        doubt
    };
    for (name, value) in percentiles(step) {
        let unit = if value.starts_with(|first: char| first.is_ascii_digit()) {
            "ms"
        } else {
            ""
        };
        let unit = format!("{unit}{doubt}");
        tile(
            page,
            &format!("{name} scheduled"),
            &value,
            unit.trim_start_matches(", "),
        );
    }
    let expected = format!("of {} expected", thousands(step.expected_received));
    tile(page, "lost", &count(step.lost), &expected);
    if step.unconfirmed > 0 {
        tile(page, "unconfirmed", &count(step.unconfirmed), &expected);
    }
    page.push_str("</dl>\n");
    if step.is_disturbed() {
        let _ = writeln!(page, "<p class=\"note\">Believe {BELIEVE_DISTURBED}.</p>");
    }
}

fn tile(page: &mut String, name: &str, value: &str, unit: &str) {
    let _ = write!(
        page,
        "<div><dt>{name}</dt><dd>{value} <small>{unit}</small></dd></div>"
    );
}

/// The rate of a step: the name of what is counted, and how many a second.
fn rate(step: &StepReport) -> (&'static str, f64) {
    match step.steady.receive_tps {
        Some(received) if received > 0.0 => ("received", received),
        _ => ("sent", step.steady.send_tps),
    }
}

fn figure_of_rate(rate: f64) -> String {
    if rate < 100.0 {
        format!("{rate:.1}")
    } else {
        thousands(rate.round() as u64)
    }
}

fn count(count: u64) -> String {
    match count {
        0 => "none".to_owned(),
        count => thousands(count),
    }
}

/// Three percentiles of the scheduled latency.
fn percentiles(step: &StepReport) -> [(&'static str, String); 3] {
    let times = &step.detail.times.scheduled;
    let all = [
        ("p50", times.p50),
        ("p99", times.p99),
        ("p99.9", times.p999),
    ];
    all.map(|(name, value)| (name, value.to_string()))
}
