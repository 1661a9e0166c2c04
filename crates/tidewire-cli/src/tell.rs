//! Words that cannot hold a command up: written to stdout and stderr by a thread of their own.
//!
//! A pipe that nobody reads takes nothing for ever, and whoever waits for it cannot be ended. So a thread of its own
//! writes, and the process ends without it. After the first that was waited for in vain no other is. Before a command
//! is told to end it waits for its reader as long as it takes; from then on, for a moment.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Where words go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    Out,
    Error,
}

/// Writes all of it, or gives up after a moment.
///
/// # Errors
/// Those of the stream, and [`io::ErrorKind::TimedOut`].
pub(crate) fn tell(stream: Stream, text: Vec<u8>) -> io::Result<()> {
    write_all(stream, text, || true)
}

/// Writes all of it, however long that takes. If the command is told to end, it gives up a moment later.
///
/// # Errors
/// Those of the stream, and [`io::ErrorKind::TimedOut`].
pub(crate) fn write_until_signal(stream: Stream, text: Vec<u8>) -> io::Result<()> {
    write_all(stream, text, || IS_ENDING.load(Ordering::Relaxed))
}

/// The command is told to end: from now on no text is waited for longer than a moment.
pub(crate) fn hurry() {
    IS_ENDING.store(true, Ordering::Relaxed);
}

/// Writes all of it, and gives up a moment after `is_ending` holds.
fn write_all(stream: Stream, text: Vec<u8>, is_ending: impl Fn() -> bool) -> io::Result<()> {
    static IS_STUCK: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    let is_stuck = &IS_STUCK[stream as usize];
    if is_stuck.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (done, is_done) = mpsc::channel();
    thread::Builder::new()
        .name("tidewire-tell".to_owned())
        .spawn(move || {
            // It fails only after the caller has stopped waiting. The result has no reader then.
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

/// How often whoever waits for a reader looks for the signal.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long somebody may take to read what stands before.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(2);
