//! nats-server, a broker. Requesters and responders are its clients, and both are in the driver.
//!
//! `echo` and `rpc`: connections that send requests, and one that answers all of them. `ingest`: connections that
//! publish and one subscriber. `pubsub`: the same with any number of both. In `fanout` the benchmark's subscriber is
//! the client. The driver writes the bytes of the protocol itself, because NATS's own clients are several times slower.

mod client;

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::rc::Rc;

use anyhow::{Context, Result};
use peer_common::external::{become_server, version_of};
use peer_common::pipe::{self, Pipe, runtime};
use peer_common::pubsub;
use peer_common::tls::Files;
use peer_common::{
    Console, Description, Driver, Exchange, Intake, Measured, Meter, Peer, Source, Window, Work,
    address, not_offered, now_ns, offer,
};
use tokio::task::{JoinSet, LocalSet, yield_now};

use crate::client::Client;

fn main() -> ExitCode {
    peer_common::run(&Nats)
}

struct Nats;

impl Peer for Nats {
    fn describe(&self) -> Result<Description> {
        let server = root()?.join(SERVER);
        Ok(Description {
            name: "nats".to_owned(),
            version: version_of(&server.to_string_lossy(), "--version")?,
            offers: vec![
                offer("echo", &["tcp", "tls"], "", Driver::Own),
                offer("rpc", &["tcp"], "", Driver::Own),
                offer("ingest", &["tcp", "tls"], "", Driver::Own),
                offer("pubsub", &["tcp"], "", Driver::Own),
                offer("fanout", &["tcp"], "", Driver::Nats),
                offer("cluster", &["tcp"], "", Driver::Nats),
            ],
        })
    }

    fn serve(&self, work: &Work, _console: &Console) -> Result<()> {
        let (root, port) = (root()?, address::free_port()?);
        let configuration = match work.transport.as_str() {
            "tcp" => root.join(CONFIGURATION),
            "tls" => with_tls(&root.join(CONFIGURATION), port)?,
            _ => return Err(not_offered(work)),
        };
        let mut server = Command::new(root.join(SERVER));
        server.args(["--addr", "127.0.0.1", "--port", &port.to_string()]);
        server.arg("--config").arg(configuration);
        // The server's log would go to standard error, which is for errors only.
        server.args(["--log", "/dev/null"]);
        become_server(server, &format!("{}://127.0.0.1:{port}", work.transport))?;
        Ok(())
    }

    fn drive(&self, address: &str, work: &Work) -> Result<Measured> {
        let runtime = runtime()?;
        match work.suite.as_str() {
            "echo" | "rpc" => runtime.block_on(ask(address, work)),
            "pubsub" => runtime.block_on(topic(address, work)),
            "ingest" => LocalSet::new().block_on(&runtime, ingest(address, work)),
            _ => Err(not_offered(work)),
        }
    }
}

/// Writes the configuration with TLS. The handshake comes first: by default the server speaks before it, in plain text.
fn with_tls(configuration: &Path, port: u16) -> Result<PathBuf> {
    let files = Files::write(port)?;
    let text = fs::read_to_string(configuration).context("the configuration")?;
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let tls = format!(
        "tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", handshake_first: true }}"
    );
    let path = std::env::temp_dir().join(format!("tidewire-peer-{port}-nats.conf"));
    fs::write(&path, format!("{text}\n{tls}\n")).context("writing the configuration")?;
    Ok(path)
}

async fn ask(address: &str, work: &Work) -> Result<Measured> {
    let exchange = Exchange::of(work)?;
    let answering = Client::connect(address, Some("q")).await?;
    tokio::spawn(answer(answering, exchange));
    let mut pipes = Vec::with_capacity(work.connections);
    for number in 0..work.connections {
        let inbox = format!("r{number}");
        let client = Client::connect(address, Some(&inbox)).await?;
        pipes.push(Asking { client, inbox });
    }
    pipe::drive(pipes, work).await
}

/// Answers until the server is gone, which happens when the driver ends.
async fn answer(mut client: Client, exchange: Exchange) -> Result<()> {
    let mut answers = Vec::new();
    let mut body = Vec::new();
    loop {
        client
            .receive(|reply_to, payload| {
                body.clear();
                body.extend_from_slice(payload);
                exchange.answer(&mut body);
                client::append_publication(&mut answers, reply_to, b"", &body);
            })
            .await?;
        client.write(&answers).await?;
        answers.clear();
    }
}

