//! `tidewire search`: finds the highest rate that keeps its limits.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use tidewire_command::output;
use tidewire_command::report_directory::take_directory;
use tidewire_load::levels::{Levels, Probe, RateSearch};
use tidewire_load::scenario::{RATE_MAX, Scenario, Step};
use tidewire_load::search::{SearchEnd, SearchPlan, Vote};
use tidewire_load::slo::Slo;

use super::{LevelArguments, Runner, Tables, View, exit_code, print_words, with_reasons, write};
use crate::failure::Failure;
use crate::payload::json_text;
use crate::payload::write_json;

/// Find the highest rate at which an open step of a scenario keeps its limits. Each probe is a run of the step at one
/// rate; two of three decide a rate. A probe whose measurement is invalid does not count and is repeated.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SearchArguments {
    /// Scenario file with an open step, whose own rate does not matter.
    file: PathBuf,
    /// Limits to keep, such as 'p99<5ms,loss<0.01%'. Default: those of the step.
    #[arg(long, value_name = "LIMITS")]
    slo: Option<Slo>,
    /// Lowest rate of interest, in messages a second.
    #[arg(long, value_name = "RATE")]
    min: f64,
    /// Highest rate of interest, in messages a second.
    #[arg(long, value_name = "RATE")]
    max: f64,
    /// How close the rate that holds and the one that does not must be in the end, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0)]
    tolerance: f64,
    /// Further probes of the rate that was found. All but one in three must hold.
    #[arg(long, value_name = "N", default_value_t = 3)]
    confirmations: u32,
    /// Most probes. A search that needs more ends without a result.
    #[arg(long, value_name = "N", default_value_t = 60)]
    probes_max: u32,
    #[command(flatten)]
    pub(crate) levels: LevelArguments,
}

/// Searches. The exit code says whether a rate was found.
pub(crate) fn run_search(arguments: &SearchArguments) -> anyhow::Result<ExitCode> {
    let LevelArguments { out, run, json, .. } = &arguments.levels;
    let (scenario, step) = arguments.levels.scenario(&arguments.file)?;
    let step = step_to_search(arguments, step)?;
    let plan = SearchPlan {
        tolerance: arguments.tolerance / 100.0,
        confirmations: arguments.confirmations,
        trials_max: arguments.probes_max,
        ..SearchPlan::between(arguments.min, arguments.max)
    };
    if let Err(error) = plan.check() {
        return Err(Failure::configuration(error.to_string(), "see --min and --max").into());
    }
    let _taken = take_directory(out)?;
    let runner = Runner::new(run, &scenario)?;
    let seed = runner.seed(&scenario);
    let mut searching = SearchRun {
        record: RateSearch::new(&step, step.slo, plan, seed, Runner::environment()),
        levels: Levels::default(),
        json: *json,
        plain: run.plain,
        runner,
        scenario,
        step,
    };
    let probe = |rate| {
        let vote = searching.probe(rate);
        let vote = vote.with_context(|| format!("the probe at {rate:.0}/s could not be run"));
        vote.map_err(Some)?.ok_or(None)
    };
    match plan.search(probe) {
        Ok(end) => searching.record.close(end),
        Err(None) => {}
        Err(Some(error)) => return Err(error),
    }
    searching.finish(out)
}

/// Returns the step with its limits. Each probe sets its rate.
fn step_to_search(arguments: &SearchArguments, mut step: Step) -> anyhow::Result<Step> {
    if let Some(slo) = arguments.slo {
        step.slo = slo;
    }
    if arguments.max > RATE_MAX {
        let what = format!("no machine sends {:.0} messages a second", arguments.max);
        return Err(Failure::configuration(what, "lower --max").into());
    }
    if step.at_rate(arguments.min).is_none() {
        let what = format!("step {:?} is {}, not open", step.name, step.load.model());
        let remedy = "give it model = \"open\" and any rate: a loop that waits sets its own rate";
        return Err(Failure::configuration(what, remedy).into());
    }
    if step.slo.is_empty() {
        let what = format!("step {:?} has no limits to keep", step.name);
        let remedy = "name them, for example --slo 'p99<5ms,loss<0.01%'";
        return Err(Failure::configuration(what, remedy).into());
    }
    Ok(step)
}

/// The state of a search.
struct SearchRun<'a> {
    runner: Runner<'a>,
    scenario: Scenario,
    step: Step,
    record: RateSearch,
    levels: Levels,
    json: bool,
    plain: bool,
}

