//! `report.md`: the tables of the terminal and the environment, for an issue or a wiki page.

use std::fmt::Write as _;

use tidewire_proto::text::visible;

use super::table::{ABOUT_TIMES, TIME_COLUMNS, bad_news, facts, remarks, run_facts, time_rows};
use super::verdict::capitalised;
use super::{Report, StepReport};

/// The whole document. Texts from files and peers are escaped so that they cannot break a table.
pub(super) fn render(report: &Report) -> String {
    let mut text = String::from("# Tidewire load report\n\n");
    let (verdict, explanation) = (capitalised(report.verdict()), report.explanation());
    let _ = writeln!(text, "**{verdict}**: {explanation}.\n");
    for step in &report.steps {
        render_step(&mut text, step);
    }
    for name in &report.not_run {
        let _ = writeln!(text, "## {}: not run\n", cell(name));
    }
    text.push_str("## Run and environment\n\n");
    text.push_str("| what | value |\n|---|---|\n");
    for (name, value) in run_facts(report) {
        let _ = writeln!(text, "| {name} | {} |", cell(&value));
    }
    text
}

fn render_step(text: &mut String, step: &StepReport) {
    let verdict = step.verdict().name();
    let _ = writeln!(text, "## {}: {verdict}\n", cell(&step.step_name));
    let bad_news = bad_news(step);
    for news in &bad_news {
        let _ = writeln!(text, "- **{}**", cell(news));
    }
    if !bad_news.is_empty() {
        text.push('\n');
    }
    text.push_str("| what | value |\n|---|---|\n");
    for (name, value) in facts(step) {
        let _ = writeln!(text, "| {name} | {} |", cell(&value));
    }
    let _ = writeln!(text, "\n| ms | {} |", TIME_COLUMNS.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(TIME_COLUMNS.len()));
    for (name, cells) in time_rows(step) {
        let _ = writeln!(text, "| {} | {} |", cell(&name), cells.join(" | "));
    }
    let _ = writeln!(
        text,
        "\n*scheduled* is {}. {ABOUT_TIMES}",
        cell(&step.latency_kind)
    );
    for note in remarks(step) {
        let _ = writeln!(text, "\nNote: {}.", cell(&note));
    }
    text.push('\n');
}

/// A text inside a table cell: no line breaks, and the letters that mean something to Markdown escaped.
fn cell(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for letter in visible(value.as_bytes()).chars() {
        if matches!(letter, '|' | '\\' | '`' | '*' | '_' | '<' | '[' | '#') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}
