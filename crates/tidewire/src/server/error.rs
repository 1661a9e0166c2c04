//! The reasons why a server does not start.

use std::io;

use thiserror::Error;
use tidewire_io::poller::PollerError;
use tidewire_io::socket::{AnySocketAddress, SocketError};

use tidewire_proto::setting::SettingError;

use super::Stopped;
use crate::address::{Address, AddressError, Endpoint, InprocName};
use crate::backplane::BackplaneError;
use crate::config::CODECS_MAX;
use crate::mailbox::LANES_MAX;
use crate::observe::Metrics;
use crate::room::RoomError;
use crate::tls::TlsError;
use crate::transport::ConnectError;

/// A server could not start, and no part of it runs; it ended, and not in order; or a lane does not answer an
/// [`Inspector`](crate::metrics::Inspector). An error of [`serve`](crate::serve),
/// [`ServerBuilder`](crate::ServerBuilder), [`Server::wait`](crate::Server::wait) and
/// [`Server::wait_for_signals`](crate::Server::wait_for_signals). With `?` a program ends with a failure if a lane
/// failed, so that its supervisor starts it again.
///
/// ```
/// use tidewire::{Context, Message, ServeError};
///
/// let ignore = |_: &mut Context<'_>, _: Message<'_>| Ok(());
/// let first = tidewire::serve("inproc://orders", ignore)?;
/// let second = tidewire::serve("inproc://orders", ignore);
/// assert!(matches!(second, Err(ServeError::NameInUse { .. })));
/// # drop(first);
/// # Ok::<(), ServeError>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// An address is malformed or unknown.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// An address could not be bound, or a passed socket cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Two addresses of the server cannot be listened on at the same time, because they have the same port.
    #[error(
        "cannot listen on {address}: this server listens on {other} already, at the same port; give each its own port, \
         or leave one out"
    )]
    Twice {
        /// The address.
        address: Box<Endpoint>,
        /// The address that is listened on.
        other: Box<Endpoint>,
    },
    /// A [passed socket](crate::ServerBuilder::passed_socket) is bound to none of the addresses.
    #[error(
        "a socket was passed that is bound to {address}, and no address to listen on is that one; add it as tcp://, \
         tls://, ws://, wss://, udp:// or ipc://, or take it out of the socket unit"
    )]
    PassedSocket {
        /// Its address.
        address: AnySocketAddress,
    },
    /// A passed socket receives datagrams, and the server has several lanes, which need a socket each.
    #[error(
        "a socket was passed for udp://{0}, and each lane needs its own; use one lane, or let the server bind the port"
    )]
    PassedPort(std::net::SocketAddr),
    /// The addresses have more codecs than a server can speak.
    #[error(
        "the addresses have {0} codecs, and a server speaks at most {max}; start another server for the rest",
        max = CODECS_MAX + 1
    )]
    TooManyCodecs(usize),
    /// An address sets the framing of streams, and the codec has no such choice.
    #[error(
        "the codec {codec} leaves no choice of framing; leave ?framing= out, or use the codec uvrpc"
    )]
    Framing {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec does not support the policy for slow subscribers.
    #[error(transparent)]
    Policy(RoomError),
    /// Layers were requested for a transport that cannot have them.
    #[error(
        "cannot add layers such as TLS at {address}: they need tcp:// or ipc://; make none for this address, or start \
         another server for it"
    )]
    Layers {
        /// The address.
        address: Address,
    },
    /// The TLS settings of a server or client cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An address asks for TLS, and the server has no certificate.
    #[error("cannot listen on {address} without a certificate: give the server one, with its key")]
    NoCertificate {
        /// The address.
        address: Address,
    },
    /// Another server of this process has the in-process name, until it is shut down or dropped.
    #[error(
        "cannot listen on {name}: it is in use by another server of this process; choose another name or stop that \
         server first"
    )]
    NameInUse {
        /// The name asked for.
        name: InprocName,
    },
    /// The chosen poller does not work here, or cannot watch a listener.
    #[error(transparent)]
    Poller(#[from] PollerError),
    /// The system refused the waker or the thread of a lane.
    #[error("cannot start a lane: {0}")]
    Lane(#[source] io::Error),
    /// A limit makes no sense, or the rate limit allows nothing or limits nothing.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The server cannot join its cluster.
    #[error("cannot join the other nodes: {0}")]
    Backplane(#[from] BackplaneError),
    /// A single service was given to a server of several lanes.
    #[error(
        "one service cannot be on {lanes} lanes: use one lane, or `start` with a closure that makes a service for each"
    )]
    OneService {
        /// The number of lanes.
        lanes: usize,
    },
    /// The number of lanes is 0, or larger than the bits of a room's lane mask.
    #[error("{0} lanes are not possible; use 1 to {LANES_MAX}")]
    LaneCount(usize),
    /// Lanes failed: their poller did, or their service panicked and could not go on. The server has stopped.
    #[error("a lane of the server failed: {}; start the server again", first(&stopped.failures))]
    LaneFailed {
        /// The outcome of the server, with the failures of all lanes.
        stopped: Box<Stopped>,
    },
    /// The system refused the signal handlers, or the thread that waits for the lanes. The server has stopped.
    #[error("cannot wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// A lane has ended, because the server ends or the lane failed.
    #[error("lane {lane} has ended")]
    LaneEnded {
        /// Its index.
        lane: usize,
    },
    /// A lane did not answer in time: a handler blocks, or the machine is overloaded. Ask again later.
    #[error("lane {lane} did not answer in time; look which handler takes this long")]
    LaneLate {
        /// Its index.
        lane: usize,
    },
}

impl ServeError {
    /// Returns the final counters of a server, unless a lane failed.
    pub(super) fn check(stopped: Stopped) -> Result<Metrics, Self> {
        if stopped.failures.is_empty() {
            return Ok(stopped.metrics);
        }
        let stopped = Box::new(stopped);
        Err(Self::LaneFailed { stopped })
    }
}

impl From<ServeError> for ConnectError {
    /// A client has a lane of its own, which starts as that of a server does.
    fn from(error: ServeError) -> Self {
        Self::Start(Box::new(error))
    }
}

fn first(failures: &[String]) -> &str {
    failures
        .first()
        .map_or("for an unknown reason", String::as_str)
}
