//! Writing the report in all its forms into a directory.
//!
//! Each file is written beside its place and renamed into it, so that an earlier report stays whole until
//! the new one is, and a full disk never leaves half a report under the name that scripts read.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tidewire_proto::text::escape_json;

use super::{Report, ValidateError};

impl Report {
    /// Reads a `report.json`. Keys that this build does not know, as a newer one may write them, are ignored.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let text = fs::read(path).map_err(|source| ReadError::File(path.to_owned(), source))?;
        let report: Self = serde_json::from_slice(&text)
            .map_err(|source| ReadError::Format(path.to_owned(), source))?;
        report
            .validate()
            .map_err(|source| ReadError::Invalid(path.to_owned(), source))?;
        Ok(report)
    }

    /// Writes all files into `directory`, creating it and its parents.
    ///
    /// # Errors
    /// [`WriteError::Directory`] when it cannot be created, [`WriteError::File`] when a file cannot be
    /// written; files written before stay.
    pub fn write_to(&self, directory: &Path) -> Result<WrittenReport, WriteError> {
        create_directory(directory)?;
        let json = serde_json::to_string_pretty(self).map_err(WriteError::Serialize)?;
        // Causes of failures may have texts of the server, and people look at the file with `cat`.
        let mut json = escape_json(&json).into_owned().into_bytes();
        json.push(b'\n');
        let others = [
            ("report.csv", self.to_csv()),
            ("report.junit.xml", self.to_junit()),
            ("report.hlog", self.to_histogram_log()),
        ];
        // The measurement itself comes first, so that a full disk does not lose it for the sake of another form.
        let written = WrittenReport {
            json: replace(directory, JSON_FILE, &json)?,
            markdown: replace(directory, MARKDOWN_FILE, self.to_markdown().as_bytes())?,
            html: replace(directory, HTML_FILE, self.to_html().as_bytes())?,
        };
        for (name, content) in others {
            replace(directory, name, content.as_bytes())?;
        }
        Ok(written)
    }
}

/// Where the files of a report are that people look for; the others are beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenReport {
    /// Path of `report.json`.
    pub json: PathBuf,
    /// Path of `report.md`.
    pub markdown: PathBuf,
    /// Path of `report.html`.
    pub html: PathBuf,
}

/// Why a report could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum WriteError {
    #[error("cannot create the report directory {}: {}", .0.display(), remedy(.1))]
    Directory(PathBuf, #[source] io::Error),
    #[error("cannot write {}: {}", .0.display(), remedy(.1))]
    File(PathBuf, #[source] io::Error),
    #[error("the report cannot be expressed as JSON")]
    Serialize(#[source] serde_json::Error),
}

/// Why a report could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum ReadError {
    #[error("cannot read {}: {}; check that it is a readable file", .0.display(), .1)]
    File(PathBuf, #[source] io::Error),
    #[error("{} is no report.json: {}; name a report.json that `tidewire load` wrote", .0.display(), .1)]
    Format(PathBuf, #[source] serde_json::Error),
    #[error("{} contradicts itself: {}; copy the file again from where it was made", .0.display(), .1)]
    Invalid(PathBuf, #[source] ValidateError),
}

/// Creates a directory and its parents.
pub fn create_directory(directory: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(directory)
        .map_err(|source| WriteError::Directory(directory.to_owned(), source))
}

/// Writes a file under another name and renames it, so that no reader sees half of it. Returns its path.
pub fn replace(directory: &Path, name: &str, content: &[u8]) -> Result<PathBuf, WriteError> {
    let path = directory.join(name);
    let partial = directory.join(format!("{name}.partial"));
    let written = File::create(&partial)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&partial, &path));
    written.map_err(|source| {
        // The report is lost either way; a leftover that cannot be removed changes nothing.
        let _ = fs::remove_file(&partial);
        WriteError::File(path.clone(), source)
    })?;
    Ok(path)
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk is full; make room or name another directory with --out"
        }
        io::ErrorKind::PermissionDenied => {
            "this user may not write there; name another directory with --out"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "the file system is read-only; name another directory with --out"
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            "a file is in the way; name another directory with --out"
        }
        io::ErrorKind::IsADirectory => "a directory has that name; remove it or use --out",
        _ => "name another directory with --out",
    }
}

/// Name of the file for programs.
pub const JSON_FILE: &str = "report.json";

/// Name of the file for readers.
pub const MARKDOWN_FILE: &str = "report.md";

/// Name of the file to look at.
pub const HTML_FILE: &str = "report.html";
