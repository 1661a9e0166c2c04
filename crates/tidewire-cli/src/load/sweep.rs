//! `tidewire sweep`: throughput at several levels of concurrency, and the Universal Scalability Law through them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tidewire_command::report_directory::take_directory;
use tidewire_command::{output, signals};
use tidewire_load::levels::{Levels, Sweep, SweepLevel};
use tidewire_load::report::Conclusion;
use tidewire_load::scenario::{Load, Step};
use tidewire_load::statistics::{Estimate, LEVELS_MIN, ScalabilityFit};

use super::{LevelArguments, Runner, Tables, View, conclude, print_words, with_reasons, write};
use crate::failure::Failure;
use crate::payload::json_text;
use crate::payload::write_json;

/// Measure a closed step at several levels of concurrency and fit the Universal Scalability Law: how throughput grows,
/// and where more agents stop helping.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SweepArguments {
    /// Scenario file with a step of the model closed or max, whose own concurrency does not matter.
    file: PathBuf,
    /// Levels of concurrency, at least six different ones.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', required = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    concurrency: Vec<u32>,
    /// Measure each level this many times, from the lowest to the highest each time.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    #[command(flatten)]
    pub(crate) levels: LevelArguments,
}

/// Measures and fits. The exit code is that of the runs.
pub(crate) fn run_sweep(arguments: &SweepArguments) -> anyhow::Result<ExitCode> {
    let LevelArguments {
        out,
        run: runs,
        json,
        ..
    } = &arguments.levels;
    let (mut scenario, step) = arguments.levels.scenario(&arguments.file)?;
    let concurrencies = concurrencies(arguments, &step)?;
    let _taken = take_directory(out)?;
    let runner = Runner::new(runs, &scenario)?;
    let mut sweep = Sweep::new(&step, runner.seed(&scenario), Runner::environment());
    let mut levels = Levels::default();
    // Every run goes through all levels, so that a drift of the machine affects all of them equally.
    'runs: for run in 1..=arguments.repeat {
        for &concurrency in &concurrencies {
            let step = step.at_concurrency(concurrency);
            scenario.steps = vec![step.clone()];
            let report = runner.run(&scenario, &mut View::new(1, Tables::None, runs.plain))?;
            let stopped = runner.is_stopped();
            if let Some(level) = SweepLevel::of(&step, run, &report).filter(|_| !stopped) {
                match json {
                    true => {
                        output::print_line(json_text(&json!({"event": "level", "level": level})));
                    }
                    false => print_words(level_line(&level), 5),
                }
                sweep.levels.push(level);
            }
            sweep.target_server.clone_from(&report.target_server);
            levels.add(f64::from(concurrency), report);
            if stopped {
                break 'runs;
            }
        }
    }
    sweep.close();
    write_json(&sweep, &out.join(SWEEP_FILE))?;
    match json {
        true => {
            let fit = json!({"event": "fit", "fit": sweep.fit, "no_fit": sweep.no_fit});
            output::print_line(json_text(&fit));
        }
        false => print_words(fit_lines(&sweep), 2),
    }
    let Some(report) = levels.report()? else {
        return Ok(signals::interrupted());
    };
    let written = write(&report, out)?;
    Ok(conclude(&report, &written, *json))
}

/// Returns the different levels in order, if this step can be measured at them and they suffice.
fn concurrencies(arguments: &SweepArguments, step: &Step) -> anyhow::Result<Vec<u32>> {
    let mut levels = arguments.concurrency.clone();
    levels.sort_unstable();
    levels.dedup();
    if levels.len() < LEVELS_MIN {
        let count = levels.len();
        let what = format!("{count} levels of concurrency are too few for a fit");
        let remedy = format!(
            "name {LEVELS_MIN} or more, for example --concurrency 1,2,4,8,16,32: a curve of three figures passes near \
             any five points"
        );
        return Err(Failure::configuration(what, remedy).into());
    }
    if let Load::Open { .. } = step.load {
        let what = format!(
            "step {:?} is open, so its rate does not depend on its agents",
            step.name
        );
        let remedy =
            "give it model = \"closed\", or look for its highest rate with `tidewire search`";
        return Err(Failure::configuration(what, remedy).into());
    }
    let slow = step.slow_receivers;
    if levels.first().is_some_and(|least| *least <= slow) {
        let what = format!(
            "{slow} of the agents are slow receivers, so each level needs more than {slow}"
        );
        return Err(Failure::configuration(what, "").into());
    }
    Ok(levels)
}

fn level_line(level: &SweepLevel) -> String {
    let (concurrency, throughput) = (level.concurrency, level.throughput);
    let (p50, p99) = (level.p50, level.p99);
    // Where the scenario only warns of an invalid measurement, the conclusion does not name it.
    let doubt = match level.verdict_reasons.is_empty() || level.conclusion == Conclusion::Invalid {
        true => "",
        false => ", but INVALID",
    };
    let line = format!(
        "{concurrency:>7} agents  {throughput:>10.0}/s  p50 {p50} ms, p99 {p99} ms  {}{doubt}",
        level.conclusion.name()
    );
    let disturbances = level.disturbances.iter();
    let disturbances = disturbances.map(|it| format!("its times are disturbed: {it}"));
    let reasons = level.verdict_reasons.iter().cloned();
    with_reasons(line, &reasons.chain(disturbances).collect::<Vec<_>>())
}

fn fit_lines(sweep: &Sweep) -> String {
    let Some(fit) = &sweep.fit else {
        let why = sweep.no_fit.as_deref().unwrap_or("nothing was measured");
        return format!("no fit: {why}");
    };
    let ScalabilityFit {
        lambda,
        sigma,
        kappa,
        knee,
        deviation_pct,
        levels,
    } = fit;
    let doubtful = sweep
        .levels
        .iter()
        .filter(|level| !level.verdict_reasons.is_empty());
    let doubt = match doubtful.count() {
        0 => String::new(),
        count => format!(
            "\n{count} of {} measurements are INVALID, so the curve may be that of the instrument",
            sweep.levels.len()
        ),
    };
    format!(
        "{knee}\nλ {}/s (one agent), σ {} (contention), κ {} (coherence); {levels} levels, {deviation_pct:.1} % off the \
         curve{doubt}",
        estimate(*lambda, 0),
        estimate(*sigma, 4),
        estimate(*kappa, 7),
    )
}

fn estimate(figure: Estimate, decimals: usize) -> String {
    let Estimate { value, low, high } = figure;
    format!("{value:.decimals$} [{low:.decimals$}, {high:.decimals$}]")
}

/// The file of a sweep's record, beside its report.
const SWEEP_FILE: &str = "sweep.json";

const EXAMPLES: &str = "\
Examples:
  tidewire sweep FILE.toml --serve --concurrency 1,2,4,8,16,32,64
  tidewire sweep FILE.toml --serve --concurrency 1,2,4,8,16,32,64 --repeat 3 --out sweep

With --serve every level has a fresh server process.

Exit codes: those of `tidewire load`; 2 also with fewer than six levels.";
