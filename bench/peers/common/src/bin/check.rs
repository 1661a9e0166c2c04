//! Tests rivals by hand: each describes itself, and then does every kind of work that it drives itself, for a moment.
//!
//! `check DIRECTORY [NAME…]`, as `bench/peers/check` runs it. It prints a line for each work: messages, rate and
//! losses.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use peer_common::{Account, Description, Driver, Line, Measured, Work};

fn main() -> ExitCode {
    match check() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // A closed standard error cannot show an error.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all work succeeded.
fn check() -> Result<bool> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().context("usage: check DIRECTORY [NAME…]")?;
    let mut names: Vec<String> = arguments.collect();
    if names.is_empty() {
        let files = std::fs::read_dir(&directory)
            .with_context(|| format!("cannot read {directory}; did bench/peers/setup run?"))?;
        names = files
            .map(|file| Ok(file?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort();
    }
    let mut is_well = true;
    for name in names {
        let path = Path::new(&directory).join(&name);
        let line = match describe(&path) {
            Ok(description) => {
                is_well &= try_all(&path, &description)?;
                continue;
            }
            Err(error) => format!("{name}: {error:#}"),
        };
        is_well = false;
        writeln!(io::stdout(), "{line}")?;
    }
    Ok(is_well)
}

fn describe(path: &Path) -> Result<Description> {
    let mut program = Program::start(path, &["describe"])?;
    let description = program.line()?;
    program.end()?;
    Ok(description)
}

fn try_all(path: &Path, description: &Description) -> Result<bool> {
    let Description { name, version, .. } = description;
    let mut is_well = true;
    for offer in &description.offers {
        for transport in &offer.transports {
            let suite = &offer.suite;
            let label = format!("{name} {version}: {suite} {transport} {}", offer.mode);
            if offer.driver != Driver::Own {
                let driver = offer.driver;
                writeln!(io::stdout(), "{label}: left to the {driver:?} driver")?;
                continue;
            }
            for (connections, in_flight) in [(1, 1), (1, 128), (4, 32)] {
                // One-way work has nothing in flight, and work within a process has one connection.
                let is_echo = suite == "echo";
                if !is_echo && in_flight == 1 || transport == "inproc" && connections > 1 {
                    continue;
                }
                let work = Work {
                    suite: suite.clone(),
                    transport: transport.clone(),
                    mode: offer.mode.clone(),
                    connections,
                    in_flight,
                    // The payload of a message of 32 bytes without the header of tw1, as the benchmark requests it.
                    message_bytes: 24,
                    publishers: connections,
                    subscribers: connections,
                    threads: 1,
                    count: 20_000,
                    warm_up_ms: 100,
                    measure_ms: 200,
                    ..Work::default()
                };
                let line = match try_one(path, &work) {
                    Ok(measured) => {
                        is_well &= measured.verified && measured.messages > 0;
                        is_well &= measured.lost == 0 || offer.mode == "drops";
                        report(&measured)
                    }
                    Err(error) => {
                        is_well = false;
                        format!("{error:#}")
                    }
                };
                writeln!(io::stdout(), "{label}, {connections} × {in_flight}: {line}")?;
            }
        }
    }
    Ok(is_well)
}

fn report(measured: &Measured) -> String {
    let Measured { messages, lost, .. } = measured;
    let rate = *messages as f64 / measured.seconds;
    let latency = measured.latency.map_or_else(String::new, |times| {
        format!(", p50 {:.1} µs, p99 {:.1} µs", times.p50_us, times.p99_us)
    });
    format!("{messages} messages, {rate:.0}/s, {lost} lost{latency}")
}

fn try_one(path: &Path, work: &Work) -> Result<Measured> {
    let json = serde_json::to_string(work)?;
    if work.transport == "inproc" {
        return drive(path, "-", &json, None);
    }
    let mut server = Program::start(path, &["serve", &json])?;
    let Line::Ready(address) = server.line()? else {
        bail!("the server said something else than that it is ready");
    };
    let measured = drive(path, &address, &json, Some(&mut server))?;
    server.end()?;
    Ok(measured)
}

/// Waits until the server has counted `sent` messages, or counts no more. Returns its count.
fn wait_for(server: &mut Program, sent: u64) -> Result<u64> {
    let mut counted = None;
    loop {
        let now = server.ask()?.messages;
        if now >= Some(sent) || now == counted {
            return now.context("the server did not count");
        }
        counted = now;
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Runs the driver. If it knows only the number of sent messages, the server's count decides.
fn drive(
    path: &Path,
    address: &str,
    json: &str,
    mut server: Option<&mut Program>,
) -> Result<Measured> {
    let mut counted = || server.as_mut().map(|server| server.ask()).transpose();
    let mut driver = Program::start(path, &["drive", address, json])?;
    let Line::Started(true) = driver.line()? else {
        bail!("the driver said something else than that it started");
    };
    let before = counted()?;
    let Line::Measured(mut measured) = driver.line()? else {
        bail!("the driver said something else than what it measured");
    };
    let after = counted()?;
    if let (Some(sent), Some(server)) = (measured.sent, server) {
        let messages = |account: Option<Account>| account.and_then(|account| account.messages);
        let before = messages(before).context("the server did not count")?;
        let after = messages(after).context("the server did not count")?;
        measured.messages = after - before;
        measured.lost = sent.saturating_sub(wait_for(server, sent)?);
    }
    driver.end()?;
    Ok(measured)
}

/// A program of the contract. It is killed when it is dropped.
struct Program {
    child: Child,
    lines: Receiver<io::Result<String>>,
}

impl Program {
    fn start(path: &Path, arguments: &[&str]) -> Result<Self> {
        let path: PathBuf = path.canonicalize().context("no such program")?;
        let mut child = Command::new(&path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", path.display()))?;
        let output = child.stdout.take().context("its output")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    /// The next line of its output.
    fn line<T: serde::de::DeserializeOwned>(&mut self) -> Result<T> {
        let line = match self.lines.recv_timeout(SILENCE_MAX) {
            Ok(line) => line.context("reading what it says")?,
            Err(RecvTimeoutError::Timeout) => bail!("said nothing for {SILENCE_MAX:?}"),
            Err(RecvTimeoutError::Disconnected) => bail!("ended without a word"),
        };
        serde_json::from_str(&line).with_context(|| format!("said '{line}'"))
    }

    /// Asks a server for its account.
    fn ask(&mut self) -> Result<Account> {
        let input = self.child.stdin.as_mut().context("its input")?;
        writeln!(input).context("asking for the account")?;
        self.line().context("the account")
    }

    /// Ends its input and waits for it to end.
    fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        match self.lines.recv_timeout(SILENCE_MAX) {
            Err(RecvTimeoutError::Disconnected) => {}
            Ok(line) => bail!("said '{}' at its end", line?),
            Err(RecvTimeoutError::Timeout) => bail!("does not end with its input"),
        }
        let status = self.child.wait().context("waiting for its end")?;
        if !status.success() {
            bail!("ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A program that has already ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The longest silence of a program. After it the check fails.
const SILENCE_MAX: Duration = Duration::from_secs(30);
