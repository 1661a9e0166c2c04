//! The cryptography of `jsonwebtoken`, by `ring`, which TLS brings anyway.
//!
//! Rejected: its feature `rust_crypto`. Its `rsa` has an open advisory (RUSTSEC-2023-0071), and it brings second
//! versions of many crates. Rejected: its feature `aws_lc_rs`, which builds a second library of cryptography.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use ring::{hmac, signature};

/// Makes `jsonwebtoken` use this provider, unless the program has chosen another provider, which verifies as well.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory,
    verifier_factory,
    key_utils: KeyUtils::new_unimplemented(),
};

/// A key that checks signatures of one algorithm.
struct Key {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn verifier_factory(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(new_error(ErrorKind::InvalidAlgorithm));
    }
    let (algorithm, key) = (*algorithm, key.clone());
    Ok(Box::new(Key { algorithm, key }))
}

fn signer_factory(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    let text =
        "tidewire's provider only verifies; install one that signs before the first `JwtKeys`";
    Err(new_error(ErrorKind::Provider(text.to_owned())))
}

impl JwtVerifier for Key {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for Key {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let key = self.key.try_get_as_bytes().map_err(Error::from_source)?;
        let by_secret = |algorithm| {
            let key = hmac::Key::new(algorithm, key);
            hmac::verify(&key, message, signature)
        };
        let by_public_key = |algorithm: &'static dyn signature::VerificationAlgorithm| {
            signature::UnparsedPublicKey::new(algorithm, key).verify(message, signature)
        };
        let verified = match self.algorithm {
            Algorithm::HS256 => by_secret(hmac::HMAC_SHA256),
            Algorithm::HS384 => by_secret(hmac::HMAC_SHA384),
            Algorithm::HS512 => by_secret(hmac::HMAC_SHA512),
            Algorithm::ES256 => by_public_key(&signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => by_public_key(&signature::ECDSA_P384_SHA384_FIXED),
            Algorithm::RS256 => by_public_key(&signature::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => by_public_key(&signature::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => by_public_key(&signature::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => by_public_key(&signature::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => by_public_key(&signature::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => by_public_key(&signature::RSA_PSS_2048_8192_SHA512),
            Algorithm::EdDSA => by_public_key(&signature::ED25519),
            // An algorithm that a later version of `jsonwebtoken` adds.
            _ => Err(ring::error::Unspecified),
        };
        verified.map_err(|_| Error::new())
    }
}
