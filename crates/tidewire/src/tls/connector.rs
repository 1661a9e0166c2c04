//! The client's side: its trusted authorities, and the layers of its connections.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use rustls_platform_verifier::Verifier;
use tidewire_io::clock::now_ns;
use tidewire_proto::layer::Layer;

use super::ClientTls;
use super::acceptor::{HTTP, authorities, unusable};
use super::error::TlsError;
use super::layer::{TlsLayer, failed};
use super::pem::Pem;
use super::pem::PemPart;
use super::provider::{provider, versions};
use crate::address::Address;
use crate::observe::QuietLog;
use tidewire_io::trusted::FileState;

/// The configuration of connections to servers, from files that are read again when they have changed.
///
/// Reading may block, so files are read at the start, and later on a thread that is no lane: before a client or an
/// upstream connects, and once a second for the connections of handlers.
#[derive(Debug)]
pub(crate) struct ClientConfigs {
    settings: ClientTls,
    present: Mutex<CurrentConfig>,
    /// Held while files are read, so that the later of two concurrent reads reads the later files.
    reading: Mutex<Reading>,
}

#[derive(Debug)]
struct CurrentConfig {
    /// The configuration without a name for ALPN.
    base: ClientConfig,
    /// Configurations with a name, which share the tickets of `base`. There are two names: the codec's name and
    /// [`HTTP`].
    named: Vec<(&'static str, Arc<ClientConfig>)>,
}

#[derive(Debug)]
struct Reading {
    /// The states of the files at the last read. `None` after a read that failed, which is repeated.
    seen: Option<Vec<Option<FileState>>>,
    log: QuietLog,
}

/// Makes the TLS layers of a client's connections to one server.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    configs: Arc<ClientConfigs>,
    protocol: Option<&'static str>,
    server: ServerName<'static>,
}

/// Makes the TLS layers of connections that the lanes of a server make.
#[derive(Debug)]
pub(crate) struct OutgoingTls {
    configs: Arc<ClientConfigs>,
    /// The codec's name, which is offered at `tls://`.
    protocol: &'static str,
    /// The name that all certificates must have. Without it, it is the address of the connection.
    server: Option<ServerName<'static>>,
}

impl ClientConfigs {
    /// Reads what the settings name.
    pub(crate) fn load(settings: &ClientTls) -> Result<Arc<Self>, TlsError> {
        let seen = Some(settings.states());
        let present = CurrentConfig::new(settings.config()?);
        Ok(Arc::new(Self {
            settings: settings.clone(),
            present: Mutex::new(present),
            reading: Mutex::new(Reading {
                seen,
                log: QuietLog::default(),
            }),
        }))
    }

    pub(crate) fn has_files(&self) -> bool {
        self.settings.pems().any(|pem| matches!(pem, Pem::File(_)))
    }

    /// Reads the files again if one of them has changed. If the new files cannot be used, the old configuration stays,
    /// with a warning in the log. It blocks, so never call it on a lane.
    pub(crate) fn refresh(&self) {
        let mut reading = lock(&self.reading);
        let states = self.settings.states();
        if reading.seen.as_ref() == Some(&states) {
            return;
        }
        match self.settings.config() {
            Ok(config) => {
                reading.seen = Some(states);
                *lock(&self.present) = CurrentConfig::new(config);
                tracing::info!(
                    files = ?self.settings.pems().collect::<Vec<_>>(),
                    "new connections use the certificates that were read again"
                );
            }
            Err(error) => {
                reading.seen = None;
                if let Some(unlogged) = reading.log.may_log(now_ns()) {
                    tracing::warn!(
                        %error,
                        unlogged,
                        "the new certificates for connections to other servers cannot be used, and the old ones stay; \
                         further failures are not logged for 10 s"
                    );
                }
            }
        }
    }

    /// Refreshes once a second, on a thread that ends with the last user of these settings.
    fn watch(self: &Arc<Self>) {
        let configs = Arc::downgrade(self);
        let thread = thread::Builder::new().name("tidewire-tls".to_owned());
        let watch = move || {
            while let Some(configs) = configs.upgrade() {
                configs.refresh();
                drop(configs);
                thread::sleep(WATCH_INTERVAL);
            }
        };
        if let Err(error) = thread.spawn(watch) {
            tracing::warn!(
                %error,
                "no thread compares the certificates for connections to other servers: restart the server when they \
                 change"
            );
        }
    }

    fn connection(
        &self,
        protocol: Option<&'static str>,
        server: ServerName<'static>,
    ) -> Result<ClientConnection, rustls::Error> {
        let config = lock(&self.present).config(protocol);
        ClientConnection::new(config, server)
    }
}

impl CurrentConfig {
    fn new(base: ClientConfig) -> Self {
        let named = Vec::new();
        Self { base, named }
    }

    /// The configuration that offers this name.
    fn config(&mut self, protocol: Option<&'static str>) -> Arc<ClientConfig> {
        let name = protocol.unwrap_or_default();
        if let Some((_, config)) = self.named.iter().find(|(it, _)| *it == name) {
            return Arc::clone(config);
        }
        let mut config = self.base.clone();
        config.alpn_protocols = protocol.map(Vec::from).into_iter().collect();
        let config = Arc::new(config);
        self.named.push((name, Arc::clone(&config)));
        config
    }
}

