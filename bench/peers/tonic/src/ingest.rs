//! One-way messages: each connection has one stream to the server, which answers when it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use futures_util::{FutureExt, Stream};
use parking_lot::Mutex;
use peer_common::{Intake, Measured, Source, Window, Work, now_ns, sent};
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::Payload;
use crate::generated::bench_client::BenchClient;

/// Receives one stream. It keeps the intake locked while messages are available.
pub(crate) async fn take_all(
    mut messages: Streaming<Payload>,
    intake: &Mutex<Intake>,
) -> Result<(), Status> {
    let mut next = messages.message().await?;
    while next.is_some() {
        {
            let mut intake = intake.lock();
            while let Some(message) = next.take() {
                intake.take(&message.bytes);
                next = messages.message().now_or_never().transpose()?.flatten();
            }
            intake.publish();
        }
        // At its end the stream returns this once more.
        next = messages.message().await?;
    }
    Ok(())
}

/// Sends over all connections until the window is over.
pub(crate) async fn send_all(clients: Vec<BenchClient<Channel>>, work: &Work) -> Result<Measured> {
    let mut sources = Vec::with_capacity(clients.len());
    for connection in 0..clients.len() {
        sources.push(Source::new(work, connection)?);
    }
    let window = Window::begin(work);
    let total = Arc::new(AtomicU64::new(0));
    let mut calls = JoinSet::new();
    for (mut client, source) in clients.into_iter().zip(sources) {
        let outgoing = Outgoing {
            source,
            window: window.clone(),
            total: Arc::clone(&total),
        };
        calls.spawn(async move { client.take(outgoing).await });
    }
    while let Some(ended) = calls.join_next().await {
        ended??;
    }
    Ok(sent(total.load(Ordering::Relaxed), &window))
}

/// The messages of a connection, created when the library asks for them, so that there is no queue.
struct Outgoing {
    source: Source,
    window: Window,
    /// The number of messages of all connections, after their ends.
    total: Arc<AtomicU64>,
}

impl Stream for Outgoing {
    type Item = Payload;

    fn poll_next(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Payload>> {
        let this = self.get_mut();
        // The clock is not part of the measurement.
        let looks_at_clock = this.source.sent().is_multiple_of(CLOCK_MESSAGES);
        if looks_at_clock && this.window.is_over(now_ns()) {
            this.total.fetch_add(this.source.sent(), Ordering::Relaxed);
            return Poll::Ready(None);
        }
        let bytes = Bytes::copy_from_slice(this.source.message());
        Poll::Ready(Some(Payload { bytes }))
    }
}

/// Messages between two readings of the clock.
const CLOCK_MESSAGES: u64 = 64;
