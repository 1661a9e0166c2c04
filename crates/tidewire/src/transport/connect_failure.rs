//! The error of an outgoing connection.

use thiserror::Error;
use tidewire_io::datagram::DatagramConnectError;
use tidewire_io::socket::StreamConnectError;
use tidewire_proto::connection::CloseReason;
use tidewire_proto::text::escaped;

use super::inproc::InprocConnectError;

/// An outgoing connection failed before it was open. A cause of [`ConnectError`](crate::ConnectError), and the argument of
/// [`Service::on_connect_failed`](crate::Service::on_connect_failed).
///
/// ```
/// use tidewire::{Client, ConnectError, ConnectFailure, InprocConnectError};
///
/// let error = Client::connect("inproc://nobody").wait().unwrap_err();
/// let ConnectError::Failed(ConnectFailure::Inproc(cause)) = error else { panic!("{error}") };
/// assert!(matches!(cause, InprocConnectError::NotListening { .. }));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The system refused or gave up.
    #[error(transparent)]
    Stream(#[from] StreamConnectError),
    /// Nobody receives at that UDP port, or no way leads there.
    #[error(transparent)]
    Datagram(#[from] DatagramConnectError),
    /// There is no server of that name in this process, or it takes no more.
    #[error(transparent)]
    Inproc(#[from] InprocConnectError),
    /// The server would not let this side in, and said why.
    #[error("the server refused the connection: {}", escaped(text.as_bytes()))]
    Refused {
        /// Why, for programs: how the session ended.
        reason: CloseReason,
        /// Why, for people, in the server's words. They are foreign text, see [`text`](crate::text); the `Display` of this
        /// error escapes them.
        text: String,
    },
    /// The lane's codec frames streams, and datagrams of it look different: build the server that connects with
    /// [`AnyCodec::for_datagrams`](crate::AnyCodec::for_datagrams).
    #[error("cannot connect over udp://: the frames of {codec} on this lane are those of streams")]
    Framing {
        /// Name of the codec.
        codec: &'static str,
    },
    /// Connected, but the session ended before it was open.
    #[error("the connection ended before it was open: {0}")]
    Closed(CloseReason),
}