impl SearchRun<'_> {
    /// Runs the step at this rate and returns what that says about it; nothing if the user stopped it.
    fn probe(&mut self, rate: f64) -> anyhow::Result<Option<Vote>> {
        let step = self.step.at_rate(rate);
        self.scenario.steps = step.into_iter().collect();
        let mut view = View::new(1, Tables::None, self.plain);
        let report = self.runner.run(&self.scenario, &mut view)?;
        if self.runner.is_stopped() {
            return Ok(None);
        }
        let number = self.record.probes.len() as u32 + 1;
        let probe = Probe::of(number, rate, &report).context("the step could not be measured")?;
        self.record.target_server.clone_from(&report.target_server);
        self.levels.add(rate, report);
        let vote = probe.vote();
        match self.json {
            true => output::print_line(json_text(&json!({"event": "probe", "probe": probe}))),
            false => print_words(probe_line(&probe), 5),
        }
        self.record.probes.push(probe);
        Ok(Some(vote))
    }

    /// Writes the files and prints the result.
    fn finish(self, out: &Path) -> anyhow::Result<ExitCode> {
        let file = out.join(SEARCH_FILE);
        write_json(&self.record, &file)?;
        if let Some(report) = self.levels.report()? {
            write(&report, out)?;
        }
        let path = file.display().to_string();
        if self.json {
            output::print_line(json_text(&json!({
                "event": "search",
                "end": self.record.end,
                "limited_by_instrument": self.record.limited_by_instrument,
                "json": path,
            })));
        } else {
            let probes = self.record.probes.len();
            let line = format!("{} ({probes} probes): {path}", result(&self.record));
            print_words(line, 2);
        }
        Ok(exit_code(self.record.conclusion()))
    }
}

fn probe_line(probe: &Probe) -> String {
    let word = match probe.vote() {
        Vote::Holds => "holds",
        Vote::Invalid => "INVALID",
        Vote::Fails => "FAILS",
    };
    let (number, rate, lost) = (probe.number, probe.rate, probe.lost);
    let unconfirmed = match probe.unconfirmed {
        0 => String::new(),
        count => format!(" and unconfirmed {count}"),
    };
    let line = format!(
        "{number:>3}  {rate:>9.0}/s  {word:<7}  p50 {} ms, p99 {} ms, lost {lost}{unconfirmed} of {}, sent {:.0}/s",
        probe.p50, probe.p99, probe.expected, probe.send_tps
    );
    // Where the scenario only warns of an invalid measurement, the reasons do not name what speaks against it.
    let doubts = probe.verdict_reasons.iter();
    let doubts = doubts.filter(|doubt| !probe.reasons.contains(doubt));
    let doubts = doubts.map(|doubt| format!("INVALID, but it counts: {doubt}"));
    let disturbances = probe.disturbances.iter();
    let disturbances = disturbances.map(|it| format!("its times are disturbed: {it}"));
    let reasons = probe.reasons.iter().cloned().chain(doubts);
    let reasons: Vec<String> = reasons.chain(disturbances).collect();
    with_reasons(line, &reasons)
}

fn result(record: &RateSearch) -> String {
    let bound = match record.limited_by_instrument {
        true => "; a lower bound, because no valid measurement shows a rate above it failing",
        false => "",
    };
    match record.end {
        None => "stopped before a rate was found".to_owned(),
        Some(SearchEnd::Found { holds, fails }) => {
            format!("the highest rate that holds is {holds:.0}/s; {fails:.0}/s does not{bound}")
        }
        Some(SearchEnd::HoldsAtMax { holds }) => {
            format!("even the highest rate holds, {holds:.0}/s: search higher with --max")
        }
        Some(SearchEnd::FailsAtMin { fails }) => {
            let bound = match record.limited_by_instrument {
                true => ", but no valid measurement shows it",
                false => "",
            };
            format!("even the lowest rate does not hold, {fails:.0}/s{bound}")
        }
        Some(SearchEnd::Undecided { rate, holds }) => {
            let known = unconfirmed(holds);
            format!(
                "INVALID: {rate:.0}/s cannot be decided, because its measurements were invalid again and again; use a \
                 quieter or faster machine{known}"
            )
        }
        Some(SearchEnd::Exhausted { holds }) => {
            let invalid = record.probes.iter().map(Probe::vote);
            let invalid = match invalid.filter(|vote| *vote == Vote::Invalid).count() {
                0 => String::new(),
                count => format!(", of which {count} were INVALID"),
            };
            format!(
                "no result within --probes-max{invalid}{}",
                unconfirmed(holds)
            )
        }
    }
}

/// The highest rate that held when the search ended without a result.
fn unconfirmed(holds: Option<f64>) -> String {
    holds.map_or_else(String::new, |holds| {
        format!("; {holds:.0}/s held and was not confirmed")
    })
}

/// The file of a search's record, beside its report.
const SEARCH_FILE: &str = "search.json";

const EXAMPLES: &str = "\
Examples:
  tidewire search FILE.toml --serve --slo 'p99<5ms,loss<0.01%' --min 1000 --max 100000
  tidewire search FILE.toml --target tcp://HOST:PORT --min 100 --max 5000 --tolerance 5

With --serve every probe has a fresh server process.

Exit codes: 0 a rate was found or the highest holds, 2 bad arguments or scenario, 3 server not reachable, 90 a rate \
could not be decided because its measurements were invalid, 99 even the lowest rate does not hold or the probes did not suffice, 130 \
interrupted.";
