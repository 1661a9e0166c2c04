//! One name for TCP and Unix sockets, chosen by the work's transport.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result, bail};
use peer_common::{Console, address};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A listener of either kind.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Ipc(UnixListener),
}

impl Listener {
    /// Listens on the work's transport. Returns the address as well.
    pub(crate) async fn bind(transport: &str, console: &Console) -> Result<(Self, String)> {
        Ok(match transport {
            "tcp" => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
                let address = format!("tcp://{}", listener.local_addr()?);
                (Self::Tcp(listener), address)
            }
            "ipc" => {
                let path = address::socket_path();
                let listener = UnixListener::bind(&path)?;
                console.remove_at_end(&path);
                (Self::Ipc(listener), format!("ipc://{}", path.display()))
            }
            _ => bail!("transport '{transport}' is not offered"),
        })
    }

    pub(crate) async fn accept(&self) -> Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await.context("accepting")?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
            Self::Ipc(listener) => Socket::Ipc(listener.accept().await.context("accepting")?.0),
        })
    }
}

/// A connection of either kind.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Ipc(UnixStream),
}

impl Socket {
    /// Writes what fits now.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Ipc(stream) => stream.try_write(bytes),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Ipc(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Ipc(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Ipc(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sockets hold nothing back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Ipc(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
