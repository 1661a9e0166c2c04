//! A connection of the admin server, plain or under TLS. Its peer must take written bytes within a time.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use tidewire_proto::layer::{Ending, LayerError, Stack};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::places::Place;

pub(crate) struct Connection {
    stream: TcpStream,
    /// TLS, if the server has a certificate.
    stack: Option<Stack>,
    stall_max: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    place: Place,
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        stack: Option<Stack>,
        stall_max: Duration,
        place: Place,
    ) -> Self {
        // A listener of events that is slow should be noticed after kilobytes and not after megabytes. Failures change
        // only that.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES);
        let _ = stream.set_nodelay(true);
        Self {
            stream,
            stack,
            stall_max,
            stalled: None,
            place,
        }
    }

    /// Returns the result of a write, or an error if writes have waited for too long.
    fn judge<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            self.place.note_life();
            return written;
        }
        let stall_max = self.stall_max;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(stall_max)));
        stalled
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_records(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, stack, .. } = self;
        let Some(stack) = stack else {
            return Poll::Ready(Ok(()));
        };
        while !stack.unsent().is_empty() {
            let count = ready!(Pin::new(&mut *stream).poll_write(cx, stack.unsent()))?;
            stack.advance(count);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_secured(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut scratch = [0; READ_BYTES];
        loop {
            // Records that must wait for the socket do not keep the peer from being read.
            if let Poll::Ready(sent) = self.poll_records(cx) {
                sent?;
            }
            let Self { stream, stack, .. } = self;
            let Some(stack) = stack else {
                return Poll::Ready(Ok(()));
            };
            let room = buffer.remaining().min(READ_BYTES);
            match stack.read(&mut scratch[..room]).map_err(failure)? {
                0 if stack.has_ended() => return Poll::Ready(Ok(())),
                0 => {}
                count => {
                    buffer.put_slice(&scratch[..count]);
                    return Poll::Ready(Ok(()));
                }
            }
            let mut network = ReadBuf::new(&mut scratch);
            ready!(Pin::new(stream).poll_read(cx, &mut network))?;
            let received = match network.filled() {
                [] => stack.handle_network_end(),
                bytes => stack.receive(bytes),
            };
            if let Err(error) = received {
                // The alert goes out if the socket takes it.
                let _ = self.poll_records(cx);
                return Poll::Ready(Err(failure(error)));
            }
        }
    }

    fn poll_plain(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.stack.is_none() {
            return Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        }
        ready!(self.poll_records(cx))?;
        let Some(stack) = &mut self.stack else {
            return Poll::Ready(Ok(0));
        };
        match stack.write(slices).map_err(failure)? {
            // Every answer follows a request, so the handshake is over; and the records before have been sent.
            0 => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            count => {
                if let Poll::Ready(sent) = self.poll_records(cx) {
                    sent?;
                }
                Poll::Ready(Ok(count))
            }
        }
    }
}

impl Read for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let mut bytes = [0; READ_BYTES];
        let room = cursor.remaining().min(READ_BYTES);
        let mut buffer = ReadBuf::new(&mut bytes[..room]);
        ready!(match this.stack {
            Some(_) => this.poll_secured(cx, &mut buffer),
            None => Pin::new(&mut this.stream).poll_read(cx, &mut buffer),
        })?;
        this.place.note_life();
        cursor.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl Write for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_plain(cx, &[IoSlice::new(bytes)]);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.poll_plain(cx, slices);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.poll_records(cx);
        match flushed.is_ready() {
            true => flushed,
            false => self.judge(cx, flushed),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(stack) = &mut self.stack {
            stack.close(Ending::InOrder).map_err(failure)?;
        }
        ready!(self.poll_records(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn failure(error: LayerError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Bytes that the system keeps for a peer that does not read.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// Bytes of one read: a request's head, or one record of TLS.
const READ_BYTES: usize = 16 << 10;
