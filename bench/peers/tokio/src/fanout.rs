//! Fan-out without a library. Each tick frames its messages once, into a block that all subscribers share. A task for
//! each subscriber writes its waiting blocks with one gathered write.

use std::io::IoSlice;

use anyhow::{Context, Result};
use bytes::{BufMut, Bytes, BytesMut};
use peer_common::stream::{Listener, Stream};
use peer_common::{Console, Publication, Work, now_ns};
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::spawn_local;

/// Publishes at the work's rate as soon as all subscribers are connected. A frame is a u32 BE length and the payload.
pub(crate) async fn publish(
    listener: &Listener,
    address: &str,
    work: &Work,
    console: &Console,
) -> Result<()> {
    console.ready(address)?;
    let mut subscribers: Vec<UnboundedSender<Bytes>> = Vec::with_capacity(work.subscribers);
    while subscribers.len() < work.subscribers {
        let socket = listener.accept().await?;
        // Unbounded: a slow subscriber costs memory but loses nothing.
        let (sender, blocks) = unbounded_channel();
        spawn_local(write(socket, blocks));
        subscribers.push(sender);
    }
    let mut publication = Publication::begin(work)?;
    let length = u32::try_from(work.message_bytes).context("a length of four bytes")?;
    loop {
        let due = publication.due(now_ns());
        if due > 0 {
            let mut block = BytesMut::with_capacity(due as usize * (4 + work.message_bytes));
            for _ in 0..due {
                block.put_u32(length);
                block.put_slice(publication.message());
            }
            let block = block.freeze();
            // The benchmark's subscriber notices a connection that has ended.
            subscribers.retain(|subscriber| subscriber.send(block.clone()).is_ok());
        }
        match publication.until_tick(now_ns()) {
            pause if pause.is_zero() => tokio::task::yield_now().await,
            pause => tokio::time::sleep(pause).await,
        }
    }
}

/// Writes blocks until the connection ends.
pub(crate) async fn write(
    mut socket: Stream,
    mut blocks: UnboundedReceiver<Bytes>,
) -> std::io::Result<()> {
    let mut waiting = Vec::with_capacity(BLOCKS_MAX);
    while blocks.recv_many(&mut waiting, BLOCKS_MAX).await > 0 {
        let mut slices: Vec<IoSlice<'_>> = waiting.iter().map(|b| IoSlice::new(b)).collect();
        let mut left = slices.as_mut_slice();
        while !left.is_empty() {
            let written = socket.write_vectored(left).await?;
            IoSlice::advance_slices(&mut left, written);
        }
        waiting.clear();
    }
    Ok(())
}

/// Blocks of one gathered write. A subscriber that is further behind takes several writes.
const BLOCKS_MAX: usize = 64;
