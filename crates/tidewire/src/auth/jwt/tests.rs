use serde_json::json;
use tidewire_testkit::jwt::{SigningKey, hs256, in_seconds, token};

use super::*;
use crate::auth::{Access, IdentityLimits, Permissions, ask_about};

const ISSUER: &str = "https://login.example";
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

struct Issuers {
    first: SigningKey,
    second: SigningKey,
}

impl Issuers {
    fn new() -> Self {
        let (first, second) = (SigningKey::new(), SigningKey::new());
        Self { first, second }
    }

    /// The keys of two issuers. Both have a key "a".
    fn keys(&self) -> JwtKeys {
        let default = Permissions {
            publish: Access::new(["dev.{name}.>"], []).unwrap(),
            ..Permissions::nothing()
        };
        let mut users = Users::new(default);
        let limits = IdentityLimits::default();
        for name in ["ann", "ann1", "root", Identity::ANONYMOUS] {
            let everything = Permissions::everything();
            users.add(name, Some(&everything), limits).unwrap();
        }
        let es256 = "ES256";
        let first = JwtIssuer::new(ISSUER, ["gateway", "other"]);
        let first = first.key("a", es256, self.first.public_pem().as_bytes());
        let first = first.unwrap().key("s", "HS256", SECRET);
        let second = JwtIssuer::new("second", ["gateway"]).name_claim("user");
        let second = second.key("a", es256, self.second.public_pem().as_bytes());
        let second = second.unwrap();
        let second = second.key("b", es256, self.second.public_pem().as_bytes());
        let keys = JwtKeys::new(Arc::new(users)).issuer(first.unwrap());
        keys.unwrap().issuer(second.unwrap()).unwrap()
    }
}

fn admitted(keys: &JwtKeys, token: &str) -> Arc<Identity> {
    match ask_about(keys, token.as_bytes()) {
        AuthOutcome::Admitted(identity) => identity,
        other => panic!("{other:?}"),
    }
}

/// `None` if no key is the token's.
fn refused(keys: &JwtKeys, token: &str) -> Option<AuthFailure> {
    match ask_about(keys, token.as_bytes()) {
        AuthOutcome::Refused(failure) => Some(failure),
        AuthOutcome::Unknown => None,
        other => panic!("{other:?}"),
    }
}

/// Good claims of the first issuer, with these replaced. Null removes a claim.
fn claims(other: &Value) -> Value {
    let mut claims = json!({"iss": ISSUER, "aud": "gateway", "sub": "ann", "exp": in_seconds(600)});
    for (name, value) in other.as_object().unwrap() {
        match value.is_null() {
            true => claims.as_object_mut().unwrap().remove(name),
            false => claims
                .as_object_mut()
                .unwrap()
                .insert(name.clone(), value.clone()),
        };
    }
    claims
}

#[test]
fn a_signed_name_is_admitted_until_the_token_expires() {
    let issuers = Issuers::new();
    let keys = issuers.keys();
    let exp = in_seconds(600);
    let ann = admitted(
        &keys,
        &issuers.first.token("a", &claims(&json!({"exp": exp}))),
    );
    assert_eq!(ann.name(), "ann");
    assert_eq!(*ann.permissions(), Permissions::everything());
    let expiry = ann.expiry().unwrap().duration_since(SystemTime::UNIX_EPOCH);
    assert_eq!(expiry.unwrap().as_secs().cast_signed(), exp + 30);
    // A user whom only the issuer knows.
    let token = issuers.first.token("a", &claims(&json!({"sub": "dev-7"})));
    let permissions = admitted(&keys, &token).permissions().clone();
    assert_eq!(permissions.publish.allowed().next(), Some("dev.dev-7.>"));
    let by_secret = |text: &[u8]| hs256(SECRET, text);
    let header = json!({"alg": "HS256", "kid": "s"});
    let token = token_of(&header, &json!({"aud": ["x", "other"]}), by_secret);
    assert_eq!(admitted(&keys, &token).name(), "ann");
    let second = json!({"iss": "second", "user": "root", "sub": "ann"});
    let token = issuers.second.token("a", &claims(&second));
    assert_eq!(admitted(&keys, &token).name(), "root");
}

fn token_of(header: &Value, other: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    token(header, &claims(other), sign)
}

