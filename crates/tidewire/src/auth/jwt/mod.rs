//! JSON Web Tokens: an issuer signs the name of a client, and the server has the keys of the issuer.
//!
//! A token says which key it is signed by, and a forger writes tokens, too. So a key is found by issuer and key id
//! together, and is used only with the configured algorithm. Other fields of the header, such as a key or its address,
//! are not used. Nothing that a token claims counts before its signature is right.

mod jwks;
mod key;
mod provider;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tidewire_proto::limits::LONG_CREDENTIALS_BYTES_MAX;
use tidewire_proto::setting::SettingError;
use tidewire_proto::text::escaped;

use super::{
    AuthFailure, AuthOutcome, AuthRequest, Authenticate, Identity, Proof, TableBytes, Users,
};
use key::{JwtAlgorithm, KeyFault};

/// Identifies users by a JWT. Peers without a token, and tokens of other issuers and keys, are left to the next
/// authenticator.
///
/// A token must have `exp`, an `aud` of the issuer and a name. `nbf`, if any, must be past. The session expires at
/// `exp`, with the leeway. A name without a user gets the default permissions: the issuer decides which names exist.
///
/// ```
/// use std::sync::Arc;
/// use tidewire::auth::{Access, JwtIssuer, JwtKeys, Permissions, Users};
///
/// let default_permissions = Permissions {
///     publish: Access::new(["dev.{name}.>"], [])?,
///     ..Permissions::nothing()
/// };
/// let public_key = "-----BEGIN PUBLIC KEY-----\n\
///     MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEVs/o5+uQbTjL3chynL4wXgUg2R9\n\
///     q9UU8I5mEovUf86QZ7kOBIjJwqnzD1omageEHWwHdBO6B+dFabmdT9POxg==\n\
///     -----END PUBLIC KEY-----\n";
/// let issuer = JwtIssuer::new("https://login.example.org", ["gateway"])
///     .key("2026-1", "ES256", public_key.as_bytes())?;
/// let keys = JwtKeys::new(Arc::new(Users::new(default_permissions))).issuer(issuer)?;
/// let server = tidewire::Server::builder().authenticate(keys);
/// assert!(JwtIssuer::is_symmetric("none").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct JwtKeys {
    users: Arc<Users>,
    issuers: Vec<JwtIssuer>,
    leeway: Duration,
}

/// An issuer of tokens, with the keys that it signs them by.
///
/// [`JwtKeys`] has an example.
#[derive(Clone, Debug)]
pub struct JwtIssuer {
    issuer: String,
    audiences: HashSet<String>,
    name_claim: String,
    /// The kind that the header of a token must have, in lower case. `None` for any.
    typ: Option<String>,
    keys: Vec<Key>,
}

#[derive(Clone, Debug)]
struct Key {
    /// A key of a set may have none.
    kid: Option<String>,
    algorithm: JwtAlgorithm,
    key: DecodingKey,
    /// The length of the key as it was given.
    bytes: usize,
    /// The first bytes of a hash of everything that a token must fit. An identity stays while its key has the same.
    id: [u8; 8],
}

/// The claim that finds the key, before the signature is checked.
#[derive(Deserialize)]
struct Unverified {
    iss: String,
}

