//! redis-server, whose protocol allows any number of commands in flight.
//!
//! `echo` is PING with a payload, which the server returns, as `redis-benchmark -P` measures it. The driver writes the
//! bytes of the protocol itself, because every client library would be slower. `pubsub` is PUBLISH and SUBSCRIBE. In
//! `fanout` the benchmark's subscriber is the client.

mod topic;

use std::io;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use peer_common::external::{become_server, version_of};
use peer_common::pipe::{self, Pipe, runtime};
use peer_common::pubsub;
use peer_common::stream::Stream;
use peer_common::tls::Files;
use peer_common::{
    Console, Description, Driver, Measured, Peer, Work, address, not_offered, offer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn main() -> ExitCode {
    peer_common::run(&Redis)
}

struct Redis;

impl Peer for Redis {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            name: "redis".to_owned(),
            version: version_of(SERVER, "--version")?,
            offers: vec![
                offer("echo", &["tcp", "ipc", "tls"], "", Driver::Own),
                offer("pubsub", &["tcp", "ipc"], "", Driver::Own),
                offer("fanout", &["tcp", "ipc"], "", Driver::Redis),
            ],
        })
    }

    fn serve(&self, work: &Work, _console: &Console) -> Result<()> {
        let mut server = Command::new(SERVER);
        server.args(SETTINGS.split_whitespace());
        // A line of words cannot express an empty value.
        server.args(["--save", ""]);
        let address = match work.transport.as_str() {
            "tcp" => {
                let port = address::free_port()?;
                server.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
                format!("tcp://127.0.0.1:{port}")
            }
            "tls" => {
                let port = address::free_port()?;
                let files = Files::write(port)?;
                server.args([
                    "--bind",
                    "127.0.0.1",
                    "--port",
                    "0",
                    "--tls-auth-clients",
                    "no",
                ]);
                server.args(["--tls-port", &port.to_string()]);
                server.arg("--tls-cert-file").arg(files.certificate);
                server.arg("--tls-key-file").arg(files.key);
                server.arg("--tls-ca-cert-file").arg(files.authority);
                format!("tls://127.0.0.1:{port}")
            }
            "ipc" => {
                let path = address::socket_path();
                server.args(["--port", "0", "--unixsocket"]).arg(&path);
                format!("ipc://{}", path.display())
            }
            _ => return Err(not_offered(work)),
        };
        become_server(server, &address)?;
        Ok(())
    }

    fn drive(&self, address: &str, work: &Work) -> Result<Measured> {
        let runtime = runtime()?;
        match work.suite.as_str() {
            "echo" => runtime.block_on(ping(address, work)),
            "pubsub" => runtime.block_on(topic(address, work)),
            _ => Err(not_offered(work)),
        }
    }
}

async fn ping(address: &str, work: &Work) -> Result<Measured> {
    let mut pipes = Vec::with_capacity(work.connections);
    for _ in 0..work.connections {
        pipes.push(Connection::open(address, work.message_bytes).await?);
    }
    pipe::drive(pipes, work).await
}

async fn topic(address: &str, work: &Work) -> Result<Measured> {
    let bytes = work.message_bytes;
    let mut subscribers = Vec::with_capacity(work.subscribers);
    for _ in 0..work.subscribers {
        subscribers.push(topic::Connection::subscriber(address, bytes).await?);
    }
    let mut publishers = Vec::with_capacity(work.publishers);
    for _ in 0..work.publishers {
        publishers.push(topic::Connection::publisher(address, bytes).await?);
    }
    pubsub::drive(publishers, subscribers, work).await
}

/// A connection on which PINGs are pipelined.
struct Connection {
    stream: Stream,
    /// The bytes before every payload, in a command and in a reply.
    command_head: Vec<u8>,
    reply_head: Vec<u8>,
    payload_bytes: usize,
    output: Vec<u8>,
    input: Vec<u8>,
    filled: usize,
}

impl Connection {
    async fn open(address: &str, payload_bytes: usize) -> Result<Self> {
        Ok(Self {
            stream: Stream::connect(address).await?,
            command_head: format!("*2\r\n$4\r\nPING\r\n${payload_bytes}\r\n").into_bytes(),
            reply_head: format!("${payload_bytes}\r\n").into_bytes(),
            payload_bytes,
            output: Vec::new(),
            input: vec![0; INPUT_BYTES],
            filled: 0,
        })
    }
}

impl Pipe for Connection {
    async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.output.extend_from_slice(&self.command_head);
        self.output.extend_from_slice(request);
        self.output.extend_from_slice(END);
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        self.stream
            .write_all(&self.output)
            .await
            .context("writing commands")?;
        self.output.clear();
        self.stream.flush().await.context("writing commands")
    }

    async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let reply_bytes = self.reply_head.len() + self.payload_bytes + END.len();
        if self.input.len() < 2 * reply_bytes {
            self.input.resize(2 * reply_bytes, 0);
        }
        while self.filled < reply_bytes {
            let count = self.stream.read(&mut self.input[self.filled..]).await?;
            if count == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof)).context("redis-server");
            }
            self.filled += count;
        }
        let replies = self.input[..self.filled].chunks_exact(reply_bytes);
        let rest = replies.remainder().len();
        for reply in replies {
            let payload = reply
                .strip_prefix(self.reply_head.as_slice())
                .and_then(|reply| reply.strip_suffix(END));
            let Some(payload) = payload else {
                bail!("a reply that is none: {}", String::from_utf8_lossy(reply));
            };
            take(payload);
        }
        self.input.copy_within(self.filled - rest..self.filled, 0);
        self.filled = rest;
        Ok(())
    }
}

/// The server of Debian's package `redis-server`.
const SERVER: &str = "redis-server";

/// Disables writing to disk, and never disconnects a slow subscriber, whatever memory it costs.
const SETTINGS: &str = "--appendonly no --daemonize no --maxclients 20000 --tcp-backlog 4096 \
     --client-output-buffer-limit pubsub 0 0 0 --loglevel warning";

/// The end of an element.
const END: &[u8] = b"\r\n";

/// Size of a read: many replies at once.
const INPUT_BYTES: usize = 64 * 1024;