#[test]
fn clocks_may_differ_by_the_leeway_and_no_more() {
    let issuers = Issuers::new();
    let keys = issuers.keys();
    let outcome = |other: Value| refused_or(&keys, &issuers.first.token("a", &claims(&other)));
    for good in [
        json!({"exp": in_seconds(-10)}),
        json!({"nbf": in_seconds(10)}),
        json!({"exp": in_seconds(600) as f64 + 0.5}),
    ] {
        assert_eq!(outcome(good.clone()), Ok(()), "{good}");
    }
    for (bad, failure) in [
        (json!({"exp": in_seconds(-60)}), AuthFailure::Expired),
        (json!({"exp": 0}), AuthFailure::Expired),
        (json!({"nbf": in_seconds(600)}), AuthFailure::NotYetValid),
        (json!({"exp": null}), AuthFailure::Wrong),
        (json!({"exp": "soon"}), AuthFailure::Wrong),
        (json!({"exp": u64::MAX}), AuthFailure::Wrong),
        (json!({"exp": 1e300}), AuthFailure::Wrong),
        (json!({"exp": -1}), AuthFailure::Wrong),
        (json!({"nbf": "now"}), AuthFailure::Wrong),
    ] {
        assert_eq!(outcome(bad.clone()), Err(Some(failure)), "{bad}");
    }
}

fn refused_or(keys: &JwtKeys, token: &str) -> Result<(), Option<AuthFailure>> {
    match ask_about(keys, token.as_bytes()) {
        AuthOutcome::Admitted(_) => Ok(()),
        _ => Err(refused(keys, token)),
    }
}

#[test]
fn a_token_for_another_server_or_of_another_issuer_is_refused() {
    let issuers = Issuers::new();
    let keys = issuers.keys();
    for aud in [
        json!("else"),
        json!(["else"]),
        json!([]),
        Value::Null,
        json!(7),
    ] {
        let token = issuers.first.token("a", &claims(&json!({"aud": aud})));
        assert_eq!(refused(&keys, &token), Some(AuthFailure::Wrong), "{token}");
    }
    let token = |kid: &str, iss: &Value| issuers.first.token(kid, &claims(&json!({"iss": iss})));
    for (kid, iss, expected) in [
        // The key "a" of the second issuer is another key, and the first issuer has no key "b".
        ("a", json!("second"), Some(AuthFailure::Wrong)),
        ("b", json!(ISSUER), None),
        ("b", json!("second"), Some(AuthFailure::Wrong)),
        ("a", json!("third"), None),
        ("a", json!([ISSUER, "second"]), None),
        ("a", Value::Null, None),
        ("c", json!(ISSUER), None),
        ("", json!(ISSUER), None),
    ] {
        assert_eq!(refused(&keys, &token(kid, &iss)), expected, "{kid} {iss}");
    }
}

/// The key decides about the algorithm, never the token.
/// Regression: tokens without a key id were refused, and the log had no reason for tokens without a key.
#[test]
fn a_token_without_a_key_id_fits_the_only_key_of_its_algorithm() {
    let issuers = Issuers::new();
    let keys = issuers.keys();
    let without_kid = |key: &SigningKey, iss: &str| {
        let header = json!({"alg": "ES256", "typ": "JWT"});
        token(&header, &claims(&json!({"iss": iss})), |text| {
            key.sign(text)
        })
    };
    let first = without_kid(&issuers.first, ISSUER);
    assert_eq!(admitted(&keys, &first).name(), "ann");
    let forged = without_kid(&issuers.second, ISSUER);
    assert_eq!(refused(&keys, &forged), Some(AuthFailure::Wrong));
    let reason = |token: &str| keys.key_of(token.as_bytes()).map(drop).unwrap_err();
    let several = without_kid(&issuers.second, "second");
    assert_eq!(reason(&several), NoKey::SeveralKeys);
    let other = token(&json!({"alg": "RS256"}), &claims(&json!({})), |_| {
        vec![0; 256]
    });
    assert_eq!(reason(&other), NoKey::OtherAlgorithm);
    let unknown = without_kid(&issuers.first, "https://evil\n.example");
    let told = reason(&unknown).to_string();
    assert!(
        told.contains("https://evil") && !told.contains('\n'),
        "{told}"
    );
    let kid = issuers.first.token(&"k".repeat(500), &claims(&json!({})));
    let told = reason(&kid).to_string();
    assert!(told.contains("kkkk") && told.len() < 200, "{told}");
    assert_eq!(reason("c2VjcmV0"), NoKey::NoJwt);
    assert_eq!(reason(&"x".repeat(8_193)), NoKey::TooLong);
}

