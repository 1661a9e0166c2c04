//! The agent for requests by HTTP: the export of spans, and the sets of keys of issuers.

use std::sync::Arc;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

/// An agent for HTTP and HTTPS that trusts the authorities of the system. A status is an answer and no error. The agent
/// follows no redirection, because the target may be another host, which would get the headers, or may lack encryption.
#[must_use]
pub fn http_agent() -> Agent {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .max_redirects(0)
        .user_agent(concat!("tidewire/", env!("CARGO_PKG_VERSION")))
        .build();
    config.into()
}
