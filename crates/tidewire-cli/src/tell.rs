//! Words on the way out: written to stdout and stderr without waiting for long for whoever should read them.
//!
//! A pipe that nobody reads takes nothing for ever, and whoever waits for it cannot be ended. So a thread of its own
//! writes, and the process ends without it. After the first that was waited for in vain no other is.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
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
    static IS_STUCK: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
    let is_stuck = &IS_STUCK[stream as usize];
    if is_stuck.load(Ordering::Relaxed) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (done, is_done) = mpsc::channel();
    thread::Builder::new()
        .name("tidewire-tell".to_owned())
        .spawn(move || {
            // Nobody waits for it any more if this fails.
            let _ = done.send(write(stream, &text));
        })?;
    is_done.recv_timeout(PATIENCE).unwrap_or_else(|_| {
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

/// How long somebody may take to read what stands before.
const PATIENCE: Duration = Duration::from_secs(2);
