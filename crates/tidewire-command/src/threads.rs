//! Threads with names, for which nobody waits.

use std::{io, thread};

/// Starts a thread. Its name follows that of the program.
///
/// # Errors
/// The system starts no thread.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(format!("tidewire-{name}"));
    thread.spawn(work).map(drop)
}
