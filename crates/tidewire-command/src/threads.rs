//! Threads with names that are never joined.

use std::{io, thread};

/// Starts a thread. Its name follows the program's name.
///
/// # Errors
/// The system starts no thread.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(format!("tidewire-{name}"));
    thread.spawn(work).map(drop)
}
