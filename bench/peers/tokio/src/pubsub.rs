//! A topic without a library. The server reads a block of complete frames from a publisher, and all subscribers share
//! it. As in the fan-out, a task for each subscriber writes its waiting blocks with one gathered write.
//!
//! The first byte of a connection is its role. A frame is a u32 BE length and the payload.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use peer_common::pipe::Pipe;
use peer_common::pubsub;
use peer_common::stream::{Listener, Stream};
use peer_common::{Measured, Work};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::spawn_local;

use crate::fanout::write;

/// Passes on the messages of publishers.
pub(crate) async fn serve(listener: &Listener) -> Result<()> {
    let subscribers: Subscribers = Rc::default();
    loop {
        let mut socket = listener.accept().await?;
        let subscribers = Rc::clone(&subscribers);
        spawn_local(async move {
            match socket.read_u8().await? {
                SUBSCRIBER => {
                    // The answer means that the subscriber misses nothing from now on.
                    socket.write_u8(SUBSCRIBER).await?;
                    let (sender, blocks) = unbounded_channel();
                    subscribers.borrow_mut().push(sender);
                    write(socket, blocks).await
                }
                _ => pass_on(socket, &subscribers).await,
            }
        });
    }
}

/// Publishes and subscribes.
pub(crate) async fn drive(address: &str, work: &Work) -> Result<Measured> {
    let mut subscribers = Vec::with_capacity(work.subscribers);
    for _ in 0..work.subscribers {
        let mut socket = Stream::connect(address).await?;
        socket.write_u8(SUBSCRIBER).await?;
        let answer = socket.read_u8().await.context("subscribing")?;
        ensure!(answer == SUBSCRIBER, "the server did not subscribe");
        subscribers.push(Connection::new(socket));
    }
    let mut publishers = Vec::with_capacity(work.publishers);
    for _ in 0..work.publishers {
        let mut socket = Stream::connect(address).await?;
        socket.write_u8(PUBLISHER).await?;
        publishers.push(Connection::new(socket));
    }
    pubsub::drive(publishers, subscribers, work).await
}

/// All subscribers.
type Subscribers = Rc<RefCell<Vec<UnboundedSender<Bytes>>>>;

async fn pass_on(mut socket: Stream, subscribers: &Subscribers) -> io::Result<()> {
    let mut input = BytesMut::new();
    loop {
        input.reserve(READ_BYTES);
        if socket.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let block = input.split_to(whole(&input)).freeze();
        if !block.is_empty() {
            let mut subscribers = subscribers.borrow_mut();
            subscribers.retain(|subscriber| subscriber.send(block.clone()).is_ok());
        }
    }
}

/// Bytes of the complete frames at the front.
fn whole(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(length) = bytes[at..].first_chunk() {
        let end = at + LENGTH_BYTES + u32::from_be_bytes(*length) as usize;
        if end > bytes.len() {
            break;
        }
        at = end;
    }
    at
}

/// A connection of the driver.
struct Connection {
    socket: Stream,
    output: BytesMut,
    input: BytesMut,
}

impl Connection {
    fn new(socket: Stream) -> Self {
        Self {
            socket,
            output: BytesMut::new(),
            input: BytesMut::new(),
        }
    }
}

impl Pipe for Connection {
    async fn send(&mut self, request: &[u8]) -> Result<()> {
        self.output.put_u32(request.len() as u32);
        self.output.put_slice(request);
        Ok(())
    }

    async fn flush(&mut self) -> Result<()> {
        let written = self.socket.write_all(&self.output).await;
        written.context("publishing")?;
        self.output.clear();
        Ok(())
    }

    async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let mut end = 0;
        while end == 0 {
            self.input.reserve(READ_BYTES);
            let count = self.socket.read_buf(&mut self.input).await?;
            ensure!(count > 0, "the server ended");
            end = whole(&self.input);
        }
        let frames = self.input.split_to(end);
        let mut rest = &frames[..];
        while let Some((length, after)) = rest.split_first_chunk() {
            let (payload, after) = after.split_at(u32::from_be_bytes(*length) as usize);
            take(payload);
            rest = after;
        }
        Ok(())
    }
}

/// The first byte of a connection: its role.
const SUBSCRIBER: u8 = b's';
const PUBLISHER: u8 = b'p';

const LENGTH_BYTES: usize = 4;

/// Room for one read.
const READ_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use peer_common::Console;
    use tokio::task::LocalSet;

    use super::*;

    #[test]
    fn only_whole_frames_are_passed_on() {
        let frames = b"\0\0\0\x02hi\0\0\0\0\0\0\0\x03yo";
        assert_eq!(whole(frames), 10);
        assert_eq!(whole(&frames[..9]), 6);
        assert_eq!(whole(&frames[..5]), 0);
    }

    #[test]
    fn everybody_hears_everything() {
        let work = Work {
            suite: "pubsub".to_owned(),
            message_bytes: 32,
            publishers: 2,
            subscribers: 3,
            measure_ms: 5,
            ..Work::default()
        };
        let runtime = peer_common::pipe::runtime().unwrap();
        let measured = LocalSet::new().block_on(&runtime, async {
            let (listener, address) = Listener::bind("tcp", &Console::default()).await.unwrap();
            spawn_local(async move { serve(&listener).await });
            drive(&address, &work).await.unwrap()
        });
        // Every publisher has sent a message by now. A message that did not reach every subscriber counts as lost.
        assert_eq!((measured.lost, measured.verified), (0, true));
    }
}
