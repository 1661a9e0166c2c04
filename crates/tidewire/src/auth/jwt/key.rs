//! Keys that check the signatures of tokens.
//!
//! A key has its algorithm from the configuration. A public key must be of this algorithm. A secret must not be a
//! public key, so that a wrong configuration does not use a published key as a secret.

use std::fmt;
use std::str::FromStr;

use jsonwebtoken::{Algorithm, DecodingKey};
use rustls_pki_types::pem::{Error as FormatError, PemObject};
use rustls_pki_types::{AlgorithmIdentifier, SubjectPublicKeyInfoDer, alg_id};
use serde_json::Value;
use thiserror::Error;
use tidewire_proto::setting::SettingError;

/// How tokens are signed. The names are those of RFC 7518 and RFC 8037.
///
/// [`JwtKeys`](crate::auth::JwtKeys) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JwtAlgorithm(pub(super) Algorithm);

/// A key cannot check tokens. Programs get the text in a [`SettingError`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum KeyFault {
    /// The algorithm does not exist, or is not supported. `none` is not.
    #[error(
        "{0:?} is not an algorithm; use ES256, ES384, EdDSA, RS256, RS384, RS512, PS256, PS384, PS512, HS256, HS384 or \
         HS512"
    )]
    Algorithm(String),
    /// The bytes are no public key in PEM.
    #[error("it is not a public key in PEM ({0}); `openssl pkey -in PRIVATE -pubout` writes one")]
    Format(String),
    /// The key is for another algorithm.
    #[error("it is not a key of {0}; check the algorithm and the file")]
    OtherAlgorithm(JwtAlgorithm),
    /// The RSA key is too short and can be broken.
    #[error("an RSA key of {bits} bits is too short; use one of at least 2048 bits, or ES256")]
    WeakKey {
        /// Its length.
        bits: usize,
    },
    /// The secret is shorter than the hash of its algorithm.
    #[error("a secret of {bytes} bytes is too short; use at least {bytes_min} random bytes")]
    ShortSecret {
        /// Its length.
        bytes: usize,
        /// The least length.
        bytes_min: usize,
    },
    /// The secret is a key in PEM, DER or JSON, which may be public.
    #[error(
        "the secret is a key in PEM, DER or JSON; use random bytes, or an algorithm such as ES256"
    )]
    SecretIsKey,
    /// The bytes are no set of keys.
    #[error("it is no set of keys in JSON ({0}); such a file has `{{\"keys\": [..]}}`")]
    Set(String),
    /// No key of a set checks signatures of tokens.
    #[error(
        "none of its {total} keys can check tokens: it needs public keys for signatures, of RSA with 2048 bits, P-256, \
         P-384 or Ed25519"
    )]
    NoUsableKey {
        /// The keys of the set.
        total: usize,
    },
    /// An issuer has two keys of this id.
    #[error("issuer {issuer:?} has two keys {kid:?}; rename or remove one")]
    Twice {
        /// The issuer.
        issuer: String,
        /// The id of the key.
        kid: String,
    },
    /// A token would be accepted that is for another server.
    #[error("issuer {issuer:?} has no audience; name the one that its tokens have for this server")]
    NoAudience {
        /// The issuer.
        issuer: String,
    },
}

impl JwtAlgorithm {
    /// Whether tokens are signed by a secret that both sides have, in place of a private key.
    pub(super) fn is_symmetric(self) -> bool {
        self.secret_bytes_min().is_some()
    }

    fn secret_bytes_min(self) -> Option<usize> {
        match self.0 {
            Algorithm::HS256 => Some(32),
            Algorithm::HS384 => Some(48),
            Algorithm::HS512 => Some(64),
            _ => None,
        }
    }

    pub(super) fn key(self, bytes: &[u8]) -> Result<DecodingKey, KeyFault> {
        if let Some(bytes_min) = self.secret_bytes_min() {
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            if is_key(bytes) {
                return Err(KeyFault::SecretIsKey);
            }
            return match bytes.len() {
                bytes if bytes < bytes_min => Err(KeyFault::ShortSecret { bytes, bytes_min }),
                _ => Ok(DecodingKey::from_secret(bytes)),
            };
        }
        let info = SubjectPublicKeyInfoDer::from_pem_slice(bytes).map_err(|error| {
            KeyFault::Format(match error {
                FormatError::NoItemsFound => "it has no PUBLIC KEY".to_owned(),
                error => error.to_string(),
            })
        })?;
        let other = KeyFault::OtherAlgorithm(self);
        match self.0 {
            Algorithm::ES256 => {
                let key = public_key(&info, alg_id::ECDSA_P256).ok_or(other)?;
                Ok(DecodingKey::from_ec_der(key))
            }
            Algorithm::ES384 => {
                let key = public_key(&info, alg_id::ECDSA_P384).ok_or(other)?;
                Ok(DecodingKey::from_ec_der(key))
            }
            Algorithm::EdDSA => {
                let key = public_key(&info, alg_id::ED25519).ok_or(other)?;
                Ok(DecodingKey::from_ed_der(key))
            }
            _ => {
                let key = public_key(&info, alg_id::RSA_ENCRYPTION).ok_or(other.clone())?;
                match modulus_bits(key).ok_or(other)? {
                    bits if bits < RSA_BITS_MIN => Err(KeyFault::WeakKey { bits }),
                    _ => Ok(DecodingKey::from_rsa_der(key)),
                }
            }
        }
    }
}

impl fmt::Display for JwtAlgorithm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.0)
    }
}

impl FromStr for JwtAlgorithm {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let algorithm = text.parse();
        algorithm.map(Self).map_err(|_| {
            let fault = KeyFault::Algorithm(text.to_owned()).to_string();
            SettingError::new("algorithm", text, fault)
        })
    }
}

