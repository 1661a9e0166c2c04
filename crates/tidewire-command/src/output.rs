//! Standard output: the results of a command go there, and a command fails if it cannot write them.
//!
//! Problem: a measurement must not end when its output cannot be written, because its files follow. But it must not
//! succeed either. Approach: [`print()`] writes, flushes and remembers the first failure. `main` calls [`check`] once
//! for every command, so that no command can omit it. A reader that is gone, like `head` when it has enough, is no
//! failure. Rejected: `println!`, which panics, and ignoring the result, which reports success for a full disk.

use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::termios::tcgetwinsize;
use thiserror::Error;

use crate::tell::{self, Stream};

/// Standard output took no more bytes. Make room at its destination, or redirect it.
#[derive(Debug, Error)]
#[error("cannot write to standard output")]
pub struct OutputError {
    #[from]
    source: io::Error,
}

/// Writes a text to standard output at once. [`check`] reports a failure.
pub fn print(text: impl AsRef<[u8]>) {
    let text = text.as_ref().to_vec();
    remember(tell::write_until_signal(Stream::Out, text));
}

/// Writes a line to standard output at once. [`check`] reports a failure.
pub fn print_line(text: impl std::fmt::Display) {
    print(format!("{text}\n"));
}

/// The width of the terminal on which people read standard output. A file or a pipe has no width.
#[must_use]
pub fn columns() -> usize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => usize::MAX,
    }
}

/// Writes a line of progress to standard error at once. It needs no reader.
pub fn note(text: impl std::fmt::Display) {
    // A closed standard error is no reason to stop.
    let _ = tell::write_until_signal(Stream::Error, format!("{text}\n").into());
}

/// Keeps the first failure of a command that writes by itself.
pub fn remember(result: io::Result<()>) {
    if let Err(error) = result
        && !is_closed(&error)
    {
        let mut first = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
    }
}

/// Whether all output so far was written, or has no reader.
///
/// # Errors
/// The first failure, once.
pub fn check() -> Result<(), OutputError> {
    let mut first = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    first.take().map_or(Ok(()), |source| Err(source.into()))
}

/// Whether the reader of the output is gone, like `head` when it has enough.
pub fn is_closed(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// The first failure. A process has one standard output.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);
