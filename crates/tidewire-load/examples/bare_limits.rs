//! What a Tidewire server reaches against the bare loop that does the same bytes: the same client drives both in turns.
//!
//! `cargo run --release -p tidewire-load --example bare_limits TIDEWIRE [ROUNDS] [MILLISECONDS]`, with the path of the
//! binary `tidewire`. Servers are processes of their own on core 0, the client stays on core 1. A row is the median of
//! its rounds with the lowest and the highest, and the ratio of the medians.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tidewire::io::affinity::pin_to_core;
use tidewire::io::socket::{Listener, SocketAddress, SocketOptions};
use tidewire::{Address, Endpoint};
use tidewire_load::probes::echo::{self, EchoLoad};
use tidewire_load::probes::ingest::{self, IngestLoad};
use tidewire_load::probes::{BLOCK_BYTES, Frame, Parse};

type Failure = Box<dyn std::error::Error>;

/// One line of the table.
#[derive(Clone, Copy)]
struct Row {
    work: Work,
    ipc: bool,
    parse: Parse,
    connections: usize,
}

#[derive(Clone, Copy)]
enum Work {
    /// Frames sent back, so many in flight on each connection.
    Echo { in_flight: u64 },
    /// Frames that the server only takes.
    Ingest,
}

/// A server in a process of its own, killed when it is dropped.
struct Running {
    child: Child,
    address: SocketAddress,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Row {
    fn name(self) -> String {
        let transport = if self.ipc { "ipc" } else { "tcp" };
        let codec = codec(self.parse);
        let connections = self.connections;
        match self.work {
            Work::Echo { in_flight } => {
                format!("echo {transport} {codec}, {connections} × {in_flight} in flight")
            }
            Work::Ingest => format!("ingest {transport} {codec}, {connections} connections"),
        }
    }

    fn start_bare(self) -> Result<Running, Failure> {
        let (role, parse) = match self.work {
            Work::Echo { .. } => ("--serve-echo", "bytes"),
            Work::Ingest => ("--serve-ingest", codec(self.parse)),
        };
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([role, &self.bind("bare"), parse])
            .arg(self.connections.to_string());
        start(&mut command)
    }

    fn start_tidewire(self, binary: &str) -> Result<Running, Failure> {
        let app = match self.work {
            Work::Echo { .. } => "echo",
            Work::Ingest => "sink",
        };
        let mut command = Command::new("taskset");
        command
            .args(["-c", "0", binary, "serve", "--lanes", "1", "--app", app])
            .args(["--codec", codec(self.parse)])
            .args(["--bind", &self.bind("tidewire")]);
        start(&mut command)
    }

    fn bind(self, who: &str) -> String {
        if self.ipc {
            let name = format!("tidewire-limits-{}-{who}.sock", std::process::id());
            format!("ipc://{}", std::env::temp_dir().join(name).display())
        } else {
            "tcp://127.0.0.1:0".to_owned()
        }
    }

    /// Millions of frames a second.
    fn drive(
        self,
        address: &SocketAddress,
        duration: Duration,
        is_bare: bool,
    ) -> Result<f64, Failure> {
        let greets = self.parse == Parse::Tw1 && !is_bare;
        let frame = Frame::one_way(self.parse, 32);
        let connections = self.connections;
        Ok(match self.work {
            Work::Echo { in_flight } => {
                let load = EchoLoad {
                    connections,
                    in_flight,
                    warm_up: duration / 5,
                    duration,
                    frame,
                    greets,
                };
                let outcome = echo::drive(address, &load, &mut || Ok(()))?;
                outcome.replies as f64 / outcome.seconds / 1e6
            }
            Work::Ingest => {
                let load = IngestLoad {
                    connections,
                    write_bytes: BLOCK_BYTES,
                    duration,
                    frame,
                    greets,
                };
                let sent = ingest::send(address, &load)?;
                sent.frames as f64 / (sent.elapsed_ns as f64 / 1e3)
            }
        })
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize| arguments.get(index).map(String::as_str);
    match argument(0) {
        Some(role @ ("--serve-echo" | "--serve-ingest")) => {
            let address = argument(1).ok_or("an address")?;
            let parse = argument(2).ok_or("a format")?;
            let connections = argument(3).ok_or("a number of connections")?.parse()?;
            serve(role, address, parse, connections)
        }
        Some(binary) => {
            let rounds = argument(1).map_or(Ok(5), str::parse)?;
            let duration = Duration::from_millis(argument(2).map_or(Ok(1_000), str::parse)?);
            compare(binary, rounds, duration)
        }
        None => Err("usage: bare_limits TIDEWIRE [ROUNDS] [MILLISECONDS]".into()),
    }
}

fn compare(binary: &str, rounds: usize, duration: Duration) -> Result<(), Failure> {
    pin_to_core(1)?;
    let mut out = std::io::stdout();
    writeln!(out, "| work, 32 bytes | bare M/s | Tidewire M/s | ratio |")?;
    writeln!(out, "|---|---|---|---|")?;
    for row in rows() {
        let (mut bare, mut ours) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            // ABBA, so that a machine that slows down slows both.
            for is_bare in [round % 2 == 0, round % 2 == 1] {
                let (server, rates) = if is_bare {
                    (row.start_bare()?, &mut bare)
                } else {
                    (row.start_tidewire(binary)?, &mut ours)
                };
                rates.push(row.drive(&server.address, duration, is_bare)?);
            }
        }
        let (bare, ours) = (Spread::of(bare), Spread::of(ours));
        let ratio = ours.median / bare.median;
        writeln!(out, "| {} | {bare} | {ours} | {ratio:.2} |", row.name())?;
    }
    Ok(())
}

fn rows() -> Vec<Row> {
    let echo = |ipc, parse, connections, in_flight| Row {
        work: Work::Echo { in_flight },
        ipc,
        parse,
        connections,
    };
    let ingest = |ipc, parse, connections| Row {
        work: Work::Ingest,
        ipc,
        parse,
        connections,
    };
    let mut rows = Vec::new();
    for (connections, in_flight) in [(1, 1), (16, 1), (64, 1), (1, 128), (16, 128), (64, 128)] {
        rows.push(echo(false, Parse::Tw1, connections, in_flight));
    }
    rows.push(echo(false, Parse::Srmp, 16, 128));
    rows.push(echo(true, Parse::Tw1, 1, 1));
    rows.push(echo(true, Parse::Tw1, 16, 128));
    for parse in [Parse::Tw1, Parse::Srmp, Parse::LengthField] {
        rows.push(ingest(false, parse, 1));
        rows.push(ingest(false, parse, 16));
    }
    rows.push(ingest(true, Parse::Tw1, 1));
    rows
}

/// A server that runs, and the address it says it listens on.
fn start(command: &mut Command) -> Result<Running, Failure> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut line = String::new();
    let output = child.stdout.take().ok_or("no output")?;
    BufReader::new(output).read_line(&mut line)?;
    let text = line
        .split_whitespace()
        .find(|word| word.contains("://"))
        .ok_or_else(|| format!("no address in {line:?}"))?;
    let Endpoint::Socket(address) = text.parse::<Address>()?.resolve()? else {
        return Err(format!("no socket in {text:?}").into());
    };
    Ok(Running { child, address })
}