#[test]
fn a_kind_of_token_that_is_wanted_must_be_in_its_header() {
    let key = SigningKey::new();
    let issuer = JwtIssuer::new(ISSUER, ["gateway"]).typ("at+jwt");
    let issuer = issuer.key("a", "ES256", key.public_pem().as_bytes());
    let mut users = Users::new(Permissions::nothing());
    users.add("ann", None, IdentityLimits::default()).unwrap();
    let keys = JwtKeys::new(Arc::new(users))
        .issuer(issuer.unwrap())
        .unwrap();
    let of = |header: Value| token(&header, &claims(&json!({})), |text| key.sign(text));
    for typ in ["at+jwt", "AT+JWT", "application/at+jwt"] {
        admitted(&keys, &of(json!({"alg": "ES256", "kid": "a", "typ": typ})));
    }
    for typ in [json!("JWT"), Value::Null] {
        let token = of(json!({"alg": "ES256", "kid": "a", "typ": typ}));
        assert_eq!(refused(&keys, &token), None, "an ID token is none");
    }
}

#[test]
fn the_keys_of_a_set_check_tokens_and_identities_outlive_its_next_reading() {
    let (one, other) = (SigningKey::new(), SigningKey::new());
    let keys_of = |keys: &[&Value]| {
        let set = json!({"keys": keys}).to_string();
        let issuer = JwtIssuer::new(ISSUER, ["gateway"]).key_set(set.as_bytes());
        let mut users = Users::new(Permissions::nothing());
        users.add("ann", None, IdentityLimits::default()).unwrap();
        JwtKeys::new(Arc::new(users))
            .issuer(issuer.unwrap())
            .unwrap()
    };
    let (first, second) = (one.jwk("a"), other.jwk("b"));
    let keys = keys_of(&[&first]);
    let ann = admitted(&keys, &one.token("a", &claims(&json!({}))));
    let unknown = other.token("b", &claims(&json!({})));
    assert_eq!(refused(&keys, &unknown), None);
    let rotated = keys_of(&[&second, &first]);
    admitted(&rotated, &unknown);
    assert!(rotated.current(&ann).is_some());
    assert!(keys_of(&[&second]).current(&ann).is_none());
}

#[test]
fn the_algorithm_is_that_of_the_key() {
    let issuers = Issuers::new();
    let keys = issuers.keys();
    let public = issuers.first.public_pem();
    let by_public_key = |text: &[u8]| hs256(public.as_bytes(), text);
    let by_public_text = |text: &[u8]| hs256(public.trim_end().as_bytes(), text);
    for (header, expected) in [
        (json!({"alg": "none", "kid": "a"}), None),
        (json!({"alg": "None", "kid": "a"}), None),
        (json!({"kid": "a"}), None),
        (
            json!({"alg": "HS256", "kid": "a"}),
            Some(AuthFailure::Wrong),
        ),
        (
            json!({"alg": "RS256", "kid": "a"}),
            Some(AuthFailure::Wrong),
        ),
        (
            json!({"alg": "ES384", "kid": "a"}),
            Some(AuthFailure::Wrong),
        ),
        (
            json!({"alg": "ES256", "kid": "s"}),
            Some(AuthFailure::Wrong),
        ),
        (
            json!({"alg": "HS512", "kid": "s"}),
            Some(AuthFailure::Wrong),
        ),
    ] {
        for token in [
            token_of(&header, &json!({}), |_| Vec::new()),
            token_of(&header, &json!({}), by_public_key),
            token_of(&header, &json!({}), by_public_text),
            token_of(&header, &json!({}), |text| issuers.first.sign(text)),
        ] {
            assert_eq!(refused(&keys, &token), expected, "{header}");
        }
    }
    let good = |text: &[u8]| issuers.first.sign(text);
    for header in [
        json!({"alg": "ES256", "kid": "a", "crit": ["b64"], "b64": false}),
        json!({"alg": "ES256", "kid": "a", "zip": "DEF"}),
    ] {
        assert_eq!(refused(&keys, &token_of(&header, &json!({}), good)), None);
    }
    // A key within the token is not used.
    let header = json!({"alg": "HS256", "kid": "a", "jku": "https://evil.example",
        "jwk": {"kty": "oct", "k": "AAAA"}});
    let forged = token_of(&header, &json!({}), |text| hs256(&[0; 3], text));
    assert_eq!(refused(&keys, &forged), Some(AuthFailure::Wrong));
}

#[test]
fn a_changed_token_is_wrong_and_garbage_is_of_no_key() {
    let issuers = Issuers::new();
    let keys = issuers.keys();
    let good = issuers.first.token("a", &claims(&json!({})));
    let (text, signature) = good.rsplit_once('.').unwrap();
    let other = issuers.first.token("a", &claims(&json!({"sub": "root"})));
    let (others, _) = other.rsplit_once('.').unwrap();
    for forged in [
        format!("{text}."),
        format!("{text}.AAAA"),
        format!("{text}.{}", &signature[..signature.len() - 2]),
        format!("{text}.{signature}AA"),
        format!("{others}.{signature}"),
    ] {
        assert_eq!(refused(&keys, &forged), Some(AuthFailure::Wrong));
    }
    for garbage in ["", ".", "..", "a.b.c", text, &format!("{good}.x"), "ey"] {
        assert_eq!(refused(&keys, garbage), None, "{garbage}");
    }
    assert!(matches!(
        ask_about(&keys, b"\xff\xfe.\0.\n"),
        AuthOutcome::Unknown
    ));
    let padding = "x".repeat(LONG_CREDENTIALS_BYTES_MAX);
    let long = issuers.first.token("a", &claims(&json!({"pad": padding})));
    assert_eq!(refused(&keys, &long), None);
    for end in 0..good.len() {
        assert!(!matches!(
            ask_about(&keys, &good.as_bytes()[..end]),
            AuthOutcome::Admitted(_)
        ));
    }
}

