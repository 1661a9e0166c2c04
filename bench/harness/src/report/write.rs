//! Writing the results in all their forms, and reading them again.

use std::fs;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tidewire_load::report::{WriteError, create_directory, replace};

use super::BenchReport;

/// Where the files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenBench {
    /// Path of `bench.json`.
    pub json: PathBuf,
    /// Path of `bench.md`.
    pub markdown: PathBuf,
    /// Path of `bench.html`.
    pub html: PathBuf,
}

/// The results of a benchmark could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadBenchError {
    /// The file cannot be read. Check the path.
    #[error("cannot read {}: {}; check that it is a readable file", .0.display(), .1)]
    File(PathBuf, #[source] std::io::Error),
    /// The file holds no results. Name a `bench.json`.
    #[error("{} is no bench.json: {}; name a bench.json that `tidewire-bench` wrote", .0.display(), .1)]
    Format(PathBuf, #[source] serde_json::Error),
    /// Another version wrote it, which is named.
    #[error("{} has version {} of its form, and this program reads {}; use the program that wrote it", .0.display(), .1, BenchReport::SCHEMA_VERSION)]
    Version(PathBuf, u32),
}

impl BenchReport {
    /// Reads a `bench.json`.
    ///
    /// # Errors
    /// [`ReadBenchError`], each variant with its remedy.
    pub fn read(path: &Path) -> Result<Self, ReadBenchError> {
        let own = || path.to_owned();
        let text = fs::read(path).map_err(|error| ReadBenchError::File(own(), error))?;
        let report = serde_json::from_slice(&text);
        let report: Self = report.map_err(|error| ReadBenchError::Format(own(), error))?;
        match report.schema_version {
            Self::SCHEMA_VERSION => Ok(report),
            found => Err(ReadBenchError::Version(own(), found)),
        }
    }

    /// Writes all files into `directory`, creating it and its parents.
    ///
    /// # Errors
    /// The directory or a file cannot be written; files written before stay.
    pub fn write_to(&self, directory: &Path) -> Result<WrittenBench, WriteError> {
        create_directory(directory)?;
        let mut json = serde_json::to_vec_pretty(self).map_err(WriteError::Serialize)?;
        json.push(b'\n');
        let markdown = format!("# Benchmark\n\n{}", self.to_markdown());
        Ok(WrittenBench {
            json: replace(directory, "bench.json", &json)?,
            markdown: replace(directory, "bench.md", markdown.as_bytes())?,
            html: replace(directory, "bench.html", self.to_html().as_bytes())?,
        })
    }
}
