//! tonic: gRPC. `echo` is one stream in both directions for each connection, `ingest` one stream to the server, `rpc`
//! is unary calls.

mod ingest;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::FutureExt;
use parking_lot::Mutex;
use peer_common::pipe::{self, Call, Pipe, runtime};
use peer_common::stream::Listener;
use peer_common::tls::{Files, SERVER_NAME};
use peer_common::{
    Console, Description, Driver, Intake, Measured, Peer, Work, address, locked_version,
    not_offered, offer, terms,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{
    Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig,
};
use tonic::{Request, Response, Status, Streaming};

use crate::generated::bench_client::BenchClient;
use crate::generated::bench_server::{Bench, BenchServer};

#[allow(
    clippy::all,
    clippy::too_many_lines,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "made by tonic-build"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/bench.Bench.rs"));
}

fn main() -> ExitCode {
    peer_common::run(&Tonic)
}

/// The message of `echo`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Payload {
    /// A number and filling.
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: Bytes,
}

/// The request of `rpc`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Terms {
    /// One term.
    #[prost(sfixed32, tag = "1")]
    pub left: i32,
    /// The other.
    #[prost(sfixed32, tag = "2")]
    pub right: i32,
}

/// The reply of `rpc`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Sum {
    /// The sum, which wraps.
    #[prost(sfixed32, tag = "1")]
    pub sum: i32,
}

/// The reply to a stream of one-way messages.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Nothing {}

struct Service {
    intake: Arc<Mutex<Intake>>,
}

#[tonic::async_trait]
impl Bench for Service {
    type EchoStream = Streaming<Payload>;

    async fn echo(
        &self,
        request: Request<Streaming<Payload>>,
    ) -> Result<Response<Streaming<Payload>>, Status> {
        // The server returns the request's stream itself, which is the fastest way.
        Ok(Response::new(request.into_inner()))
    }

    async fn add(&self, request: Request<Terms>) -> Result<Response<Sum>, Status> {
        let Terms { left, right } = request.into_inner();
        let sum = left.wrapping_add(right);
        Ok(Response::new(Sum { sum }))
    }

    async fn take(
        &self,
        request: Request<Streaming<Payload>>,
    ) -> Result<Response<Nothing>, Status> {
        ingest::take_all(request.into_inner(), &self.intake).await?;
        Ok(Response::new(Nothing {}))
    }
}

struct Tonic;

impl Peer for Tonic {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            name: "tonic".to_owned(),
            version: locked_version("tonic")?,
            offers: vec![
                offer("echo", &STREAMS, "", Driver::Own),
                offer("ingest", &STREAMS, "", Driver::Own),
                offer("rpc", &["tcp", "ipc"], "", Driver::Own),
            ],
        })
    }

    fn serve(&self, work: &Work, console: &Console) -> Result<()> {
        runtime()?.block_on(async {
            // The library's own TLS listens on a plain socket.
            let is_tls = work.transport == "tls";
            let transport = if is_tls { "tcp" } else { &work.transport };
            let (listener, mut address) = Listener::bind(transport, console).await?;
            let intake = Intake::new(work);
            console.count_by(intake.counts());
            let service = Service {
                intake: Arc::new(Mutex::new(intake)),
            };
            let mut server = Server::builder();
            if is_tls {
                address = address.replace("tcp://", "tls://");
                let files = Files::write(port(&address)?)?;
                let read = |path| std::fs::read(path).context("the certificate");
                let identity = Identity::from_pem(read(files.certificate)?, read(files.key)?);
                server = server.tls_config(ServerTlsConfig::new().identity(identity))?;
            }
            let server = server
                .initial_stream_window_size(WINDOW_BYTES)
                .initial_connection_window_size(WINDOW_BYTES)
                .add_service(BenchServer::new(service));
            console.ready(&address)?;
            match listener {
                Listener::Tls(..) => return Err(not_offered(work)),
                Listener::Tcp(listener) => {
                    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
                    server.serve_with_incoming(incoming).await?;
                }
                Listener::Ipc(listener) => {
                    let incoming = UnixListenerStream::new(listener);
                    server.serve_with_incoming(incoming).await?;
                }
            }
            Ok(())
        })
    }

    fn drive(&self, address: &str, work: &Work) -> Result<Measured> {
        runtime()?.block_on(async {
            let mut clients = Vec::with_capacity(work.connections);
            for _ in 0..work.connections {
                clients.push(connect(address).await?);
            }
            match work.suite.as_str() {
                "echo" => {
                    let mut pipes = Vec::with_capacity(clients.len());
                    for client in clients {
                        pipes.push(Echoing::open(client, work.in_flight).await?);
                    }
                    pipe::drive(pipes, work).await
                }
                "ingest" => ingest::send_all(clients, work).await,
                "rpc" => pipe::drive_calls(clients.into_iter().map(Adding).collect(), work).await,
                _ => Err(not_offered(work)),
            }
        })
    }
}

async fn connect(address: &str) -> Result<BenchClient<Channel>> {
    let is_tls = address.starts_with("tls://");
    let place = match address::split(address)? {
        (path, true) => format!("unix:{path}"),
        (host, false) if is_tls => format!("https://{host}"),
        (host, false) => format!("http://{host}"),
    };
    let mut endpoint = Endpoint::from_shared(place)?;
    if is_tls {
        let authority = std::fs::read(Files::of(port(address)?).authority);
        let authority = Certificate::from_pem(authority.context("the authority")?);
        let settings = ClientTlsConfig::new().ca_certificate(authority);
        endpoint = endpoint.tls_config(settings.domain_name(SERVER_NAME))?;
    }
    let channel = endpoint
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .connect()
        .await
        .with_context(|| format!("cannot connect to {address}"))?;
    Ok(BenchClient::new(channel))
}

/// The port of an address, by which the driver finds the files of the server.
fn port(address: &str) -> Result<u16> {
    let port = address
        .rsplit(':')
        .next()
        .and_then(|port| port.parse().ok());
    port.with_context(|| format!("{address} has no port"))
}

/// A stream in both directions.
struct Echoing {
    requests: mpsc::Sender<Payload>,
    replies: Streaming<Payload>,
}

impl Echoing {
    async fn open(mut client: BenchClient<Channel>, in_flight: usize) -> Result<Self> {
        let (requests, outgoing) = mpsc::channel(in_flight.max(1));
        let replies = client.echo(ReceiverStream::new(outgoing)).await?;
        Ok(Self {
            requests,
            replies: replies.into_inner(),
        })
    }
}

impl Pipe for Echoing {
    async fn send(&mut self, request: &[u8]) -> Result<()> {
        let bytes = Bytes::copy_from_slice(request);
        self.requests
            .send(Payload { bytes })
            .await
            .context("sending")
    }

    async fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut next = self.replies.message().await?;
        loop {
            take(&next.context("the stream ended")?.bytes);
            next = match self.replies.message().now_or_never() {
                Some(next) => next?,
                None => return Ok(()),
            };
        }
    }
}

/// A client of unary calls.
#[derive(Clone)]
struct Adding(BenchClient<Channel>);

impl Call for Adding {
    async fn call(&mut self, number: u64) -> Result<bool> {
        let (left, right) = terms(number);
        let reply = self.0.add(Terms { left, right }).await?.into_inner();
        Ok(reply.sum == left.wrapping_add(right))
    }
}

const STREAMS: [&str; 3] = ["tcp", "ipc", "tls"];

/// Flow-control windows with room for all messages in flight, so that HTTP/2 never waits for a window update.
const WINDOW_BYTES: u32 = 1024 * 1024;