#[test]
fn a_name_that_no_identity_may_have_is_refused() {
    let issuers = Issuers::new();
    let keys = issuers.keys();
    let outcome = |sub: Value| {
        refused_or(
            &keys,
            &issuers.first.token("a", &claims(&json!({"sub": sub}))),
        )
    };
    for name in ["dev-7", "jürgen", "auth0|5f7c8ec7c33c6c004bbafe82"] {
        assert_eq!(outcome(json!(name)), Ok(()), "{name}");
    }
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for name in [
        "",
        "a b",
        "a\n",
        "a\u{1b}[2J",
        "*",
        "a*",
        ">",
        "dev.>",
        "a\u{202e}b",
        "anonymous",
        "annl",
        &long,
        // A dot would fill a pattern with {name} with two words.
        "a.b",
    ] {
        let wrong = Err(Some(AuthFailure::Wrong));
        assert_eq!(outcome(json!(name)), wrong, "{name:?}");
    }
    for sub in [Value::Null, json!(7), json!(["ann"])] {
        assert_eq!(outcome(sub), Err(Some(AuthFailure::Wrong)));
    }
}

#[test]
fn an_identity_stays_while_its_key_does() {
    let issuers = Issuers::new();
    let ann = admitted(
        &issuers.keys(),
        &issuers.first.token("a", &claims(&json!({}))),
    );
    let same = issuers.keys().current(&ann).unwrap();
    assert_eq!((same.name(), same.expiry()), ("ann", ann.expiry()));
    assert!(issuers.keys().current(&same).is_some());
    let others = Issuers::new();
    assert!(others.keys().current(&ann).is_none(), "a new key");
    let of = |issuer: JwtIssuer| {
        let pem = issuers.first.public_pem().as_bytes();
        let issuer = issuer.key("a", "ES256", pem).unwrap();
        let users = Arc::new(Users::new(Permissions::everything()));
        JwtKeys::new(users).issuer(issuer).unwrap()
    };
    let first = JwtIssuer::new(ISSUER, ["other", "gateway"]);
    assert!(of(first.clone()).current(&ann).is_some());
    assert!(of(first.name_claim("x")).current(&ann).is_none());
    assert!(
        of(JwtIssuer::new(ISSUER, ["gateway"]))
            .current(&ann)
            .is_none()
    );
    assert!(
        of(JwtIssuer::new("x", ["gateway", "other"]))
            .current(&ann)
            .is_none()
    );
}

#[test]
fn keys_of_one_id_and_issuers_without_audience_are_refused() {
    let secret = |issuer: JwtIssuer| issuer.key("s", "HS256", SECRET).unwrap();
    let keys = || JwtKeys::new(Arc::default());
    let twice = secret(secret(JwtIssuer::new("a", ["x"])));
    let error = keys().issuer(twice).unwrap_err();
    let is_twice = |error: &SettingError| error.to_string().contains("has two keys \"s\"");
    assert!(is_twice(&error), "{error}");
    let issuer = || secret(JwtIssuer::new("a", ["x"]));
    let error = keys().issuer(issuer()).unwrap().issuer(issuer());
    assert!(is_twice(&error.unwrap_err()));
    let error = keys().issuer(secret(JwtIssuer::new("a", []))).unwrap_err();
    assert!(error.to_string().contains("has no audience"), "{error}");
}

#[test]
fn the_keys_of_issuers_count_in_the_account_of_memory() {
    let measured = |count: usize| {
        let mut issuer = JwtIssuer::new(ISSUER, ["gateway"]);
        for number in 0..count {
            let kid = format!("key-{number}");
            issuer = issuer.key(&kid, "HS256", SECRET).unwrap();
        }
        let keys = JwtKeys::new(Arc::new(Users::default())).issuer(issuer);
        let mut tables = TableBytes::default();
        keys.unwrap().measure(&mut tables);
        tables.bytes()
    };
    assert!(measured(101) > measured(1) + 100 * SECRET.len());
}
