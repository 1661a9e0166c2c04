//! TLS for `tls://` addresses: certificates, keys, and trusted authorities.
//!
//! A server needs a certificate and its key; a client needs nothing if a public authority has signed the certificate.
//!
//! [`ServerTls`] has an example.
//!
//! TLS 1.3 is spoken, and 1.2 where it is allowed. There is no 0-RTT, because its data can be replayed. Sessions are
//! resumed: a server that requests no client certificates gives tickets, and a client keeps the tickets in memory. ALPN
//! offers the codec's name, so two sides with different codecs fail in the handshake. A peer that offers no name is
//! accepted.
//!
//! The other modules see only a [`Layer`](crate::layer::Layer). Only this folder uses rustls, because the next version
//! of rustls changes the owner of the buffers.

mod acceptor;
mod connector;
mod error;
mod expiry;
mod layer;
mod pem;
mod provider;
#[cfg(test)]
mod tests;

pub use acceptor::TlsAcceptor;
pub(crate) use acceptor::{Acceptor, protocol};
pub(crate) use connector::{ClientConfigs, Connector, OutgoingTls};
pub use error::TlsError;
pub use pem::Pem;
pub use tidewire_proto::layer::{CertificateNames, Encryption, TlsFault};

/// The TLS settings of a server.
///
/// ```no_run
/// use tidewire::tls::{ClientTls, ServerTls};
/// use tidewire::{Client, Context, Message, Server};
///
/// let server = Server::builder()
///     .listen("tls://0.0.0.0:8443")?
///     .tls(ServerTls::new("server.pem", "server.key"))
///     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
///
/// let client = Client::builder()
///     .tls(ClientTls::new().ca("ca.pem"))
///     .connect("tls://localhost:8443")
///     .wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ServerTls {
    chain: Pem,
    key: Pem,
    clients: ClientAuth,
    allows_tls12: bool,
}

/// Whether a server asks clients for a certificate.
#[derive(Clone, Debug)]
enum ClientAuth {
    /// The server requests no certificate.
    Off,
    /// A certificate must be signed by this authority. A client without a certificate is accepted.
    Optional(Pem),
    /// Every client needs a certificate of this authority.
    Required(Pem),
}

/// The TLS settings of a client, of an upstream, or of connections that handlers make.
///
/// Files are read again when they have changed: before each attempt to connect of a client or an upstream, and within a
/// second for connections that handlers make. If the new files cannot be used, the old configuration stays, with a
/// warning in the log. The authorities of the system are read once.
///
/// [`ServerTls`] has an example.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    ca: Option<Pem>,
    /// Whether the authorities of the system are not trusted.
    trusts_ca_only: bool,
    identity: Option<(Pem, Pem)>,
    server_name: Option<String>,
    allows_tls12: bool,
}

impl ServerTls {
    /// Settings with this certificate and its key, from files or bytes in PEM. The chain begins with the server's
    /// certificate; certificates of authorities between it and the root follow. The key is in PKCS #8, SEC1 or PKCS #1,
    /// without a password.
    pub fn new(chain: impl Into<Pem>, key: impl Into<Pem>) -> Self {
        Self {
            chain: chain.into(),
            key: key.into(),
            clients: ClientAuth::Off,
            allows_tls12: false,
        }
    }

    /// Requires a certificate of every client, signed by one of these authorities.
    #[must_use]
    pub fn require_clients_of(mut self, ca: impl Into<Pem>) -> Self {
        self.clients = ClientAuth::Required(ca.into());
        self
    }

    /// Asks clients for a certificate, signed by one of these authorities. A client may connect without a certificate.
    #[must_use]
    pub fn accept_clients_of(mut self, ca: impl Into<Pem>) -> Self {
        self.clients = ClientAuth::Optional(ca.into());
        self
    }

    /// Allows TLS 1.2 beside 1.3. Default no.
    #[must_use]
    pub fn allow_tls12(mut self) -> Self {
        self.allows_tls12 = true;
        self
    }
}

impl ClientTls {
    /// Settings that trust the authorities of the system.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these authorities and the system's authorities. A system without any is no error then.
    #[must_use]
    pub fn ca(mut self, ca: impl Into<Pem>) -> Self {
        self.ca = Some(ca.into());
        self.trusts_ca_only = false;
        self
    }

    /// Trusts only these authorities. Use it when all servers have certificates of your own authority: then no public
    /// authority can sign a false certificate.
    #[must_use]
    pub fn only_ca(mut self, ca: impl Into<Pem>) -> Self {
        self.ca = Some(ca.into());
        self.trusts_ca_only = true;
        self
    }

    /// Shows the server this certificate on request.
    #[must_use]
    pub fn identity(mut self, chain: impl Into<Pem>, key: impl Into<Pem>) -> Self {
        self.identity = Some((chain.into(), key.into()));
        self
    }

    /// Sets the name that the server's certificate must have. Default: the host of the address.
    #[must_use]
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Allows TLS 1.2 beside 1.3. Default no.
    #[must_use]
    pub fn allow_tls12(mut self) -> Self {
        self.allows_tls12 = true;
        self
    }
}
