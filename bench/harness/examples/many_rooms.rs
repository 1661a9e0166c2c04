//! Whether a lane stays as fast with many rooms and sessions as with few: what a delivery costs the server.
//!
//! `cargo run --release -p tidewire-bench --example many_rooms [SECONDS]`. The ten members of a room say 32 bytes in
//! turn, each when it has heard its neighbour, so that every room always has a message on its way. The server is a
//! process of its own with one lane. Its cost is processor time by messages delivered, because the rate depends on the
//! clients too; the smaller sizes are measured again at the end, to show what the machine did meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewire::address::Address;
use tidewire::{Chat, Context, Endpoint, HandlerResult, Kind, Message, Moment, Server, Service};
use tidewire_io::affinity::pin_to_core;
use tidewire_load::process::ProcessSample;
use tidewire_proto::body::JoinBody;

type Failure = Box<dyn std::error::Error>;

/// Members of one room.
const MEMBERS: usize = 10;

/// All members of all rooms, told apart by the tags of their sessions.
struct Members {
    target: Endpoint,
    rooms: usize,
    connected: usize,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    joined: AtomicU64,
    heard: AtomicU64,
    failed: AtomicBool,
}

impl Members {
    fn fail(&self, error: &dyn std::fmt::Display) {
        tracing::error!(%error, "a member failed");
        self.counts.failed.store(true, Ordering::Relaxed);
    }

    fn say(&self, cx: &mut Context<'_>, room: u16, next: usize) {
        let mut payload = [b'.'; 32];
        payload[0] = next as u8;
        if let Err(error) = cx.send(Message::new(Kind::Say, room, &payload)) {
            self.fail(&error);
        }
    }
}

/// The number of a member, as the state of its session.
struct Number(usize);

impl Number {
    fn of(cx: &Context<'_>) -> usize {
        cx.state::<Self>().map_or(0, |number| number.0)
    }
}

impl Service for Members {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        // Not all at once: the backlog of a listener is no part of this.
        let joined = self.counts.joined.load(Ordering::Relaxed) as usize;
        while self.connected < self.rooms * MEMBERS && self.connected < joined + 64 {
            match cx.connections().connect(&self.target) {
                Ok(session) => drop(cx.connections().set_state(session, Number(self.connected))),
                Err(error) => self.fail(&error),
            }
            self.connected += 1;
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        let number = Number::of(cx);
        let (room, name) = (format!("room-{}", number % self.rooms), number.to_string());
        let mut body = Vec::new();
        let join = JoinBody {
            room: &room,
            name: &name,
        };
        if let Err(error) = join.encode(&mut body) {
            return self.fail(&error);
        }
        if let Err(error) = cx.send(Message::with_id(Kind::Join, 0, 1, &body)) {
            self.fail(&error);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let place = Number::of(cx) / self.rooms;
        match message.kind {
            Kind::Reply => {
                self.counts.joined.fetch_add(1, Ordering::Relaxed);
                // The last to come in begins the talk of its room.
                if place == MEMBERS - 1 {
                    self.say(cx, message.channel, 0);
                }
            }
            Kind::Deliver => {
                self.counts.heard.fetch_add(1, Ordering::Relaxed);
                let next = message.payload.first().map_or(0, |turn| usize::from(*turn));
                if place == next {
                    self.say(cx, message.channel, (next + 1) % MEMBERS);
                }
            }
            Kind::Error => self.fail(&"the server refused"),
            _ => {}
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let first = std::env::args().nth(1);
    if first.as_deref() == Some("--serve") {
        return serve();
    }
    let seconds = first.map_or(Ok(3), |text| text.parse())?;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| rooms | sessions | delivered/s | ns of the server a delivery |"
    )?;
    writeln!(out, "|---|---|---|---|")?;
    for rooms in [10, 100, 1_000, 100, 10] {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()?;
        let measured = measure(&mut child, rooms, Duration::from_secs(seconds));
        // The server ends with its input, or by this if it does not.
        let _ = child.kill();
        child.wait()?;
        let (rate, cost_ns) = measured?;
        let sessions = rooms * MEMBERS;
        writeln!(out, "| {rooms} | {sessions} | {rate:.0} | {cost_ns:.0} |")?;
    }
    Ok(())
}

/// Deliveries a second, and what one cost the server in nanoseconds.
fn measure(child: &mut Child, rooms: usize, duration: Duration) -> Result<(f64, f64), Failure> {
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let target = line.trim().parse::<Address>()?.resolve()?;
    let counts = Arc::new(Counts::default());
    let lane = Server::builder().start(|_| Members {
        target: target.clone(),
        rooms,
        connected: 0,
        counts: Arc::clone(&counts),
    })?;
    let all = (rooms * MEMBERS) as u64;
    let give_up = Instant::now() + Duration::from_secs(60);
    while counts.joined.load(Ordering::Relaxed) < all {
        if counts.failed.load(Ordering::Relaxed) || Instant::now() > give_up {
            return Err("not all members could join; see the log".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(500));
    let usage = || ProcessSample::of(child.id());
    let (before, started) = (usage()?, Instant::now());
    let heard = counts.heard.load(Ordering::Relaxed);
    std::thread::sleep(duration);
    let heard = (counts.heard.load(Ordering::Relaxed) - heard) as f64;
    let (after, elapsed) = (usage()?, started.elapsed());
    drop(lane);
    if counts.failed.load(Ordering::Relaxed) || heard == 0.0 {
        return Err("the talk did not go on; see the log".into());
    }
    let cpu_ns = after.cpu_secs_since(&before) * 1e9;
    Ok((heard / elapsed.as_secs_f64(), cpu_ns / heard))
}

fn serve() -> Result<(), Failure> {
    pin_to_core(0)?;
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")?
        .start(|_| Chat::new())?;
    writeln!(std::io::stdout(), "{server}")?;
    // Until the parent goes.
    std::io::stdin().read_line(&mut String::new())?;
    drop(server);
    Ok(())
}