impl OutgoingTls {
    /// Reads what the settings name, and watches the files. `protocol` is the codec's name.
    pub(crate) fn load(settings: &ClientTls, protocol: &'static str) -> Result<Self, TlsError> {
        let server = settings.server_name.as_deref().map(server_name);
        let server = server.transpose()?;
        let configs = ClientConfigs::load(settings)?;
        if configs.has_files() {
            configs.watch();
        }
        Ok(Self {
            configs,
            protocol,
            server,
        })
    }

    /// Makes the layer of a new connection to this address, beneath WebSocket or not.
    pub(crate) fn layer(&self, address: IpAddr, is_web: bool) -> Box<dyn Layer> {
        let protocol = if is_web { HTTP } else { self.protocol };
        let name = self.server.clone();
        let name = name.unwrap_or_else(|| address.into());
        layer(self.configs.connection(Some(protocol), name))
    }
}

impl Connector {
    /// Makes the layers of connections to a host. `protocol` is the name to offer: the codec's name or [`HTTP`].
    pub(crate) fn new(
        configs: &Arc<ClientConfigs>,
        host: &str,
        protocol: Option<&'static str>,
    ) -> Result<Self, TlsError> {
        let name = configs.settings.server_name.as_deref().unwrap_or(host);
        Ok(Self {
            configs: Arc::clone(configs),
            protocol,
            server: server_name(name)?,
        })
    }

    /// Makes the layers of connections to the host of an address. `None` if it has no host or no configuration.
    pub(crate) fn to(
        address: &Address,
        configs: Option<&Arc<ClientConfigs>>,
    ) -> Result<Option<Self>, TlsError> {
        let at_host = configs.zip(address.host());
        let connector = at_host.map(|(configs, host)| Self::new(configs, host, None));
        connector.transpose()
    }

    /// A connector that offers another name and shares the tickets.
    pub(crate) fn with_protocol(&self, protocol: &'static str) -> Self {
        let protocol = Some(protocol);
        Self {
            protocol,
            ..self.clone()
        }
    }

    /// The configuration, for a lookup before a connection.
    pub(crate) fn configs(&self) -> &Arc<ClientConfigs> {
        &self.configs
    }

    pub(crate) fn layer(&self) -> Box<dyn Layer> {
        layer(self.connection())
    }

    pub(super) fn connection(&self) -> Result<ClientConnection, rustls::Error> {
        self.configs.connection(self.protocol, self.server.clone())
    }
}

fn layer(connection: Result<ClientConnection, rustls::Error>) -> Box<dyn Layer> {
    match connection {
        Ok(connection) => Box::new(TlsLayer::new(connection.into())),
        Err(error) => failed(&error),
    }
}

/// The name that a certificate must have. A zone of an IPv6 address says how this machine reaches the address, and is
/// in no certificate.
fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    let without_zone = name.split_once('%').map(|(address, _)| address);
    let address = without_zone.filter(|address| address.parse::<Ipv6Addr>().is_ok());
    let name = address.unwrap_or(name).to_owned();
    ServerName::try_from(name.clone()).map_err(|_| TlsError::BadServerName { name })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClientTls {
    /// Makes the client's side of TLS for one connection, as a layer. `host` is the host of the server's address, and
    /// `protocol` the name that is offered by ALPN: the codec's name.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn layer(&self, host: &str, protocol: Option<&str>) -> Result<Box<dyn Layer>, TlsError> {
        let mut config = self.config()?;
        config.alpn_protocols = protocol.map(Vec::from).into_iter().collect();
        let server = server_name(self.server_name.as_deref().unwrap_or(host))?;
        Ok(layer(ClientConnection::new(Arc::new(config), server)))
    }

    /// The authorities, the certificate chain and the key, if set.
    fn pems(&self) -> impl Iterator<Item = &Pem> {
        let identity = self.identity.iter();
        let identity = identity.flat_map(|(chain, key)| [chain, key]);
        self.ca.iter().chain(identity)
    }

    fn states(&self) -> Vec<Option<FileState>> {
        self.pems().map(Pem::file_state).collect()
    }

    fn config(&self) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions(self.allows_tls12))
            .map_err(|error| no_roots(&error))?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier()?);
        match &self.identity {
            None => Ok(builder.with_no_client_auth()),
            Some((chain, key)) => builder
                .with_client_auth_cert(chain.certificates(PemPart::Chain)?, key.key()?)
                .map_err(|error| unusable(chain, key, &error)),
        }
    }

    fn verifier(&self) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
        let Some(ca) = &self.ca else {
            let verifier = Verifier::new(provider()).map_err(|error| no_roots(&error))?;
            return Ok(Arc::new(verifier));
        };
        // This checks the certificates, too.
        let roots = authorities(ca)?;
        if !self.trusts_ca_only {
            let extra = ca.certificates(PemPart::Authorities)?;
            let verifier = Verifier::new_with_extra_roots(extra, provider());
            return Ok(Arc::new(verifier.map_err(|error| no_roots(&error))?));
        }
        let roots = roots.into();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        let verifier = verifier.map_err(|error| TlsError::BadAuthority {
            ca: ca.origin(),
            detail: error.to_string(),
        })?;
        Ok(verifier)
    }
}

fn no_roots(error: &rustls::Error) -> TlsError {
    let detail = error.to_string();
    TlsError::NoSystemRoots { detail }
}

/// The interval of checks of the files for connections that handlers make: the same as for a server's files.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