impl JwtIssuer {
    /// An issuer by the text of its claim `iss`. Its tokens are accepted if one of their audiences is among these.
    #[must_use]
    pub fn new<'a>(issuer: &str, audiences: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            issuer: issuer.to_owned(),
            audiences: audiences.into_iter().map(str::to_owned).collect(),
            name_claim: "sub".to_owned(),
            typ: None,
            keys: Vec::new(),
        }
    }

    /// Sets the claim that has the name of the identity. Default: `sub`.
    #[must_use]
    pub fn name_claim(mut self, claim: &str) -> Self {
        claim.clone_into(&mut self.name_claim);
        self
    }

    /// Accepts only tokens with this `typ` in the header, such as `at+jwt` for access tokens. Without it an ID token
    /// for the same audience is as good as an access token. Set it before the keys.
    #[must_use]
    pub fn typ(mut self, typ: &str) -> Self {
        self.typ = Some(kind_of(typ));
        self
    }

    /// Adds the keys of a set in JSON (JWKS, RFC 7517), as issuers publish them. Keys that do not check signatures are
    /// left out.
    ///
    /// # Errors
    /// It is no set, or no key of it can check tokens.
    pub fn key_set(mut self, text: &[u8]) -> Result<Self, SettingError> {
        for key in jwks::read(text)? {
            let key = key.of(&self);
            self.keys.push(key);
        }
        Ok(self)
    }

    /// Whether tokens of this algorithm are signed by a secret that both sides have, in place of a private key.
    ///
    /// # Errors
    /// The algorithm does not exist, or is not supported. `none` is not.
    pub fn is_symmetric(algorithm: &str) -> Result<bool, SettingError> {
        Ok(algorithm.parse::<JwtAlgorithm>()?.is_symmetric())
    }

    /// Adds the key with the id `kid` for an algorithm such as `ES256`: a public key in PEM, or the bytes of a secret,
    /// without the line end of its file.
    ///
    /// # Errors
    /// The algorithm is not supported, or the bytes are no key of it or a key that can be broken. The text says what to
    /// do.
    pub fn key(mut self, kid: &str, algorithm: &str, key: &[u8]) -> Result<Self, SettingError> {
        let algorithm: JwtAlgorithm = algorithm.parse()?;
        let decoding_key = algorithm.key(key)?;
        self.keys.push(Key {
            kid: Some(kid.to_owned()),
            algorithm,
            key: decoding_key,
            bytes: key.len(),
            id: self.id_of(kid, algorithm, key),
        });
        Ok(self)
    }

    fn id_of(&self, kid: &str, algorithm: JwtAlgorithm, key: &[u8]) -> [u8; 8] {
        let algorithm = algorithm.to_string();
        let mut audiences: Vec<&str> = self.audiences.iter().map(String::as_str).collect();
        audiences.sort_unstable();
        let typ = self.typ.as_deref().unwrap_or_default();
        let parts = [&*self.issuer, &*self.name_claim, kid, &*algorithm, typ];
        let mut hash = Sha256::new();
        let parts = parts.iter().chain(&audiences).map(|part| part.as_bytes());
        for part in parts.chain([key]) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut id = [0; 8];
        id.copy_from_slice(&hash.finalize()[..8]);
        id
    }
}

impl JwtKeys {
    /// Knows no issuer yet.
    #[must_use]
    pub fn new(users: Arc<Users>) -> Self {
        provider::install();
        Self {
            users,
            issuers: Vec::new(),
            leeway: LEEWAY,
        }
    }

    /// Adds an issuer.
    ///
    /// # Errors
    /// It has no audience, or two keys with the same id.
    pub fn issuer(mut self, issuer: JwtIssuer) -> Result<Self, SettingError> {
        let name = || issuer.issuer.clone();
        if issuer.audiences.is_empty() {
            return Err(KeyFault::NoAudience { issuer: name() }.into());
        }
        for (index, key) in issuer.keys.iter().enumerate() {
            let Some(kid) = &key.kid else { continue };
            let is_there = issuer.keys[..index].iter().any(|it| it.kid == key.kid);
            let mut former = self.keys_of(&issuer.issuer);
            if is_there || former.any(|(_, it)| it.kid == key.kid) {
                let (issuer, kid) = (name(), kid.clone());
                return Err(KeyFault::Twice { issuer, kid }.into());
            }
        }
        self.issuers.push(issuer);
        Ok(self)
    }

