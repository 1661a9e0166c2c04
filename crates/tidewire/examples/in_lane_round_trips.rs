//! Round trips a second between two lanes of one process, over each transport: 32-byte requests, a fixed number in
//! flight on one connection. Then with both ends on one lane, where the transport must cost as little as it can.
//!
//! `cargo run --release -p tidewire --example in_lane_round_trips [IN_FLIGHT] [SECONDS] [SPIN_US]`. A rough figure for
//! a comparison of transports on one machine. Exact benchmarks belong to the load instrument. With `SPIN_US` a second
//! measurement follows, in which lanes poll for work this long before they sleep.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewire::address::Address;
use tidewire::{Context, Endpoint, HandlerResult, Kind, Message, Moment, Server, Service};

type Failure = Box<dyn std::error::Error>;

/// Keeps a number of requests in flight and counts the replies; answers requests of others with what they say.
struct Asker {
    target: Option<Endpoint>,
    in_flight: u32,
    replies: Arc<AtomicU64>,
}

impl Service for Asker {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if let Some(target) = self.target.take()
            && let Err(error) = cx.connections().connect(&target)
        {
            tracing::error!(%error, "cannot connect");
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        if !cx.session().is_outgoing() {
            return;
        }
        for id in 1..=self.in_flight {
            // A refused send would be seen as a rate of zero.
            let _ = cx.send(Message::with_id(Kind::Request, 0, id, &[0; 32]));
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.kind == Kind::Request {
            return cx.reply(message.payload);
        }
        // One writer, so this needs no locked instruction.
        let replies = self.replies.load(Ordering::Relaxed);
        self.replies.store(replies + 1, Ordering::Relaxed);
        Ok(cx.send(Message::with_id(
            Kind::Request,
            0,
            message.id,
            message.payload,
        ))?)
    }
}

/// The work to measure.
#[derive(Clone, Copy)]
struct Plan {
    in_flight: u32,
    seconds: u64,
}

impl Plan {
    fn asker(self, target: Option<Endpoint>, replies: &Arc<AtomicU64>) -> Asker {
        Asker {
            target,
            in_flight: self.in_flight,
            replies: Arc::clone(replies),
        }
    }

    /// Millions of round trips a second between two lanes.
    fn two_lanes(self, address: &str, spin_us: u32) -> Result<f64, Failure> {
        let replies = Arc::new(AtomicU64::new(0));
        let server = Server::builder().spin_us(spin_us).listen(address)?;
        let server = server.start(|_| self.asker(None, &replies))?;
        let target = server.to_string().parse::<Address>()?.resolve()?;
        let asking = Server::builder().spin_us(spin_us);
        let asking = asking.start(|_| self.asker(Some(target.clone()), &replies))?;
        let rate = self.rate(&replies);
        drop(asking);
        drop(server);
        Ok(rate)
    }

    /// The same with both ends on one lane.
    fn one_lane(self, address: &str, spin_us: u32) -> Result<f64, Failure> {
        let replies = Arc::new(AtomicU64::new(0));
        let target = address.parse::<Address>()?.resolve()?;
        let server = Server::builder().spin_us(spin_us).listen(address)?;
        let server = server.start(|_| self.asker(Some(target.clone()), &replies))?;
        let rate = self.rate(&replies);
        drop(server);
        Ok(rate)
    }

    fn rate(self, replies: &AtomicU64) -> f64 {
        std::thread::sleep(Duration::from_millis(300));
        let (before, started) = (replies.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(Duration::from_secs(self.seconds));
        let count = replies.load(Ordering::Relaxed) - before;
        count as f64 / started.elapsed().as_secs_f64() / 1e6
    }
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let plan = Plan {
        in_flight: arguments.next().map_or(Ok(128), |text| text.parse())?,
        seconds: arguments.next().map_or(Ok(2), |text| text.parse())?,
    };
    let spin_us: Option<u32> = arguments.next().map(|text| text.parse()).transpose()?;
    let socket = std::env::temp_dir().join(format!("tidewire-{}.sock", std::process::id()));
    let ipc = format!("ipc://{}", socket.display());
    let mut out = std::io::stdout();
    let in_flight = plan.in_flight;
    for address in [
        "tcp://127.0.0.1:0",
        "udp://127.0.0.1:0",
        &ipc,
        "inproc://echo",
    ] {
        let rate = plan.two_lanes(address, 0)?;
        writeln!(
            out,
            "{address:<24} {in_flight} in flight: {rate:.3} M round trips/s"
        )?;
        if let Some(spin_us) = spin_us {
            let spinning = plan.two_lanes(address, spin_us)?;
            let ratio = spinning / rate;
            writeln!(
                out,
                "    spinning {spin_us} µs: {spinning:.3} M round trips/s, {ratio:.2} times as many"
            )?;
        }
    }
    for address in [ipc.as_str(), "inproc://echo"] {
        let rate = plan.one_lane(address, 0)?;
        writeln!(
            out,
            "{address:<24} {in_flight} in flight, one lane: {rate:.3} M round trips/s"
        )?;
    }
    Ok(())
}
