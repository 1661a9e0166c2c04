//! One-way messages without a library: a sender that handles each message by itself, and receivers that check every
//! one.
//!
//! A frame is a u32 LE length and the payload, whose first 8 bytes are a number within the connection. The sender
//! appends each message to a buffer, field by field, and writes the buffer when it is full. Compared with a
//! `BufWriter`, no future is polled for a message that only goes into memory. The number is written directly to its
//! place and not into a payload that is copied afterwards, because the copy would wait for the smaller write to the
//! same bytes.
//!
//! In the mode [`BLOCKS`] the benchmark's bare client sends blocks of its own frames, and the receiver only counts
//! them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result, ensure};
use bytes::{BufMut, BytesMut};
use peer_common::stream::{Listener, Stream};
use peer_common::{Console, Counts, Measured, Window, Work, now_ns, sent};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::task::{JoinSet, LocalSet, spawn_local};

use crate::frames::Frames;

/// The mode in which the benchmark's client sends blocks.
pub(crate) const BLOCKS: &str = "blocks";

/// The mode in which every message is a write of its own.
pub(crate) const EACH: &str = "each";

/// Receives messages on every connection.
pub(crate) async fn take_all(
    listener: &Listener,
    address: &str,
    work: &Work,
    console: &Console,
) -> Result<()> {
    let intake = Rc::new(RefCell::new(Intake::new(work)?));
    console.count_by(Arc::clone(&intake.borrow().counts));
    console.ready(address)?;
    loop {
        let socket = listener.accept().await?;
        spawn_local(take(socket, Rc::clone(&intake)));
    }
}

/// Sends over all connections until the window ends.
pub(crate) async fn send_all(address: &str, work: &Work) -> Result<Measured> {
    let mut senders = Vec::with_capacity(work.connections);
    for _ in 0..work.connections {
        senders.push(Sender::new(Stream::connect(address).await?, work)?);
    }
    let window = Window::begin(work);
    let messages = LocalSet::new()
        .run_until(async {
            let mut tasks = JoinSet::new();
            for sender in senders {
                tasks.spawn_local(sender.send_until(window.clone()));
            }
            let mut messages = 0;
            while let Some(ended) = tasks.join_next().await {
                messages += ended.context("a task of the driver")??;
            }
            anyhow::Ok(messages)
        })
        .await?;
    Ok(sent(messages, &window))
}

/// The sending end of a connection.
struct Sender {
    socket: Stream,
    buffer: BytesMut,
    /// The buffer is written when no further message fits within so many bytes.
    write_bytes: usize,
    /// Bytes of the payload.
    length: u32,
    /// The bytes after the number in every payload.
    rest: Vec<u8>,
    /// Number of the next message.
    next: u64,
}

impl Sender {
    fn new(socket: Stream, work: &Work) -> Result<Self> {
        let bytes = work.message_bytes;
        ensure!(
            (NUMBER_BYTES..BUFFER_BYTES / 2).contains(&bytes),
            "messages of {bytes} bytes are not offered: a number of {NUMBER_BYTES} and a buffer of {BUFFER_BYTES} bound them"
        );
        Ok(Self {
            socket,
            buffer: BytesMut::with_capacity(BUFFER_BYTES),
            write_bytes: match work.mode.as_str() {
                EACH => LENGTH_BYTES + bytes,
                _ => BUFFER_BYTES,
            },
            length: bytes as u32,
            rest: vec![0x5a; bytes - NUMBER_BYTES],
            next: 0,
        })
    }

    /// Appends the next message. Returns whether there is room for another.
    fn append(&mut self) -> bool {
        self.buffer.put_u32_le(self.length);
        self.buffer.put_u64_le(self.next);
        self.buffer.put_slice(&self.rest);
        self.next += 1;
        self.buffer.len() + LENGTH_BYTES + self.length as usize <= self.write_bytes
    }

    /// Returns the number of sent messages, at least one write.
    async fn send_until(mut self, window: Window) -> Result<u64> {
        loop {
            while self.append() {}
            let written = self.socket.write_all(&self.buffer).await;
            written.context("sending")?;
            self.buffer.clear();
            if window.is_over(now_ns()) {
                self.socket.flush().await.context("sending")?;
                return Ok(self.next);
            }
        }
    }
}

/// The common state of all connections while they receive.
struct Intake {
    check: Check,
    buffer: Vec<u8>,
    taken: u64,
    counts: Arc<Counts>,
}

/// The expected content of messages.
#[derive(Clone, Copy)]
enum Check {
    /// Each message has the number after the one before it.
    Numbers,
    /// All messages are the same.
    Count(Frames),
}

/// The state of a connection between two reads.
#[derive(Default)]
struct Begun {
    /// Bytes of an unfinished frame.
    rest: Vec<u8>,
    /// The number expected next.
    next: u64,
}

