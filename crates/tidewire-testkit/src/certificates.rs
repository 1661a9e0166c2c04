//! Certificates for tests: an authority, and its certificates.

use std::sync::OnceLock;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use tidewire::tls::{ClientTls, Pem, ServerTls};

/// An authority that signs certificates of P-256 keys.
#[derive(Debug)]
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub chain: String,
    /// The key.
    pub key: String,
}

/// The hosts of servers in tests.
pub const HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

impl Authority {
    /// Makes an authority of this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let issuer = Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// The authority's own certificate.
    #[must_use]
    pub fn pem(&self) -> Pem {
        Pem::bytes(self.pem.as_bytes())
    }

    /// The authority's own certificate as text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.pem
    }

    /// Signs a certificate after `change` has changed it.
    pub fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names of hosts");
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer);
        Identity {
            chain: certificate.expect("a certificate").pem(),
            key: key.serialize_pem(),
        }
    }

    /// Signs the certificate of a server on this machine.
    #[must_use]
    pub fn sign_server(&self) -> Identity {
        self.sign(&HOSTS, |params| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        })
    }

    /// Signs the certificate of a client with this common name, and a URI and a mail address made of it.
    #[must_use]
    pub fn sign_client(&self, name: &str) -> Identity {
        let host = format!("{name}.example");
        self.sign(&[&host], |params| {
            params.distinguished_name.push(DnType::CommonName, name);
            let ascii = |text: String| text.try_into().expect("ASCII");
            params.subject_alt_names.extend([
                SanType::Rfc822Name(ascii(format!("{name}@example"))),
                SanType::URI(ascii(format!("spiffe://example/{name}"))),
            ]);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        })
    }

    /// Settings of a client that trusts this authority only, so that tests do not read the system's authorities.
    #[must_use]
    pub fn client(&self) -> ClientTls {
        ClientTls::new().only_ca(self.pem())
    }
}

impl Identity {
    /// The chain and the key, for settings.
    #[must_use]
    pub fn pair(&self) -> (Pem, Pem) {
        let [chain, key] = [&self.chain, &self.key].map(|text| Pem::bytes(text.as_bytes()));
        (chain, key)
    }

    /// Settings of a server with this certificate.
    #[must_use]
    pub fn server(&self) -> ServerTls {
        let (chain, key) = self.pair();
        ServerTls::new(chain, key)
    }
}

/// The authority of servers in tests, and a server's certificate.
pub fn usual() -> &'static (Authority, Identity) {
    static USUAL: OnceLock<(Authority, Identity)> = OnceLock::new();
    USUAL.get_or_init(|| {
        let authority = Authority::new("tests");
        let server = authority.sign_server();
        (authority, server)
    })
}
