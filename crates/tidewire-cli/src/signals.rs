//! Handles signals: the first Ctrl-C or termination signal asks a command to end, the second ends it at once.
//!
//! A signal handler may do next to nothing, so the handler only wakes a thread, and that never waits for anything the
//! command waits for. Rejected: checking a flag now and then, which makes Ctrl-C feel slow or costs wake-ups.
//!
//! A command that was asked to end may hang in something that it has no power over, such as a pipe that nobody reads. So
//! it has a time for its way out, after which it is ended as by a second signal.
//!
//! The hang-up signal opens the log of a server again, and ends every other command, as is the system's default.

use std::io;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{logging, tell};

/// A function that runs once, before the process is ended at once.
type LastAct = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// From now on the first interrupt or termination signal calls `begin`, and the second ends the process at once, with the
/// exit code that shells give to the signal. So does the end of `within`, counted from the first one. `last` is called
/// before that, and waited for a moment.
///
/// # Errors
/// The system refused the handler or the thread.
pub(crate) fn watch(
    within: Option<Duration>,
    begin: impl FnOnce() + Send + 'static,
    last: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let last: LastAct = Arc::new(Mutex::new(Some(Box::new(last))));
    let mut begin = Some(begin);
    thread::Builder::new()
        .name("tidewire-signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let Some(begin) = begin.take() else {
                    end_at_once(signal, &last);
                };
                logging::hurry();
                tell::hurry();
                begin();
                if let Some(within) = within {
                    end_within(within, signal, Arc::clone(&last));
                }
            }
        })?;
    Ok(())
}

/// From now on the hang-up signal opens the log file again, in place of ending the process.
///
/// # Errors
/// The system refused the handler or the thread.
pub(crate) fn reopen_log_at_hangup() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP])?;
    thread::Builder::new()
        .name("tidewire-hangup".to_owned())
        .spawn(move || {
            for _ in signals.forever() {
                logging::reopen();
            }
        })?;
    Ok(())
}

/// Ends the process when its time is over. Without another thread it can still be ended by a second signal.
fn end_within(within: Duration, signal: i32, last: LastAct) {
    let thread = thread::Builder::new().name("tidewire-overtime".to_owned());
    let _ = thread.spawn(move || {
        thread::sleep(within);
        end_at_once(signal, &last);
    });
}

fn end_at_once(signal: i32, last: &LastAct) -> ! {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    // A signal that comes while the last act waits does not wait for it.
    if !IS_ENDING.swap(true, Ordering::SeqCst) {
        let act = last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(act) = act {
            let (done, is_done) = mpsc::channel();
            // It may hang as the command does, and without a thread it is left out.
            let _ = thread::Builder::new().spawn(move || {
                act();
                // The process may be gone.
                let _ = done.send(());
            });
            let _ = is_done.recv_timeout(LAST_ACT);
        }
    }
    process::exit(128 + signal);
}

/// How long the last act may take: as good as at once for whoever pressed Ctrl-C twice, and long enough on a busy machine.
const LAST_ACT: Duration = Duration::from_secs(1);
