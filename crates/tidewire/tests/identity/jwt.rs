//! JSON Web Tokens over the whole way: from the client's token to the identity in a handler.

use serde_json::{Value, json};
use tidewire::Event;
use tidewire::auth::{JwtIssuer, JwtKeys};
use tidewire_testkit::DEADLINE;
use tidewire_testkit::jwt::{SigningKey, in_seconds};

use super::*;

const ISSUER: &str = "https://login.example";

fn keys(key: &SigningKey, kid: &str) -> JwtKeys {
    let issuer = JwtIssuer::new(ISSUER, ["gateway"]);
    let pem = key.public_pem().as_bytes();
    let issuer = issuer.key(kid, "ES256", pem).unwrap();
    let users = users(&[("ann", Permissions::everything())]);
    JwtKeys::new(Arc::new(users)).issuer(issuer).unwrap()
}

fn claims(name: &str, lifetime: i64) -> Value {
    let exp = in_seconds(lifetime);
    json!({"iss": ISSUER, "aud": "gateway", "sub": name, "exp": exp})
}

fn token(key: &SigningKey, kid: &str, claims: &Value) -> Token {
    Token::new(&key.token(kid, claims)).unwrap()
}

#[test]
fn a_jwt_identifies_the_peer() {
    let key = SigningKey::new();
    let server = serve_with(keys(&key, "a"), |_| tell_name);
    let client = connect(&server, Some(&token(&key, "a", &claims("ann", 600)))).unwrap();
    assert_eq!(name_of(&client), "ann");
    // A user that only the issuer knows has the default permissions, which are none here.
    let stranger = connect(&server, Some(&token(&key, "a", &claims("eve", 600)))).unwrap();
    let outcome = stranger.request(b"").wait();
    assert_eq!(code(outcome), ErrorCode::Forbidden);

    let refused = |token: &Token| refusal(connect(&server, Some(token)));
    let expired = refused(&token(&key, "a", &claims("ann", -600)));
    assert!(expired.contains("have expired"), "{expired}");
    let forged = refused(&token(&SigningKey::new(), "a", &claims("ann", 600)));
    assert!(forged.contains("are wrong"), "{forged}");
    let unknown = refused(&token(&key, "b", &claims("ann", 600)));
    assert!(unknown.contains("are wrong"), "{unknown}");
    let metrics = server.metrics();
    assert_eq!((metrics.authenticated, metrics.auth_refused), (2, 3));
}

#[test]
fn a_key_that_is_removed_ends_its_sessions_and_a_broken_file_none() {
    let (old, new) = (SigningKey::new(), SigningKey::new());
    let server = serve_with(keys(&old, "a"), |_| tell_name);
    let ann = token(&old, "a", &claims("ann", 600));
    let client = connect(&server, Some(&ann)).unwrap();
    let broken = Err::<JwtKeys, _>("a typo");
    let error = server.replace_authenticator(broken);
    assert_eq!(error, Err("a typo"));
    assert_eq!(name_of(&client), "ann");
    let next = Ok::<_, &str>(keys(&new, "a"));
    server.replace_authenticator(next).unwrap();
    let reason = loop {
        if let Event::Closed { reason, .. } = client.next_event().wait_for(DEADLINE).unwrap() {
            break reason;
        }
    };
    assert_eq!(reason, CloseReason::GoAway(GoAwayCode::Unauthenticated));
    assert!(refusal(connect(&server, Some(&ann))).contains("are wrong"));
    let ann = token(&new, "a", &claims("ann", 600));
    assert_eq!(name_of(&connect(&server, Some(&ann)).unwrap()), "ann");
    let metrics = server.metrics();
    assert_eq!((metrics.auth_reloads, metrics.auth_reloads_refused), (1, 1));
}

#[test]
fn a_session_expires_with_its_token() {
    let key = SigningKey::new();
    // The leeway is 30 s, so this token is valid for 3 to 4 s more.
    let server = serve_with(keys(&key, "a"), |_| tell_name);
    let ann = token(&key, "a", &claims("ann", -26));
    let client = connect(&server, Some(&ann)).unwrap();
    let mut is_warned = false;
    loop {
        match client.next_event().wait_for(DEADLINE).unwrap() {
            Event::CredentialsExpire { .. } => is_warned = true,
            Event::Closed { .. } => break,
            _ => {}
        }
    }
    assert!(is_warned);
    until("the end is counted", || {
        server.metrics().closed_by("credentials_expired") == 1
    });
}

/// OpenSSL signed these tokens, which are valid until 2100. Their private keys are deleted.
#[test]
fn tokens_that_another_program_signed_are_accepted() {
    let pem = |name: &str| match name {
        "rsa.pem" => include_str!("openssl/rsa.pem"),
        "ed.pem" => include_str!("openssl/ed.pem"),
        _ => include_str!("openssl/p384.pem"),
    };
    let tokens: Vec<Vec<&str>> = include_str!("openssl/tokens")
        .lines()
        .map(|line| line.split(' ').collect())
        .collect();
    let mut issuer = JwtIssuer::new(ISSUER, ["gateway"]);
    for line in &tokens {
        let (algorithm, key) = (line[0], pem(line[1]).as_bytes());
        issuer = issuer.key(line[0], algorithm, key).unwrap();
    }
    let users = users(&[("ann", Permissions::everything())]);
    let keys = JwtKeys::new(Arc::new(users)).issuer(issuer).unwrap();
    let server = serve_with(keys, |_| tell_name);
    for line in &tokens {
        let token = Token::new(line[2]).unwrap();
        assert_eq!(name_of(&connect(&server, Some(&token)).unwrap()), "ann");
    }
    assert_eq!(server.metrics().authenticated, 8);
}
