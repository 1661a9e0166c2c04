//! The directory of a measurement's report.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use crate::failure::Failure;

/// A directory that a run writes its report to. Another run cannot take it before this is dropped: the later one of two
/// reports would replace the other.
#[derive(Debug)]
#[must_use = "the directory is free when this is dropped"]
pub struct ReportDirectory {
    _lock: File,
}

/// Takes the directory, and creates it if it does not exist. Checks that files can be written into it: a directory that
/// cannot be written must not waste a minute of measuring.
///
/// # Errors
/// The directory cannot be made or written, or another run has it.
pub fn take_directory(directory: &Path) -> Result<ReportDirectory, Failure> {
    let shown = directory.display();
    let failed = |error: io::Error| {
        let what = format!("cannot write the report to {shown}: {error}");
        Failure::configuration(what, "name another directory with --out")
    };
    let lock = std::fs::create_dir_all(directory).and_then(|()| File::open(directory));
    let lock = lock.map_err(failed)?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => {
            let what = format!("another run writes its report to {shown}");
            let remedy = "wait for its end, or name another directory with --out";
            return Err(Failure::configuration(what, remedy));
        }
        // A file system without locks does not keep two runs apart, and is no reason not to measure.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    let probe = directory.join(".tidewire-probe");
    std::fs::write(&probe, "can this directory be written?")
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(failed)?;
    Ok(ReportDirectory { _lock: lock })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_runs_cannot_write_to_one_directory() {
        let parent = tempfile::tempdir().unwrap();
        let out = parent.path().join("out");
        let first = take_directory(&out).unwrap();
        let error = take_directory(&out).unwrap_err().to_string();
        assert!(
            error.contains("another run writes its report to"),
            "{error}"
        );
        drop(first);
        take_directory(&out).map(drop).unwrap();
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
    }
}
