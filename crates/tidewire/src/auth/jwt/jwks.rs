//! Key sets of issuers, in the form of RFC 7517 (JWKS).
//!
//! A set has keys for many purposes. Keys that check signatures by a public key are used, each with one algorithm: the
//! algorithm that the key names, or the usual algorithm of its kind. A secret in a set is never used, because a set is
//! published.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse, RSAKeyParameters,
};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::key::{INTEGER, KeyFault, RSA_BITS_MIN, SEQUENCE, modulus_bits};
use super::{JwtAlgorithm, JwtIssuer, Key};

pub(super) struct SetKey {
    kid: Option<String>,
    algorithm: JwtAlgorithm,
    key: DecodingKey,
    /// The key itself, for the id by which identities are known again.
    bytes: Vec<u8>,
}

impl SetKey {
    /// Returns the key as one of this issuer.
    pub(super) fn of(self, issuer: &JwtIssuer) -> Key {
        let kid = self.kid.as_deref().unwrap_or_default();
        Key {
            id: issuer.id_of(kid, self.algorithm, &self.bytes),
            kid: self.kid,
            algorithm: self.algorithm,
            bytes: self.bytes.len(),
            key: self.key,
        }
    }
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<Value>,
}

/// Reads a set. Keys that are for something else, or of a kind that is not known, are left out.
///
/// # Errors
/// The text is no set, or no key of it can check tokens.
pub(super) fn read(text: &[u8]) -> Result<Vec<SetKey>, KeyFault> {
    let set: Set = serde_json::from_slice(text).map_err(|error| {
        // The text of the parser's error has a place and no content.
        KeyFault::Set(format!(
            "{:?} error at line {}",
            error.classify(),
            error.line()
        ))
    })?;
    let total = set.keys.len();
    // A key of a kind that is not known must not make the others useless.
    let known = set.keys.into_iter().take(KEYS_MAX);
    let known = known.filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
    let keys: Vec<SetKey> = known.filter_map(|jwk| usable(&jwk)).collect();
    match keys.is_empty() {
        true => Err(KeyFault::NoUsableKey { total }),
        false => Ok(keys),
    }
}

/// The key, if it checks signatures by an algorithm that is supported.
fn usable(jwk: &Jwk) -> Option<SetKey> {
    if !matches!(
        jwk.common.public_key_use,
        None | Some(PublicKeyUse::Signature)
    ) {
        return None;
    }
    let (usual, key) = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) => (Algorithm::RS256, rsa(key)?),
        AlgorithmParameters::EllipticCurve(key) => match key.curve {
            EllipticCurve::P256 => (Algorithm::ES256, point(&key.x, &key.y, 32)?),
            EllipticCurve::P384 => (Algorithm::ES384, point(&key.x, &key.y, 48)?),
            _ => return None,
        },
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            let bytes = decode(&key.x).filter(|bytes| bytes.len() == 32)?;
            (Algorithm::EdDSA, bytes)
        }
        _ => return None,
    };
    let algorithm = match jwk.common.key_algorithm {
        None => usual,
        Some(named) => algorithm_of(named)?,
    };
    let decoding = match (usual, algorithm) {
        (Algorithm::RS256, algorithm) if is_rsa(algorithm) => DecodingKey::from_rsa_der(&key),
        (Algorithm::EdDSA, Algorithm::EdDSA) => DecodingKey::from_ed_der(&key),
        (usual, algorithm) if usual == algorithm => DecodingKey::from_ec_der(&key),
        _ => return None,
    };
    Some(SetKey {
        kid: jwk.common.key_id.clone(),
        algorithm: JwtAlgorithm(algorithm),
        key: decoding,
        bytes: key,
    })
}

/// The algorithm of this name, if it signs by a private key.
fn algorithm_of(named: KeyAlgorithm) -> Option<Algorithm> {
    let algorithm: Algorithm = named.to_string().parse().ok()?;
    (!JwtAlgorithm(algorithm).is_symmetric()).then_some(algorithm)
}

fn is_rsa(algorithm: Algorithm) -> bool {
    use Algorithm as A;
    matches!(
        algorithm,
        A::RS256 | A::RS384 | A::RS512 | A::PS256 | A::PS384 | A::PS512
    )
}

/// The DER of an RSA key that is long enough.
fn rsa(key: &RSAKeyParameters) -> Option<Vec<u8>> {
    let numbers = [decode(&key.n)?, decode(&key.e)?].map(|bytes| integer(&bytes));
    let der = element(SEQUENCE, &numbers.concat());
    (modulus_bits(&der)? >= RSA_BITS_MIN).then_some(der)
}

