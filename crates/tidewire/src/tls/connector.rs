//! The client's side: whom it trusts, and the layers of its connections.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use rustls_platform_verifier::Verifier;
use tidewire_proto::layer::Layer;

use super::ClientTls;
use super::acceptor::{HTTP, authorities, unusable};
use super::error::{PemPart, TlsError};
use super::layer::{TlsLayer, failed};
use super::provider::{provider, versions};

/// Makes the TLS layers of a client's connections to one server. Its configuration keeps the tickets for resumption.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

/// Makes the TLS layers of connections that the lanes of a server make.
#[derive(Debug)]
pub(crate) struct OutgoingTls {
    /// For `tls://`, with the codec's name.
    codec: Arc<ClientConfig>,
    /// For `wss://`, with [`HTTP`].
    web: Arc<ClientConfig>,
    /// The name that all certificates must have. Without it, it is the address of the connection.
    server: Option<ServerName<'static>>,
}

impl OutgoingTls {
    /// Reads what the settings name. `protocol` is the codec's name.
    pub(crate) fn load(settings: &ClientTls, protocol: &str) -> Result<Self, TlsError> {
        let server = settings.server_name.as_deref().map(server_name);
        let codec = settings.config(Some(protocol))?;
        let mut web = codec.clone();
        web.alpn_protocols = vec![HTTP.into()];
        Ok(Self {
            server: server.transpose()?,
            codec: Arc::new(codec),
            web: Arc::new(web),
        })
    }

    /// Makes the layer of a new connection to this address, beneath WebSocket or not.
    pub(crate) fn layer(&self, address: IpAddr, is_web: bool) -> Box<dyn Layer> {
        let config = if is_web { &self.web } else { &self.codec };
        let name = self.server.clone();
        let name = name.unwrap_or_else(|| address.into());
        layer(ClientConnection::new(Arc::clone(config), name))
    }
}

impl Connector {
    /// Reads what the settings name. `host` is the host of the server's address, and `protocol` the codec's name.
    pub(crate) fn load(
        settings: &ClientTls,
        host: &str,
        protocol: Option<&str>,
    ) -> Result<Self, TlsError> {
        Ok(Self {
            server: server_name(settings.server_name.as_deref().unwrap_or(host))?,
            config: Arc::new(settings.config(protocol)?),
        })
    }

    /// The same with another name to offer, that of a codec or [`HTTP`]. They share the tickets.
    pub(crate) fn with_protocol(&self, protocol: &str) -> Self {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = vec![protocol.into()];
        Self {
            config: Arc::new(config),
            server: self.server.clone(),
        }
    }

    /// Makes the layer of a new connection.
    pub(crate) fn layer(&self) -> Box<dyn Layer> {
        layer(self.connection())
    }

    pub(super) fn connection(&self) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(Arc::clone(&self.config), self.server.clone())
    }
}

fn layer(connection: Result<ClientConnection, rustls::Error>) -> Box<dyn Layer> {
    match connection {
        Ok(connection) => Box::new(TlsLayer::new(connection.into())),
        Err(error) => failed(&error),
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    let name = name.to_owned();
    ServerName::try_from(name.clone()).map_err(|_| TlsError::BadServerName { name })
}

impl ClientTls {
    /// Makes the client's side of TLS for one connection, as a layer. `host` is the host of the server's address, and `protocol` the
    /// name that is offered by ALPN, which is that of the codec.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn layer(&self, host: &str, protocol: Option<&str>) -> Result<Box<dyn Layer>, TlsError> {
        Ok(Connector::load(self, host, protocol)?.layer())
    }

    fn config(&self, protocol: Option<&str>) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(versions(self.allows_tls12))
            .map_err(|error| no_roots(&error))?
            .dangerous()
            .with_custom_certificate_verifier(self.verifier()?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => builder
                .with_client_auth_cert(chain.certificates(PemPart::Chain)?, key.key()?)
                .map_err(|error| unusable(chain, key, &error))?,
        };
        config.alpn_protocols = protocol.map(Vec::from).into_iter().collect();
        Ok(config)
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
