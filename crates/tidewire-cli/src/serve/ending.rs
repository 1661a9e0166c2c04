//! The end of a server: its signals, and whether it ended in order.

use std::io;
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGUSR1};
use tidewire::Stopped;
use tidewire::metrics::Inspector;
use tidewire_command::signals;
use tidewire_command::tell::{Stream, tell};

use super::operate::{self, Wake};
use super::{ServeArguments, summary};
use crate::failure::{self, Failure};

/// The state for the summary if a second signal ends the server at once.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// Set when the server is started.
    pub(super) inspector: OnceLock<Inspector>,
    /// Whether the summary has been printed.
    pub(super) is_told: AtomicBool,
}

/// Handles signals: the first one drains, or ends a server at once that is not started yet; the second, or a drain that
/// does not end, stops at once.
pub(super) fn watch_signals(
    arguments: &ServeArguments,
    sender: Sender<Wake>,
    ending: &Arc<Ending>,
) -> io::Result<()> {
    let requests = sender.clone();
    let state = Arc::clone(ending);
    let begin = move || {
        if state.inspector.get().is_none() {
            // The main thread may wait in the start for as long as NATS is gone. There is nothing to drain yet.
            let told = "stopped before the server was started\n";
            // If stderr is closed or blocked, nothing can be reported.
            let _ = tell(Stream::Error, told.into());
            process::exit(0);
        }
        // The main thread is gone only if the server has stopped already.
        let _ = sender.send(Wake::Signal);
    };
    let (ending, json) = (Arc::clone(ending), arguments.json);
    let last = move || {
        if ending.is_told.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(inspector) = ending.inspector.get() {
            summary::print(&inspector.metrics(), json);
        }
        let remedy = "wait for the drain, or shorten it with --drain-ms";
        failure::report(
            &Failure::other("stopped before the drain was finished", remedy).into(),
            false,
        );
    };
    signals::watch(arguments.ending_time(), begin, last)?;
    signals::at(&[SIGHUP, SIGUSR1], move |signal| {
        if signal == SIGHUP && operate::RELOAD_WAITS.swap(true, Ordering::SeqCst) {
            return;
        }
        let request = match signal {
            SIGHUP => Wake::Reload,
            _ => Wake::Summary,
        };
        // The main thread is gone only if the server has stopped already.
        let _ = requests.send(request);
    })
}

/// Returns success if no lane failed and no session was cut off.
pub(super) fn judge(stopped: &Stopped) -> anyhow::Result<ExitCode> {
    if let Some(failure) = stopped.failures.first() {
        let what = format!("a lane failed: {failure}");
        let remedy = "start it again; if it failed by a panic, please report it as a bug";
        return Err(Failure::other(what, remedy).into());
    }
    let metrics = &stopped.metrics;
    if metrics.sessions_cut_off > 0 {
        let what = format!(
            "the drain reached its deadline with output still on its way, sessions cut off: {}",
            metrics.sessions_cut_off
        );
        let remedy = "give it longer with --drain-ms, or look why these peers do not read";
        return Err(Failure::other(what, remedy).into());
    }
    if metrics.mail_undelivered > 0 {
        let what = format!(
            "a lane did not end in time, messages of others for it that were lost: {}",
            metrics.mail_undelivered
        );
        let remedy = "look which handler takes this long";
        return Err(Failure::other(what, remedy).into());
    }
    Ok(ExitCode::SUCCESS)
}