/// A connection that sends requests and receives the replies on a subject of its own.
struct Asking {
    client: Client,
    inbox: String,
}

impl Pipe for Asking {
    async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.client.publish(b"q", self.inbox.as_bytes(), request);
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        self.client.flush().await
    }

    async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.client.receive(|_, payload| take(payload)).await
    }
}

/// Publishers and subscribers of one subject.
async fn topic(address: &str, work: &Work) -> Result<Measured> {
    let mut subscribers = Vec::with_capacity(work.subscribers);
    for _ in 0..work.subscribers {
        subscribers.push(OnTopic(Client::connect(address, Some("t")).await?));
    }
    let mut publishers = Vec::with_capacity(work.publishers);
    for _ in 0..work.publishers {
        publishers.push(OnTopic(Client::connect(address, None).await?));
    }
    pubsub::drive(publishers, subscribers, work).await
}

/// A connection that publishes to the subject or subscribes to it.
struct OnTopic(Client);

impl Pipe for OnTopic {
    async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.0.publish(b"t", b"", request);
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        self.0.flush().await
    }

    async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.0.receive(|_, payload| take(payload)).await
    }
}

/// One-way messages. The number in flight is bounded, because the broker itself would take all of them into memory.
async fn ingest(address: &str, work: &Work) -> Result<Measured> {
    let mut subscriber = Client::connect(address, Some("i")).await?;
    let mut clients = Vec::with_capacity(work.connections);
    for _ in 0..work.connections {
        clients.push(Client::connect(address, None).await?);
    }
    let window = Window::begin(work);
    let come = Rc::new(Cell::new(0));
    let sent = Rc::new(Cell::new(0));
    let mut publishers = JoinSet::new();
    for (connection, client) in clients.into_iter().enumerate() {
        let source = Source::new(work, connection)?;
        let (window, sent, come) = (window.clone(), Rc::clone(&sent), Rc::clone(&come));
        publishers.spawn_local(publish(client, source, window, sent, come));
    }
    let mut intake = Intake::new(work);
    let mut meter = Meter::new(window.clone());
    let until_end = std::time::Duration::from_nanos(window.until_ns().saturating_sub(now_ns()));
    // The wait has an end. Messages that have not arrived by then are lost.
    let _ = tokio::time::timeout(until_end + PATIENCE, async {
        while !window.is_over(now_ns()) || come.get() < sent.get() {
            let before = intake.right();
            let mut count = 0;
            let received = subscriber.receive(|_, payload| {
                intake.take(payload);
                count += 1;
            });
            received.await?;
            come.set(come.get() + count);
            meter.count_untimed(intake.right() - before, now_ns());
        }
        anyhow::Ok(())
    })
    .await;
    while let Some(ended) = publishers.join_next().await {
        ended.context("a task of the driver")??;
    }
    meter.count_lost((sent.get() - intake.right()).max(intake.wrong()));
    Ok(meter.measured())
}

async fn publish(
    mut client: Client,
    mut source: Source,
    window: Window,
    sent: Rc<Cell<u64>>,
    come: Rc<Cell<u64>>,
) -> Result<()> {
    while !window.is_over(now_ns()) {
        if sent.get() - come.get() > AHEAD_MAX {
            yield_now().await;
            continue;
        }
        for _ in 0..BATCH_MESSAGES {
            client.publish(b"i", b"", source.message());
        }
        sent.set(sent.get() + BATCH_MESSAGES);
        client.flush().await?;
    }
    Ok(())
}

/// The directory `peers`. This program is in its directory `bin`.
fn root() -> Result<PathBuf> {
    let program = std::env::current_exe().context("the path of this program")?;
    let root = program.parent().and_then(|bin| bin.parent());
    root.map(PathBuf::from)
        .context("this program is not in bench/peers/bin")
}

/// The path of the server that `bench/peers/setup` installs.
const SERVER: &str = "tools/nats-server";

/// The configuration of the server.
const CONFIGURATION: &str = "nats/nats.conf";

/// Messages of one write.
const BATCH_MESSAGES: u64 = 256;

/// The most messages in flight, of all connections.
const AHEAD_MAX: u64 = 200_000;

/// The longest wait for the last messages.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);
