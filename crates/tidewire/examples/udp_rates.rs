//! The rate of UDP between two lanes of one process, in messages of 32 bytes with a datagram each: one way, and round
//! trips with a number of them in flight; then the same with frames that share datagrams.
//!
//! `cargo run --release -p tidewire --example udp_rates [IN_FLIGHT] [SECONDS]`. `tidewire bench echo` measures the bare
//! limits of the echo on the same machine. UDP does not wait for a receiver, so the one-way sender limits the messages
//! in flight. The output has the number of lost messages.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewire::address::Address;
use tidewire::metrics::Metrics;
use tidewire::{
    AnyCodec, Context, Endpoint, HandlerResult, Kind, Message, Moment, Server, Service, SessionId,
};

/// Sends one-way messages, not too many at once, or keeps a number of questions in flight.
struct Sender {
    target: Option<Endpoint>,
    session: Option<SessionId>,
    in_flight: u64,
    is_one_way: bool,
    sent: u64,
    /// Messages that have arrived: at the sink, or back here.
    arrived: Arc<AtomicU64>,
}

impl Service for Sender {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if let Some(target) = self.target.take()
            && let Err(error) = cx.connections().connect(&target)
        {
            tracing::error!(%error, "cannot connect");
        }
        let session = self.session.filter(|_| self.is_one_way)?;
        let on_the_way = self.sent - self.arrived.load(Ordering::Relaxed).min(self.sent);
        for _ in on_the_way..self.in_flight {
            if cx.send_to(session, &MESSAGE).is_err() {
                break;
            }
            self.sent += 1;
        }
        Some(cx.now())
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.session = Some(cx.id());
        if !self.is_one_way {
            for _ in 0..self.in_flight {
                // A refused send would be seen as a rate of zero.
                let _ = cx.send(MESSAGE);
            }
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        count(&self.arrived);
        Ok(cx.send(Message::new(Kind::OneWay, 0, message.payload))?)
    }
}

/// One writer, so this needs no locked instruction.
fn count(arrived: &AtomicU64) {
    let before = arrived.load(Ordering::Relaxed);
    arrived.store(before + 1, Ordering::Relaxed);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let in_flight = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let seconds = arguments.next().map_or(Ok(2), |text| text.parse())?;
    for codec in ["raw", "length-field"] {
        for (is_one_way, in_flight) in [(true, ONE_WAY_MAX), (false, in_flight)] {
            let (rate, metrics) = measure(codec, is_one_way, in_flight, seconds)?;
            let what = if is_one_way { "one way" } else { "round trips" };
            writeln!(
                std::io::stdout(),
                "{codec:<14} {what:<12} {in_flight:>6} in flight: {rate:.2} M/s, {:.1} messages a datagram, {:.1} \
                 datagrams a call, {} runs lost",
                metrics.frames_in as f64 / metrics.datagrams_in.max(1) as f64,
                metrics.datagrams_out as f64 / metrics.writes.max(1) as f64,
                metrics.kernel_drops,
            )?;
        }
    }
    Ok(())
}

fn measure(
    codec: &str,
    is_one_way: bool,
    in_flight: u64,
    seconds: u64,
) -> Result<(f64, Metrics), Box<dyn std::error::Error>> {
    let codec = AnyCodec::by_name(codec)?;
    let arrived = Arc::new(AtomicU64::new(0));
    let server = Server::builder()
        .codec(codec.clone())
        .listen("udp://127.0.0.1:0")?
        .start(|_| {
            let arrived = Arc::clone(&arrived);
            move |cx: &mut Context<'_>, message: Message<'_>| {
                if is_one_way {
                    count(&arrived);
                    return Ok(());
                }
                cx.reply(message.payload)
            }
        })?;
    let target = server.to_string().parse::<Address>()?.resolve()?;
    let sender = Server::builder().codec(codec).start(|_| Sender {
        target: Some(target.clone()),
        session: None,
        in_flight,
        is_one_way,
        sent: 0,
        arrived: Arc::clone(&arrived),
    })?;
    std::thread::sleep(Duration::from_millis(300));
    let (before, started) = (arrived.load(Ordering::Relaxed), Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let count = arrived.load(Ordering::Relaxed) - before;
    let rate = count as f64 / started.elapsed().as_secs_f64() / 1e6;
    let mut metrics = server.metrics();
    let sent = sender.metrics();
    metrics.datagrams_out = sent.datagrams_out;
    metrics.writes = sent.writes;
    Ok((rate, metrics))
}

/// Maximum messages in flight: the runs of 64 that a usual receive buffer holds.
const ONE_WAY_MAX: u64 = 4_096;

const MESSAGE: Message<'static> = Message::new(Kind::OneWay, 0, &[7; 32]);