    /// Sets the largest difference between an issuer's clock and this machine's clock: 30 s by default, 10 min at most.
    #[must_use]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway.min(LEEWAY_MAX);
        self
    }

    /// The keys of the issuer with this claim `iss`, which may be there several times.
    fn keys_of<'a, 'b>(
        &'a self,
        issuer: &'b str,
    ) -> impl Iterator<Item = (&'a JwtIssuer, &'a Key)> + use<'a, 'b> {
        let issuers = self.issuers.iter().filter(move |it| it.issuer == issuer);
        issuers.flat_map(|it| it.keys.iter().map(move |key| (it, key)))
    }

    /// The key that a token says it is signed by. Without a key id that is the only key of the token's algorithm.
    fn key_of(&self, token: &[u8]) -> Result<(&JwtIssuer, &Key), NoKey> {
        if token.len() > LONG_CREDENTIALS_BYTES_MAX {
            return Err(NoKey::TooLong);
        }
        let header = decode_header(token).map_err(|_| NoKey::NoJwt)?;
        // Extensions that must be understood are not, and no token of this form is compressed or encrypted.
        if header.crit.is_some() || header.zip.is_some() || header.enc.is_some() {
            return Err(NoKey::Extension);
        }
        let Unverified { iss } = insecure_decode_claims(token).map_err(|_| NoKey::NoIssuer)?;
        let mut keys = self.keys_of(&iss).peekable();
        if keys.peek().is_none() {
            return Err(NoKey::UnknownIssuer(shown(&iss)));
        }
        let found = match header.kid {
            Some(kid) => keys
                .find(|(_, key)| key.kid.as_deref() == Some(&*kid))
                .ok_or_else(|| NoKey::UnknownKid(shown(&kid)))?,
            None => {
                let mut fitting = keys.filter(|(_, key)| key.algorithm.0 == header.alg);
                let first = fitting.next().ok_or(NoKey::OtherAlgorithm)?;
                fitting
                    .next()
                    .map_or(Ok(first), |_| Err(NoKey::SeveralKeys))?
            }
        };
        let typ = header.typ.as_deref().map(kind_of);
        match found
            .0
            .typ
            .as_ref()
            .is_none_or(|wanted| typ.as_ref() == Some(wanted))
        {
            true => Ok(found),
            false => Err(NoKey::OtherKind(shown(&typ.unwrap_or_default()))),
        }
    }

    fn check(&self, token: &[u8], issuer: &JwtIssuer, key: &Key) -> Result<Identity, Fault> {
        let mut rules = Validation::new(key.algorithm.0);
        rules.leeway = self.leeway.as_secs();
        rules.validate_nbf = true;
        rules.aud = Some(issuer.audiences.clone());
        rules.set_issuer(&[&issuer.issuer]);
        rules.set_required_spec_claims(&["exp", "iss", "aud"]);
        let claims: Map<String, Value> = decode(token, &key.key, &rules)?.claims;
        let expires_at = claims.get("exp").and_then(time).ok_or(Fault::Time)?;
        let expires_at = expires_at.checked_add(self.leeway).ok_or(Fault::Time)?;
        let name = claims.get(&issuer.name_claim).and_then(Value::as_str);
        let identity = self.identity(name.ok_or(Fault::Name)?).ok_or(Fault::Name)?;
        Ok(identity
            .expires_at(expires_at)
            .proved_by(Proof::Jwt(key.id)))
    }

    /// The identity of a name, unless it is the name of anonymous peers or looks like a user's name.
    fn identity(&self, name: &str) -> Option<Identity> {
        let is_plain =
            |it: char| it.is_alphanumeric() || (it.is_ascii_graphic() && !"*>".contains(it));
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_plain);
        if !is_name || name == Identity::ANONYMOUS {
            return None;
        }
        match self.users.identity(name) {
            None if self.users.is_reserved(name) => None,
            _ => self.users.identity_or_default(name).ok(),
        }
    }
}

