//! One run of one binary, in a process of its own.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tidewire_load::report::JSON_FILE;

use crate::failure::Failure;

/// A binary and the directory of its reports.
#[derive(Debug)]
pub(super) struct Side<'a> {
    pub(super) binary: &'a Path,
    pub(super) directory: PathBuf,
}

impl Side<'_> {
    pub(super) fn command(&self, pair: usize, scenario: &Path, further: &[String]) -> Command {
        // PATH is searched for a name without a slash, even if the present directory has such a file.
        let here = self.binary.is_file();
        let binary = here
            .then(|| std::path::absolute(self.binary).ok())
            .flatten();
        let mut command = Command::new(binary.as_deref().unwrap_or(self.binary));
        command
            .arg("load")
            .arg(scenario)
            .arg("--serve")
            .arg("--out")
            .arg(self.run_directory(pair))
            .args(further);
        command
    }

    /// Runs it to its end, at most for `longest`, and returns its report and the seconds that it took, or nothing if
    /// the user stopped it. Its output goes into a file beside its report.
    pub(super) fn run(
        &self,
        pair: usize,
        mut command: Command,
        longest: Duration,
        stop: &AtomicBool,
    ) -> anyhow::Result<Option<(PathBuf, f64)>> {
        let directory = self.run_directory(pair);
        let output = directory.join(OUTPUT_FILE);
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let file =
            File::create(&output).with_context(|| format!("cannot write {}", output.display()))?;
        let started = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stderr(file.try_clone().context("cannot share the output file")?)
            .stdout(file)
            .spawn()
            .map_err(|error| self.not_started(&error))?;
        let mut running = Running(child);
        let status = running
            .wait(started + longest, stop)
            .context("cannot wait for the run")?;
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let report = directory.join(JSON_FILE);
        match status {
            // Its exit code is about its result; the report says whether it has one.
            Some(_) if report.is_file() => Ok(Some((report, started.elapsed().as_secs_f64()))),
            Some(status) => Err(self.failed(&format!("ended with {status}"), &output)),
            None => Err(self.failed("did not end in time", &output)),
        }
    }

    fn run_directory(&self, pair: usize) -> PathBuf {
        // The number makes the order of the names that of the runs.
        self.directory.join(format!("{:03}", pair + 1))
    }

    fn not_started(&self, error: &io::Error) -> anyhow::Error {
        let what = format!("cannot start {}: {error}", self.binary.display());
        Failure::configuration(what, "name two tidewire binaries with --a and --b").into()
    }

    fn failed(&self, how: &str, output: &Path) -> anyhow::Error {
        let binary = self.binary.display();
        let said = fs::read_to_string(output).unwrap_or_default();
        let last: Vec<&str> = said.lines().rev().take(LINES_SHOWN).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        let what = format!(
            "a run of {binary} {how} and wrote no report; its last output was:\n{}",
            last.join("\n")
        );
        Failure::other(
            what,
            "its whole output is in output.txt beside where its report would be",
        )
        .into()
    }
}

/// A child process that is killed when it is dropped.
struct Running(Child);

impl Running {
    /// Waits for its status. Returns `None` when it took too long or had to stop, and was ended.
    fn wait(&mut self, deadline: Instant, stop: &AtomicBool) -> io::Result<Option<ExitStatus>> {
        while Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            thread::sleep(LOOK_EVERY);
        }
        // The run closes its step and writes its report. A terminal's Ctrl-C has reached it anyway.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let deadline = Instant::now() + STOP_MAX;
        while Instant::now() < deadline && self.0.try_wait()?.is_none() {
            thread::sleep(LOOK_EVERY);
        }
        Ok(None)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

const OUTPUT_FILE: &str = "output.txt";

/// The number of lines of a failed run's output that an error shows.
const LINES_SHOWN: usize = 5;

/// The pause between two checks: short enough for runs of seconds, and long enough not to disturb the measurement.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Maximum wait for a run that was told to stop.
const STOP_MAX: Duration = Duration::from_secs(15);
