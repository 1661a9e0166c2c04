//! Round trips a second between two lanes of one process, over each transport: 32-byte requests, a fixed number in
//! flight on one connection.
//!
//! `cargo run --release -p tidewire --example in_lane_round_trips [IN_FLIGHT] [SECONDS]`. A rough figure to compare
//! transports with each other on one machine; the benchmarks proper belong to the load instrument.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidewire::{Address, Context, Endpoint, HandlerResult, Kind, Message, Server, Service};

/// Keeps a number of requests in flight and counts the replies.
struct Asker {
    target: Option<Endpoint>,
    in_flight: u32,
    replies: Arc<AtomicU64>,
}

impl Service for Asker {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        if let Some(target) = self.target.take()
            && let Err(error) = cx.connect(&target, 0)
        {
            tracing::error!(%error, "cannot connect");
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        for id in 1..=self.in_flight {
            // A refused send would be seen as a rate of zero.
            let _ = cx.send(&Message::with_id(Kind::Request, 0, id, &[0; 32]));
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        // One writer, so this needs no locked instruction.
        let replies = self.replies.load(Ordering::Relaxed);
        self.replies.store(replies + 1, Ordering::Relaxed);
        Ok(cx.send(&Message::with_id(
            Kind::Request,
            0,
            message.id,
            message.payload,
        ))?)
    }
}

fn echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    cx.reply(message.payload)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let in_flight = arguments.next().map_or(Ok(128), |text| text.parse())?;
    let seconds = arguments.next().map_or(Ok(2), |text| text.parse())?;
    let socket = std::env::temp_dir().join(format!("tidewire-{}.sock", std::process::id()));
    let ipc = format!("ipc://{}", socket.display());
    for address in ["tcp://127.0.0.1:0", &ipc, "inproc://echo"] {
        let server = tidewire::serve(address, echo)?;
        let replies = Arc::new(AtomicU64::new(0));
        let target = server.to_string().parse::<Address>()?.resolve()?;
        let asker = Server::builder().start(|_| Asker {
            target: Some(target.clone()),
            in_flight,
            replies: Arc::clone(&replies),
        })?;
        std::thread::sleep(Duration::from_millis(300));
        let (before, started) = (replies.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(Duration::from_secs(seconds));
        let count = replies.load(Ordering::Relaxed) - before;
        let rate = count as f64 / started.elapsed().as_secs_f64() / 1e6;
        writeln!(
            std::io::stdout(),
            "{address:<24} {in_flight} in flight: {rate:.2} M round trips/s"
        )?;
        drop(asker);
        drop(server);
    }
    Ok(())
}