fn serve(role: &str, address: &str, parse: &str, connections: usize) -> Result<(), Failure> {
    pin_to_core(0)?;
    let Endpoint::Socket(address) = address.parse::<Address>()?.resolve()? else {
        return Err("a socket's address is needed".into());
    };
    let listener = Listener::bind(&address, &SocketOptions::default())?;
    let local = Address::from(listener.local_address().clone());
    writeln!(std::io::stdout(), "listening on {local}")?;
    let never = AtomicBool::new(false);
    if role == "--serve-echo" {
        echo::serve(&listener, &never)?;
    } else {
        let parse = [Parse::Tw1, Parse::Srmp, Parse::LengthField]
            .into_iter()
            .find(|known| codec(*known) == parse)
            .ok_or("an unknown format")?;
        ingest::serve(&listener, parse, connections, &never)?;
    }
    Ok(())
}

fn codec(parse: Parse) -> &'static str {
    match parse {
        Parse::Bytes => "raw",
        Parse::Tw1 => "tw1",
        Parse::Srmp => "srmp",
        Parse::LengthField => "length-field",
    }
}

/// Median, lowest and highest of some rates.
struct Spread {
    lowest: f64,
    median: f64,
    highest: f64,
}

impl Spread {
    fn of(mut rates: Vec<f64>) -> Self {
        rates.sort_unstable_by(f64::total_cmp);
        Self {
            lowest: rates[0],
            median: rates[rates.len() / 2],
            highest: rates[rates.len() - 1],
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            lowest,
            median,
            highest,
        } = self;
        write!(formatter, "{median:.2} ({lowest:.2}–{highest:.2})")
    }
}
