//! Programs that take part, and how they are found.
//! Tidewire's two programs are this binary itself, so the benchmark measures the build that runs it. Peers are
//! executables in a directory, and each describes itself. If the directory is missing or a peer does not answer, the
//! others are still measured.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use thiserror::Error;

use super::child::{Child, ChildError};
use super::contract::{Description, Offer, Work};
use super::plan::Side;

/// A program that takes part.
#[derive(Clone, Debug)]
pub struct Program {
    /// The description that the program gave of itself.
    pub description: Description,
    file: PathBuf,
    arguments: Vec<OsString>,
}

/// The peers that take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerChoice {
    /// All peers in the directory.
    All,
    /// The peers with these names.
    Named(Vec<String>),
}

/// The reason why a peer does not take part.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// This directory cannot be read.
    #[error("there are no peers in {}: make them with `bench/peers/setup`, or name their directory with --peers-dir", .0.display())]
    NoDirectory(PathBuf, #[source] std::io::Error),
    /// There is no peer of this name in this directory.
    #[error("there is no peer `{0}` in {path}: make it with `bench/peers/setup {0}`", path = .1.display())]
    Missing(String, PathBuf),
    /// The peer of this name, which is this executable, did not describe itself.
    #[error("peer `{0}` does not describe itself and is left out; try `{path} describe`", path = .1.display())]
    NotDescribed(String, PathBuf, #[source] ChildError),
}

impl Program {
    /// Returns one of Tidewire's two programs: `FILE program SIDE`.
    pub fn own(file: &Path, side: Side, version: &str) -> Self {
        Self {
            description: Description {
                name: side.name().to_owned(),
                version: version.to_owned(),
                offers: Vec::new(),
            },
            file: file.to_owned(),
            arguments: vec!["program".into(), side.name().into()],
        }
    }

    /// Returns another program, after it has described itself.
    ///
    /// # Errors
    /// The program cannot be started, does not answer in time, or its answer is no description.
    pub fn ask(file: &Path) -> Result<Self, ChildError> {
        let mut command = Command::new(file);
        command.arg("describe");
        let mut child = Child::start(command, &[], DESCRIBE_GRACE)?;
        Ok(Self {
            description: child.hear(DESCRIBE_MAX, &AtomicBool::new(false))?,
            file: file.to_owned(),
            arguments: Vec::new(),
        })
    }

    /// Returns the peers in a directory, by name, and the reasons why others do not take part.
    pub fn peers(directory: &Path, choice: &PeerChoice) -> (Vec<Self>, Vec<PeerError>) {
        let (mut peers, mut errors) = (Vec::new(), Vec::new());
        let own = || directory.to_owned();
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) => {
                errors.push(PeerError::NoDirectory(own(), error));
                return (peers, errors);
            }
        };
        let files = entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.to_owned();
            path.is_file().then_some((name, path))
        });
        let mut files: BTreeMap<String, PathBuf> = files.collect();
        if let PeerChoice::Named(names) = choice {
            files.retain(|name, _| names.contains(name));
            let missing = names
                .iter()
                .filter(|name| !files.contains_key(*name))
                .cloned();
            errors.extend(missing.map(|name| PeerError::Missing(name, own())));
        }
        for (name, file) in files {
            match Self::ask(&file) {
                Ok(peer) => peers.push(peer),
                Err(source) => errors.push(PeerError::NotDescribed(name, file, source)),
            }
        }
        (peers, errors)
    }

    /// Returns its offers for this work: in the mode of the work, and in modes that drop in silence.
    pub(super) fn offers_for(&self, work: &Work) -> impl Iterator<Item = &Offer> {
        self.description.offers.iter().filter(|offer| {
            offer.suite == work.suite
                && offer.transports.contains(&work.transport)
                && (offer.mode == work.mode || offer.mode == DROPS)
        })
    }

    /// Returns the command that plays a part.
    pub(super) fn command(&self, part: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.file);
        command.args(&self.arguments).arg(part).args(arguments);
        command
    }
}

/// The mode in which messages are dropped in silence.
pub(super) const DROPS: &str = "drops";

/// The longest wait for a description.
const DESCRIBE_MAX: Duration = Duration::from_secs(10);

/// The longest wait for the end of a program that has described itself.
const DESCRIBE_GRACE: Duration = Duration::from_secs(1);
