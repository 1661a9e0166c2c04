//! tarpc: remote calls in Rust's own types, over its fastest transport, bincode on a stream with lengths.
//!
//! `echo` and `rpc` differ only in the method. A call waits for its reply, so a task waits for each request in flight.

use std::future::ready;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use futures_util::StreamExt;
use peer_common::pipe::{self, Call, runtime};
use peer_common::stream::{Listener, Stream};
use peer_common::{
    Console, Description, Driver, Exchange, Measured, Peer, Work, locked_version, offer, terms,
};
use tarpc::context::{self, Context};
use tarpc::serde_transport;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::LengthDelimitedCodec;

fn main() -> ExitCode {
    peer_common::run(&Tarpc)
}

/// The benchmark's service.
#[tarpc::service]
trait Bench {
    /// Returns its payload.
    async fn echo(payload: Vec<u8>) -> Vec<u8>;

    /// Returns the sum, which wraps.
    async fn add(left: i32, right: i32) -> i32;
}

#[derive(Clone)]
struct Service;

impl Bench for Service {
    async fn echo(self, _: Context, payload: Vec<u8>) -> Vec<u8> {
        payload
    }

    async fn add(self, _: Context, left: i32, right: i32) -> i32 {
        left.wrapping_add(right)
    }
}

struct Tarpc;

impl Peer for Tarpc {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            name: "tarpc".to_owned(),
            version: locked_version("tarpc")?,
            offers: vec![
                offer("echo", &["tcp", "ipc"], "", Driver::Own),
                offer("rpc", &["tcp", "ipc"], "", Driver::Own),
            ],
        })
    }

    fn serve(&self, work: &Work, console: &Console) -> Result<()> {
        runtime()?.block_on(async {
            let (listener, address) = Listener::bind(&work.transport, console).await?;
            console.ready(&address)?;
            loop {
                let socket = listener.accept().await?;
                let channel = BaseChannel::new(
                    tarpc::server::Config {
                        pending_response_buffer: PENDING_MAX,
                    },
                    transport(socket),
                );
                let requests = channel.execute(Service.serve());
                tokio::spawn(requests.for_each(|response| {
                    tokio::spawn(response);
                    ready(())
                }));
            }
        })
    }

    fn drive(&self, address: &str, work: &Work) -> Result<Measured> {
        let exchange = Exchange::of(work)?;
        runtime()?.block_on(async {
            let mut clients = Vec::with_capacity(work.connections);
            for _ in 0..work.connections {
                let mut config = tarpc::client::Config::default();
                config.max_in_flight_requests = PENDING_MAX;
                config.pending_request_buffer = PENDING_MAX;
                let socket = Stream::connect(address).await?;
                let client = BenchClient::new(config, transport(socket)).spawn();
                clients.push(Calling { client, exchange });
            }
            pipe::drive_calls(clients, work).await
        })
    }
}

/// Requests or responses over a socket.
fn transport<Item, Sent>(
    socket: Stream,
) -> serde_transport::Transport<Stream, Item, Sent, Bincode<Item, Sent>>
where
    Item: for<'de> serde::Deserialize<'de>,
    Sent: serde::Serialize,
{
    let framed = LengthDelimitedCodec::builder().new_framed(socket);
    serde_transport::new(framed, Bincode::default())
}

/// A client whose calls go over one connection.
#[derive(Clone)]
struct Calling {
    client: BenchClient,
    exchange: Exchange,
}

impl Call for Calling {
    async fn call(&mut self, number: u64) -> Result<bool> {
        // The default deadline of a call is ten seconds, which is longer than a window.
        let context = context::current();
        match self.exchange {
            Exchange::Add => {
                let (left, right) = terms(number);
                let sum = self
                    .client
                    .add(context, left, right)
                    .await
                    .context("a call")?;
                Ok(sum == left.wrapping_add(right))
            }
            Exchange::Echo { bytes } => {
                let mut request = vec![0x5a; bytes];
                self.exchange.write_request(number, &mut request);
                let reply = self.client.echo(context, request).await.context("a call")?;
                Ok(self.exchange.is_reply(number, &reply))
            }
        }
    }
}

/// The most calls that wait on one connection.
const PENDING_MAX: usize = 1_024;
