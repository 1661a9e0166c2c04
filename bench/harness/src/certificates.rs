//! Certificates that live as long as the process, and the settings of TLS that all contenders share.
//!
//! A server makes its own authority. Its drivers are bare clients that do not look at who signed: they are there to
//! give a server work, and each of their microseconds is one in which it has none.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
#[cfg(feature = "aws-lc-rs")]
use rustls::crypto::aws_lc_rs as chosen;
#[cfg(not(feature = "aws-lc-rs"))]
use rustls::crypto::ring as chosen;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};
use tidewire::tls::{Pem, ServerTls};
use tidewire_command::certificates::{Certificates, KeyedCertificate};

/// The certificates of this process, made when they are first asked for. The host of the server is [`SERVER_NAME`].
///
/// # Errors
/// The system has no randomness for the keys.
pub fn own() -> io::Result<&'static Certificates> {
    static MADE: OnceLock<Certificates> = OnceLock::new();
    let hosts = [SERVER_NAME.to_owned()];
    made_once(&MADE, || Certificates::make("authority", &hosts, VALIDITY))
}

/// The settings of a server of ours.
pub(crate) fn settings(asks_clients: bool) -> io::Result<ServerTls> {
    let own = own()?;
    let pem = |text: &String| Pem::bytes(text.as_bytes());
    let settings = ServerTls::new(pem(&own.server.certificate), pem(&own.server.key));
    Ok(match asks_clients {
        true => settings.require_clients_of(pem(&own.authority)),
        false => settings,
    })
}

/// The settings of a bare server, which are those of ours.
///
/// # Errors
/// The certificates cannot be made, or the library refuses them.
pub fn server_config(asks_clients: bool) -> io::Result<ServerConfig> {
    bare_config(own()?, asks_clients).map_err(io::Error::other)
}

fn bare_config(own: &Certificates, asks_clients: bool) -> Result<ServerConfig, Error> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13])?;
    let builder = if asks_clients {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(
            CertificateDer::pem_slice_iter(own.authority.as_bytes()).flatten(),
        );
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider());
        let verifier = verifier
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let (chain, key) = parsed(&own.server)?;
    let mut config = builder.with_single_cert(chain, key)?;
    if asks_clients {
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
    } else {
        config.ticketer = chosen::Ticketer::new()?;
    }
    Ok(config)
}

fn parsed(
    of: &KeyedCertificate,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let unreadable = |error: rustls::pki_types::pem::Error| Error::General(error.to_string());
    let chain: Result<_, _> = CertificateDer::pem_slice_iter(of.certificate.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(of.key.as_bytes());
    Ok((chain.map_err(unreadable)?, key.map_err(unreadable)?))
}

/// The settings of a client with this certificate.
pub(crate) fn client_config_of(client: &KeyedCertificate) -> io::Result<ClientConfig> {
    let config =
        parsed(client).and_then(|(chain, key)| trusting()?.with_client_auth_cert(chain, key));
    config.map_err(io::Error::other)
}

/// The settings of a client that trusts every server and has no certificate. It keeps
/// no tickets.
///
/// # Errors
/// The library refuses its own settings.
pub fn client_config() -> io::Result<ClientConfig> {
    let mut config = trusting().map_err(io::Error::other)?.with_no_client_auth();
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The server's side of a connection with the certificate of this process.
pub(crate) fn server() -> io::Result<ServerConnection> {
    static CONFIG: OnceLock<Arc<ServerConfig>> = OnceLock::new();
    let config = made_once(&CONFIG, || server_config(false).map(Arc::new))?;
    ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)
}

/// The client's side of a connection that trusts anybody.
pub(crate) fn client() -> io::Result<ClientConnection> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    client_of(made_once(&CONFIG, || client_config().map(Arc::new))?)
}

/// The client's side with these settings.
pub(crate) fn client_of(config: &Arc<ClientConfig>) -> io::Result<ClientConnection> {
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)
}

/// Returns the value, which is made when it is first asked for.
fn made_once<T>(
    cell: &'static OnceLock<T>,
    make: impl FnOnce() -> io::Result<T>,
) -> io::Result<&'static T> {
    if let Some(made) = cell.get() {
        return Ok(made);
    }
    let made = make()?;
    Ok(cell.get_or_init(|| made))
}

fn trusting() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, Error>
{
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13])?.dangerous();
    Ok(builder.with_custom_certificate_verifier(Arc::new(AnyCertificate(provider()))))
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(chosen::default_provider())))
}

/// Accepts every server. There is nobody to be deceived by: the driver was told the address by the server itself.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = self.0.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// The name in the server's certificate.
pub const SERVER_NAME: &str = "localhost";

/// Longer than any benchmark.
const VALIDITY: Duration = Duration::from_secs(24 * 3_600);
