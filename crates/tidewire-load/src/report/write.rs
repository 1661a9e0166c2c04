//! Writing `report.json` and `report.md` into a directory.
//!
//! Each file is written beside its place and renamed into it, so that an earlier report stays whole until
//! the new one is, and a full disk never leaves half a report under the name that scripts read.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::Report;

impl Report {
    /// Writes both files into `directory`, creating it and its parents.
    ///
    /// # Errors
    /// [`WriteError::Directory`] when it cannot be created, [`WriteError::File`] when a file cannot be
    /// written; files written before stay.
    pub fn write_to(&self, directory: &Path) -> Result<WrittenReport, WriteError> {
        fs::create_dir_all(directory).map_err(|source| WriteError::Directory {
            path: directory.to_owned(),
            source,
        })?;
        let mut json =
            serde_json::to_vec_pretty(self).map_err(|source| WriteError::Serialize { source })?;
        json.push(b'\n');
        Ok(WrittenReport {
            json: replace(directory, JSON_FILE, &json)?,
            markdown: replace(directory, MARKDOWN_FILE, self.to_markdown().as_bytes())?,
        })
    }
}

/// Where the files of a report are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenReport {
    /// Path of `report.json`.
    pub json: PathBuf,
    /// Path of `report.md`.
    pub markdown: PathBuf,
}

/// Why a report could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The directory cannot be created. Name another one.
    #[error("cannot create the report directory {}: {}", path.display(), remedy(source))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be written. Make room or name another directory.
    #[error("cannot write {}: {}", path.display(), remedy(source))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The report cannot be expressed as JSON, a fault of the instrument.
    #[error("the report cannot be expressed as JSON")]
    Serialize {
        /// What the serialiser said.
        source: serde_json::Error,
    },
}

fn replace(directory: &Path, name: &str, content: &[u8]) -> Result<PathBuf, WriteError> {
    let path = directory.join(name);
    let partial = directory.join(format!("{name}.partial"));
    let written = File::create(&partial)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&partial, &path));
    written.map_err(|source| {
        // The report is lost either way; a leftover that cannot be removed changes nothing.
        let _ = fs::remove_file(&partial);
        WriteError::File {
            path: path.clone(),
            source,
        }
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
