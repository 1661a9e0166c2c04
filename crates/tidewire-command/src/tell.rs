//! Writes to stdout and stderr on a separate thread, so that they cannot block a command.
//!
//! A write to a pipe without a reader blocks for ever, and a blocked thread cannot be ended. Therefore a separate
//! thread writes, and the process can end without this thread. After one failed wait, the command waits for no other
//! text. A command waits for its reader as long as necessary; after it is told to end, for a moment.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::threads;

/// The destination of a text.
#[derive(Clone, Copy, Debug)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Error,
}

/// Writes all of it, or gives up after a moment.
///
/// # Errors
/// The errors of the stream, and [`io::ErrorKind::TimedOut`].
pub fn tell(stream: Stream, text: Vec<u8>) -> io::Result<()> {
    write_all(stream, text, || true)
}

/// Writes the whole text, for any time. If the command is told to end, it gives up a moment later.
///
/// # Errors
/// The errors of the stream, and [`io::ErrorKind::TimedOut`].
pub fn write_until_signal(stream: Stream, text: Vec<u8>) -> io::Result<()> {
    write_all(stream, text, || IS_ENDING.load(Ordering::Relaxed))
}

/// Notes that the command is told to end: from now on, a wait for a reader lasts a moment at most.
pub fn hurry() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// Writes all of it, and gives up a moment after `is_ending` returns true.
fn write_all(stream: Stream, text: Vec<u8>, is_ending: impl Fn() -> bool) -> io::Result<()> {
    static IS_STUCK: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    let is_stuck = &IS_STUCK[stream as usize];
    if is_stuck.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (done, is_done) = mpsc::channel();
    threads::start("tell", move || {
        // The call fails only after the caller has stopped waiting. The result then has no reader.
        let _ = done.send(write(stream, &text));
    })?;
    while !is_ending() {
        match is_done.recv_timeout(LOOK_EVERY) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    is_done.recv_timeout(REPLY_WAIT_MAX).unwrap_or_else(|_| {
        is_stuck.store(true, Ordering::Relaxed);
        Err(io::ErrorKind::TimedOut.into())
    })
}

fn write(stream: Stream, text: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(text)?;
            out.flush()
        }
        Stream::Error => io::stderr().lock().write_all(text),
    }
}

/// Whether the command was told to end.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// The interval at which a waiting command checks for the signal.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The time that a reader has for the text before.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(2);
