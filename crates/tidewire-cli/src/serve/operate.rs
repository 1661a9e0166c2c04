//! The life of a server between its start and its drain: what signals and changed files ask of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tidewire::{Server, Stopped};

use super::ServeArguments;
use super::reload::{ServedUsers, Settings};
use super::summary;
use crate::logging;
use crate::systemd::Notifier;

/// An event that a server waits for.
pub(super) enum Wake {
    /// It is told to end.
    Signal,
    /// Its settings, users and certificate may have changed.
    Reload,
    /// The log shall have a summary.
    Summary,
    StdinEnded,
    Drained(Box<Stopped>),
}

/// A running server, and what can change while it runs.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) server: Server,
    users: ServedUsers,
    settings: Settings,
    pub(super) notifier: Notifier,
}

impl Operator {
    pub(super) fn new(
        server: Server,
        users: ServedUsers,
        settings: Settings,
        notifier: Notifier,
    ) -> Self {
        Self {
            server,
            users,
            settings,
            notifier,
        }
    }

    /// Returns when the server must drain, or has lost a lane.
    pub(super) fn run(&mut self, wakes: &Receiver<Wake>) {
        loop {
            match wakes.recv_timeout(CHECK_INTERVAL) {
                Ok(Wake::Reload) => self.reload(),
                Ok(Wake::Summary) => self.log_summary(),
                Err(RecvTimeoutError::Timeout) if self.server.is_running() => {
                    self.follow_files();
                }
                _ => return,
            }
        }
    }

    /// Says that the server takes no new clients, and goes on to serve for a while, so that load balancers can see it.
    pub(super) fn leave_service(&mut self, wakes: &Receiver<Wake>, arguments: &ServeArguments) {
        let delay = arguments.drain.delay();
        self.server.stopper().withdraw();
        self.notifier.stopping(arguments.ending_time());
        if delay.is_zero() || !self.server.is_running() {
            return;
        }
        tracing::info!(
            ?delay,
            "not ready any more; the drain begins after --drain-delay-ms"
        );
        let until = Instant::now() + delay;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            match wakes.recv_timeout(left.min(CHECK_INTERVAL)) {
                Ok(Wake::Summary) => self.log_summary(),
                Ok(Wake::Reload) => self.read_again(),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if self.server.is_running() => self.follow_files(),
                Err(_) => return,
            }
        }
    }

    /// Does what SIGHUP asks for: a new log file, and everything that can be read again.
    fn reload(&mut self) {
        self.notifier.reloading();
        self.read_again();
        self.notifier.reloaded();
    }

    fn read_again(&mut self) {
        RELOAD_WAITS.store(false, Ordering::SeqCst);
        logging::reopen();
        self.settings.reload(&self.server);
        if let Some(certificate) = self.server.tls_acceptor() {
            // The log says how it ended.
            drop(certificate.reload());
        }
        self.users.reload(&self.server);
    }

    /// Reads changed files of users and certificates again, and begins a new log file if the old one was moved away.
    fn follow_files(&mut self) {
        logging::follow_file();
        self.users.reload_if_changed(&self.server);
        if let Some(certificate) = self.server.tls_acceptor() {
            // The log says how it ended.
            drop(certificate.reload_if_changed());
        }
    }

    fn log_summary(&self) {
        tracing::info!("{}", summary::line(&self.server.metrics()));
    }
}

/// A reload is asked for, and has not begun. More requests until then ask for the same, so they do not queue in front
/// of the signal to end.
pub(super) static RELOAD_WAITS: AtomicBool = AtomicBool::new(false);

/// The interval at which a server looks whether it lost a lane to a panic or a failing poller, and at its files.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
