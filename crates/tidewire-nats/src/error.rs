//! The reasons why NATS cannot be used.

use std::io;
use std::path::PathBuf;

use async_nats::ConnectError;
use async_nats::jetstream::context::AccountError;
use thiserror::Error;

/// NATS cannot be used. An error of [`Nats`](crate::Nats), and the cause of `BackplaneError::Engine` when a server
/// starts.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NatsError {
    /// The text is no address of NATS.
    #[error("not an address of NATS: {0} (write it as nats://HOST:PORT or tls://HOST:PORT)")]
    Address(io::Error),
    /// The prefix cannot begin a subject.
    #[error(
        "not a prefix of subjects: {0:?} (use 1 to {PREFIX_BYTES_MAX} ASCII letters, digits, - and _ in parts between \
         dots; no part after the first may be a word of Tidewire, such as node, room or topic)"
    )]
    Prefix(String),
    /// The file of credentials cannot be used.
    #[error("cannot use the credentials of NATS in {}: {source} (check the file)", path.display())]
    Credentials {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Nothing answers there.
    #[error(
        "cannot reach NATS at {address}: {source} (check host and port; start nats-server there, or use \
         --backplane-wait)"
    )]
    Unreachable {
        /// The address, without credentials.
        address: String,
        /// The cause.
        source: ConnectError,
    },
    /// NATS refuses the user or password, token or credentials.
    #[error(
        "NATS at {address} refuses the credentials: {source} (check the user of the address, or the file of \
         credentials)"
    )]
    Denied {
        /// The address, without credentials.
        address: String,
        /// The cause.
        source: ConnectError,
    },
    /// The file of authorities cannot be used.
    #[error("cannot use the authorities of NATS in {}: {source} (check the file; it has certificates in \
        PEM)", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// TLS to NATS failed.
    #[error(
        "cannot encrypt the connection to NATS at {address}: {source} (check tls://, and the file of its authority)"
    )]
    Tls {
        /// The address, without credentials.
        address: String,
        /// The cause.
        source: ConnectError,
    },
    /// Histories are wanted, and NATS keeps no streams.
    #[error(
        "NATS at {address} keeps no histories: {source} (start it as nats-server --jetstream, allow JetStream to this \
         user, or leave histories out)"
    )]
    NoStreams {
        /// The address, without credentials.
        address: String,
        /// The cause.
        source: AccountError,
    },
    /// The client of NATS cannot start.
    #[error("cannot start the client of NATS: {0}")]
    Io(#[from] io::Error),
}

pub(crate) const PREFIX_BYTES_MAX: usize = 64;
