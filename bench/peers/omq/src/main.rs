//! OMQ: ZeroMQ's patterns in Rust, on tokio.
//!
//! `echo` and `rpc` are DEALER and ROUTER, or CLIENT and SERVER under the name `omq-server`. `ingest` is PUSH and PULL.
//! `fanout` is a PUB that waits instead of dropping; mode `drops` is PUB with its defaults. Sockets run on the
//! program's own single-threaded runtime, so that no thread has to be woken.

mod inproc;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use omq_tokio::message::Payload;
use omq_tokio::{Message, Options, Socket, SocketType};
use peer_common::pipe::{self, Pipe, runtime};
use peer_common::{
    Console, Description, Driver, Exchange, Intake, Measured, Peer, Publication, Source, Window,
    Work, address, locked_version, not_offered, now_ns, offer, sent,
};

fn main() -> ExitCode {
    let program = std::env::args().next().unwrap_or_default();
    let is_server = program.ends_with(SERVER_NAME);
    peer_common::run(&if is_server {
        CLIENT_SERVER
    } else {
        DEALER_ROUTER
    })
}

/// A name under which OMQ takes part.
struct Omq {
    name: &'static str,
    asking: SocketType,
    answering: SocketType,
}

const DEALER_ROUTER: Omq = Omq {
    name: "omq",
    asking: SocketType::Dealer,
    answering: SocketType::Router,
};

const CLIENT_SERVER: Omq = Omq {
    name: SERVER_NAME,
    asking: SocketType::Client,
    answering: SocketType::Server,
};

impl Peer for Omq {
    fn describe(&self) -> Result<Description> {
        let streams = ["tcp", "ipc"];
        let mut offers = vec![
            offer("echo", &streams, "", Driver::Own),
            offer("rpc", &streams, "", Driver::Own),
        ];
        if self.name == DEALER_ROUTER.name {
            offers.push(offer("echo", &["inproc"], "", Driver::Own));
            offers.push(offer("ingest", &["tcp", "ipc", "inproc"], "", Driver::Own));
            offers.push(offer("fanout", &streams, "", Driver::Zmtp));
            offers.push(offer("fanout", &streams, "drops", Driver::Zmtp));
        }
        Ok(Description {
            name: self.name.to_owned(),
            version: locked_version("omq-tokio")?,
            offers,
        })
    }

    fn serve(&self, work: &Work, console: &Console) -> Result<()> {
        runtime()?.block_on(async {
            match work.suite.as_str() {
                "echo" | "rpc" => {
                    let (socket, address) = bind(self.answering, options(), work, console).await?;
                    console.ready(&address)?;
                    answer(&socket, Exchange::of(work)?).await
                }
                "ingest" => {
                    let options = options().recv_batching(true);
                    let (socket, address) = bind(SocketType::Pull, options, work, console).await?;
                    let mut intake = Intake::new(work);
                    console.count_by(intake.counts());
                    console.ready(&address)?;
                    pull(&socket, &mut intake).await
                }
                "fanout" => {
                    let mut options = options();
                    options.xpub_nodrop = work.mode != "drops";
                    let (socket, address) = bind(SocketType::Pub, options, work, console).await?;
                    console.ready(&address)?;
                    publish(&socket, work).await
                }
                _ => Err(not_offered(work)),
            }
        })
    }

    fn drive(&self, address: &str, work: &Work) -> Result<Measured> {
        if work.transport == "inproc" {
            return inproc::drive(work);
        }
        runtime()?.block_on(async {
            match work.suite.as_str() {
                "echo" | "rpc" => {
                    let mut pipes = Vec::with_capacity(work.connections);
                    for _ in 0..work.connections {
                        let socket = connect(self.asking, address).await?;
                        pipes.push(Asking::new(Arc::new(socket)));
                    }
                    pipe::drive(pipes, work).await
                }
                "ingest" => push(address, work).await,
                _ => Err(not_offered(work)),
            }
        })
    }
}

/// Options of all sockets. Linger is set, because by default a socket that closes drops its queued messages.
fn options() -> Options {
    Options::default().linger(LINGER)
}

async fn bind(
    kind: SocketType,
    options: Options,
    work: &Work,
    console: &Console,
) -> Result<(Socket, String)> {
    let socket = Socket::new(kind, options.max_pending_handshakes(HANDSHAKES_MAX));
    let wish = match work.transport.as_str() {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        "ipc" => {
            let path = address::socket_path();
            console.remove_at_end(&path);
            format!("ipc://{}", path.display())
        }
        _ => return Err(not_offered(work)),
    };
    let bound = socket.bind(wish.as_str()).await.context("binding")?;
    Ok((socket, bound.to_string()))
}

