//! What the programs of the rivals share.
//!
//! Problem: a rival is worth comparing with only if it does the same work, checked the same way, and a dozen programs
//! that each keep their own time and count their own losses would not. Approach: a rival implements [`Peer`], which is
//! only the part that knows its library; [`run`] is its `main`. Windows, counts, checks of content, raising of limits
//! and the lines that the benchmark reads and writes (`tidewire_bench::contract`) are here. Rejected: one driver
//! for all rivals, because a rival's own client is half of what it is.
//!
//! - [`Console`]: how a server says that it is ready, and answers for what it has done.
//! - [`Window`], [`Meter`]: when a driver counts, and what.
//! - [`Exchange`], [`Flight`]: what a request says, whether its reply is right, and what is in flight.
//! - [`Source`], [`Intake`]: one-way messages with numbers, and what became of them.
//! - [`Publication`]: messages of a fan-out, at a rate.
//! - [`pubsub`]: publishers and subscribers of a topic.
//! - [`pipe`], [`stream`]: clients and servers on tokio.
//! - [`inproc`], [`pin`]: two threads of one process and what a library puts between them.
//! - [`external`]: servers that are programs of others, such as redis-server.

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
mod window;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
pub use tidewire_bench::contract::{
    Account, Description, Driver, Measured, Offer, Said, Times, Work,
};

pub use allocation::allocated_bytes;
pub use console::Console;
pub use exchange::{Exchange, add, terms};
pub use flight::Flight;
pub use meter::{Meter, times};
pub use numbered::{Counts, Intake, Source, sent};
pub use publication::Publication;
pub use window::{Window, now_ns};

/// A rival: the part that knows its library.
pub trait Peer {
    /// Name, version and what it takes part in.
    ///
    /// # Errors
    /// The version cannot be found, as when a server is not installed.
    fn describe(&self) -> Result<Description>;

    /// Serves `work` until the process ends, which is the console's to decide. A server that returns has failed or had
    /// nothing more to do; it may do so only before it was ready.
    ///
    /// # Errors
    /// What the library says, and work that is not offered.
    fn serve(&self, work: &Work, console: &Console) -> Result<()>;

    /// Drives the server at `address`, or works alone where the work is within one process.
    ///
    /// # Errors
    /// What the library says, and work that is not offered. Messages that are lost or wrong are no error but counted.
    fn drive(&self, address: &str, work: &Work) -> Result<Measured>;
}

/// The `main` of a rival. What goes wrong becomes one line on standard error and exit code 1.
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
            console::say(&Said::Measured(measured))?;
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

/// An [`Offer`] of this suite over these transports, driven by the program itself.
#[must_use]
pub fn offer(suite: &str, transports: &[&str], mode: &str, driver: Driver) -> Offer {
    Offer {
        suite: suite.to_owned(),
        transports: transports.iter().map(|&name| name.to_owned()).collect(),
        mode: mode.to_owned(),
        driver,
    }
}

/// The version of a library that this workspace is built with, which is the one in its lock file.
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

/// Puts the calling thread, the `index`-th of work within one process, on the core that the work has for it, if any.
///
/// # Errors
/// The system refuses, as it does for a core that is not there.
pub fn pin(work: &Work, index: usize) -> Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let Some(&core) = work.cores.get(index) else {
        return Ok(());
    };
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).with_context(|| format!("pinning a thread to core {core}"))
}

/// Lets the process have as many descriptors as its hard limit allows; with fewer, connecting fails and says so.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it is refused, the limit stays what it was.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// What the workspace is built with.
const LOCK_FILE: &str = include_str!("../../Cargo.lock");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(locked_version("anyhow").unwrap().starts_with("1."));
        assert!(locked_version("nothing of this name").is_err());
    }
}
