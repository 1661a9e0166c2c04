//! Market data for fast and slow subscribers: `cargo run --release -p tidewire-examples --bin market_data`
//!
//! A feed publishes 200,000 updates a second of 10,000 symbols to 100 subscribers. Every tenth subscriber receives all
//! symbols, the others one exchange. A slow subscriber gets the latest update of each symbol, and the number of updates
//! that it missed. The first subscriber reads nothing until the feed has ended, like a program that is stopped in a
//! debugger.
//!
//! Arguments: address, symbols, updates of each symbol, updates per second, subscribers.

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use tidewire::socket::SocketOptions;
use tidewire::{Client, Policy, PubSub, Server, Subscription, TopicEvent, WhenEventsFull};
use tokio_stream::StreamExt;

/// The settings of the feed.
#[derive(Clone, Copy)]
struct Feed {
    symbols: u64,
    /// Updates of each symbol.
    rounds: u64,
    updates_per_second: u64,
}

impl Feed {
    async fn run(self, client: &Client) -> Result<(), Box<dyn Error>> {
        let topic = |symbol| format!("md.{}.{symbol}", symbol % EXCHANGES);
        let topics: Vec<String> = (0..self.symbols).map(topic).collect();
        let updates_per_tick = self.updates_per_second.div_ceil(TICKS_PER_SECOND);
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / TICKS_PER_SECOND as u32);
        let mut published = 0;
        for round in 1..=self.rounds {
            for topic in &topics {
                // The round serves as the price.
                client.publish(topic, &round.to_be_bytes())?;
                published += 1;
                if published % updates_per_tick == 0 {
                    // Waiting for this keeps the feed from running ahead of its server.
                    client.flush().await?;
                    ticks.tick().await;
                }
            }
        }
        client.flush().await?;
        Ok(())
    }

    /// Returns the pattern of the subscriber with this number, and how many symbols match it.
    fn pattern(self, subscriber: u64) -> (String, u64) {
        match subscriber % EXCHANGES {
            0 => ("md.>".to_owned(), self.symbols),
            exchange => {
                let matching = (0..self.symbols).filter(|symbol| symbol % EXCHANGES == exchange);
                (format!("md.{exchange}.*"), matching.count() as u64)
            }
        }
    }

    /// Reads updates until each has arrived or is reported as lost. Returns a summary.
    async fn follow(self, mut events: Subscription, symbols: u64) -> String {
        let (mut latest, mut delivered, mut lost) = (HashMap::new(), 0, 0);
        let published = symbols * self.rounds;
        while delivered + lost < published {
            match events.next().await {
                Some(TopicEvent::Message(update)) => {
                    let round = update.payload.try_into().map_or(0, u64::from_be_bytes);
                    latest.insert(update.topic, round);
                    delivered += 1;
                }
                // The server reports `Gap`, this client reports `Lost`.
                Some(TopicEvent::Gap { lost: count } | TopicEvent::Lost { count }) => lost += count,
                // The connection ended. The number of lost updates is unknown.
                Some(_) | None => break,
            }
        }
        let newest = latest.values().filter(|round| **round == self.rounds);
        format!(
            "{}: {} of {symbols} symbols at their newest, {delivered} delivered + {lost} reported lost of {published}",
            events.pattern(),
            newest.count(),
        )
    }
}

async fn subscribe(address: &str, pattern: &str) -> Result<Subscription, Box<dyn Error>> {
    let client = Client::builder().socket_options(small_buffers());
    let client = client.connect(address).await?;
    let events = client
        .subscribe(pattern)
        .policy(Policy::ConflateByTopic)
        // The client pauses reading, so the server conflates by topic and sends no outdated update.
        .when_events_full(WhenEventsFull::PauseReading)
        .events_max(1_000);
    Ok(events.await?)
}

/// Small socket buffers: updates that wait there cannot be replaced by newer updates.
fn small_buffers() -> SocketOptions {
    SocketOptions {
        send_buffer_bytes: Some(64 * 1024),
        receive_buffer_bytes: Some(64 * 1024),
        ..SocketOptions::default()
    }
}

async fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let number = |index: usize, default| arguments.get(index).map_or(Ok(default), |it| it.parse());
    let feed = Feed {
        symbols: number(1, 10_000)?,
        rounds: number(2, 100)?,
        updates_per_second: number(3, 200_000)?,
    };
    let address = arguments
        .first()
        .map_or("tcp://127.0.0.1:0", String::as_str);
    let server = Server::builder().socket_options(small_buffers());
    let server = server.listen(address)?.start_one(PubSub::new())?;
    println!("listening on {server}");
    let address = server.to_string();
    let stalled = subscribe(&address, &feed.pattern(0).0).await?;
    let mut others = Vec::new();
    for subscriber in 1..number(4, 100)? {
        let (pattern, symbols) = feed.pattern(subscriber);
        let events = subscribe(&address, &pattern).await?;
        others.push(tokio::spawn(feed.follow(events, symbols)));
    }
    let start = Instant::now();
    feed.run(&Client::connect(&address).await?).await?;
    println!("published in {:.1} s", start.elapsed().as_secs_f64());
    println!("{}", feed.follow(stalled, feed.symbols).await);
    for other in others {
        println!("{}", other.await?);
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Runtime::new();
    tidewire_examples::report(match runtime {
        Ok(runtime) => runtime.block_on(run(&arguments)),
        Err(error) => Err(error.into()),
    })
}

const EXCHANGES: u64 = 10;
const TICKS_PER_SECOND: u64 = 100;
