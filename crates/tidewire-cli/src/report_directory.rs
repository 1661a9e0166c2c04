//! The directory of a measurement's report.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::failure::Failure;
use crate::payload::json_pretty;

/// Checks that files can be written into the directory, and creates it if it does not exist: a directory that cannot be
/// written must not waste a minute of measuring.
pub(crate) fn check_directory(directory: &Path) -> anyhow::Result<()> {
    let probe = directory.join(".tidewire-probe");
    std::fs::create_dir_all(directory)
        .and_then(|()| std::fs::write(&probe, "can this directory be written?"))
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(|error| {
            let what = format!(
                "cannot write the report to {}: {error}",
                directory.display()
            );
            Failure::configuration(what, "name another directory with --out").into()
        })
}

/// Writes the record of a measurement.
pub(crate) fn write_json(record: &impl Serialize, path: &Path) -> anyhow::Result<()> {
    std::fs::write(path, json_pretty(record)?)
        .with_context(|| format!("cannot write {}", path.display()))
}
