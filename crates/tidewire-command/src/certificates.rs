//! Certificates without an external authority: an authority is made, signs them, and is dropped.

use std::io;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// The certificates of a server and of its clients, and their keys, in PEM.
#[derive(Debug)]
pub struct Certificates {
    /// The certificate of the authority.
    pub authority: String,
    /// The certificate of the server.
    pub server: KeyedCertificate,
    /// The certificate of all clients.
    pub client: KeyedCertificate,
}

/// A certificate with its key, in PEM.
#[derive(Debug)]
pub struct KeyedCertificate {
    /// The certificate, without the authority's certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

impl Certificates {
    /// Makes an authority of this name, and certificates of a server with these hosts and of a client, which are valid
    /// for so long. The authority's key is dropped, so no one can sign with it later.
    ///
    /// # Errors
    /// A host has no form of a name, or the system has no randomness for the keys.
    pub fn make(authority: &str, hosts: &[String], validity: Duration) -> io::Result<Self> {
        Self::sign(authority, hosts, validity).map_err(io::Error::other)
    }

    fn sign(authority: &str, hosts: &[String], validity: Duration) -> Result<Self, rcgen::Error> {
        let mut params = params(&[], authority, validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let authority = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        let signed = |hosts: &[String], purpose| {
            let name = hosts.first().map_or("", String::as_str);
            let mut params = self::params(hosts, name, validity)?;
            params.extended_key_usages = vec![purpose];
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.use_authority_key_identifier_extension = true;
            let key = KeyPair::generate()?;
            Ok::<_, rcgen::Error>(KeyedCertificate {
                certificate: params.signed_by(&key, &issuer)?.pem(),
                key: key.serialize_pem(),
            })
        };
        Ok(Self {
            server: signed(hosts, ExtendedKeyUsagePurpose::ServerAuth)?,
            client: signed(&["client".to_owned()], ExtendedKeyUsagePurpose::ClientAuth)?,
            authority,
        })
    }
}

fn params(
    hosts: &[String],
    name: &str,
    validity: Duration,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name.push(DnType::CommonName, name);
    #[expect(
        clippy::disallowed_methods,
        reason = "certificates are valid by the wall clock"
    )]
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_DIFFERENCE).into();
    params.not_after = (now + validity).into();
    Ok(params)
}

/// Certificates begin this much earlier, because the clocks of two machines differ.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3_600);
