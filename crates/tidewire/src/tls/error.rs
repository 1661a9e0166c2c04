//! Errors of certificates and keys, found before a connection is made.

use std::io;

use thiserror::Error;

use tidewire_io::trusted::OpenError;

/// TLS settings cannot be used.
///
/// ```
/// use tidewire::tls::{Pem, PemPart, ServerTls, TlsError};
/// use tidewire::{Context, Message, ServeError, Server};
///
/// let error = Server::builder()
///     .listen("tls://127.0.0.1:0")?
///     .tls(ServerTls::new("/nowhere/server.pem", "/nowhere/server.key"))
///     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))
///     .unwrap_err();
/// let part = PemPart::Chain;
/// assert!(
///     matches!(error, ServeError::Tls(TlsError::Unreadable { part: it, .. }) if it == part)
/// );
///
/// let empty = ServerTls::new(Pem::bytes(*b"no certificate"), Pem::bytes(*b"no key"));
/// let error = empty.layer("tw1").err();
/// assert!(matches!(error, Some(TlsError::Empty { part: it, .. }) if it == part));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The file cannot be read.
    #[error("cannot read the {} {path}: {source}; check the path, and that this user may read it", part.name())]
    Unreadable {
        /// The part that was read.
        part: PemPart,
        /// The path.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Others could have read the key, or changed it or the authorities.
    #[error("the {} {source}", part.name())]
    Untrusted {
        /// The part that was read.
        part: PemPart,
        /// The fault of the file.
        source: OpenError,
    },
    /// The file is too long.
    #[error(
        "the {} {origin} is longer than {limit} bytes; give only what belongs to this side", part.name()
    )]
    TooLong {
        /// The part that was read.
        part: PemPart,
        /// The path, or a name for the bytes.
        origin: String,
        /// The greatest length in bytes.
        limit: usize,
    },
    /// The file has no entry of the kind that is needed.
    #[error("the {} {origin} has no {} in PEM: it needs a line `-----BEGIN \
        {}-----`", part.name(), part.name(), label(*part))]
    Empty {
        /// The part that was read.
        part: PemPart,
        /// The path, or a name for the bytes.
        origin: String,
    },
    /// The file is not PEM.
    #[error("the {} {origin} is not PEM: {detail}; make it again, or convert it with `openssl`", part.name())]
    Malformed {
        /// The part that was read.
        part: PemPart,
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

/// The part of the TLS settings that a PEM file is for. [`TlsError`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PemPart {
    /// The certificate chain of this side.
    Chain,
    /// The key of this side.
    Key,
    /// The certificates of trusted authorities.
    Authorities,
}

impl PemPart {
    fn name(self) -> &'static str {
        match self {
            Self::Chain => "certificate",
            Self::Key => "key",
            Self::Authorities => "CA file",
        }
    }
}

fn label(part: PemPart) -> &'static str {
    match part {
        PemPart::Key => "PRIVATE KEY",
        PemPart::Chain | PemPart::Authorities => "CERTIFICATE",
    }
}
