//! The plan of a load test: its target and its steps.
//!
//! There are two versions of the format. `docs/scenario.md` has every key of the second. The
//! first is the scenario file the project started with:
//!
//! ```toml
//! version = 1                # optional
//! host = "127.0.0.1"         # host and port may be left out together
//! port = 8080
//!
//! [[steps]]
//! name = "warm"
//! concurrency = 50           # agents connected at the same time
//! duration_secs = 20         # seconds of sending; a fraction is allowed
//! think_time_ms = [500, 1000]   # uniform random wait before each message; fractions are allowed
//! ```
//!
//! A mistyped key must not silently change a test, and a mistake must be found where it stands: unknown keys of
//! version 1 give a warning, everything else an error, both with file, line and key.

mod cluster;
mod fault;
mod keys;
mod read;
mod step;
mod version1;
mod version2;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tidewire::History;

pub(crate) use self::fault::breaks;
pub use self::fault::{BACKPLANE_NAME, Fault, FaultAction, node_name};
pub use self::step::{
    Arrival, CODEC_DEFAULT, DRAIN_MS_DEFAULT, Guard, Load, MAX_IN_FLIGHT_DEFAULT, OnLate,
    OnViolation, PAYLOAD_BYTES_DEFAULT, Pattern, SEED_DEFAULT, SLOW_PAUSE_MS_DEFAULT, Stage, Step,
    TIMEOUT_MS_DEFAULT, ThinkTime, WARMUP_SECS_DEFAULT, history_limits,
};
use crate::toml_file::{Mistake, TomlFile};

/// A load test: a target and steps run one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Version of the format it was written in, 1 or 2. In version 1 latencies are those of the whole step, in
    /// version 2 those of the messages due in the steady window.
    pub version: u8,
    /// Address of the server. Where nothing says it, the scenario is run against a server of our own.
    pub target: Option<String>,
    /// How many servers a run starts, if it starts its own. Together they are a cluster.
    pub nodes: u32,
    /// The broker between them: `nats` for one that is started with them, or the address of one. Without it each node
    /// has its own rooms.
    pub backplane: Option<String>,
    /// The limits of the histories that these servers keep of all rooms; without it they keep none.
    pub history: Option<History>,
    /// Settings of TLS and the tokens of the agents, at this server.
    pub trust: Trust,
    /// At least one and at most [`STEPS_MAX`] steps.
    pub steps: Vec<Step>,
    /// How often the whole is run, each time against a fresh server process if it is our own.
    pub repeat: u32,
    /// Seed of every random choice, if the file has one.
    pub seed: Option<u64>,
    /// When a measurement is not to be believed.
    pub guard: Guard,
}

/// The authorities that agents trust, and the proofs by which a server knows the agents. Paths are as the file has
/// them, from the present directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// File with the certificates of the authorities to trust at a `tls://` address.
    pub ca: Option<String>,
    /// File with the certificate chain of the agents.
    pub cert: Option<String>,
    /// File with the key of `cert`.
    pub key: Option<String>,
    /// Name that the server's certificate must have.
    pub server_name: Option<String>,
    /// File with the tokens of the agents, one in a line.
    pub token_file: Option<String>,
}

impl Scenario {
    /// Reads a scenario from text. `file_name` appears in warnings and errors only. A warning is about a part of the
    /// scenario that is probably not meant, but does not stop the run.
    ///
    /// # Errors
    /// [`ScenarioError::Mistake`] when the text is not TOML, or a key is missing, has the wrong type or an impossible
    /// value.
    pub fn parse(text: &str, file_name: &str) -> Result<(Self, Vec<Mistake>), ScenarioError> {
        let file = TomlFile::parse(file_name, text)?;
        let (root, mut warnings) = (file.root(), Vec::new());
        let expected = "1 or 2, the versions this build knows";
        let version = root.read("version", |it| it.whole_in(1..=2, expected))?;
        let scenario = match version {
            Some(2) => version2::scenario(&root, &mut warnings)?,
            _ => version1::scenario(&root, &mut warnings)?,
        };
        warnings.sort_by_key(Mistake::line);
        Ok((scenario, warnings))
    }

    /// Reads a scenario from a file.
    ///
    /// # Errors
    /// [`ScenarioError::Read`] when the file cannot be read, otherwise as [`Scenario::parse`].
    pub fn load(path: &Path) -> Result<(Self, Vec<Mistake>), ScenarioError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ScenarioError::Read(path.to_owned(), source))?;
        Self::parse(&text, &path.display().to_string())
    }

    /// The scenario that runs when none is named: the chat load test the project started from, against a server of our
    /// own, since nobody has said that there is one.
    pub fn built_in() -> Self {
        let (scenario, _) = Self::parse(BUILT_IN_TEXT, "built-in scenario")
            .expect("the built-in scenario parses, which a test asserts");
        Self {
            target: None,
            ..scenario
        }
    }

    /// The same load for a first impression: every step lasts [`QUICK_STEP_SECS_MAX`] seconds at most.
    pub fn quick(&self) -> Self {
        let mut scenario = self.clone();
        for step in &mut scenario.steps {
            step.shorten(QUICK_STEP_SECS_MAX);
        }
        scenario
    }
}

/// Why a scenario cannot be run.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum ScenarioError {
    #[error("cannot read the scenario {}: {}; {}", .0.display(), .1, read_remedy(.1))]
    Read(PathBuf, #[source] io::Error),
    #[error(transparent)]
    Mistake(#[from] Mistake),
}

fn read_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "change its permissions",
        io::ErrorKind::IsADirectory => "name a file",
        io::ErrorKind::InvalidData => "save it as UTF-8",
        _ => "check that it is a readable file",
    }
}

/// Text of the scenario that runs when none is named, unchanged from where the project started.
pub const BUILT_IN_TEXT: &str = include_str!("seed-chat.toml");

/// Longest step of a quick run, in seconds: a minute-long test then takes less than ten seconds, and still
/// has a second of steady state in each step.
pub const QUICK_STEP_SECS_MAX: f64 = 3.0;

/// Most steps, because a stamp numbers them in one byte.
pub const STEPS_MAX: usize = 255;

/// Most agents of a step: more connections than one machine has ports towards one address (65,535) need
/// several addresses, which a scenario of version 1 cannot name, so a larger number is a typing mistake.
pub const CONCURRENCY_MAX: u32 = 1_000_000;

/// Longest step, in seconds: a week.
pub const DURATION_SECS_MAX: f64 = 7.0 * 86_400.0;

/// Longest think time, in milliseconds: a day.
pub const THINK_TIME_MS_MAX: f64 = 86_400_000.0;

/// Largest rate of an open step, in messages a second: more than any machine sends, so a larger one is a typing
/// mistake.
pub const RATE_MAX: f64 = 1e9;

/// Largest payload, in bytes: a frame is 1 MiB at most.
pub const PAYLOAD_BYTES_MAX: u64 = 1_000_000;

/// Longest drain or timeout, in milliseconds: an hour.
pub const WAIT_MS_MAX: u64 = 3_600_000;

/// Most servers that a run starts: more than one machine has a use for.
pub const NODES_MAX: u32 = 64;

/// Most runs of a scenario.
pub const REPEAT_MAX: u32 = 1_000;

#[cfg(test)]
mod stages_tests;
#[cfg(test)]
mod tests;

#[cfg(test)]
mod version2_tests;