impl Authenticate for JwtKeys {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        let token = request.token();
        if token.is_empty() {
            return AuthOutcome::Unknown;
        }
        let (issuer, key) = match self.key_of(token) {
            Ok(found) => found,
            Err(why) => {
                let bytes = token.len();
                tracing::debug!(bytes, "a token has no key here: {why}");
                return AuthOutcome::Unknown;
            }
        };
        match self.check(token, issuer, key) {
            Ok(identity) => AuthOutcome::admit(identity),
            Err(fault) => {
                tracing::debug!(
                    issuer = issuer.issuer,
                    kid = key.kid.as_deref(),
                    ?fault,
                    "a JWT is refused"
                );
                AuthOutcome::Refused(fault.failure())
            }
        }
    }

    /// An identity stays admitted while its key and the requirements for its tokens are unchanged.
    fn current(&self, identity: &Arc<Identity>) -> Option<Arc<Identity>> {
        let Some(Proof::Jwt(id)) = identity.proof() else {
            return None;
        };
        let mut keys = self.issuers.iter().flat_map(|issuer| &issuer.keys);
        keys.find(|key| key.id == *id)?;
        let now = self.identity(identity.name())?.proved_by(Proof::Jwt(*id));
        Some(Arc::new(match identity.expiry() {
            Some(at) => now.expires_at(at),
            None => now,
        }))
    }

    fn is_reserved(&self, name: &str) -> bool {
        self.users.is_reserved(name)
    }

    fn measure(&self, tables: &mut TableBytes) {
        tables.add_shared(&self.users, Users::measure);
        for issuer in &self.issuers {
            let audiences = issuer
                .audiences
                .iter()
                .map(|it| size_of::<String>() + it.len());
            tables.add(size_of::<JwtIssuer>() + issuer.issuer.len() + audiences.sum::<usize>());
            let keys = issuer.keys.iter();
            let texts = keys.map(|key| key.bytes + key.kid.as_ref().map_or(0, String::len));
            tables.add(issuer.keys.capacity() * size_of::<Key>() + texts.sum::<usize>());
        }
    }
}

/// The reason why a token has no key here. Another authenticator may know the token. The texts of the token in it are
/// escaped and short.
#[derive(Debug, PartialEq, Eq, Error)]
enum NoKey {
    #[error("it is longer than {LONG_CREDENTIALS_BYTES_MAX} bytes")]
    TooLong,
    #[error("it is no JWT")]
    NoJwt,
    #[error("its header has crit, zip or enc, which are not supported")]
    Extension,
    #[error("it has no claim iss")]
    NoIssuer,
    #[error("its issuer {0:?} is not configured")]
    UnknownIssuer(String),
    #[error(
        "its issuer has no key with the id {0:?}; a new key takes until the next reading of the keys"
    )]
    UnknownKid(String),
    #[error("it has no key id, and its issuer has no key of its algorithm")]
    OtherAlgorithm,
    #[error("it has no key id, and its issuer has several keys of its algorithm")]
    SeveralKeys,
    #[error("its header says the kind {0:?} in typ, and the configuration requires another kind")]
    OtherKind(String),
}

/// A text of an unverified token, for the log.
fn shown(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    escaped(&text.as_bytes()[..end])
}

/// The kind of a token as RFC 7515 compares it: without regard to case, and to the prefix that may be left out.
fn kind_of(typ: &str) -> String {
    let typ = typ.to_ascii_lowercase();
    typ.strip_prefix("application/").unwrap_or(&typ).to_owned()
}

/// The reason why a token with a known key is refused. It has no text of the token, because it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Signature,
    Algorithm,
    Expired,
    NotYetValid,
    Audience,
    MissingClaim,
    Malformed,
    /// `exp` is no time.
    Time,
    /// The name is missing, or no identity may have it.
    Name,
}

impl Fault {
    fn failure(self) -> AuthFailure {
        match self {
            Self::Expired => AuthFailure::Expired,
            Self::NotYetValid => AuthFailure::NotYetValid,
            _ => AuthFailure::Wrong,
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidSignature => Self::Signature,
            ErrorKind::InvalidAlgorithm => Self::Algorithm,
            ErrorKind::ExpiredSignature => Self::Expired,
            ErrorKind::ImmatureSignature => Self::NotYetValid,
            ErrorKind::InvalidAudience => Self::Audience,
            ErrorKind::MissingRequiredClaim(_) => Self::MissingClaim,
            _ => Self::Malformed,
        }
    }
}

/// The time of a claim, in seconds since 1970, perhaps with a fraction.
fn time(claim: &Value) -> Option<SystemTime> {
    let since = Duration::try_from_secs_f64(claim.as_f64()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// How much clocks may differ at most.
const LEEWAY_MAX: Duration = Duration::from_secs(600);

/// How much clocks may differ if nothing else is set.
const LEEWAY: Duration = Duration::from_secs(30);

/// The most of a foreign text that is logged.
const SHOWN_BYTES_MAX: usize = 64;

/// The longest name of an identity.
const NAME_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests;
