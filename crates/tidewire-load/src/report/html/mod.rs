//! `report.html`: the report to look at, in one file.
//!
//! The answer comes first: verdict, large figures, problems and the course of the step that decides. Then come every
//! step in a line, the charts of the whole, and those of each step. A chart whose figures are missing is left out, and
//! a line gives the reason, so that a step that failed is a shorter section and not a broken one. The parts of a page
//! are in [`crate::page`].
//!
//! A chart is a function from the report, or from one of its steps, to a [`Chart`] or a
//! reason; a new one is a line in [`figures_of_all`], [`course_of_step`] or [`figures_of_step`].

mod answer;
mod cost;
mod course;
mod delivery;
mod latency;
mod rate;
mod runs;
mod scaling;
mod summary;

use std::fmt::Write as _;

use super::{Report, StepReport, table};
use crate::format::markup;
use crate::page::figure::{Chart, Figure};
use crate::page::{Heading, whole_page, write_environment};

impl Report {
    /// The content of `report.html`: one page that needs nothing else.
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        answer::write(self, &mut page);
        summary::overview(self, &mut page);
        summary::limits(self, &mut page);
        page.push_str("<section id=\"whole\"><h2>All steps together</h2>\n");
        Figure::write_all(&figures_of_all(self), &mut page);
        page.push_str("</section>\n");
        let deciding = answer::deciding_step(self);
        for (index, step) in self.steps.iter().enumerate() {
            write_step(index + 1, step, deciding == Some(index), &mut page);
        }
        write_environment(table::run_facts(self), &mut page);
        let heading = Heading {
            title: &format!("Load of {}", self.target_server),
            name: "Tidewire load report",
            about: &format!("{}, {}", self.target_server, self.start_time_utc),
        };
        whole_page(&heading, &page)
    }
}

/// The charts in which steps stand beside each other.
fn figures_of_all(report: &Report) -> Vec<Figure> {
    let fates = delivery::fates(report);
    let calls = cost::calls(report);
    let scaling = scaling::against_concurrency(report);
    let tail = scaling::tail_against_offered(report);
    vec![
        figure("fates", "What became of the messages", fates),
        figure("cost", "Cost of a message", cost::processor(report)),
        figure("calls", "System calls and allocations of a message", calls),
        figure("scaling", "Rate against concurrency", scaling),
        figure("tail", "p99 against offered rate", tail),
    ]
}

/// The charts of one step over time.
fn course_of_step(number: usize, step: &StepReport) -> Vec<Figure> {
    let id = |id| format!("step-{number}-{id}");
    vec![
        figure(id("latency"), "Latency over time", latency::over_time(step)),
        figure(id("rate"), "Rate over time", rate::over_time(step)),
    ]
}

fn figures_of_step(number: usize, step: &StepReport) -> Vec<Figure> {
    let id = |id| format!("step-{number}-{id}");
    let percentiles = latency::by_percentile(step);
    let receivers = delivery::worst_receivers(step);
    vec![
        figure(id("percentiles"), "Latency by percentile", percentiles),
        figure(id("heat"), "Latency heat map", latency::heat_map(step)),
        figure(id("receivers"), "Worst receivers", receivers),
        figure(id("runs"), "Runs", runs::runs(step)),
    ]
}

fn figure(id: impl Into<String>, title: &'static str, content: Result<Chart, String>) -> Figure {
    let id = id.into();
    Figure { id, title, content }
}

/// Writes the section of a step. The course of the step that decides is at the top of the page.
fn write_step(number: usize, step: &StepReport, is_at_top: bool, page: &mut String) {
    let (name, verdict) = (markup(&step.step_name), summary::step_verdict(step));
    let class = summary::class(step);
    let _ = writeln!(
        page,
        "<section class=\"step\" id=\"step-{number}\"><h2>{name} <em class=\"{class}\">{verdict}</em></h2>"
    );
    page.push_str("<dl class=\"facts\">");
    for (name, value) in table::facts(step) {
        let _ = write!(
            page,
            "<div><dt>{name}</dt><dd>{}</dd></div>",
            markup(&value)
        );
    }
    page.push_str("</dl>\n");
    let mut figures = figures_of_step(number, step);
    if is_at_top {
        page.push_str("<p class=\"note\">Latency and rate over time and the percentiles of this step are <a href=\"#answer\">at the top</a>.</p>\n");
    } else {
        latency::percentiles_of(step, page);
        figures.splice(0..0, course_of_step(number, step));
    }
    Figure::write_all(&figures, page);
    for note in table::remarks(step) {
        let _ = writeln!(page, "<p class=\"note\">Note: {}.</p>", markup(&note));
    }
    page.push_str("</section>\n");
}

#[cfg(test)]
mod tests;
