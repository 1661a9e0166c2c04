//! The common part of all programs of rivals.
//!
//! Problem: the comparison with a rival is fair only if it does the same work with the same checks, and a dozen
//! programs with their own clocks and their own counts of losses would differ. Approach: a rival implements [`Peer`],
//! the part that uses its library, and [`run`] is its `main`. Windows, counts, content checks, descriptor limits and
//! the lines of the contract (`tidewire_bench::contract`) are here. Rejected: one driver for all rivals, because a
//! rival's own client is half of its speed.
//!
//! - [`Console`]: announces that a server is ready, and reports its counts.
//! - [`Window`], [`Meter`]: the time in which a driver counts, and its counts.
//! - [`Exchange`], [`Flight`]: the content of requests, the check of replies, and the requests in flight.
//! - [`Source`], [`Intake`]: one-way messages with numbers, and the check of what arrived.
//! - [`Publication`]: messages of a fan-out, at a rate.
//! - [`pubsub`]: publishers and subscribers of a topic.
//! - [`pipe`], [`stream`], [`tls`]: clients and servers on tokio.
//! - [`inproc`], [`pin`]: two threads of one process, with a library between them.
//! - [`external`]: servers that are programs of other projects, such as redis-server.

pub mod address;
mod allocation;
mod console;
mod exchange;
pub mod external;
mod flight;
pub mod inproc;
mod meter;
mod numbered;
pub mod pipe;
mod publication;
pub mod pubsub;
pub mod stream;
pub mod tls;
mod window;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
pub use tidewire_bench::contract::{
    Account, Description, Driver, Line, Measured, Offer, Times, Work,
};

pub use allocation::allocated_bytes;
pub use console::Console;
pub use exchange::{Exchange, add, terms};
pub use flight::Flight;
pub use meter::{Meter, times};
pub use numbered::{Counts, Intake, Source, sent};
pub use publication::Publication;
pub use window::{Window, now_ns};

/// A rival: the part that uses its library.
pub trait Peer {
    /// Name, version and offers.
    ///
    /// # Errors
    /// The version cannot be found, for example because a server is not installed.
    fn describe(&self) -> Result<Description>;

    /// Serves `work` until the console ends the process. A server returns only if it fails, or has nothing to do. It
    /// must not return after it was announced as ready.
    ///
    /// # Errors
    /// The error of the library, or work that is not offered.
    fn serve(&self, work: &Work, console: &Console) -> Result<()>;

    /// Drives the server at `address`, or does work within one process alone.
    ///
    /// # Errors
    /// The error of the library, or work that is not offered. Lost or wrong messages are no error; they are counted.
    fn drive(&self, address: &str, work: &Work) -> Result<Measured>;
}

/// The `main` of a rival. An error becomes one line on standard error and exit code 1.
pub fn run(peer: &dyn Peer) -> ExitCode {
    match command(peer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::complain(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn command(peer: &dyn Peer) -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["describe"] => console::say(&peer.describe()?),
        ["serve", work] => {
            raise_descriptor_limit();
            peer.serve(&parse(work)?, &Console::new())
                .context("the server")?;
            console::wait_for_end();
            Ok(())
        }
        ["drive", address, work] => {
            raise_descriptor_limit();
            let measured = peer.drive(address, &parse(work)?).context("the driver")?;
            window::wait_for_started();
            console::say(&Line::Measured(measured))?;
            console::wait_for_end();
            Ok(())
        }
        [external::STEWARD, address] => external::steward(address),
        _ => bail!("usage: describe | serve WORK | drive ADDRESS WORK"),
    }
}

fn parse(work: &str) -> Result<Work> {
    serde_json::from_str(work).with_context(|| format!("WORK is not what it should be: {work}"))
}

/// The error for work that a rival does not offer.
#[must_use]
pub fn not_offered(work: &Work) -> anyhow::Error {
    let Work {
        suite,
        transport,
        mode,
        ..
    } = work;
    anyhow::anyhow!(
        "suite '{suite}' over '{transport}' in mode '{mode}' is not offered; `describe` says what is"
    )
}

/// An [`Offer`] of this suite over these transports, with the program's own driver.
#[must_use]
pub fn offer(suite: &str, transports: &[&str], mode: &str, driver: Driver) -> Offer {
    Offer {
        suite: suite.to_owned(),
        transports: transports.iter().map(|&name| name.to_owned()).collect(),
        mode: mode.to_owned(),
        driver,
    }
}

/// The version of a library in the lock file of this workspace.
///
/// # Errors
/// The lock file does not name the library.
pub fn locked_version(library: &str) -> Result<String> {
    let name = format!("name = \"{library}\"");
    let mut lines = LOCK_FILE.lines().skip_while(|line| *line != name);
    lines
        .nth(1)
        .and_then(|line| line.strip_prefix("version = \""))
        .and_then(|version| version.strip_suffix('"'))
        .map(str::to_owned)
        .with_context(|| format!("{library} is not in the lock file"))
}

/// Pins the calling thread, which has this index in work within one process, to its core, if the work names one.
///
/// # Errors
/// The system refuses, for example because the core does not exist.
pub fn pin(work: &Work, index: usize) -> Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let Some(&core) = work.cores.get(index) else {
        return Ok(());
    };
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("pinning a thread to core {core}"))
}

/// Raises the limit of descriptors to the hard limit. With too few, connecting fails and reports that.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the system refuses, the limit stays the same.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The lock file of this workspace.
const LOCK_FILE: &str = include_str!("../../../Cargo.lock");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(locked_version("anyhow").unwrap().starts_with("1."));
        assert!(locked_version("nothing of this name").is_err());
    }
}
