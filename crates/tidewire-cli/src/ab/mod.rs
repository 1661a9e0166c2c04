//! `tidewire ab`: runs two binaries in turns and compares them.
//!
//! A machine drifts: it warms up, and other loads come and go. The two are therefore run in pairs, every other pair in
//! reverse order (A B, B A, A B, …), so that a steady drift affects both equally. Before that A is run against itself
//! in the same way, to learn what this machine shows without a change. Each run is a fresh process that starts a fresh
//! server: runs within one process would share what a start decides, such as memory addresses.

mod side;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use tidewire_command::{output, signals};
use tidewire_load::compare::{Comparison, NOISE_PAIRS_MIN, NoiseRecord, Pairing, RunSet};
use tidewire_load::statistics::PAIRS_MIN;

use self::side::Side;
use crate::compare::JudgementArguments;
use crate::failure::Failure;
use crate::payload::write_json;
use crate::units::parse_seconds;

/// Run two binaries in turns on one scenario and compare them. Each run is `BIN load SCENARIO --serve` in a fresh
/// process; first A runs against itself, to learn the noise of this machine.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AbArguments {
    /// The binary to compare with.
    #[arg(long, value_name = "BIN")]
    a: PathBuf,
    /// The binary that is judged.
    #[arg(long, value_name = "BIN")]
    b: PathBuf,
    /// Pairs of runs, one of each binary. With 8, a change of 5 % is found 9 times in 10 if runs vary by 2 %.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(PAIRS_MIN as i64..=1_000))]
    pairs: u16,
    /// Pairs of runs of A against itself; 0 takes the noise from --noise, or assumes 3 %.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = noise_pairs)]
    noise_pairs: u16,
    /// Noise that an earlier `ab` recorded on this machine, instead of recording it again.
    #[arg(long, value_name = "FILE", conflicts_with = "noise_pairs")]
    noise: Option<PathBuf>,
    /// Directory for the reports of all runs, noise.json and comparison.json. It must not hold runs yet.
    #[arg(long, value_name = "DIR", default_value = "tidewire-ab")]
    out: PathBuf,
    /// Longest time of a single run, in seconds or as 2h, after which it is ended and the comparison fails.
    #[arg(long, value_name = "TIME", default_value = "3600", value_parser = parse_seconds)]
    run_secs_max: Duration,
    #[command(flatten)]
    judgement: JudgementArguments,
    /// Scenario file that both run.
    scenario: PathBuf,
    /// Further arguments of `load` for both, after `--`.
    #[arg(last = true, value_name = "ARGUMENT")]
    load_arguments: Vec<String>,
}

/// Runs both and compares them. The exit codes are those of `compare`.
pub(crate) fn run(arguments: &AbArguments) -> anyhow::Result<ExitCode> {
    let noise = arguments
        .noise
        .as_deref()
        .map(NoiseRecord::read)
        .transpose()?;
    if !arguments.scenario.is_file() {
        let what = format!("there is no scenario {}", arguments.scenario.display());
        return Err(Failure::configuration(what, "check the path").into());
    }
    let series = Series::new(arguments)?;
    let bootstrap = arguments.judgement.bootstrap();
    let noise = if noise.is_none() && arguments.noise_pairs > 0 {
        let Some((first, second)) = series.run("noise", NOISE_SIDES, arguments.noise_pairs)? else {
            return Ok(signals::interrupted());
        };
        NoiseRecord::of(&first, &second, bootstrap)
    } else {
        noise
    };
    if let Some(noise) = &noise {
        write_json(noise, &arguments.out.join("noise.json"))?;
    }
    let Some((base, new)) = series.run("pair", SIDES, arguments.pairs)? else {
        return Ok(signals::interrupted());
    };
    let comparison = Comparison::of(&base, &new, Pairing::ByOrder, noise.as_ref(), bootstrap)?;
    write_json(&comparison, &arguments.out.join("comparison.json"))?;
    arguments.judgement.conclude(&comparison)
}

/// The common state of all runs of a comparison.
struct Series<'a> {
    arguments: &'a AbArguments,
    stop: Arc<AtomicBool>,
}

