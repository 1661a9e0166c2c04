//! The progress of a benchmark on standard error: one line that is overwritten on a terminal, or a line for each row
//! elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use tidewire_bench::{BenchOptions, Progress, estimates};
use tidewire_command::output;
use tidewire_command::tell::{self, Stream};

pub(crate) struct Teller {
    is_terminal: bool,
    /// The row of the last line.
    row: String,
}

impl Teller {
    pub(crate) fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            row: String::new(),
        }
    }

    pub(crate) fn begin(&self, options: &BenchOptions) {
        let about = |secs: f64| duration(Duration::from_secs_f64(secs));
        let estimates = estimates(options);
        let suites = estimates
            .iter()
            .map(|(name, secs)| format!("{name} {}", about(*secs)));
        let suites: Vec<String> = suites.collect();
        let all = about(estimates.iter().map(|(_, secs)| secs).sum());
        self.say(&format!("about {all}: {}", suites.join(", ")));
        let rounds = options.repeat;
        self.say(&format!("{rounds} rounds; {}", options.pinning()));
    }

    pub(crate) fn tell(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Run {
                suite,
                row,
                contender,
                round,
                done,
                left,
            } => {
                let line = format!(
                    "{:3.0} %, {} left: {suite} {row}",
                    done * 100.0,
                    duration(*left)
                );
                if self.is_terminal {
                    write_error(format!("\r\x1b[K{line}: {contender}, {round}"));
                } else if self.row != *row {
                    self.say(&line);
                    (*row).clone_into(&mut self.row);
                }
            }
            Progress::Failed {
                suite,
                row,
                contender,
                error,
            } => {
                let mut text = error.to_string();
                let mut cause = std::error::Error::source(error);
                while let Some(error) = cause {
                    text.push_str(&format!("\n  because: {error}"));
                    cause = error.source();
                }
                self.say(&format!("{suite} {row}: {contender} failed: {text}"));
            }
            Progress::Again { contender, why } => {
                self.say(&format!("{contender}: {why}; once more"));
            }
            _ => {}
        }
    }

    /// Clears the last line for the output that follows.
    pub(crate) fn end(&self) {
        if self.is_terminal {
            write_error("\r\x1b[K".to_owned());
        }
    }

    /// Prints one whole line. An error is ignored: progress is only for a reader.
    pub(crate) fn say(&self, line: &str) {
        self.end();
        output::note(line);
    }
}

/// Writes to standard error. An error is ignored: progress is only for a reader.
fn write_error(text: String) {
    let _ = tell::write_until_signal(Stream::Error, text.into());
}

/// Such as `3 min 20 s`.
fn duration(time: Duration) -> String {
    let secs = time.as_secs();
    if secs < 60 {
        format!("{} s", secs.max(1))
    } else {
        format!("{} min {} s", secs / 60, secs % 60)
    }
}
