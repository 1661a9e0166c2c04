//! TLS to NATS: trusted authorities, and the cryptography.

use std::error::Error;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::ConnectError;
use async_nats::rustls::client::WebPkiServerVerifier;
use async_nats::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use async_nats::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use async_nats::rustls::pki_types::pem::PemObject;
use async_nats::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use async_nats::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tidewire_io::trusted::{FileState, Trust, open_trusted};

use crate::error::NatsError;

/// Returns the settings of TLS, with the authorities of this file in place of the system's.
///
/// The client of NATS would ask rustls for the compiled provider of cryptography, which panics if there are two. That
/// depends on other crates of the program.
pub(crate) fn config(authority: Option<&Path>) -> Result<ClientConfig, NatsError> {
    let chosen = CryptoProvider::get_default().cloned();
    let provider = chosen.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let Some(path) = authority else {
        let mut roots = RootCertStore::empty();
        // A NATS without TLS needs no authority. With TLS, a missing authority is an error.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(builder.with_root_certificates(roots).with_no_client_auth());
    };
    let verifier = FileVerifier::load(path, provider).map_err(|source| NatsError::Authority {
        path: path.to_owned(),
        source,
    })?;
    let builder = builder.dangerous();
    Ok(builder
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

/// Trusts the authorities of a file. The file is read again for a connection if it has changed.
///
/// The client of NATS keeps the settings of TLS for all its connections, so the verifier reads. It runs on the thread
/// of the node.
#[derive(Debug)]
struct FileVerifier {
    path: PathBuf,
    provider: Arc<CryptoProvider>,
    present: Mutex<CurrentVerifier>,
}

#[derive(Debug)]
struct CurrentVerifier {
    verifier: Arc<WebPkiServerVerifier>,
    /// The state of the file at the last read. `None` after a read that failed, which is repeated.
    seen: Option<FileState>,
}

impl FileVerifier {
    fn load(path: &Path, provider: Arc<CryptoProvider>) -> io::Result<Self> {
        let seen = FileState::of(path);
        let verifier = verifier(path, &provider)?;
        Ok(Self {
            path: path.to_owned(),
            provider,
            present: Mutex::new(CurrentVerifier { verifier, seen }),
        })
    }

    /// The verifier of the present file. If the file cannot be used, the earlier verifier stays in use, with a warning
    /// in the log.
    fn present(&self) -> Arc<WebPkiServerVerifier> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let state = FileState::of(&self.path);
        if present.seen.is_some() && state == present.seen {
            return Arc::clone(&present.verifier);
        }
        let path = self.path.display();
        match verifier(&self.path, &self.provider) {
            Ok(verifier) => {
                (present.verifier, present.seen) = (verifier, state);
                tracing::info!(%path, "NATS is trusted by the authorities that were read again");
            }
            Err(error) => {
                let is_first = present.seen.take().is_some();
                if is_first {
                    tracing::warn!(
                        %path,
                        %error,
                        "the new authorities of NATS cannot be used, and the old ones stay"
                    );
                }
            }
        }
        Arc::clone(&present.verifier)
    }
}

impl ServerCertVerifier for FileVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.present().verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

fn verifier(path: &Path, provider: &Arc<CryptoProvider>) -> io::Result<Arc<WebPkiServerVerifier>> {
    let roots = Arc::new(authorities(path)?);
    let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider));
    builder.build().map_err(io::Error::other)
}

fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let unusable =
        |error: &dyn Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let mut file = open_trusted(path, Trust::Decides).map_err(io::Error::other)?;
    let mut pem = Vec::new();
    file.read_to_end(&mut pem)?;
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