impl<'a> Series<'a> {
    fn new(arguments: &'a AbArguments) -> anyhow::Result<Self> {
        for name in SIDES.into_iter().chain(NOISE_SIDES) {
            let path = arguments.out.join(name);
            if path.exists() {
                let what = format!("{} holds the runs of an earlier comparison", path.display());
                let remedy = "name another directory with --out, or remove it";
                return Err(Failure::configuration(what, remedy).into());
            }
        }
        fs::create_dir_all(&arguments.out).map_err(|error| {
            let what = format!("cannot create {}: {error}", arguments.out.display());
            Failure::configuration(what, "name another directory with --out")
        })?;
        // The present run gets a stop signal, and the command waits for it.
        let stop = signals::stop_flag(WAY_OUT, || {})?;
        Ok(Self { arguments, stop })
    }

    /// Runs pairs into two directories, every other pair in reverse order. Returns `None` when the user stopped it.
    fn run(
        &self,
        phase: &str,
        names: [&str; 2],
        pairs: u16,
    ) -> anyhow::Result<Option<(RunSet, RunSet)>> {
        let binaries = if names == NOISE_SIDES {
            [&self.arguments.a, &self.arguments.a]
        } else {
            [&self.arguments.a, &self.arguments.b]
        };
        let [first, second] = [0, 1].map(|side| Side {
            binary: binaries[side],
            directory: self.arguments.out.join(names[side]),
        });
        let mut sets = [RunSet::default(), RunSet::default()];
        for pair in 0..pairs {
            for side in order(pair) {
                let label = format!("{phase} {}/{pairs}, {}", pair + 1, names[side]);
                let chosen = [&first, &second][side];
                match self.run_one(chosen, usize::from(pair), &label)? {
                    Some(report) => sets[side].add_file(&report)?,
                    None => return Ok(None),
                }
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(None);
                }
            }
        }
        let [first, second] = sets;
        Ok(Some((first, second)))
    }

    /// Makes one run and returns its report, or `None` when the user stopped it.
    fn run_one(
        &self,
        side: &Side<'_>,
        pair: usize,
        label: &str,
    ) -> anyhow::Result<Option<PathBuf>> {
        output::note(format_args!("{label}: running"));
        let arguments = self.arguments;
        let longest = arguments.run_secs_max;
        let command = side.command(pair, &arguments.scenario, &arguments.load_arguments);
        let ended = side.run(pair, command, longest, &self.stop)?;
        Ok(ended.map(|(report, secs)| {
            output::note(format_args!("{label}: {secs:.1} s"));
            report
        }))
    }
}

/// Returns the order of the sides in a pair: A B, B A, A B, …
fn order(pair: u16) -> [usize; 2] {
    let first = usize::from(pair % 2);
    [first, 1 - first]
}

fn noise_pairs(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Err(_) => Err("not a number of pairs".to_owned()),
        Ok(pairs) if pairs == 0 || usize::from(pairs) >= NOISE_PAIRS_MIN => Ok(pairs),
        Ok(_) => Err(format!(
            "noise needs {NOISE_PAIRS_MIN} pairs or more, or 0 for none"
        )),
    }
}

/// The maximum time to end after the first signal. A run that was told to stop is killed after half of that.
const WAY_OUT: Duration = Duration::from_secs(30);

const SIDES: [&str; 2] = ["a", "b"];

/// The directories of A against itself.
const NOISE_SIDES: [&str; 2] = ["noise-1", "noise-2"];

const EXAMPLES: &str = "\
Examples:
  tidewire ab --a old/tidewire --b new/tidewire scenarios/seed-chat.toml
  tidewire ab --a old/tidewire --b new/tidewire --pairs 6 SCENARIO -- --quick
  tidewire ab --a old --b new --noise tidewire-ab/noise.json --out second SCENARIO --fail-on regression

Exit codes: 0 nothing that --fail-on names was found, 99 it was, 2 bad arguments or files, 1 a run failed, \
130 interrupted.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_pair_runs_the_other_way_round() {
        let sides: String = (0..4)
            .flat_map(order)
            .map(|side| ["A", "B"][side])
            .collect();
        assert_eq!(sides, "ABBAABBA");
    }

    #[test]
    fn noise_is_recorded_from_enough_pairs_or_not_at_all() {
        assert_eq!(noise_pairs("0"), Ok(0));
        assert_eq!(noise_pairs("4"), Ok(4));
        assert!(noise_pairs("3").unwrap_err().contains("4 pairs or more"));
        assert!(noise_pairs("many").is_err());
    }
}
