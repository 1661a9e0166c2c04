//! The cost of the policy `conflate_by_topic` for a server whose subscribers keep up, beside a policy that ignores
//! topics.
//!
//! `cargo run --release -p tidewire-bench --example conflate_by_topic [SECONDS] [UPDATES_PER_SECOND] [READERS]
//! [ROUNDS]`. A server process with one lane publishes 32 bytes to 10,000 symbols in turn, and all readers subscribe to
//! `md.>`. They read all the time and look at nothing. Both policies are run in each round, in alternating order. The
//! cost is the server's processor time by update. A run in which a reader fell behind says how many messages were
//! replaced or dropped.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tidewire::{Context, HandlerResult, Kind, Message, Moment, Policy, PubSub, Server, Service};
use tidewire_io::affinity::pin_to_core;
use tidewire_io::clock::now_ns;
use tidewire_load::process::ProcessSample;
use tidewire_proto::body::SubscribeBody;
use tidewire_proto::codec::{Codec, Tw1};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_proto::limits::FRAME_BYTES_MAX;

type Failure = Box<dyn std::error::Error>;

const POLICIES: [Policy; 2] = [Policy::DropOldest, Policy::ConflateByTopic];
const SYMBOLS: u64 = 10_000;
const TICK_NS: u64 = 1_000_000;

/// Publishes at a rate once all readers have subscribed.
struct Ticker {
    topics: PubSub,
    names: Vec<String>,
    awaited: usize,
    updates_per_sec: u64,
    started_ns: u64,
    published: u64,
}

impl Service for Ticker {
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let subscribes = message.kind == Kind::Subscribe;
        self.topics.on_message(cx, message)?;
        if subscribes {
            self.awaited = self.awaited.saturating_sub(1);
            self.started_ns = now_ns();
        }
        Ok(())
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if self.awaited > 0 {
            return None;
        }
        let now_ns = now_ns();
        let due = u128::from(now_ns - self.started_ns) * u128::from(self.updates_per_sec);
        let due = u64::try_from(due / 1_000_000_000).unwrap_or(u64::MAX);
        // Half a second that the machine was away is not made up for at once.
        let behind = due
            .saturating_sub(self.published)
            .min(self.updates_per_sec / 100);
        for _ in 0..behind {
            let mut payload = [b'.'; 32];
            payload[..8].copy_from_slice(&self.published.to_le_bytes());
            let name = &self.names[(self.published % SYMBOLS) as usize];
            if let Err(error) = cx.topics().publish(name, &payload) {
                tracing::error!(%error, "cannot publish");
            }
            self.published += 1;
        }
        Some(Moment::from_ns(now_ns + TICK_NS))
    }
}

fn serve(policy: &str, updates_per_sec: &str, readers: &str) -> Result<(), Failure> {
    pin_to_core(0)?;
    let (updates_per_sec, awaited) = (updates_per_sec.parse()?, readers.parse()?);
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")?
        .slow_subscribers(policy.parse()?)
        .start(|_| Ticker {
            topics: PubSub::new(),
            names: (0..SYMBOLS).map(|number| format!("md.s{number}")).collect(),
            awaited,
            updates_per_sec,
            started_ns: 0,
            published: 0,
        })?;
    let mut out = std::io::stdout();
    writeln!(out, "{server}")?;
    for line in std::io::stdin().lines() {
        line?;
        let metrics = server.metrics();
        let lost = metrics.room_dropped_total();
        writeln!(
            out,
            "{} {} {lost}",
            metrics.published, metrics.room_delivered
        )?;
    }
    Ok(())
}

/// A server process.
struct Served {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    fn start(policy: Policy, updates_per_sec: u64, readers: usize) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--serve", policy.name()])
            .args([updates_per_sec.to_string(), readers.to_string()])
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("no input")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self {
            child,
            stdin,
            stdout,
        })
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    /// Published, delivered and lost so far, and the processor time.
    fn look(&mut self) -> Result<([u64; 3], ProcessSample), Failure> {
        writeln!(self.stdin)?;
        let line = self.line()?;
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        let numbers = numbers?.try_into().map_err(|_| "no three numbers")?;
        Ok((numbers, ProcessSample::of(self.child.id())?))
    }
}

fn subscriber(address: &str) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect(address.trim_start_matches("tcp://"))?;
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: FRAME_BYTES_MAX as u32,
        credentials: b"",
        agent: "reader",
    };
    let mut frames = Vec::new();
    let mut body = Vec::new();
    hello.encode_frame(&mut frames)?;
    let subscribe = SubscribeBody {
        policy: None,
        pattern: "md.>",
        group: None,
    };
    subscribe.encode(&mut body);
    Tw1.encode(&Message::with_id(Kind::Subscribe, 0, 1, &body), &mut frames)?;
    stream.write_all(&frames)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Reads whatever there is until the time is over.
fn read_until(streams: &mut [TcpStream], buffer: &mut [u8], end: Instant) -> Result<(), Failure> {
    while Instant::now() < end {
        let mut is_idle = true;
        for stream in &mut *streams {
            match stream.read(buffer) {
                Ok(0) => return Err("the server closed a reader".into()),
                Ok(_) => is_idle = false,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        if is_idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

/// Nanoseconds of the server by update; the rest goes to the table.
fn measure(policy: Policy, seconds: u64, rate: u64, readers: usize) -> Result<f64, Failure> {
    let mut served = Served::start(policy, rate, readers)?;
    let address = served.line()?;
    let mut streams = Vec::new();
    for _ in 0..readers {
        streams.push(subscriber(&address)?);
    }
    let mut buffer = vec![0; 256 * 1024];
    let warm = Instant::now() + Duration::from_millis(500);
    read_until(&mut streams, &mut buffer, warm)?;
    let started = Instant::now();
    let ([published, delivered, lost], before) = served.look()?;
    read_until(
        &mut streams,
        &mut buffer,
        started + Duration::from_secs(seconds),
    )?;
    let (now, after) = served.look()?;
    let elapsed = started.elapsed().as_secs_f64();
    let updates = (now[0] - published) as f64;
    let cost_ns = after.cpu_secs_since(&before) * 1e9 / updates;
    writeln!(
        std::io::stdout(),
        "| {policy} | {:.0} | {:.2} M | {} | {:.2} | {cost_ns:.0} |",
        updates / elapsed,
        (now[1] - delivered) as f64 / elapsed / 1e6,
        now[2] - lost,
        after.cpu_secs_since(&before) / elapsed,
    )?;
    Ok(cost_ns)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, policy, rate, readers] = &arguments[..]
        && role == "--serve"
    {
        return serve(policy, rate, readers);
    }
    let number = |index: usize, default: u64| {
        let text = arguments.get(index);
        text.map_or(Ok(default), |text| text.parse())
    };
    let (seconds, rate) = (number(0, 3)?, number(1, 200_000)?);
    let (readers, rounds) = (number(2, 100)? as usize, number(3, 5)?);
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| policy | updates/s | delivered/s | lost | processors | ns of the server an update |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    let mut costs = POLICIES.map(|_| Vec::new());
    for round in 0..rounds {
        for turn in 0..POLICIES.len() {
            let index = (turn + round as usize) % POLICIES.len();
            costs[index].push(measure(POLICIES[index], seconds, rate, readers)?);
        }
    }
    let [without, with] = costs.map(|mut costs: Vec<f64>| {
        costs.sort_by(f64::total_cmp);
        costs[costs.len() / 2]
    });
    let ratio = with / without;
    writeln!(
        out,
        "\nmedians: {without:.0} and {with:.0} ns an update, a ratio of {ratio:.2}"
    )?;
    Ok(())
}
