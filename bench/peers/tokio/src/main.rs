//! A hand-written program on tokio: one thread, plain sockets, no sessions, no limits, and no codec beyond finding the
//! end of a frame.
//!
//! The benchmark's bare client drives its echo, like Tidewire's and the limit's. Connections share one read buffer. It
//! is borrowed only while it is read and written back within one poll: a buffer for each connection would be simpler,
//! but a thousand of them do not fit the cache. For one-way messages it has a sender of its own, because sending is
//! half of that work.

mod fanout;
mod frames;
mod ingest;
mod pubsub;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::{Context, Poll};

use anyhow::Result;
use peer_common::pipe::runtime;
use peer_common::stream::{Listener, Stream};
use peer_common::{
    Console, Description, Driver, Measured, Peer, Work, locked_version, not_offered, offer,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::task::{LocalSet, spawn_local};

fn main() -> ExitCode {
    peer_common::run(&ByHand)
}

struct ByHand;

impl Peer for ByHand {
    fn describe(&self) -> Result<Description> {
        let streams = ["tcp", "ipc"];
        let with_tls = ["tcp", "ipc", "tls"];
        Ok(Description {
            name: "tokio".to_owned(),
            version: locked_version("tokio")?,
            offers: vec![
                offer("echo", &with_tls, "", Driver::Bare),
                offer("echo", &["tls"], ingest::EACH, Driver::Bare),
                offer("ingest", &with_tls, "", Driver::Own),
                offer("ingest", &["tls"], ingest::EACH, Driver::Own),
                offer("ingest", &with_tls, ingest::BLOCKS, Driver::Bare),
                offer("pubsub", &streams, "", Driver::Own),
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
                        if work.transport == "tls" {
                            let is_each = work.mode == ingest::EACH;
                            let write_bytes = if is_each {
                                work.message_bytes
                            } else {
                                usize::MAX
                            };
                            spawn_local(echo_sealed(socket, write_bytes));
                            continue;
                        }
                        spawn_local(echo(socket, Rc::clone(&buffer)));
                    }
                }
                "ingest" => ingest::take_all(&listener, &address, work, console).await,
                "pubsub" => {
                    console.ready(&address)?;
                    pubsub::serve(&listener).await
                }
                "fanout" => fanout::publish(&listener, &address, work, console).await,
                _ => Err(not_offered(work)),
            }
        })
    }

    fn drive(&self, address: &str, work: &Work) -> Result<Measured> {
        match (work.suite.as_str(), work.mode.as_str()) {
            ("pubsub", "") => runtime()?.block_on(pubsub::drive(address, work)),
            ("ingest", "" | ingest::EACH) => runtime()?.block_on(ingest::send_all(address, work)),
            _ => Err(not_offered(work)),
        }
    }
}

/// Sends back all bytes until the peer ends.
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

/// The same over TLS, in writes of so many bytes: all that one read brought, or each message in a record of its own.
async fn echo_sealed(mut socket: Stream, write_bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; ECHO_BUFFER_BYTES];
    let mut kept = 0;
    loop {
        let filled = match socket.read(&mut buffer[kept..]).await? {
            0 => return Ok(()),
            count => kept + count,
        };
        let mut messages = buffer[..filled].chunks_exact(write_bytes.min(filled));
        for message in &mut messages {
            socket.write_all(message).await?;
        }
        socket.flush().await?;
        kept = messages.remainder().len();
        buffer.copy_within(filled - kept..filled, 0);
    }
}

/// Reads and writes back at once. Bytes that the socket does not take now stay in `rest`. Returns the number of bytes
/// read.
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

type SharedBuffer = Rc<RefCell<Vec<u8>>>;

/// As large as a write of the benchmark's client.
const ECHO_BUFFER_BYTES: usize = 64 * 1024;
