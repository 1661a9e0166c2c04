//! Errors of certificates and keys, found before a connection is made.

use std::error::Error;
use std::io;

use thiserror::Error;

/// TLS settings cannot be used.
///
/// ```
/// use tidewire::tls::{Pem, ServerTls, TlsError};
/// use tidewire::{Context, Message, ServeError, Server};
///
/// let error = Server::builder()
///     .listen("tls://127.0.0.1:0")?
///     .tls(ServerTls::new("/nowhere/server.pem", "/nowhere/server.key"))
///     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))
///     .unwrap_err();
/// assert!(matches!(error, ServeError::Tls(TlsError::Unreadable { part: "certificate", .. })));
///
/// let empty = ServerTls::new(Pem::bytes(*b"no certificate"), Pem::bytes(*b"no key"));
/// let error = empty.layer("tw1").err();
/// assert!(matches!(error, Some(TlsError::Empty { part: "certificate", .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error(
        "cannot read the {part} {path}: {source}; check the path, and that this user may read it"
    )]
    Unreadable {
        /// The part that was read: `certificate`, `key` or `CA file`.
        part: &'static str,
        /// The path.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Others could have read the key, or changed it or the authorities.
    #[error("the {part} {source}")]
    Untrusted {
        /// The part that was read: `certificate`, `key` or `CA file`.
        part: &'static str,
        /// The fault of the file, as an `OpenError` of `tidewire-io`.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The file is too long.
    #[error(
        "the {part} {origin} is longer than {limit} bytes; give only what belongs to this side"
    )]
    TooLong {
        /// The part that was read: `certificate`, `key` or `CA file`.
        part: &'static str,
        /// The path, or a name for the bytes.
        origin: String,
        /// The greatest length in bytes.
        limit: usize,
    },
    /// The file has no entry of the kind that is needed.
    #[error("the {part} {origin} has no {part} in PEM: it needs a line `-----BEGIN {label}-----`")]
    Empty {
        /// The part that was read: `certificate`, `key` or `CA file`.
        part: &'static str,
        /// The path, or a name for the bytes.
        origin: String,
        /// The label of the entries that it needs.
        label: &'static str,
    },
    /// The file is not PEM.
    #[error(
        "the {part} {origin} is not PEM: {detail}; make it again, or convert it with `openssl`"
    )]
    Malformed {
        /// The part that was read: `certificate`, `key` or `CA file`.
        part: &'static str,
        /// The path, or a name for the bytes.
        origin: String,
        /// The fault, in words.
        detail: String,
    },
    /// The key does not belong to the certificate.
    #[error(
        "the key {key} is not the key of the certificate {chain}: give the pair that was made together"
    )]
    KeyMismatch {
        /// The origin of the key.
        key: String,
        /// The origin of the certificate.
        chain: String,
    },
    /// The certificate, the key or an authority's certificate is not usable for TLS.
    #[error(
        "cannot use the certificate {chain} with its key: {detail}; check both with `openssl x509 -text`"
    )]
    Unusable {
        /// The origin of the certificate.
        chain: String,
        /// The error text of the TLS library.
        detail: String,
    },
    /// The authorities' certificates cannot be used.
    #[error(
        "cannot use the certificates of {ca} as authorities: {detail}; check them with `openssl x509 -text`"
    )]
    BadAuthority {
        /// The origin of the certificates.
        ca: String,
        /// The error text of the TLS library.
        detail: String,
    },
    /// The system has no usable store of authorities.
    #[error(
        "cannot read the authorities that this system trusts: {detail}; install the package ca-certificates, or give a \
         CA file"
    )]
    NoSystemRoots {
        /// The error text of the TLS library.
        detail: String,
    },
    /// The server name is neither a host name nor an IP address.
    #[error("{name:?} is no name that a certificate can have; use a host name or an IP address")]
    BadServerName {
        /// The name.
        name: String,
    },
}
