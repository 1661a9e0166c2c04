//! Tokens in files of their own, limits of users that have no effect, and keys that issuers publish.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;
use tidewire_testkit::jwt::{SigningKey, in_seconds};

use crate::identity::write_secret;
use crate::process::{Ended, Process};

#[test]
fn token_new_writes_the_token_to_a_file_that_others_may_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let make = || {
        let (file, out) = (at("tokens"), at("ann.token"));
        Process::start(&["token", "new", "ann", "--file", &file, "--out", &out]).wait()
    };
    let ended = make();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    assert_eq!(ended.text(), "", "the token is nowhere else");
    let token = fs::read_to_string(at("ann.token")).unwrap();
    assert_eq!(token.trim().len(), 64);
    let mode = fs::metadata(at("ann.token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A second file does not replace the first, and leaves no hash of an unknown token.
    let again = make();
    assert_eq!(again.status.code(), Some(2), "{}", again.text());
    assert_eq!(fs::read_to_string(at("ann.token")).unwrap(), token);
    assert_eq!(fs::read_to_string(at("tokens")).unwrap().lines().count(), 1);
}

/// Regression: `subscriptions_max = 1000` of a user had no effect, and nothing said so.
#[test]
fn a_limit_of_a_user_above_that_of_the_server_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidewire.toml");
    let text = "sessions_max = 10\n[[users]]\nname = \"ann\"\nsessions_max = 11\nsubscriptions_max = 1000\n\
                permissions.call = { allow = [\">\"] }\nunix_users = [1]\n";
    fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    let told = [
        "subscriptions_max = 1000 has no effect, because the server allows 256",
        "sessions_max = 11 has no effect, because the server allows 10",
    ];
    let ended = Process::start(&["check", &path]).wait();
    assert_eq!(ended.status.code(), Some(99), "{}", ended.text());
    for text in told {
        assert!(ended.text().contains(text), "{}", ended.text());
    }
    let bind = ["--bind", "tcp://127.0.0.1:0", "--config", &*path];
    let mut server = Process::start(&[&["serve", "--app", "rpc"][..], &bind].concat());
    server.expect(told[1]);
    server.expect(told[0]);
}

/// An issuer that publishes this set of keys at a URL.
fn issuer(set: &Arc<Mutex<String>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let set = Arc::clone(set);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            let body = set.lock().unwrap().clone();
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    url
}

fn call(folder: &std::path::Path, address: &str, token: &str) -> Ended {
    let file = folder.join("client-token");
    write_secret(&file, format!("{token}\n"));
    let file = file.display().to_string();
    Process::start(&["call", address, "add", "1 2", "--token-file", &file]).wait()
}

#[test]
fn a_server_fetches_the_keys_of_an_issuer_and_follows_them() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (SigningKey::new(), SigningKey::new());
    let of = |keys: &[serde_json::Value]| json!({ "keys": keys }).to_string();
    let set = Arc::new(Mutex::new(of(&[first.jwk("a")])));
    let url = issuer(&set);
    let jwt = folder.path().join("jwt.toml");
    let text = format!(
        "[[issuers]]\nissuer = \"login\"\naudience = [\"gateway\"]\njwks_url = {url:?}\njwks_refresh_seconds = 1\n"
    );
    fs::write(&jwt, text).unwrap();
    let jwt = jwt.display().to_string();
    let (mut server, address) = Process::rpc_server(&["--auth-jwt", &jwt, "--log-level", "debug"]);
    let claims = json!({"iss": "login", "aud": "gateway", "sub": "ann", "exp": in_seconds(600)});
    let code = |token: &str| call(folder.path(), &address, token).status.code();
    assert_eq!(code(&first.token("a", &claims)), Some(0));
    assert_eq!(code(&second.token("b", &claims)), Some(4));
    server.expect("its issuer has no key with the id \"b\"");
    *set.lock().unwrap() = of(&[first.jwk("a"), second.jwk("b")]);
    server.expect("the users were read again");
    assert_eq!(code(&second.token("b", &claims)), Some(0));
    *set.lock().unwrap() = "broken".to_owned();
    server.expect("cannot fetch the key set of an issuer");
    assert_eq!(
        code(&first.token("a", &claims)),
        Some(0),
        "the last good one"
    );
}
