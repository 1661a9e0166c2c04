//! One step as a table for the terminal, what went wrong first.

use std::fmt::Write as _;

use super::format::{mebibytes, milliseconds, per_second, percent, printable, thousands};
use super::{Latency, StepReport};

/// The table of one step: plain text without colours, at most about a hundred columns wide, ending with a
/// line break.
#[must_use]
pub fn step_table(step: &StepReport) -> String {
    let mut text = String::new();
    let verdict = if step.is_clean() { "passed" } else { "FAILED" };
    line(
        &mut text,
        &format!("{}: {verdict}", printable(&step.step_name)),
    );
    for problem in &step.problems {
        line(&mut text, &format!("  ! {}", printable(problem)));
    }
    let facts = facts(step);
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in &facts {
        line(
            &mut text,
            &format!("  {name:<width$}  {}", printable(value)),
        );
    }
    line(&mut text, "");
    let mut header = format!("  {:<11}", "ms");
    for column in LATENCY_COLUMNS {
        let _ = write!(header, "{column:>9}");
    }
    line(&mut text, &header);
    for (name, latency) in latencies(step) {
        let mut row = format!("  {name:<11}");
        for cell in latency_cells(latency) {
            let _ = write!(row, "{cell:>9}");
        }
        line(&mut text, &row);
    }
    for note in &step.notes {
        line(&mut text, &format!("  note: {}", printable(note)));
    }
    text
}

/// Everything about a step that is not a time, as names and values in the order a reader needs them.
pub(super) fn facts(step: &StepReport) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        (
            "lost",
            format!(
                "{} of {} expected (success {})",
                thousands(step.lost),
                thousands(step.expected_received),
                percent(step.success_rate)
            ),
        ),
        (
            "irregular",
            format!(
                "{} duplicated, {} reordered, {} corrupt, {} late",
                thousands(step.duplicated),
                thousands(step.reordered),
                thousands(step.corrupt),
                thousands(step.late)
            ),
        ),
    ];
    if step.foreign + step.invented > 0 {
        let (foreign, invented) = (thousands(step.foreign), thousands(step.invented));
        facts.push(("strange", format!("{foreign} foreign, {invented} invented")));
    }
    if step.total_login_failures + step.total_send_errors > 0 {
        facts.push((
            "failures",
            format!(
                "{} logins, {} sends",
                thousands(step.total_login_failures),
                thousands(step.total_send_errors)
            ),
        ));
    }
    facts.push((
        "sent",
        format!(
            "{}, steady {} of {} offered (attainment {:.3})",
            thousands(step.total_sent),
            per_second(step.steady.send_tps),
            per_second(step.theoretical_tps),
            step.attainment
        ),
    ));
    facts.push((
        "received",
        format!(
            "{}, steady {}",
            thousands(step.total_received),
            per_second(step.steady.receive_tps)
        ),
    ));
    facts.push((
        "whole step",
        format!(
            "{:.2} s with {} agents: sent {}, received {}",
            step.test_duration_secs,
            thousands(u64::from(step.concurrency)),
            per_second(step.send_tps),
            per_second(step.receive_tps)
        ),
    ));
    facts.push(("server", server(step)));
    facts.push((
        "client",
        format!(
            "{}, send lag p99 {} ms",
            cpu(step.client.cpu_secs, step.test_duration_secs),
            milliseconds(step.client.send_lag_p99_ms)
        ),
    ));
    facts
}

/// The distributions of a step by name.
pub(super) fn latencies(step: &StepReport) -> [(&'static str, &Latency); 2] {
    [
        ("end to end", &step.latency),
        ("write call", &step.latency_send),
    ]
}

/// The cells of one distribution in the order of [`LATENCY_COLUMNS`].
pub(super) fn latency_cells(latency: &Latency) -> [String; 8] {
    [
        latency.p50_ms,
        latency.p90_ms,
        latency.p95_ms,
        latency.p99_ms,
        latency.max_ms,
        latency.min_ms,
        latency.mean_ms,
        latency.std_dev_ms,
    ]
    .map(milliseconds)
}

fn server(step: &StepReport) -> String {
    let mut parts = Vec::new();
    if let Some(cpu_secs) = step.server.cpu_secs {
        parts.push(cpu(cpu_secs, step.test_duration_secs));
    }
    if let Some(bytes) = step.server.rss_bytes_max {
        parts.push(format!("{} at most", mebibytes(bytes)));
    }
    if let Some(lanes) = step.server.lanes {
        parts.push(format!(
            "{lanes} {}",
            if lanes == 1 { "lane" } else { "lanes" }
        ));
    }
    if let Some(poller) = &step.server.poller {
        parts.push(poller.clone());
    }
    if parts.is_empty() {
        "not observed".to_owned()
    } else {
        parts.join(", ")
    }
}

fn cpu(cpu_secs: f64, duration_secs: f64) -> String {
    if duration_secs > 0.0 {
        format!(
            "{cpu_secs:.2} s of processor time ({:.2} cores)",
            cpu_secs / duration_secs
        )
    } else {
        format!("{cpu_secs:.2} s of processor time")
    }
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Percentiles first: they are what a reader looks for.
pub(super) const LATENCY_COLUMNS: [&str; 8] =
    ["p50", "p90", "p95", "p99", "max", "min", "mean", "std dev"];
