//! The flags of a server's certificate. Those of clients are in [`crate::security`].

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tidewire::tls::ServerTls;

use crate::failure::Failure;

/// The flags of a server's certificate.
#[derive(Debug, Args)]
pub(crate) struct ServerTlsArguments {
    /// Certificate chain of tls:// and wss:// addresses, in PEM. It is read again when it changes, and at SIGHUP
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Key of --tls-cert, in PEM, which other users may not read
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Certificates of the authorities that sign the certificates of clients, in PEM
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,

    /// Whether a client needs a certificate of --tls-client-ca, or may come without
    #[arg(long, value_enum, value_name = "WHO", default_value = "required")]
    tls_client_auth: ClientCertificates,

    /// Accept TLS 1.2 beside 1.3
    #[arg(long)]
    tls_1_2: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ClientCertificates {
    Required,
    Optional,
}

impl ServerTlsArguments {
    /// Returns the certificate alone, without a demand on clients, for an address of operators.
    pub(crate) fn certificate(&self) -> Option<ServerTls> {
        let pair = self.tls_cert.clone().zip(self.tls_key.clone());
        pair.map(|(cert, key)| ServerTls::new(cert, key))
    }

    /// Returns the settings, if there is a certificate.
    ///
    /// # Errors
    /// A flag is given without another that it needs.
    pub(crate) fn settings(&self) -> Result<Option<ServerTls>, Failure> {
        let (cert, key) = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => (cert.clone(), key.clone()),
            (Some(_), None) => return Err(missing("--tls-cert needs its key", "--tls-key FILE")),
            (None, Some(_)) => {
                return Err(missing(
                    "--tls-key needs its certificate",
                    "--tls-cert FILE",
                ));
            }
            (None, None) if self.tls_client_ca.is_some() => {
                let flags = "--tls-cert FILE --tls-key FILE";
                return Err(missing(
                    "--tls-client-ca needs a certificate of the server",
                    flags,
                ));
            }
            (None, None) => return Ok(None),
        };
        let mut settings = ServerTls::new(cert, key);
        if let Some(ca) = self.tls_client_ca.clone() {
            settings = match self.tls_client_auth {
                ClientCertificates::Required => settings.require_clients_of(ca),
                ClientCertificates::Optional => settings.accept_clients_of(ca),
            };
        }
        Ok(Some(match self.tls_1_2 {
            true => settings.allow_tls12(),
            false => settings,
        }))
    }
}

fn missing(what: &str, flag: &'static str) -> Failure {
    Failure::configuration(
        what,
        format!("give {flag}; `tidewire cert dev` makes a pair for tests"),
    )
}
