//! JSON Web Tokens for tests, well-formed or not.

use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use ring::{hmac, signature};
use serde_json::{Value, json};

/// A key by which an issuer signs with ES256.
#[derive(Debug)]
pub struct SigningKey {
    pair: EcdsaKeyPair,
    pem: String,
}

impl SigningKey {
    /// Makes a key.
    #[must_use]
    pub fn new() -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let algorithm: &signature::EcdsaSigningAlgorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let (der, random) = (key.serialize_der(), SystemRandom::new());
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, &der, &random).expect("a key");
        let pem = key.public_key_pem();
        Self { pair, pem }
    }

    /// The public key in PEM.
    #[must_use]
    pub fn public_pem(&self) -> &str {
        &self.pem
    }

    /// The public key in JSON, as in a set of keys.
    #[must_use]
    pub fn jwk(&self, kid: &str) -> Value {
        // A byte for the form, and the two numbers of a point.
        let point = self.pair.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|number| URL_SAFE_NO_PAD.encode(number));
        json!({"kty": "EC", "crv": "P-256", "use": "sig", "kid": kid, "x": x, "y": y})
    }

    /// The signature of a text.
    #[must_use]
    pub fn sign(&self, text: &[u8]) -> Vec<u8> {
        let signature = self.pair.sign(&SystemRandom::new(), text);
        signature.expect("a signature").as_ref().to_vec()
    }

    /// A token with these claims.
    #[must_use]
    pub fn token(&self, kid: &str, claims: &Value) -> String {
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": kid});
        token(&header, claims, |text| self.sign(text))
    }
}

impl Default for SigningKey {
    fn default() -> Self {
        Self::new()
    }
}

/// A token with this header and these claims, signed by the function.
#[must_use]
pub fn token(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(header), part(claims));
    let signature = sign(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// The signature of HS256.
#[must_use]
pub fn hs256(secret: &[u8], text: &[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::sign(&key, text).as_ref().to_vec()
}

/// The time that is so many seconds from now, as claims have it.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "credentials expire by the wall clock"
)]
pub fn in_seconds(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("a time after 1970").as_secs().cast_signed() + seconds
}