impl From<KeyFault> for SettingError {
    fn from(fault: KeyFault) -> Self {
        Self::new("key", "", fault.to_string())
    }
}

/// Whether a secret is a key in PEM, wherever in the file it begins, in DER, or in JSON.
fn is_key(bytes: &[u8]) -> bool {
    let begin = b"-----BEGIN";
    let is_pem = bytes.windows(begin.len()).any(|it| it == begin);
    let is_der = element(SEQUENCE, bytes).is_some_and(|(_, rest)| rest.is_empty());
    is_pem || is_der || serde_json::from_slice::<serde_json::Map<String, Value>>(bytes).is_ok()
}

/// The key within the DER of a public key, if it is of this algorithm.
fn public_key<'a>(
    info: &'a SubjectPublicKeyInfoDer<'_>,
    algorithm: AlgorithmIdentifier,
) -> Option<&'a [u8]> {
    let (info, _) = element(SEQUENCE, info.as_ref())?;
    let (found, rest) = element(SEQUENCE, info)?;
    let (bits, _) = element(BIT_STRING, rest)?;
    match bits.split_first()? {
        (0, key) if found == algorithm.as_ref() => Some(key),
        _ => None,
    }
}

/// The bits of the modulus of an RSA key.
pub(super) fn modulus_bits(key: &[u8]) -> Option<usize> {
    let (numbers, _) = element(SEQUENCE, key)?;
    let (modulus, _) = element(INTEGER, numbers)?;
    let significant = modulus.iter().position(|byte| *byte != 0)?;
    let spare = modulus[significant].leading_zeros() as usize;
    Some((modulus.len() - significant) * 8 - spare)
}

/// Splits the content of the first DER element off, if it has this tag. Keys are shorter than 64 KiB.
fn element(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (found, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => (usize::from(*rest.first()?), rest.get(1..)?),
        0x82 => {
            let (len, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(*len)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(len).filter(|_| *found == tag)
}

pub(super) const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;
pub(super) const INTEGER: u8 = 0x02;

/// The shortest RSA key, as RFC 7518 says.
pub(super) const RSA_BITS_MIN: usize = 2048;

#[cfg(test)]
mod tests {
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};

    use super::*;

    fn algorithm(name: &str) -> JwtAlgorithm {
        name.parse().unwrap()
    }

    fn error(name: &str, key: &[u8]) -> KeyFault {
        algorithm(name).key(key).unwrap_err()
    }

    #[test]
    fn a_public_key_is_of_its_algorithm_only() {
        let keys = [
            ("ES256", &PKCS_ECDSA_P256_SHA256),
            ("ES384", &PKCS_ECDSA_P384_SHA384),
            ("EdDSA", &PKCS_ED25519),
        ];
        for (own, kind) in keys {
            let pem = KeyPair::generate_for(kind).unwrap().public_key_pem();
            for name in ["ES256", "ES384", "EdDSA", "RS256", "PS512"] {
                let key = algorithm(name).key(pem.as_bytes());
                match name == own {
                    true => assert!(key.is_ok(), "{name}"),
                    false => {
                        assert_eq!(key.unwrap_err(), KeyFault::OtherAlgorithm(algorithm(name)));
                    }
                }
            }
            // Regression: a comment or an empty line in front of a public key made it a secret.
            for before in ["", "\n", "# the key of login\n"] {
                let secret = format!("{before}{pem}");
                assert_eq!(error("HS256", secret.as_bytes()), KeyFault::SecretIsKey);
            }
            let der = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).unwrap();
            assert_eq!(error("HS256", der.as_ref()), KeyFault::SecretIsKey);
            let jwk = br#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
            assert_eq!(error("HS256", jwk), KeyFault::SecretIsKey);
        }
    }

    #[test]
    fn a_file_that_is_no_public_key_is_refused_with_the_remedy() {
        let private = KeyPair::generate().unwrap().serialize_pem();
        for text in ["", "x", &private, "-----BEGIN PUBLIC KEY-----\n!\n"] {
            let error = error("ES256", text.as_bytes());
            assert!(error.to_string().contains("-pubout"), "{error}");
        }
        // Truncated at each byte.
        let pem = KeyPair::generate().unwrap().public_key_pem();
        let whole = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()).unwrap();
        let whole = whole.as_ref();
        for end in 0..whole.len() {
            let cut = SubjectPublicKeyInfoDer::from(&whole[..end]);
            assert_eq!(public_key(&cut, alg_id::ECDSA_P256), None);
        }
    }

    #[test]
    fn short_secrets_and_unknown_algorithms_are_refused() {
        for (name, bytes_min) in [("HS256", 32), ("HS384", 48), ("HS512", 64)] {
            let mut secret = vec![b'x'; bytes_min];
            assert!(algorithm(name).key(&secret).is_ok());
            secret[bytes_min - 1] = b'\n';
            let bytes = bytes_min - 1;
            let short = KeyFault::ShortSecret { bytes, bytes_min };
            assert_eq!(error(name, &secret), short);
        }
        for name in ["none", "None", "", "HS1", "es256"] {
            let refused = name.parse::<JwtAlgorithm>().unwrap_err();
            assert_eq!((refused.setting(), refused.value()), ("algorithm", name));
        }
    }

    #[test]
    fn the_bits_of_an_rsa_key_are_counted() {
        let key = |modulus: &[u8]| {
            let mut der = vec![SEQUENCE, modulus.len() as u8 + 2, INTEGER];
            der.push(modulus.len() as u8);
            der.extend(modulus);
            der
        };
        assert_eq!(modulus_bits(&key(&[0, 0x80, 0])), Some(16));
        assert_eq!(modulus_bits(&key(&[0x1f])), Some(5));
        assert_eq!(modulus_bits(&key(&[0])), None);
    }
}
