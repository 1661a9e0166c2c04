//! Ctrl-C and the termination signal, as calls of a closure on a thread of its own.
//!
//! A signal handler may do next to nothing, so the handler only wakes this thread. Rejected: checking a flag
//! now and then, which makes Ctrl-C feel slow or costs wake-ups. The hang-up signal keeps its default, so
//! that `nohup` works.

use std::io;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `handle` for each interrupt or termination signal from now on, until it returns false.
///
/// # Errors
/// The system refused the handler or the thread.
pub(crate) fn watch(mut handle: impl FnMut() -> bool + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new()
        .name("tidewire-signals".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                if !handle() {
                    return;
                }
            }
        })?;
    Ok(())
}
