//! The lines that a program reads from and writes to the benchmark.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, Result};
use serde_json::to_string;
use tidewire_bench::contract::{Account, Line};

use crate::allocated_bytes;
use crate::numbered::Counts;

/// A server's side of the contract. It announces that the server is ready, answers requests for accounts, and ends the
/// process at the end of input. All this happens on a thread of its own, so that the server's own loop stays simple.
#[derive(Clone, Debug, Default)]
pub struct Console {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The number of received messages, if they are counted.
    counts: OnceLock<Arc<Counts>>,
    /// Whether another process serves, whose allocations are not known here.
    is_steward: AtomicBool,
    /// Actions to run at the end.
    farewells: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Console {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Announces that the server accepts connections at this address and begins to answer. The answers go to standard
    /// output, so the server must not write there.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn ready(&self, address: &str) -> Result<()> {
        say(&Line::Ready(address.to_owned()))?;
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                if line.is_err() || say(&shared.account()).is_err() {
                    break;
                }
            }
            shared.say_farewell();
            std::process::exit(0);
        });
        Ok(())
    }

    /// Reports these counts as the number of received messages. Only the first call has an effect.
    pub fn count_by(&self, counts: Arc<Counts>) {
        let _ = self.shared.counts.set(counts);
    }

    /// Removes this file at the end, for example a Unix socket.
    pub fn remove_at_end(&self, path: impl Into<PathBuf>) {
        let path = path.into();
        // The file may not exist any more, which is the wanted result.
        self.at_end(move || drop(std::fs::remove_file(path)));
    }

    /// Runs this at the end.
    pub fn at_end(&self, farewell: impl FnOnce() + Send + 'static) {
        if let Ok(mut farewells) = self.shared.farewells.lock() {
            farewells.push(Box::new(farewell));
        }
    }

    /// Leaves the allocations of this process out of accounts.
    pub(crate) fn speak_for_another(&self) {
        self.shared.is_steward.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn account(&self) -> Account {
        Account {
            messages: self.counts.get().map(|counts| counts.right()),
            allocated_bytes: (!self.is_steward.load(Ordering::Relaxed)).then(allocated_bytes),
            dropped: None,
        }
    }

    fn say_farewell(&self) {
        let farewells = self
            .farewells
            .lock()
            .map(|mut list| std::mem::take(&mut *list));
        for farewell in farewells.into_iter().flatten() {
            farewell();
        }
    }
}

/// Writes one line of the contract.
pub(crate) fn say(line: &impl serde::Serialize) -> Result<()> {
    let line = to_string(line).context("a line of the contract")?;
    let mut output = io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .context("nobody reads what this program prints; the benchmark is gone")
}

/// Writes one line on standard error.
pub(crate) fn complain(line: &str) {
    // A closed standard error cannot show an error.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Waits for the end of input, which is how the benchmark ends a program.
pub(crate) fn wait_for_end() {
    for line in io::stdin().lock().lines() {
        if line.is_err() {
            return;
        }
    }
}
