//! The runs of one side, as read from reports of load tests, or from files of the benchmark.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use super::bench_file::{BENCH_SCHEMA_VERSION, FileBench};
use super::file;
use super::kind::Kind;
use super::run::Run;
use crate::report::{JSON_FILE, Report, SCHEMA_VERSION, Status};

/// The version of a file's layout, which is read before the rest.
#[derive(Deserialize)]
struct FileVersion {
    schema_version: u32,
}

/// The runs of one side, in the order of their paths.
#[derive(Clone, Debug, Default)]
pub struct RunSet {
    pub(super) kind: Kind,
    pub(super) runs: Vec<Run>,
    pub(super) files: usize,
    /// Runs that were stopped by their user and say nothing.
    pub(super) interrupted: usize,
}

impl RunSet {
    /// Reads a report or a file of the benchmark, or all of a directory: each `report.json` and `bench.json` in it and
    /// one level below, or, when there is none, each file that ends with `.json`, in the order of their paths.
    pub fn read(path: &Path) -> Result<Self, RunSetError> {
        let files = if path.is_dir() {
            reports_in(path).map_err(|source| RunSetError::Read(path.to_owned(), source))?
        } else {
            vec![path.to_owned()]
        };
        if files.is_empty() {
            return Err(RunSetError::Empty(path.to_owned()));
        }
        let mut set = Self::default();
        for file in files {
            set.add_file(&file)?;
        }
        Ok(set)
    }

    /// Adds the run of one report, or the runs of one that was merged from several; a stopped run is counted and not
    /// added. Of a benchmark the rounds are added, also of one that was stopped, as far as it came.
    pub fn add_file(&mut self, path: &Path) -> Result<(), RunSetError> {
        let bytes = fs::read(path).map_err(|source| RunSetError::Read(path.to_owned(), source))?;
        let kind = Kind::of_json(&bytes);
        if self.files > 0 && kind != self.kind {
            return Err(RunSetError::Mixed {
                path: path.to_owned(),
                kind,
                others: self.kind,
            });
        }
        self.kind = kind;
        self.files += 1;
        let not_a_report = |source| RunSetError::NotAReport(path.to_owned(), source);
        let version: FileVersion = serde_json::from_slice(&bytes).map_err(not_a_report)?;
        let known = match kind {
            Kind::Load => SCHEMA_VERSION,
            Kind::Bench => BENCH_SCHEMA_VERSION,
        };
        if version.schema_version != known {
            return Err(RunSetError::Version(
                path.to_owned(),
                version.schema_version,
            ));
        }
        if kind == Kind::Bench {
            let bench: FileBench = serde_json::from_slice(&bytes).map_err(not_a_report)?;
            self.runs.extend(bench.runs());
            return Ok(());
        }
        let report: Report = serde_json::from_slice(&bytes).map_err(not_a_report)?;
        match report.status {
            Status::Interrupted => self.interrupted += 1,
            _ => self.runs.extend(file::runs(&report)),
        }
        Ok(())
    }

    /// Number of runs, without stopped ones.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is no run.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// Why the runs of a side cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum RunSetError {
    #[error("cannot read {}: {}; check the path and its permissions", .0.display(), .1)]
    Read(PathBuf, #[source] io::Error),
    #[error("{} holds no report; name a report.json, a bench.json, or a directory with some", .0.display())]
    Empty(PathBuf),
    #[error("{} is no report of `tidewire load` and no bench.json of `tidewire bench`: {}; name one of these", .0.display(), .1)]
    NotAReport(PathBuf, #[source] serde_json::Error),
    #[error("{} is one of {kind}, and others here are of {others}; put them into directories of their own", path.display())]
    Mixed {
        path: PathBuf,
        kind: Kind,
        others: Kind,
    },
    #[error(
        "{} has the layout {}, which this version does not compare; use the version that wrote it",
        .0.display(), .1
    )]
    Version(PathBuf, u32),
}

fn reports_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut reports = Vec::new();
    let mut others = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            let named = NAMES.map(|name| path.join(name));
            reports.extend(named.into_iter().filter(|file| file.is_file()));
        } else if path
            .file_name()
            .is_some_and(|name| NAMES.iter().any(|known| name == *known))
        {
            reports.push(path);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            others.push(path);
        }
    }
    let mut found = if reports.is_empty() { others } else { reports };
    found.sort();
    Ok(found)
}

/// Files that are meant when a directory is named.
const NAMES: [&str; 2] = [JSON_FILE, "bench.json"];
