//! TLS to NATS: whom it is trusted by, and the cryptography.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use async_nats::ConnectError;
use async_nats::rustls::crypto::{CryptoProvider, ring};
use async_nats::rustls::pki_types::CertificateDer;
use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::{self, ClientConfig, RootCertStore};

use crate::error::NatsError;

/// Returns the settings of TLS, with the authorities of this file in place of those of the system.
///
/// The client of NATS would ask rustls for the one provider of cryptography that is compiled in, which panics if there are two.
/// That depends on other crates of the program.
pub(crate) fn config(authority: Option<&Path>) -> Result<ClientConfig, NatsError> {
    let roots = match authority {
        Some(path) => authorities(path).map_err(|source| NatsError::Authority {
            path: path.to_owned(),
            source,
        })?,
        None => {
            let mut roots = RootCertStore::empty();
            // A NATS without TLS needs none. With TLS, one that is missing is told.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let chosen = CryptoProvider::get_default().cloned();
    let provider = chosen.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(io::Error::other)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let unusable =
        |error: &dyn Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let pem = std::fs::read(path)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unusable(&error))?;
        roots.add(certificate).map_err(|error| unusable(&error))?;
    }
    match roots.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "there is no certificate in it",
        )),
        false => Ok(roots),
    }
}

/// Whether a connection failed because of TLS. The client of NATS tells only some of these failures.
pub(crate) fn is_cause(error: &ConnectError) -> bool {
    let source = error.source().and_then(|it| it.downcast_ref::<io::Error>());
    let cause = source.and_then(io::Error::get_ref);
    cause.is_some_and(|it| it.is::<rustls::Error>())
}
