//! One type for connections over TCP, TLS and Unix sockets on tokio.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::{Console, address, tls};

/// A connection of any kind.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP, with TCP_NODELAY.
    Tcp(TcpStream),
    /// The same with TLS.
    Tls(Box<TlsStream<TcpStream>>),
    /// Over a Unix socket.
    Ipc(UnixStream),
}

/// A listener of any kind.
pub enum Listener {
    /// On a port of the loopback interface.
    Tcp(TcpListener),
    /// The same with TLS.
    Tls(TcpListener, TlsAcceptor),
    /// On a path.
    Ipc(UnixListener),
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Listener")
    }
}

impl Listener {
    /// Listens on a transport, at an unused address. Returns the address as well.
    ///
    /// # Errors
    /// The error of the system, or a transport that is not offered.
    pub async fn bind(transport: &str, console: &Console) -> Result<(Self, String)> {
        Ok(match transport {
            "tcp" => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
                let address = format!("tcp://{}", listener.local_addr()?);
                (Self::Tcp(listener), address)
            }
            "tls" => {
                let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
                let address = format!("tls://{}", listener.local_addr()?);
                (Self::Tls(listener, tls::acceptor()?), address)
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

    /// Accepts the next connection.
    ///
    /// # Errors
    /// The error of the system, for example a lack of descriptors.
    pub async fn accept(&self) -> Result<Stream> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await.context("accepting")?;
                stream.set_nodelay(true)?;
                Stream::Tcp(stream)
            }
            Self::Tls(listener, acceptor) => {
                let (stream, _) = listener.accept().await.context("accepting")?;
                stream.set_nodelay(true)?;
                let stream = acceptor
                    .accept(stream)
                    .await
                    .context("the handshake of TLS")?;
                Stream::Tls(Box::new(stream.into()))
            }
            Self::Ipc(listener) => Stream::Ipc(listener.accept().await.context("accepting")?.0),
        })
    }
}

impl Stream {
    /// Connects to an address of [`Listener::bind`] or of another server.
    ///
    /// # Errors
    /// The text is no such address, or no server accepts the connection.
    pub async fn connect(address: &str) -> Result<Self> {
        let context = || format!("cannot connect to {address}");
        Ok(match address::split(address)? {
            (path, true) => Self::Ipc(UnixStream::connect(path).await.with_context(context)?),
            (host, false) => {
                let stream = TcpStream::connect(host).await.with_context(context)?;
                stream.set_nodelay(true)?;
                match address.starts_with("tls://") {
                    true => Self::Tls(Box::new(tls::connect(stream).await?.into())),
                    false => Self::Tcp(stream),
                }
            }
        })
    }

    /// Writes as much as the socket takes now, without TLS.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if the socket takes nothing, and other errors of the system.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Ipc(stream) => stream.try_write(bytes),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Ipc(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
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
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Ipc(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            // Other streams have no buffer to flush.
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Ipc(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