async fn connect(kind: SocketType, address: &str) -> Result<Socket> {
    let socket = Socket::new(kind, options());
    socket.connect(address).await.context("connecting")?;
    let ready = socket.wait_connected(1, CONNECT_MAX).await?;
    ensure!(
        ready >= 1,
        "no connection to {address} within {CONNECT_MAX:?}"
    );
    Ok(socket)
}

/// Answers requests. Requests that come together are answered together.
async fn answer(socket: &Socket, exchange: Exchange) -> Result<()> {
    let mut messages = Vec::with_capacity(BATCH_MESSAGES);
    let mut body = Vec::new();
    loop {
        socket.recv_many_into(BATCH_MESSAGES, &mut messages).await?;
        for mut message in messages.drain(..) {
            if exchange == Exchange::Add {
                body.clear();
                body.extend(message.last_payload().iter().flat_map(|p| p.as_slice()));
                exchange.answer(&mut body);
                message.replace_last_payload(Payload::from_slice(&body));
            }
            socket.send(message).await?;
        }
    }
}

/// Takes one-way messages.
async fn pull(socket: &Socket, intake: &mut Intake) -> Result<()> {
    let mut messages = Vec::with_capacity(BATCH_MESSAGES);
    loop {
        socket.recv_many_into(BATCH_MESSAGES, &mut messages).await?;
        for message in messages.drain(..) {
            intake.take(message.part_slice(0).unwrap_or_default());
        }
        intake.publish();
    }
}

/// Sends one-way messages over all connections, each in a task of its own.
async fn push(address: &str, work: &Work) -> Result<Measured> {
    let mut sockets = Vec::with_capacity(work.connections);
    for _ in 0..work.connections {
        sockets.push(connect(SocketType::Push, address).await?);
    }
    let window = Window::begin(work);
    let mut tasks = tokio::task::JoinSet::new();
    for (connection, socket) in sockets.into_iter().enumerate() {
        let (source, window) = (Source::new(work, connection)?, window.clone());
        tasks.spawn(push_until(socket, source, window));
    }
    let mut messages = 0;
    while let Some(ended) = tasks.join_next().await {
        messages += ended.context("a task of the driver")??;
    }
    Ok(sent(messages, &window))
}

/// Sends until the window ends, and waits until the queue is sent. Returns the number of sent messages.
async fn push_until(socket: Socket, mut source: Source, window: Window) -> Result<u64> {
    while !window.is_over(now_ns()) {
        for _ in 0..BATCH_MESSAGES {
            let message = Message::from_slice(source.message());
            socket.send(message).await.context("sending")?;
        }
    }
    socket.close().await.context("closing")?;
    Ok(source.sent())
}

/// Publishes at the work's rate as soon as all have subscribed.
async fn publish(socket: &Socket, work: &Work) -> Result<()> {
    let subscribers = work.subscribers as u64;
    let there = socket.wait_subscribed(subscribers, SUBSCRIBE_MAX).await?;
    ensure!(
        there >= subscribers,
        "only {there} of {subscribers} subscribed"
    );
    let mut publication = Publication::begin(work)?;
    loop {
        for _ in 0..publication.due(now_ns()) {
            let message = Message::from_slice(publication.message());
            socket.send(message).await.context("publishing")?;
        }
        match publication.until_tick(now_ns()) {
            pause if pause.is_zero() => tokio::task::yield_now().await,
            pause => tokio::time::sleep(pause).await,
        }
    }
}

/// A connection that sends requests.
struct Asking {
    socket: Arc<Socket>,
    replies: Vec<Message>,
}

impl Asking {
    fn new(socket: Arc<Socket>) -> Self {
        Self {
            socket,
            replies: Vec::with_capacity(BATCH_MESSAGES),
        }
    }
}

impl Pipe for Asking {
    async fn send(&mut self, request: &[u8]) -> Result<()> {
        let message = Message::single(Bytes::copy_from_slice(request));
        self.socket.send(message).await.context("sending")
    }

    async fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let socket = &self.socket;
        socket
            .recv_many_into(BATCH_MESSAGES, &mut self.replies)
            .await?;
        for reply in self.replies.drain(..) {
            take(reply.part_slice(0).unwrap_or_default());
        }
        Ok(())
    }
}

/// The name of the variant with CLIENT and SERVER.
const SERVER_NAME: &str = "omq-server";

/// The most messages that are taken at once.
const BATCH_MESSAGES: usize = 256;

/// The longest time that a closing socket waits for its queued messages.
const LINGER: Duration = Duration::from_secs(3);

/// The longest time to connect.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The longest time for all subscriptions.
const SUBSCRIBE_MAX: Duration = Duration::from_secs(60);

/// All subscribers connect at once. With the default of 128 some would have to try again.
const HANDSHAKES_MAX: usize = 4096;
