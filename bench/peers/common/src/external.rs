//! Servers that are programs of other projects.
//!
//! The benchmark pins the process that it started and reads its processor time and memory. The peer's program therefore
//! does not start the server as a child but replaces itself by it (exec). A small process of its own, the steward,
//! handles the lines of the contract. It sleeps while the benchmark measures, and ends the server at the end of input.

use std::convert::Infallible;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, getppid, kill_process};

use crate::window::now_ns;
use crate::{Console, address};

/// Replaces this process by `server`, which will accept connections at `address`. Returns only on failure.
///
/// # Errors
/// The program does not exist, or cannot be started.
pub fn become_server(mut server: Command, address: &str) -> Result<Infallible> {
    let this = std::env::current_exe().context("the path of this program")?;
    let mut steward = Command::new(this)
        .args([STEWARD, address])
        .spawn()
        .context("starting the process that speaks for the server")?;
    let error = server.stdin(Stdio::null()).stdout(Stdio::null()).exec();
    let _ = steward.kill();
    let _ = steward.wait();
    let name = server.get_program().to_string_lossy().into_owned();
    Err(error)
        .with_context(|| format!("cannot run {name}; is it installed, as bench/peers/setup does?"))
}

/// The version in a program's output: the first word that begins with a digit, as in `v=7.0.15` or `v2.15.2`.
///
/// # Errors
/// The program cannot be run, or prints no version.
pub fn version_of(program: &str, argument: &str) -> Result<String> {
    let output = Command::new(program)
        .arg(argument)
        .output()
        .with_context(|| {
            format!("cannot run {program}; is it installed, as bench/peers/setup does?")
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace()
        .map(|word| word.trim_start_matches("v=").trim_start_matches('v'))
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()))
        .map(str::to_owned)
        .with_context(|| format!("{program} {argument} prints no version: {text}"))
}

/// Handles the contract for the server, which is the parent process.
pub(crate) fn steward(address: &str) -> Result<()> {
    let Some(server) = getppid() else {
        bail!("the server is gone already");
    };
    let until_ns = now_ns() + START_MAX.as_nanos() as u64;
    while !listens(address)? {
        if getppid() != Some(server) {
            bail!("the server ended before it took connections at {address}");
        }
        if now_ns() > until_ns {
            end(server);
            bail!("the server took no connections at {address} within {START_MAX:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let console = Console::new();
    console.speak_for_another();
    if let Ok((path, true)) = address::split(address) {
        console.remove_at_end(path);
    }
    console.at_end(move || end(server));
    console.ready(address)?;
    loop {
        std::thread::park();
    }
}

/// Whether a server accepts connections at this address.
fn listens(address: &str) -> Result<bool> {
    Ok(match address::split(address)? {
        (path, true) => UnixStream::connect(path).is_ok(),
        (host, false) => TcpStream::connect(host).is_ok(),
    })
}

/// Ends the server, if it still runs.
fn end(server: Pid) {
    if getppid() == Some(server) {
        let _ = kill_process(server, Signal::TERM);
    }
}

/// The argument that starts a steward.
pub(crate) const STEWARD: &str = "steward";

/// The longest time for a server to start.
const START_MAX: Duration = Duration::from_secs(10);
