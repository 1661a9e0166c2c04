//! What one writes by hand over tokio: one thread, plain sockets, no sessions, no limits and no codec beyond finding
//! where a frame ends.
//!
//! The benchmark's own bare client drives it, with the bytes with which it drives everything. Connections share one read
//! buffer, borrowed only while it is read and written back within one poll: a buffer for each would be simpler, and at
//! a thousand connections it would no longer fit the cache.

mod fanout;
mod frames;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Result;
use peer_common::pipe::runtime;
use peer_common::stream::{Listener, Stream};
use peer_common::{
    Console, Counts, Description, Driver, Measured, Peer, Work, locked_version, not_offered, offer,
};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::task::{LocalSet, spawn_local};

use crate::frames::Frames;

fn main() -> ExitCode {
    peer_common::run(&ByHand)
}

struct ByHand;

impl Peer for ByHand {
    fn describe(&self) -> Result<Description> {
        let streams = ["tcp", "ipc"];
        Ok(Description {
            name: "tokio".to_owned(),
            version: locked_version("tokio")?,
            offers: vec![
                offer("echo", &streams, "", Driver::Bare),
                offer("ingest", &streams, "", Driver::Bare),
                offer("fanout", &streams, "", Driver::Length),
            ],
        })
    }

    fn serve(&self, work: &Work, console: &Console) -> Result<()> {
        let local = LocalSet::new();
        local.block_on(&runtime()?, async {
            let (listener, address) = Listener::bind(&work.transport, console).await?;
            match work.suite.as_str() {
                "echo" => {
                    console.ready(&address)?;
                    let buffer: SharedBuffer = Rc::new(RefCell::new(vec![0; ECHO_BUFFER_BYTES]));
                    loop {
                        let socket = listener.accept().await?;
                        spawn_local(echo(socket, Rc::clone(&buffer)));
                    }
                }
                "ingest" => {
                    let intake = Rc::new(RefCell::new(Intake::new(work)?));
                    console.count_by(Arc::clone(&intake.borrow().counts));
                    console.ready(&address)?;
                    loop {
                        let socket = listener.accept().await?;
                        spawn_local(ingest(socket, Rc::clone(&intake)));
                    }
                }
                "fanout" => fanout::publish(&listener, &address, work, console).await,
                _ => Err(not_offered(work)),
            }
        })
    }

    fn drive(&self, _address: &str, work: &Work) -> Result<Measured> {
        Err(not_offered(work))
    }
}

/// Sends back what comes until the peer ends.
async fn echo(mut socket: Stream, buffer: SharedBuffer) -> io::Result<()> {
    let mut rest = Vec::new();
    loop {
        let count = poll_fn(|cx| poll_echo(&mut socket, cx, &buffer, &mut rest)).await?;
        if count == 0 {
            return Ok(());
        }
        // Rare: the socket took less than it was offered.
        socket.write_all(&rest).await?;
        rest.clear();
    }
}

/// Reads and writes back at once; what the socket does not take now is left in `rest`. Returns how much was read.
fn poll_echo(
    socket: &mut Stream,
    cx: &mut Context<'_>,
    buffer: &SharedBuffer,
    rest: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    let mut buffer = buffer.borrow_mut();
    let mut read = ReadBuf::new(&mut buffer);
    match Pin::new(&mut *socket).poll_read(cx, &mut read) {
        Poll::Ready(Ok(())) => {}
        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
        Poll::Pending => return Poll::Pending,
    }
    let filled = read.filled();
    let written = match socket.try_write(filled) {
        Ok(written) => written,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Poll::Ready(Err(error)),
    };
    rest.extend_from_slice(&filled[written..]);
    Poll::Ready(Ok(filled.len()))
}

/// What all connections share while they take messages.
struct Intake {
    frames: Frames,
    buffer: Vec<u8>,
    taken: u64,
    counts: Arc<Counts>,
}

impl Intake {
    fn new(work: &Work) -> Result<Self> {
        Ok(Self {
            frames: Frames::of(work)?,
            buffer: vec![0; INGEST_BUFFER_BYTES],
            taken: 0,
            counts: Arc::default(),
        })
    }

    /// Reads behind the unfinished frame that is left from last time, and counts. Returns how much was read.
    fn poll_take(
        &mut self,
        socket: &mut Stream,
        cx: &mut Context<'_>,
        rest: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let kept = rest.len();
        self.buffer[..kept].copy_from_slice(rest);
        let mut read = ReadBuf::new(&mut self.buffer[kept..]);
        match Pin::new(socket).poll_read(cx, &mut read) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        let count = read.filled().len();
        let filled = kept + count;
        let (frames, used) = self.frames.count(&self.buffer[..filled]);
        self.taken += frames;
        self.counts.set_right(self.taken);
        rest.clear();
        rest.extend_from_slice(&self.buffer[used..filled]);
        Poll::Ready(Ok(count))
    }
}

/// Counts what comes until the peer ends.
async fn ingest(mut socket: Stream, intake: Rc<RefCell<Intake>>) -> io::Result<()> {
    let mut rest = Vec::new();
    while poll_fn(|cx| intake.borrow_mut().poll_take(&mut socket, cx, &mut rest)).await? > 0 {}
    Ok(())
}

type SharedBuffer = Rc<RefCell<Vec<u8>>>;

/// As large as what the benchmark's client writes at once.
const ECHO_BUFFER_BYTES: usize = 64 * 1024;

/// Several writes of a sender at once.
const INGEST_BUFFER_BYTES: usize = 256 * 1024;
