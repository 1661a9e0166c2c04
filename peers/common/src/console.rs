//! The lines that a program reads from and writes to the benchmark.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, Result};
use serde_json::to_string;
use tidewire_bench::contract::{Account, Said};

use crate::allocated_bytes;
use crate::numbered::Counts;

/// A server's side of the contract: it says that it is ready, answers for what it did, and ends the process with the
/// end of input, from a thread of its own, so that a server may simply run.
#[derive(Clone, Debug, Default)]
pub struct Console {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Of messages taken, where they are counted.
    counts: OnceLock<Arc<Counts>>,
    /// Whether another process serves, whose allocations are not known here.
    is_steward: AtomicBool,
    /// What is to be done at the end.
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

    /// Says that the server takes connections at this address and begins to answer. What it answers is on standard
    /// output, so nothing else may be written there.
    ///
    /// # Errors
    /// Nobody reads standard output.
    pub fn ready(&self, address: &str) -> Result<()> {
        say(&Said::Ready(address.to_owned()))?;
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

    /// Lets the account say how many messages the server has taken, by these counts. Only the first ones are kept.
    pub fn count_by(&self, counts: Arc<Counts>) {
        let _ = self.shared.counts.set(counts);
    }

    /// Removes the file at the end, such as a Unix socket's.
    pub fn remove_at_end(&self, path: impl Into<PathBuf>) {
        let path = path.into();
        // It may be gone already, which is what is wanted.
        self.at_end(move || drop(std::fs::remove_file(path)));
    }

    /// Does this at the end.
    pub fn at_end(&self, farewell: impl FnOnce() + Send + 'static) {
        if let Ok(mut farewells) = self.shared.farewells.lock() {
            farewells.push(Box::new(farewell));
        }
    }

    /// Leaves out of accounts what this process allocates.
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
    // Nobody to tell that nobody listens.
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
