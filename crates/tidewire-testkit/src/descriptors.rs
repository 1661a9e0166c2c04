//! Uses up descriptors on purpose.

use std::fs::File;
use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lowers the soft limit on open descriptors of this whole process. Use it only in a test that has its process to
/// itself.
///
/// # Errors
/// The system's refusal.
pub fn lower_limit(soft: u64) -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(soft),
            maximum: limit.maximum,
        },
    )?;
    Ok(())
}

/// Opens files until no descriptor is left, and closes `spare` of them.
#[must_use]
pub fn exhaust(spare: usize) -> Vec<File> {
    let mut held = Vec::new();
    loop {
        match File::open("/dev/null") {
            Ok(file) => held.push(file),
            Err(error) => {
                assert_eq!(
                    error.raw_os_error(),
                    Some(rustix::io::Errno::MFILE.raw_os_error()),
                    "{error}"
                );
                break;
            }
        }
    }
    held.truncate(held.len().saturating_sub(spare));
    held
}
