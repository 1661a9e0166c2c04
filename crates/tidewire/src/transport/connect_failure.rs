//! The error of an outgoing connection.

use thiserror::Error;
use tidewire_io::datagram::DatagramConnectError;
use tidewire_io::socket::StreamConnectError;
use tidewire_proto::connection::CloseReason;
use tidewire_proto::limits::{CREDENTIALS_BYTES_MAX, LONG_CREDENTIALS_BYTES_MAX};
use tidewire_proto::text::escaped;

use super::inproc::InprocConnectError;
use crate::address::Endpoint;

/// An outgoing connection failed before it was open. A cause of [`ConnectError`](crate::ConnectError), and the argument of
/// [`Service::on_connect_failed`](crate::Service::on_connect_failed).
///
/// ```
/// use tidewire::socket::InprocConnectError;
/// use tidewire::{Client, ConnectError, ConnectFailure};
///
/// let error = Client::connect("inproc://nobody").wait().unwrap_err();
/// let ConnectError::Failed(ConnectFailure::Inproc(cause)) = error else { panic!("{error}") };
/// assert!(matches!(cause, InprocConnectError::NotListening { .. }));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The system refused the connection, or gave up.
    #[error(transparent)]
    Stream(#[from] StreamConnectError),
    /// No socket receives at that UDP port, or the network has no route to it.
    #[error(transparent)]
    Datagram(#[from] DatagramConnectError),
    /// The process has no server of that name, or the server accepts no more connections.
    #[error(transparent)]
    Inproc(#[from] InprocConnectError),
    /// The server refused the connection and said why.
    #[error("the server refused the connection: {}", escaped(text.as_bytes()))]
    Refused {
        /// The reason for programs: how the session ended.
        reason: CloseReason,
        /// The reason for people, in the server's words. It is foreign text, see [`text`](crate::text). The `Display` of this
        /// error escapes it.
        text: String,
    },
    /// The lane's codec frames streams, and it frames datagrams in another way. Build the server that connects with
    /// [`AnyCodec::for_datagrams`](crate::AnyCodec::for_datagrams).
    #[error("cannot connect by udp://: this lane frames {codec} for streams; use `for_datagrams`")]
    Framing {
        /// The name of the codec.
        codec: &'static str,
    },
    /// The connection needs TLS, and no setting says whom this side trusts. Connections that handlers make need
    /// [`ServerBuilder::outgoing_tls`](crate::ServerBuilder::outgoing_tls), or an [`Upstream`](crate::upstream::Upstream).
    #[error(
        "cannot connect by tls:// or wss:// here: this server has no TLS settings for connections that it makes; give some with \
         outgoing_tls, or use an Upstream or a client"
    )]
    NoTls,
    /// The credentials are not sent, because others could read them on the way: the address is that of another machine, and
    /// the connection is not `tls://`. For a closed network there are
    /// [`ClientBuilder::allow_plaintext_credentials`](crate::ClientBuilder::allow_plaintext_credentials) and
    /// [`ServerBuilder::allow_plaintext_credentials`](crate::ServerBuilder::allow_plaintext_credentials).
    #[error(
        "cannot send credentials to {endpoint}: others could read them on the way to another machine; use tls://"
    )]
    PlaintextCredentials {
        /// The address.
        endpoint: Endpoint,
    },
    /// The credentials are longer than a hello takes without TLS.
    #[error(
        "cannot send credentials of {bytes} bytes: without TLS a hello takes {CREDENTIALS_BYTES_MAX} bytes; over tls:// and wss:// it takes \
         {LONG_CREDENTIALS_BYTES_MAX}"
    )]
    LongCredentials {
        /// Their length.
        bytes: usize,
    },
    /// The connection was made, but the session ended before it was open.
    #[error("the connection ended before it was open: {0}")]
    Closed(CloseReason),
}
