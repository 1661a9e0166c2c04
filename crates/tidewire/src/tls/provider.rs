//! The choice of cryptography: ring, or aws-lc-rs with the feature of this name.

use std::sync::{Arc, OnceLock};

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;
#[cfg(feature = "aws-lc-rs")]
use rustls::crypto::aws_lc_rs as chosen;
#[cfg(not(feature = "aws-lc-rs"))]
use rustls::crypto::ring as chosen;
use rustls::server::ProducesTickets;
use rustls::version::{TLS12, TLS13};

pub(super) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = PROVIDER.get_or_init(|| Arc::new(chosen::default_provider()));
    Arc::clone(provider)
}

/// Makes session tickets with a key that is replaced every few hours.
pub(super) fn ticketer() -> Result<Arc<dyn ProducesTickets>, rustls::Error> {
    chosen::Ticketer::new()
}

pub(super) fn versions(allows_tls12: bool) -> &'static [&'static SupportedProtocolVersion] {
    match allows_tls12 {
        true => BOTH,
        false => NEW,
    }
}

static NEW: &[&SupportedProtocolVersion] = &[&TLS13];

static BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