impl Intake {
    fn new(work: &Work) -> Result<Self> {
        let check = if work.mode == BLOCKS {
            Check::Count(Frames::of(work)?)
        } else {
            Check::Numbers
        };
        Ok(Self {
            check,
            buffer: vec![0; INTAKE_BYTES],
            taken: 0,
            counts: Arc::default(),
        })
    }

    /// Reads behind the incomplete frame of the last read, and counts. Returns the number of bytes read.
    fn poll_take(
        &mut self,
        socket: &mut Stream,
        cx: &mut Context<'_>,
        begun: &mut Begun,
    ) -> Poll<io::Result<usize>> {
        let kept = begun.rest.len();
        self.buffer[..kept].copy_from_slice(&begun.rest);
        let mut read = ReadBuf::new(&mut self.buffer[kept..]);
        match Pin::new(socket).poll_read(cx, &mut read) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        let count = read.filled().len();
        let filled = kept + count;
        let (messages, used) = match self.check {
            Check::Numbers => in_order(&self.buffer[..filled], &mut begun.next),
            Check::Count(frames) => frames.count(&self.buffer[..filled]),
        };
        self.taken += messages;
        self.counts.set_right(self.taken);
        begun.rest.clear();
        begun.rest.extend_from_slice(&self.buffer[used..filled]);
        Poll::Ready(Ok(count))
    }
}

/// Receives until the peer ends.
async fn take(mut socket: Stream, intake: Rc<RefCell<Intake>>) -> io::Result<()> {
    let mut begun = Begun::default();
    while poll_fn(|cx| intake.borrow_mut().poll_take(&mut socket, cx, &mut begun)).await? > 0 {}
    Ok(())
}

/// Checks the complete frames at the front of `bytes`. Returns the number that came once and in order, and the size of
/// all of them in bytes. Missing messages are not counted here: the sender knows how many it sent.
fn in_order(bytes: &[u8], next: &mut u64) -> (u64, usize) {
    let (mut right, mut at) = (0, 0);
    while let Some(length) = bytes[at..].first_chunk() {
        let begin = at + LENGTH_BYTES;
        let end = begin + u32::from_le_bytes(*length) as usize;
        let Some(payload) = bytes.get(begin..end) else {
            break;
        };
        let number = payload
            .first_chunk()
            .map(|number| u64::from_le_bytes(*number));
        if let Some(number) = number.filter(|number| number >= next) {
            right += 1;
            *next = number.wrapping_add(1);
        }
        at = end;
    }
    (right, at)
}

/// Bytes of one write of a sender.
const BUFFER_BYTES: usize = 64 * 1024;

/// Size of a read: several writes of a sender at once.
const INTAKE_BYTES: usize = 256 * 1024;

const LENGTH_BYTES: usize = 4;
const NUMBER_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u64) -> Vec<u8> {
        let mut frame = 10_u32.to_le_bytes().to_vec();
        frame.extend_from_slice(&number.to_le_bytes());
        frame.extend_from_slice(b"hi");
        frame
    }

    #[test]
    fn only_what_comes_once_and_in_order_is_right() {
        let mut next = 0;
        // 2 is missing, 1 comes twice, 3 comes after 4, and an incomplete one is at the end.
        let mut bytes: Vec<u8> = [0, 1, 1, 4, 3, 5].into_iter().flat_map(frame).collect();
        let whole = bytes.len();
        bytes.extend_from_slice(&frame(6)[..7]);
        assert_eq!(in_order(&bytes, &mut next), (4, whole));
        assert_eq!(next, 6);
        // A message without room for a number, and an empty one.
        assert_eq!(in_order(&[2, 0, 0, 0, b'h', b'i'], &mut next), (0, 6));
        assert_eq!(in_order(&[], &mut next), (0, 0));
    }

    #[test]
    fn what_is_sent_over_any_number_of_connections_is_taken() {
        let work = Work {
            suite: "ingest".to_owned(),
            transport: "tcp".to_owned(),
            message_bytes: 24,
            connections: 3,
            measure_ms: 5,
            ..Work::default()
        };
        let runtime = peer_common::pipe::runtime().unwrap();
        let (offered, taken) = LocalSet::new().block_on(&runtime, async {
            let (listener, address) = Listener::bind("tcp", &Console::default()).await.unwrap();
            let intake = Rc::new(RefCell::new(Intake::new(&work).unwrap()));
            let accepting = Rc::clone(&intake);
            let takers = spawn_local(async move {
                let mut takers = JoinSet::new();
                for _ in 0..3 {
                    let socket = listener.accept().await.unwrap();
                    takers.spawn_local(take(socket, Rc::clone(&accepting)));
                }
                while let Some(ended) = takers.join_next().await {
                    ended.unwrap().unwrap();
                }
            });
            let measured = send_all(&address, &work).await.unwrap();
            // The ends of the connections come after the last messages.
            takers.await.unwrap();
            (measured.sent.unwrap(), intake.borrow().taken)
        });
        assert!(offered > 0);
        assert_eq!(offered, taken);
    }
}
