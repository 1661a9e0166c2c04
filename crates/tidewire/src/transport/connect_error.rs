//! The error of a connection that could not be made, over any transport.

use std::error::Error as StdError;
use std::io;

use thiserror::Error;
use tidewire_io::socket::SocketError;
use tidewire_proto::connection::CloseReason;
use tidewire_proto::limits::{CREDENTIALS_BYTES_MAX, LONG_CREDENTIALS_BYTES_MAX};
use tidewire_proto::text::escaped;

use crate::address::{AddressError, Endpoint, InprocName};
use crate::on_lane::NO_WAIT_ON_A_LANE;

/// A connection failed before it was open. An error of [`Client::connect`](crate::Client::connect), and the argument of
/// [`Service::on_connect_failed`](crate::Service::on_connect_failed).
///
/// ```
/// use tidewire::{Client, ConnectError};
///
/// let error = Client::connect("inproc://nobody").wait().unwrap_err();
/// assert!(matches!(error, ConnectError::NotListening { .. }));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The text is not an address, or its host is unknown.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The client's own lane could not start. The cause is a [`ServeError`](crate::ServeError).
    #[error(transparent)]
    Start(Box<dyn StdError + Send + Sync>),
    /// The system refused the connection, or gave up; over UDP, no socket receives at that port.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// No server of this process listens on the name.
    #[error(
        "cannot connect to {name}: nothing in this process listens on it; start the server first, or let the client \
         wait for it; inproc names are per process, so use ipc:// or tcp:// to reach a server in another one"
    )]
    NotListening {
        /// The name asked for.
        name: InprocName,
    },
    /// No server listened on the name in time.
    #[error(
        "cannot connect to {name}: no server of this process listened on it within the handshake timeout; is it \
         started, and under this name? Inproc names are per process"
    )]
    WaitedInVain {
        /// The name asked for.
        name: InprocName,
    },
    /// Too many connections of this process wait for their servers.
    #[error(
        "cannot connect to {name}: too many connections already wait for servers; start the server first"
    )]
    TooManyWaiting {
        /// The name asked for.
        name: InprocName,
    },
    /// The server's queue of new connections is full. Try again shortly.
    #[error(
        "cannot connect to {name}: its server has more new connections than its queue holds; try again shortly"
    )]
    Busy {
        /// The name asked for.
        name: InprocName,
    },
    /// The address is not `inproc://`: nothing reports that the server of a socket has started.
    #[error(
        "`wait_for_server` is for inproc:// addresses alone, because nothing reports that the server of a socket has \
         started; leave it out, and connect lazily or connect again later"
    )]
    CannotWait,
    /// The system refused the memory or the descriptors of the rings.
    #[error(
        "cannot connect to {name}: no rings can be made; most likely descriptors (`ulimit -n`) or memory mappings \
         (`sysctl vm.max_map_count`) are used up: raise the limit"
    )]
    Rings {
        /// The name asked for.
        name: InprocName,
        /// The error of the system.
        source: io::Error,
    },
    /// The server refused the connection and said why.
    #[error("the server refused the connection: {}", escaped(text.as_bytes()))]
    Refused {
        /// The reason for programs: how the session ended.
        reason: CloseReason,
        /// The reason for people, in the server's words. It is foreign text, see [`text`](crate::text). The `Display`
        /// of this error escapes it.
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
    /// [`ServerBuilder::outgoing_tls`](crate::ServerBuilder::outgoing_tls), or an
    /// [`Upstream`](crate::upstream::Upstream).
    #[error(
        "cannot connect by tls:// or wss:// here: this server has no TLS settings for connections that it makes; give \
         some with outgoing_tls, or use an Upstream or a client"
    )]
    NoTls,
    /// The credentials are not sent, because others could read them on the way: the address is that of another machine,
    /// and the connection is not `tls://`. For a closed network there are
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
        "cannot send credentials of {bytes} bytes: without TLS a hello takes {CREDENTIALS_BYTES_MAX} bytes; over \
         tls:// and wss:// it takes {LONG_CREDENTIALS_BYTES_MAX}"
    )]
    LongCredentials {
        /// Their length.
        bytes: usize,
    },
    /// The connection was made, but the session ended before it was open.
    #[error("the connection ended before it was open: {0}")]
    Closed(CloseReason),
    /// The provider of the client's credentials failed.
    #[error("cannot get the credentials: {cause}")]
    Credentials {
        /// The error of the provider, for people.
        cause: String,
    },
    /// The lane ended before the connection was made.
    #[error("the client ended before it was connected")]
    Ended,
    /// The call was made on a lane, for example in a handler. It would have stopped all sessions of the lane.
    #[error("cannot wait for a connection: {NO_WAIT_ON_A_LANE}")]
    OnLane,
}

impl ConnectError {
    /// Whether no server of this process is there for an `inproc://` address, or none takes the connection.
    pub(crate) fn is_inproc(&self) -> bool {
        matches!(
            self,
            Self::NotListening { .. }
                | Self::WaitedInVain { .. }
                | Self::TooManyWaiting { .. }
                | Self::Busy { .. }
                | Self::CannotWait
                | Self::Rings { .. }
        )
    }
}
