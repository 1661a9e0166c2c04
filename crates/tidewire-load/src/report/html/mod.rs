//! `report.html`: the report to look at, in one file.
//!
//! Problems come first, then every step in a line, then the charts of the whole, then those of each step. A chart whose
//! figures are missing is left out, and a line gives the reason, so that an old report is a shorter page and not a
//! broken one. The parts of a page are in [`crate::page`].
//!
//! A chart is a function from the report, or from one of its steps, to a [`Drawn`](crate::page::figure::Drawn) or a
//! reason; a new one is a line in [`figures_of_all`] or [`figures_of_step`].

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
use crate::page::figure::Figure;
use crate::page::{Heading, whole_page};

impl Report {
    /// The content of `report.html`: one page that needs nothing else.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        summary::verdict(self, &mut page);
        summary::overview(self, &mut page);
        summary::limits(self, &mut page);
        page.push_str("<section id=\"whole\"><h2>All steps together</h2>\n");
        Figure::write_all(&figures_of_all(self), &mut page);
        page.push_str("</section>\n");
        for (number, step) in (1..).zip(&self.steps) {
            write_step(number, step, &mut page);
        }
        summary::environment(self, &mut page);
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
    let figure = |id: &str, title, content| Figure {
        id: id.to_owned(),
        title,
        content,
    };
    vec![
        figure(
            "fates",
            "What became of the messages",
            delivery::fates(report),
        ),
        figure("cost", "Cost of a message", cost::processor(report)),
        figure(
            "calls",
            "System calls and allocations of a message",
            cost::calls(report),
        ),
        figure(
            "scaling",
            "Rate against concurrency",
            scaling::against_concurrency(report),
        ),
        figure(
            "tail",
            "p99 against offered rate",
            scaling::tail_against_offered(report),
        ),
    ]
}

/// The charts of one step.
fn figures_of_step(number: usize, step: &StepReport) -> Vec<Figure> {
    let figure = |id: &str, title, content| Figure {
        id: format!("step-{number}-{id}"),
        title,
        content,
    };
    vec![
        figure(
            "percentiles",
            "Latency by percentile",
            latency::by_percentile(step),
        ),
        figure("rate", "Rate over time", rate::over_time(step)),
        figure("heat", "Latency heat map", latency::heat_map(step)),
        figure("latency", "Latency over time", latency::over_time(step)),
        figure(
            "receivers",
            "Worst receivers",
            delivery::worst_receivers(step),
        ),
        figure("runs", "Runs", runs::runs(step)),
    ]
}

fn write_step(number: usize, step: &StepReport, page: &mut String) {
    let (name, verdict) = (markup(&step.step_name), summary::step_verdict(step));
    let class = if step.passes() && !summary::is_doubtful(step) {
        "ok"
    } else {
        "bad"
    };
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
    if step.detail.is_none() {
        summary::latencies(step, page);
    }
    Figure::write_all(&figures_of_step(number, step), page);
    for note in &step.notes {
        let _ = writeln!(page, "<p class=\"note\">Note: {}.</p>", markup(note));
    }
    page.push_str("</section>\n");
}

#[cfg(test)]
mod tests;
