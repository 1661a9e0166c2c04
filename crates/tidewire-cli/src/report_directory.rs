//! The directory of a measurement's report.

use std::path::Path;

use crate::failure::Failure;

/// Checks that files can be written into the directory, and creates it if it does not exist: a directory that cannot be
/// written must not waste a minute of measuring.
///
/// # Errors
/// They cannot be written.
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
