//! The progress of a run: a live view on a terminal, otherwise a line per second.

use serde_json::json;
use tidewire_command::output;
use tidewire_load::plan::RunOptions;
use tidewire_load::report::{StepReport, step_table};
use tidewire_load::run::{Observer, Progress};
use tidewire_load::scenario::{Scenario, Step};

use super::live::Live;
use super::progress::describe;
use crate::payload::json_text;
use crate::screen::Screen;

/// Shows a run on standard error, and each step's table on standard output.
#[derive(Debug)]
pub(crate) struct View {
    steps: usize,
    tables: Tables,
    /// Whether to print lines even on a terminal.
    plain: bool,
    live: Option<Live>,
}

impl View {
    pub(crate) fn new(steps: usize, tables: Tables, plain: bool) -> Self {
        Self {
            steps,
            tables,
            plain: plain || !Screen::is_possible(),
            live: None,
        }
    }

    pub(crate) fn announce(&self, scenario: &Scenario, options: &RunOptions) {
        if self.tables == Tables::None {
            return;
        }
        let secs: f64 = scenario.steps.iter().map(|step| step.duration_secs).sum();
        let steps = if self.steps == 1 {
            "1 step".to_owned()
        } else {
            format!("{} steps", self.steps)
        };
        let names: Vec<String> = options.names.iter().map(ToString::to_string).collect();
        let targets = match names.is_empty() {
            true => options.addresses(),
            false => names.join(", "),
        };
        output::note(format!(
            "load test of {targets}: {steps}, about {:.0} s, seed {}",
            secs + 2.0 * self.steps as f64,
            options.seed
        ));
    }

    pub(crate) fn finish(&mut self) {
        self.live = None;
    }
}

/// The form of a step's figures on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// As a table for people.
    Text,
    /// As an object for programs.
    Json,
    /// Nothing: the caller has its own form for many runs of one step.
    None,
}

impl Observer for View {
    fn step_started(&mut self, number: usize, step: &Step) {
        let title = format!("[{}/{}] {}", number + 1, self.steps, step.name);
        if self.plain {
            return output::note(title);
        }
        match Live::start(title.clone()) {
            Ok(live) => self.live = Some(live),
            Err(error) => {
                tracing::debug!(%error, "no live view");
                output::note(title);
            }
        }
    }

    fn progress(&mut self, progress: &Progress) {
        match &mut self.live {
            Some(live) => live.update(progress),
            None => output::note(describe(progress)),
        }
    }
}

impl View {
    /// Shows a step that has ended.
    pub(super) fn show(&mut self, report: &StepReport) {
        self.finish();
        let text = match self.tables {
            Tables::Json => json_text(&json!({"event": "step", "step": report})),
            Tables::Text => step_table(report, output::columns()),
            Tables::None => return,
        };
        output::print_line(text);
    }
}
