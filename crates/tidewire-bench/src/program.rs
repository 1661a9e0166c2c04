//! Programs that take part, and how they are found.
//!
//! Ours are this very binary, so that what is measured is what was built. Peers are executables in a directory, one
//! each, which say themselves who they are; a directory that is not there, or a peer that does not answer, costs nobody
//! else anything.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use thiserror::Error;

use super::child::{Child, ChildError};
use super::contract::{Description, Driver, Offer, Work};
use super::plan::Side;

/// A program that takes part.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its own description.
    pub description: Description,
    file: PathBuf,
    arguments: Vec<OsString>,
}

/// Which peers are to take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerChoice {
    /// All that are found.
    All,
    /// Those with these names.
    Named(Vec<String>),
}

/// A peer does not take part.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PeerError {
    /// There is no such directory.
    #[error("there are no peers in {}: make them with `peers/setup`, or name their directory with --peers-dir", directory.display())]
    NoDirectory {
        /// The directory.
        directory: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// There is no peer of that name.
    #[error("there is no peer `{name}` in {}: make it with `peers/setup {name}`", directory.display())]
    Missing {
        /// Name of the peer.
        name: String,
        /// Where it was looked for.
        directory: PathBuf,
    },
    /// It did not say what it can do.
    #[error("peer `{name}` does not describe itself and is left out; try `{} describe`", file.display())]
    NotDescribed {
        /// Name of the peer.
        name: String,
        /// Its executable.
        file: PathBuf,
        /// The failure of the program.
        source: ChildError,
    },
}

impl Program {
    /// One of our own two programs: `FILE bench-program SIDE`.
    #[must_use]
    pub fn own(file: &Path, side: Side, version: &str) -> Self {
        Self {
            description: Description {
                name: side.name().to_owned(),
                version: version.to_owned(),
                offers: Vec::new(),
            },
            file: file.to_owned(),
            arguments: vec!["bench-program".into(), side.name().into()],
        }
    }

    /// Any other program, which is asked what it can do.
    ///
    /// # Errors
    /// It cannot be started, says nothing in time, or something else than a description.
    pub fn ask(file: &Path) -> Result<Self, ChildError> {
        let mut program = Self {
            description: Description {
                name: String::new(),
                version: String::new(),
                offers: Vec::new(),
            },
            file: file.to_owned(),
            arguments: Vec::new(),
        };
        let mut child = Child::start(program.command("describe", &[]), &[], DESCRIBE_GRACE)?;
        program.description = child.hear(DESCRIBE_MAX, &AtomicBool::new(false))?;
        Ok(program)
    }

    /// The peers in a directory, by name, and why others do not take part.
    #[must_use]
    pub fn peers(directory: &Path, choice: &PeerChoice) -> (Vec<Self>, Vec<PeerError>) {
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(source) => {
                let directory = directory.to_owned();
                return (
                    Vec::new(),
                    vec![PeerError::NoDirectory { directory, source }],
                );
            }
        };
        let mut files: Vec<(String, PathBuf)> = entries
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let name = path.file_name()?.to_str()?.to_owned();
                path.is_file().then_some((name, path))
            })
            .collect();
        files.sort_unstable();
        let mut errors = Vec::new();
        if let PeerChoice::Named(names) = choice {
            files.retain(|(name, _)| names.contains(name));
            for name in names {
                if !files.iter().any(|(known, _)| known == name) {
                    errors.push(PeerError::Missing {
                        name: name.clone(),
                        directory: directory.to_owned(),
                    });
                }
            }
        }
        let mut peers = Vec::new();
        for (name, file) in files {
            match Self::ask(&file) {
                Ok(peer) => peers.push(peer),
                Err(source) => errors.push(PeerError::NotDescribed { name, file, source }),
            }
        }
        (peers, errors)
    }

    /// Its offers for this work: in its mode, and in modes that drop in silence.
    pub(super) fn offers_for(&self, work: &Work) -> impl Iterator<Item = &Offer> {
        self.description.offers.iter().filter(|offer| {
            offer.suite == work.suite
                && offer.transports.contains(&work.transport)
                && (offer.mode == work.mode || offer.mode == DROPS)
        })
    }

    /// The command that plays a part.
    pub(super) fn command(&self, part: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.file);
        command.args(&self.arguments).arg(part).args(arguments);
        command
    }
}

impl Driver {
    /// Whether the driver is one of the benchmark's.
    pub(super) fn is_ours(self) -> bool {
        self != Self::Own
    }
}

/// The mode in which messages are dropped in silence.
pub(super) const DROPS: &str = "drops";

/// Longest wait for a description.
const DESCRIBE_MAX: Duration = Duration::from_secs(10);

/// Longest wait for the end of a program that has described itself.
const DESCRIBE_GRACE: Duration = Duration::from_secs(1);
