//! tokio-tungstenite on one thread. Messages that are there are taken together, and one flush follows them.

use std::process::ExitCode;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use peer_common::pipe::runtime;
use peer_common::{
    Console, Description, Driver, Measured, Peer, Publication, Work, locked_version, not_offered,
    now_ns, offer,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_async};

fn main() -> ExitCode {
    peer_common::run(&Tungstenite)
}

struct Tungstenite;

impl Peer for Tungstenite {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            name: "tungstenite".to_owned(),
            version: locked_version("tokio-tungstenite")?,
            offers: vec![
                offer("fanout", &["ws"], "", Driver::Websocket),
                offer("echo", &["ws"], "each", Driver::Bare),
            ],
        })
    }

    fn serve(&self, work: &Work, console: &Console) -> Result<()> {
        LocalSet::new().block_on(&runtime()?, async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
            console.ready(&format!("ws://{}", listener.local_addr()?))?;
            match work.suite.as_str() {
                "echo" => loop {
                    spawn_local(echo(accept(&listener).await?));
                },
                "fanout" => publish(&listener, work).await,
                _ => Err(not_offered(work)),
            }
        })
    }

    fn drive(&self, _: &str, work: &Work) -> Result<Measured> {
        Err(not_offered(work))
    }
}

async fn accept(listener: &TcpListener) -> Result<WebSocketStream<TcpStream>> {
    let (stream, _) = listener.accept().await.context("accepting")?;
    stream.set_nodelay(true)?;
    accept_async(stream).await.context("the handshake")
}

/// Sends back all messages until the peer ends.
async fn echo(mut socket: WebSocketStream<TcpStream>) -> Result<(), Error> {
    while let Some(message) = socket.next().await {
        socket.feed(message?).await?;
        while let Some(Some(message)) = socket.next().now_or_never() {
            socket.feed(message?).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}

/// Publishes at the work's rate as soon as all subscribers are connected.
async fn publish(listener: &TcpListener, work: &Work) -> Result<()> {
    let mut subscribers: Vec<UnboundedSender<Bytes>> = Vec::with_capacity(work.subscribers);
    while subscribers.len() < work.subscribers {
        let socket = accept(listener).await?;
        // Unbounded: a slow subscriber costs memory but loses nothing.
        let (sender, messages) = unbounded_channel();
        spawn_local(write(socket, messages));
        subscribers.push(sender);
    }
    let mut publication = Publication::begin(work)?;
    loop {
        for _ in 0..publication.due(now_ns()) {
            let message = Bytes::copy_from_slice(publication.message());
            // The benchmark's subscriber notices a connection that has ended.
            subscribers.retain(|subscriber| subscriber.send(message.clone()).is_ok());
        }
        match publication.until_tick(now_ns()) {
            pause if pause.is_zero() => tokio::task::yield_now().await,
            pause => tokio::time::sleep(pause).await,
        }
    }
}

/// Writes messages until the connection ends.
async fn write(
    mut socket: WebSocketStream<TcpStream>,
    mut messages: UnboundedReceiver<Bytes>,
) -> Result<(), Error> {
    let mut waiting = Vec::with_capacity(MESSAGES_MAX);
    while messages.recv_many(&mut waiting, MESSAGES_MAX).await > 0 {
        for message in waiting.drain(..) {
            socket.feed(Message::Binary(message)).await?;
        }
        socket.flush().await?;
    }
    Ok(())
}

/// Messages between two flushes.
const MESSAGES_MAX: usize = 1_024;
