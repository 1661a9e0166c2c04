//! The directory that a measurement's report goes to.

use std::path::Path;

use crate::failure::Failure;

/// Checks that files can be written into the directory, and makes it if it is not there: a minute of measuring must not
/// end at a directory that cannot be written.
///
/// # Errors
/// They cannot.
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