fn point(x: &str, y: &str, bytes: usize) -> Option<Vec<u8>> {
    let (x, y) = (decode(x)?, decode(y)?);
    let is_whole = x.len() == bytes && y.len() == bytes;
    is_whole.then(|| [&[4][..], &x, &y].concat())
}

fn decode(text: &str) -> Option<Vec<u8>> {
    (text.len() <= NUMBER_BYTES_MAX).then(|| URL_SAFE_NO_PAD.decode(text).ok())?
}

/// The DER of a positive number.
fn integer(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let digits = &bytes[zeros..];
    // The first bit is the sign.
    let sign: &[u8] = match digits.first() {
        Some(first) if first & 0x80 == 0 => &[],
        _ => &[0],
    };
    element(INTEGER, &[sign, digits].concat())
}

/// The DER of an element, which is shorter than 64 KiB, because its numbers are.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    let head: &[u8] = match content.len() {
        0..=0x7f => &[tag, low],
        0x80..=0xff => &[tag, 0x81, low],
        _ => &[tag, 0x82, high, low],
    };
    [head, content].concat()
}

/// Keys of a set that are looked at. Login servers publish a handful.
const KEYS_MAX: usize = 64;

/// The longest number of a key, in base64. An RSA key with 16,384 bits has 2,731.
const NUMBER_BYTES_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7517, appendix A.1, with a first key for encryption, and of RFC 8037, appendix A.2.
    const RFC: &str = r#"{"keys":[
        {"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
         "y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM","use":"enc","kid":"1"},
        {"kty":"RSA","n":"MODULUS","e":"AQAB","alg":"RS256","kid":"2011-04-29"},
        {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
    ]}"#;
    const RFC_MODULUS: &str = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_B\
        JECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs\
        8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0L\
        s1jF44-csFCur-kEgU8awapJzKnqDKgw";

    fn rfc() -> String {
        RFC.replace("MODULUS", RFC_MODULUS)
    }

    fn names(text: &str) -> Vec<(Option<String>, String)> {
        let keys = read(text.as_bytes()).unwrap();
        let name = |it: SetKey| (it.kid, it.algorithm.to_string());
        keys.into_iter().map(name).collect()
    }

    #[test]
    fn keys_that_check_signatures_are_used_and_others_are_left_out() {
        let expected = [
            (Some("2011-04-29".to_owned()), "RS256".to_owned()),
            (None, "EdDSA".to_owned()),
        ];
        assert_eq!(names(&rfc()), expected);
        let pss = rfc().replace("RS256", "PS512");
        assert_eq!(names(&pss)[0].1, "PS512");
        // A key with an algorithm of another kind, or without signatures, is not used.
        for other in ["ES256", "HS256", "RSA-OAEP", "none", "future"] {
            assert_eq!(names(&rfc().replace("RS256", other)).len(), 1, "{other}");
        }
        let signing = rfc().replace("\"enc\"", "\"sig\"");
        assert_eq!(
            names(&signing)[0],
            (Some("1".to_owned()), "ES256".to_owned())
        );
    }

    #[test]
    fn a_text_that_is_no_set_of_keys_is_refused_with_the_reason() {
        for (text, told) in [
            ("", "it is no set of keys"),
            ("[]", "it is no set of keys"),
            ("{\"keys\":{}}", "it is no set of keys"),
            ("{\"keys\":[]}", "none of its 0 keys"),
            (
                "{\"keys\":[1,{\"kty\":\"oct\",\"k\":\"AAAA\"}]}",
                "none of its 2 keys",
            ),
            (
                "{\"keys\":[{\"kty\":\"RSA\",\"n\":\"AQAB\",\"e\":\"AQAB\"}]}",
                "none of its 1 keys",
            ),
        ] {
            let error = read(text.as_bytes()).map(drop).unwrap_err();
            assert!(error.to_string().contains(told), "{text}: {error}");
        }
        // Cut at each byte.
        for end in 0..rfc().len() {
            assert!(read(&rfc().as_bytes()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn numbers_have_one_encoding() {
        for (bytes, der) in [
            (&[][..], &[2, 1, 0][..]),
            (&[0, 0, 1], &[2, 1, 1]),
            (&[0x80], &[2, 2, 0, 0x80]),
        ] {
            assert_eq!(integer(bytes), der);
        }
        assert_eq!(element(4, &[7; 200])[..3], [4, 0x81, 200]);
        assert_eq!(element(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
    }
}
