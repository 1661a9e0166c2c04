//! Handles signals: the first Ctrl-C or termination signal makes a command end, the second ends it at once.
//!
//! A signal handler may do very little, so the handler only wakes a thread, which never waits for anything that the
//! command waits for. Rejected: checking a flag from time to time, which makes Ctrl-C slow or costs wake-ups.
//!
//! A command that was told to end may be blocked by something outside its control, such as a pipe without a reader. It
//! therefore has a limited time to end, after which it is ended as by a second signal.
//!
//! A server has uses for two more signals: the hang-up signal lets it read its files again, and the first user signal
//! lets it log a summary. They end every other command, which is the system's default.

use std::io;
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{tell, threads};

/// A function that runs once, just before the process is ended at once.
type LastAct = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Installs the handlers. From now on the first interrupt or termination signal calls `begin`, and the second ends the
/// process at once, with a shell's exit code of the signal. So does the end of `within`, counted from the first signal.
/// Before that, `last` is called and has a moment to finish.
///
/// # Errors
/// The system refused the handlers or the thread.
pub fn watch(
    within: Duration,
    begin: impl FnOnce() + Send + 'static,
    last: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let last: LastAct = Arc::new(Mutex::new(Some(Box::new(last))));
    let mut begin = Some(begin);
    threads::start("signals", move || {
        for signal in signals.forever() {
            let Some(begin) = begin.take() else {
                end_at_once(signal, &last);
            };
            HAS_BEGUN.store(signal, Ordering::SeqCst);
            tell::hurry();
            if let Some(hurry) = HURRY.get() {
                hurry();
            }
            begin();
            let last = Arc::clone(&last);
            // If no thread can be started, a second signal can still end the process.
            let _ = threads::start("overtime", move || {
                thread::sleep(within);
                end_at_once(signal, &last);
            });
        }
    })
}

/// Lets the first signal call `act`, too, which makes the log wait no longer for its reader. A program has one log.
pub fn hurry_with(act: fn()) {
    // Only the first call counts.
    let _ = HURRY.set(act);
}

/// Whether the first signal has come. A second signal ends the process at once.
pub fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::SeqCst) != 0
}

/// A shell's exit code of the first signal, if it has come.
pub fn exit_code() -> Option<u8> {
    match HAS_BEGUN.load(Ordering::SeqCst) {
        0 => None,
        signal => Some(u8::try_from(128 + signal).unwrap_or(INTERRUPTED)),
    }
}

static HURRY: OnceLock<fn()> = OnceLock::new();

/// The number of the first signal, or 0.
static HAS_BEGUN: AtomicI32 = AtomicI32::new(0);

/// A shell's exit code of the signal that ended the command: 130 after Ctrl-C, 143 after a termination signal.
pub fn interrupted() -> ExitCode {
    ExitCode::from(exit_code().unwrap_or(INTERRUPTED))
}

/// Installs the handlers for a command that looks at a flag. Returns the flag, which the first signal sets.
///
/// # Errors
/// As [`watch`].
pub fn stop_flag(
    within: Duration,
    last: impl FnOnce() + Send + 'static,
) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    watch(within, move || stopped.store(true, Ordering::Relaxed), last)?;
    Ok(stop)
}

/// Makes these signals call this from now on, with their number, instead of ending the process.
///
/// # Errors
/// The system refused the handler or the thread.
pub fn at(signals: &[i32], act: impl Fn(i32) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(signals)?;
    threads::start("requests", move || signals.forever().for_each(act))
}

fn end_at_once(signal: i32, last: &LastAct) -> ! {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    // A signal that comes while the last act runs does not wait for it.
    if !IS_ENDING.swap(true, Ordering::SeqCst) {
        let act = last.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(act) = act {
            let (done, is_done) = mpsc::channel();
            // The last act may block like the command, and is left out if no thread can be started.
            let _ = threads::start("last", move || {
                act();
                // The process may be gone.
                let _ = done.send(());
            });
            let _ = is_done.recv_timeout(LAST_ACT);
        }
    }
    process::exit(128 + signal);
}

/// A shell's exit code of an interrupt.
const INTERRUPTED: u8 = 130;

/// The maximum time of the last act: short for a user who pressed Ctrl-C twice, and long enough on a busy machine.
const LAST_ACT: Duration = Duration::from_secs(1);
