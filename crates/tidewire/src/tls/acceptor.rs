//! The server's side: its certificate, and the layers of accepted connections.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use crossbeam_utils::CachePadded;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use sha2::{Digest, Sha256};
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::layer::Layer;

use super::error::TlsError;
use super::expiry::expiry;
use super::layer::{TlsLayer, failed};
use super::pem::Pem;
use super::pem::PemPart;
use super::provider::{provider, ticketer, versions};
use super::{ClientAuth, ServerTls};
use crate::observe::LaneCounters;
use tidewire_io::trusted::FileState;

/// Makes the TLS layers of the connections that a server accepts.
#[derive(Debug)]
pub(crate) struct Acceptor {
    settings: ServerTls,
    /// The names to offer by ALPN.
    protocols: Vec<&'static str>,
    /// Replaced by a reload. They are read once a connection.
    configs: RwLock<Configs>,
    /// The earliest end of a certificate of the chain, as of the last load that succeeded.
    expires: RwLock<Option<SystemTime>>,
    /// The states of the files at the last load, whether it failed or not.
    seen: Mutex<[Option<FileState>; 3]>,
    /// The hash of the files' content in use.
    used: Mutex<[u8; 32]>,
}

/// A configuration for each name for ALPN.
#[derive(Debug)]
struct Configs(Vec<(&'static str, Arc<ServerConfig>)>);

/// The certificate and the key in use: makes TLS layers with them, and reads them again.
/// [`Server::tls_acceptor`](crate::Server::tls_acceptor) returns that of a server. [`ServerTls::acceptor`] makes
/// one for connections that the caller accepts.
///
/// After [`Self::reload`] new connections use the new pair, and open sessions continue. If the new pair cannot be used,
/// the old pair stays.
///
/// ```no_run
/// use tidewire::tls::ServerTls;
/// use tidewire::{PubSub, Server};
///
/// let server = Server::builder()
///     .listen("tls://0.0.0.0:8443")?
///     .tls(ServerTls::new("server.pem", "server.key"))
///     .start_one(PubSub::new())?;
/// let certificate = server.tls_acceptor().expect("the server has a certificate");
/// std::thread::spawn(move || loop {
///     std::thread::sleep(std::time::Duration::from_secs(1));
///     if let Err(error) = certificate.reload_if_changed() {
///         eprintln!("the old certificate stays: {error}");
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TlsAcceptor {
    acceptor: Arc<Acceptor>,
    /// The counters of the server, if it is one of a server.
    counters: Option<Arc<CachePadded<LaneCounters>>>,
}

impl Acceptor {
    /// Reads certificate and key. The names of the codecs are offered by ALPN, and [`HTTP`] for WebSocket.
    pub(crate) fn load(
        settings: ServerTls,
        codecs: impl IntoIterator<Item = &'static str>,
    ) -> Result<Self, TlsError> {
        let protocols: Vec<_> = codecs.into_iter().chain([HTTP]).collect();
        let seen = settings.files();
        let used = Mutex::new(settings.content()?);
        let (config, expires) = settings.config()?;
        Ok(Self {
            used,
            settings,
            configs: RwLock::new(Configs::new(&config, &protocols)),
            protocols,
            expires: RwLock::new(expires),
            seen: Mutex::new(seen),
        })
    }

    /// Makes the layer of an accepted connection. ALPN offers this name.
    pub(crate) fn layer(&self, protocol: &str) -> Box<dyn Layer> {
        match self.connection(protocol) {
            Ok(connection) => Box::new(TlsLayer::new(connection.into())),
            Err(error) => failed(&error),
        }
    }

    pub(super) fn connection(&self, protocol: &str) -> Result<ServerConnection, rustls::Error> {
        let configs = self.configs.read().unwrap_or_else(PoisonError::into_inner);
        let mut configs = configs.0.iter();
        let (_, config) = configs
            .find(|(known, _)| *known == protocol)
            .ok_or_else(|| rustls::Error::General(format!("no configuration for {protocol}")))?;
        ServerConnection::new(Arc::clone(config))
    }

    /// Reads the files again. Returns whether their content has changed. Tickets of earlier sessions then become
    /// invalid, so that no peer returns with an identity of a removed authority.
    pub(super) fn reload(&self) -> Result<bool, TlsError> {
        // Held to the end, so that the later of two concurrent reloads reads the later files.
        let mut seen = self.seen();
        *seen = self.settings.files();
        let content = self.settings.content()?;
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if *used == content {
            return Ok(false);
        }
        let (config, expires) = self.settings.config()?;
        let configs = Configs::new(&config, &self.protocols);
        *self.configs.write().unwrap_or_else(PoisonError::into_inner) = configs;
        *self.expires.write().unwrap_or_else(PoisonError::into_inner) = expires;
        *used = content;
        Ok(true)
    }

    /// As [`Self::reload`]. The log says how it ended.
    fn reload_and_tell(&self) -> Result<bool, TlsError> {
        let outcome = self.reload();
        match &outcome {
            Ok(false) => tracing::debug!("the certificate is the one that is in use"),
            Ok(true) => {
                tracing::info!(chain = ?self.settings.chain, "new connections use the certificate that was read again");
            }
            Err(error) => {
                tracing::error!(%error, "the new certificate is refused, and the old one stays");
            }
        }
        outcome
    }

    fn has_changed(&self) -> bool {
        *self.seen() != self.settings.files()
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, [Option<FileState>; 3]> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Configs {
    fn new(config: &ServerConfig, protocols: &[&'static str]) -> Self {
        let of_protocol = |protocol: &&'static str| {
            let mut config = config.clone();
            config.alpn_protocols = vec![(*protocol).into()];
            (*protocol, Arc::new(config))
        };
        Self(protocols.iter().map(of_protocol).collect())
    }
}

impl TlsAcceptor {
    pub(crate) fn new(acceptor: Arc<Acceptor>, counters: Arc<CachePadded<LaneCounters>>) -> Self {
        let counters = Some(counters);
        Self { acceptor, counters }
    }

    /// Makes the layer of an accepted connection.
    #[must_use]
    pub fn layer(&self) -> Box<dyn Layer> {
        self.acceptor.layer(self.acceptor.protocols[0])
    }

    /// Returns when the first certificate of the chain in use expires. `None` if that cannot be read from it.
    #[must_use]
    pub fn expiry(&self) -> Option<SystemTime> {
        let expires = self.acceptor.expires.read();
        *expires.unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files now. Nothing happens if their content is in use, so a signal that rotates logs costs no tickets.
    /// Otherwise the log says how it ended, and the counters [`tls_reloads`](crate::metrics::Metrics::tls_reloads) and
    /// [`tls_reloads_refused`](crate::metrics::Metrics::tls_reloads_refused) of the server count it.
    ///
    /// # Errors
    /// The new pair cannot be used, and the old pair stays.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let outcome = self.acceptor.reload_and_tell();
        if let Some(counters) = &self.counters {
            match &outcome {
                Ok(false) => {}
                Ok(true) => counters.tls_reloads.add_shared(1),
                Err(_) => counters.tls_reloads_refused.add_shared(1),
            }
        }
        outcome
    }

    /// Reads the files if one of them has changed since they were last read. Returns whether there is another
    /// certificate now.
    ///
    /// # Errors
    /// As [`Self::reload`]. Files that could not be used are not read again before they change once more.
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        match self.acceptor.has_changed() {
            true => self.reload(),
            false => Ok(false),
        }
    }
}

impl ServerTls {
    /// Makes the server's side of TLS for one connection, as a layer. `protocol` is the name that is offered by ALPN:
    /// the codec's name.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn layer(&self, protocol: &'static str) -> Result<Box<dyn Layer>, TlsError> {
        Ok(Acceptor::load(self.clone(), [protocol])?.layer(protocol))
    }

    /// As [`Self::layer`], for many connections: the files are read once, and
    /// [again](TlsAcceptor::reload_if_changed) when they change.
    ///
    /// ```no_run
    /// use tidewire::tls::ServerTls;
    /// use tidewire_proto::layer::Stack;
    ///
    /// let acceptor = ServerTls::new("server.pem", "server.key").acceptor("http/1.1")?;
    /// acceptor.reload_if_changed()?; // before each connection: the certificate may have been renewed
    /// let stack = Stack::from(acceptor.layer());
    /// # Ok::<(), tidewire::tls::TlsError>(())
    /// ```
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn acceptor(&self, protocol: &'static str) -> Result<TlsAcceptor, TlsError> {
        Ok(TlsAcceptor {
            acceptor: Arc::new(Acceptor::load(self.clone(), [protocol])?),
            counters: None,
        })
    }

    fn files(&self) -> [Option<FileState>; 3] {
        let ca = match &self.clients {
            ClientAuth::Off => None,
            ClientAuth::Optional(ca) | ClientAuth::Required(ca) => ca.file_state(),
        };
        [self.chain.file_state(), self.key.file_state(), ca]
    }

    fn content(&self) -> Result<[u8; 32], TlsError> {
        let mut hash = Sha256::new();
        let ca = match &self.clients {
            ClientAuth::Off => None,
            ClientAuth::Optional(ca) | ClientAuth::Required(ca) => Some((ca, PemPart::Authorities)),
        };
        let own = [(&self.chain, PemPart::Chain), (&self.key, PemPart::Key)];
        for (pem, part) in own.into_iter().chain(ca) {
            let bytes = pem.read(part)?;
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
        Ok(hash.finalize().into())
    }

    /// Reads the files. Returns the earliest expiry of a certificate of the chain, too.
    fn config(&self) -> Result<(ServerConfig, Option<SystemTime>), TlsError> {
        let chain = self.chain.certificates(PemPart::Chain)?;
        let expires = chain.iter().filter_map(|it| expiry(it)).min();
        let key = self.key.key()?;
        let unusable = |error: rustls::Error| unusable(&self.chain, &self.key, &error);
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions(self.allows_tls12))
            .map_err(unusable)?;
        let builder = match &self.clients {
            ClientAuth::Off => builder.with_no_client_auth(),
            ClientAuth::Optional(ca) | ClientAuth::Required(ca) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(
                    authorities(ca)?.into(),
                    provider(),
                );
                let verifier = match &self.clients {
                    ClientAuth::Optional(_) => verifier.allow_unauthenticated(),
                    _ => verifier,
                };
                let verifier = verifier.build().map_err(|error| TlsError::BadAuthority {
                    ca: ca.origin(),
                    detail: error.to_string(),
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
        if matches!(self.clients, ClientAuth::Off) {
            config.ticketer = ticketer().map_err(unusable)?;
        } else {
            // A resumed session would keep the client's certificate without a check of its validity.
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok((config, expires))
    }
}

/// The ALPN name of WebSocket, which begins as HTTP. Browsers offer no other name.
pub(super) const HTTP: &str = "http/1.1";

/// The ALPN name that a client offers for its codec, beneath WebSocket or not.
pub(crate) fn protocol(is_web: bool, codec: &AnyCodec) -> &'static str {
    if is_web { HTTP } else { codec.name() }
}

pub(super) fn authorities(ca: &Pem) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in ca.certificates(PemPart::Authorities)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::BadAuthority {
                ca: ca.origin(),
                detail: error.to_string(),
            })?;
    }
    Ok(roots)
}

/// Converts an error of a certificate and its key.
pub(super) fn unusable(chain: &Pem, key: &Pem, error: &rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::KeyMismatch {
            key: key.origin(),
            chain: chain.origin(),
        },
        error => TlsError::Unusable {
            chain: chain.origin(),
            detail: error.to_string(),
        },
    }
}
