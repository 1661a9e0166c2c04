//! Files of a run, which are gone when it ends.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A file in the system's directory for such, removed when this is dropped.
#[derive(Debug)]
pub(super) struct ScratchFile(PathBuf);

impl ScratchFile {
    /// A new, empty one.
    pub(super) fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidewire-bench-{}-{number}.log", std::process::id());
        let path = std::env::temp_dir().join(name);
        File::create(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        // Somebody may have tidied up before.
        let _ = fs::remove_file(&self.0);
    }
}
