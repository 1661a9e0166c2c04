//! Tokens, users and permissions on the command line.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;
use tidewire::auth::Token;
use tidewire::{Client, CloseReason, Event, GoAwayCode};
use tidewire_testkit::jwt::{SigningKey, hs256, in_seconds};

use crate::process::{DEADLINE, Ended, Process, command};

/// Makes a token and returns it.
fn new_token(folder: &Path, name: &str) -> String {
    let file = folder.join("tokens");
    let ended =
        Process::start(&["token", "new", name, "--file", &file.display().to_string()]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let token = ended.text().trim().to_owned();
    // The token is printed once, and only its hash is kept.
    assert_eq!(token.len(), 64);
    assert!(!fs::read_to_string(file).unwrap().contains(&token));
    token
}

/// Writes a file that only its owner may open.
pub(crate) fn write_secret(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// Calls `add` with a token in a file.
fn call(folder: &Path, address: &str, token: &str) -> Ended {
    let file = folder.join("client-token");
    write_secret(&file, format!("{token}\n"));
    let file = file.display().to_string();
    let all = [
        "call",
        address,
        "add",
        "1 2",
        "--token-file",
        &file,
        "--log-level",
        "trace",
    ];
    Process::start(&all).wait()
}

#[test]
fn a_server_with_tokens_admits_peers_with_a_token_and_shows_none() {
    let folder = tempfile::tempdir().unwrap();
    let token = new_token(folder.path(), "ann");
    let tokens = folder.path().join("tokens").display().to_string();
    let (mut server, address) =
        Process::rpc_server(&["--auth-tokens", &tokens, "--log-level", "trace"]);
    let known = call(folder.path(), &address, &token);
    assert_eq!(known.status.code(), Some(0), "{}", known.text());
    for wrong in ["guessed", &token[1..], &token.to_uppercase()] {
        let ended = call(folder.path(), &address, wrong);
        assert_eq!(ended.status.code(), Some(4), "{}", ended.text());
        assert!(ended.text().contains("--token-file"), "{}", ended.text());
        assert!(!ended.text().contains(wrong));
    }
    let by_variable = command(&["call", &address, "add", "1 2"])
        .env("TIDEWIRE_TOKEN", &token)
        .output()
        .unwrap();
    assert_eq!(by_variable.status.code(), Some(0));
    let mut by_input = Process::start(&["call", &address, "add", "1 2", "--token-file", "-"]);
    by_input.type_line(&token);
    assert_eq!(by_input.wait().status.code(), Some(0));
    server.signal(Signal::INT);
    server.expect("sessions");
    let shown = server.wait().text();
    for secret in [&*token, "guessed"] {
        assert!(!shown.contains(secret) && !known.text().contains(secret));
    }
}

#[test]
fn a_text_that_is_no_token_is_refused_before_a_connection() {
    let folder = tempfile::tempdir().unwrap();
    for (token, told) in [
        ("", "the token is empty"),
        ("one\ntwo", "a line end"),
        (&*"x".repeat(2_000), "a hello takes 1024 bytes"),
        (&*"x".repeat(9_000), "8192 at most"),
    ] {
        let ended = call(folder.path(), "127.0.0.1:1", token);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(told), "{}", ended.text());
        assert!(!ended.text().contains("xxx"));
    }
    let missing = folder.path().join("missing").display().to_string();
    let ended = Process::start(&["call", "127.0.0.1:1", "add", "--token-file", &missing]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    let raw = [
        "pub",
        "127.0.0.1:1",
        "a",
        "b",
        "--token-file",
        &missing,
        "--codec",
        "uvrpc",
    ];
    let ended = Process::start(&raw).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
}

/// A token went in plain text to any host. 0.0.0.0 leads to this machine, but is no loopback address, like addresses of
/// other machines.
#[test]
fn a_token_is_not_sent_to_another_machine_in_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let token = new_token(folder.path(), "ann");
    let tokens = folder.path().join("tokens").display().to_string();
    let (_server, address) = Process::rpc_server(&["--auth-tokens", &tokens]);
    let remote = address.replace("127.0.0.1", "0.0.0.0");
    assert_ne!(remote, address);
    let call = |more: &[&str]| {
        let all = [&["call", &remote, "add", "1 2"], more].concat();
        Process::spawn(command(&all).env("TIDEWIRE_TOKEN", &token)).wait()
    };
    let ended = call(&[]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    for part in ["others could read them", "tls://", "--insecure"] {
        assert!(ended.text().contains(part), "{part}: {}", ended.text());
    }
    let ended = call(&["--insecure"]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
}

#[test]
fn users_have_the_permissions_of_the_file_and_a_reload_changes_them() {
    let folder = tempfile::tempdir().unwrap();
    let token = new_token(folder.path(), "ann");
    let tokens = folder.path().join("tokens").display().to_string();
    let config = folder.path().join("tidewire.toml");
    let write = |allow: &str| {
        let users =
            format!("[[users]]\nname = \"ann\"\npermissions.call = {{ allow = [{allow}] }}\n");
        fs::write(&config, users).unwrap();
    };
    write("\"echo\"");
    let config = config.display().to_string();
    let (mut server, address) =
        Process::rpc_server(&["--config", &config, "--auth-tokens", &tokens]);
    let ended = call(folder.path(), &address, &token);
    assert_eq!(ended.status.code(), Some(4), "{}", ended.text());
    assert!(
        ended.text().contains("you may not call add"),
        "{}",
        ended.text()
    );
    let topic = ["pub", &*address, "a.b", "x", "--token-file"];
    let file = folder.path().join("client-token").display().to_string();
    let ended = Process::start(&[&topic[..], &[&file]].concat()).wait();
    assert_eq!(ended.status.code(), Some(4), "{}", ended.text());
    assert!(
        ended.text().contains("ask the operator"),
        "{}",
        ended.text()
    );
    write("\"add\" \"typo\"");
    server.signal(Signal::HUP);
    server.expect("the former users stay");
    assert_eq!(call(folder.path(), &address, &token).status.code(), Some(4));
    write("\"add\"");
    server.signal(Signal::HUP);
    server.expect("the users were read again");
    assert_eq!(call(folder.path(), &address, &token).status.code(), Some(0));
}

/// A server of this application with these users of a configuration and the tokens of the folder.
fn server_with_users(folder: &Path, app: &str, users: &str) -> (Process, String) {
    let config = folder.join("tidewire.toml");
    fs::write(&config, users).unwrap();
    let (config, tokens) = (config.display(), folder.join("tokens"));
    let flags = [
        "--app",
        app,
        "--config",
        &config.to_string(),
        "--auth-tokens",
        &tokens.display().to_string(),
    ];
    Process::server(&flags)
}

/// Reads the users of a running server again.
fn reload(server: &mut Process, folder: &Path, users: &str) {
    fs::write(folder.join("tidewire.toml"), users).unwrap();
    server.signal(Signal::HUP);
    server.expect("the users were read again");
}

/// Regression: a signal that rotates logs each night read the same users again, and said so.
#[test]
fn a_hangup_reads_users_and_settings_that_are_as_they_were_not_again() {
    let folder = tempfile::tempdir().unwrap();
    let ann = new_token(folder.path(), "ann");
    let users = |method: &str| {
        format!("[[users]]\nname = \"ann\"\npermissions.call.allow = [\"{method}\"]\n")
    };
    let (mut server, address) = server_with_users(folder.path(), "rpc", &users("echo"));
    for _ in 0..3 {
        server.signal(Signal::HUP);
        server.expect("SIGHUP: there is no log file to open again");
        // The next request is served after the signal.
        server.signal(Signal::USR1);
        server.expect("served: ");
    }
    assert!(!server.has_line("read again"), "{:?}", server.transcript());
    assert_eq!(call(folder.path(), &address, &ann).status.code(), Some(4));
    reload(&mut server, folder.path(), &users("add"));
    assert_eq!(call(folder.path(), &address, &ann).status.code(), Some(0));
}

/// The reason that a server gave for the end of a session.
fn end_of(client: &Client) -> CloseReason {
    loop {
        if let Event::Closed { reason, .. } = client.next_event().wait_for(DEADLINE).unwrap() {
            return reason;
        }
    }
}

const REVOKED: CloseReason = CloseReason::GoAway(GoAwayCode::Unauthenticated);

/// Regression: a user was removed, and a line of the token file still named it. The whole reload failed, and no user
/// was revoked.
#[test]
fn the_session_of_a_removed_user_ends_though_its_token_is_still_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let [ann, bob] = ["ann", "bob"].map(|name| new_token(folder.path(), name));
    let users = |names: &[&str]| {
        let tables = names.iter().map(|name| {
            format!("[[users]]\nname = \"{name}\"\npermissions.call.allow = [\">\"]\n")
        });
        tables.collect::<String>()
    };
    let (mut server, address) = server_with_users(folder.path(), "rpc", &users(&["ann", "bob"]));
    let connect = |token: &str| {
        let builder = Client::builder().credentials(Token::new(token).unwrap());
        builder.connect(&address).wait()
    };
    let (of_ann, of_bob) = (connect(&ann).unwrap(), connect(&bob).unwrap());
    reload(&mut server, folder.path(), &users(&["bob"]));
    assert_eq!(end_of(&of_ann), REVOKED);
    assert!(connect(&ann).is_err());
    assert!(server.has_line("tokens are refused, because no user has their name"));
    let reply = of_bob.request(b"1 2").method("add").wait().unwrap();
    assert_eq!(reply.payload(), b"3", "the session of the other goes on");

    // A server begins with such a file, too, and says the same.
    let (mut second, _address) = server_with_users(folder.path(), "rpc", &users(&["bob"]));
    tidewire_testkit::wait_until("the log has it", || {
        let is_said = second.has_line("tokens are refused, because no user has their name");
        is_said.then_some(())
    });
}

/// Regression: without a single user in the configuration, a token lets its owner do everything. So the removal of the
/// last user gave it all permissions at the reload.
#[test]
fn the_removal_of_the_last_user_revokes_it_and_gives_it_no_permission() {
    let folder = tempfile::tempdir().unwrap();
    let ann = new_token(folder.path(), "ann");
    let (mut server, address) =
        server_with_users(folder.path(), "rpc", "[[users]]\nname = \"ann\"\n");
    let client = Client::builder().credentials(Token::new(&ann).unwrap());
    let client = client.connect(&address).wait().unwrap();
    reload(&mut server, folder.path(), "[auth.default_permissions]\n");
    assert_eq!(end_of(&client), REVOKED);
    assert_eq!(call(folder.path(), &address, &ann).status.code(), Some(4));
}

/// Regression: an empty or mistyped file had no users, and without users a peer with any token could do everything.
#[test]
fn a_file_without_users_makes_no_peer_an_administrator() {
    let folder = tempfile::tempdir().unwrap();
    let token = new_token(folder.path(), "ann");
    let tokens = folder.path().join("tokens").display().to_string();
    let config = folder.path().join("tidewire.toml");
    let path = config.display().to_string();
    let users = "[[users]]\nname = \"ann\"\npermissions.call = { allow = [\"echo\"] }\n";
    fs::write(&config, users).unwrap();
    let (mut server, address) = Process::rpc_server(&["--config", &path, "--auth-tokens", &tokens]);
    for (text, told) in [
        ("", "has no [auth] and no [[users]] any more"),
        ("lanes = 1\n", "has no [auth] and no [[users]] any more"),
        (
            &*users.replace("[[users]]", "[[user]]"),
            "did you mean `users`?",
        ),
        (&*format!("colour = 1\n{users}"), "unknown key `colour`"),
    ] {
        fs::write(&config, text).unwrap();
        server.signal(Signal::HUP);
        let line = server.expect("the former users stay");
        assert!(line.contains(told), "{line}");
        let ended = call(folder.path(), &address, &token);
        assert_eq!(ended.status.code(), Some(4), "{text:?}: {}", ended.text());
    }
    fs::write(&config, users.replace("echo", "add")).unwrap();
    server.signal(Signal::HUP);
    server.expect("the users were read again");
    assert_eq!(call(folder.path(), &address, &token).status.code(), Some(0));
}

#[test]
fn an_address_that_others_reach_needs_protection_or_a_word() {
    let all = ["serve", "--bind", "tcp://0.0.0.0:0"];
    let ended = Process::start(&all).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    for part in ["no encryption and users", "--auth-tokens", "--insecure"] {
        assert!(ended.text().contains(part), "{part}: {}", ended.text());
    }
    let (_server, _address) = Process::server_at("tcp://0.0.0.0:0", &["--insecure"]);
}

/// Regression: an abstract name was silently open to every local user, and a mode for it was dropped.
#[test]
fn an_abstract_name_needs_users_or_a_word_and_has_no_mode() {
    let bind = format!("ipc://@tidewire-cli-{}", std::process::id());
    let refused = |more: &[&str], told: &str| {
        let ended = Process::start(&[&["serve", "--bind", &bind], more].concat()).wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(told), "{told}: {}", ended.text());
    };
    refused(&[], "every user of this machine");
    refused(
        &["--insecure", "--unix-mode", "600"],
        "no file and so no unix_mode",
    );
    let (_server, _address) = Process::server_at(&bind, &["--insecure"]);
}

#[test]
fn check_prints_permissions_of_users_and_those_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidewire.toml");
    let check = |text: &str, more: &[&str]| {
        fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        Process::start(&[&["check", &*path], more].concat()).wait()
    };
    let users = "[auth.default_permissions]\npublish = { allow = [\"dev.{name}.>\"] }\n[[users]]\nname = \"ann\"\n\
                 unix_users = [7]\n[[users]]\nname = \"bob\"\nunix_users = [7]\n[[users]]\nname = \
                 \"anonymous\"\npermissions.say = { allow = [\"a\"], deny = [\"a\", \"b\"] }\n";
    let ended = check(users, &[]);
    assert_eq!(ended.status.code(), Some(99), "{}", ended.text());
    for part in [
        "ann (Unix user 7)",
        "publish    dev.ann.>",
        "subscribe  nothing",
        "anonymous (whoever sends no credentials)",
        "warning: a allows nothing, because a is denied",
        "warning: b denies nothing that is allowed",
        "warning: Unix user 7 is never asked for, because it is ann's before",
    ] {
        assert!(ended.text().contains(part), "{part}: {}", ended.text());
    }
    let ended = check(users, &["--user", "ann"]);
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    assert!(!ended.text().contains("anonymous"));
    assert_eq!(check(users, &["--user", "eve"]).status.code(), Some(2));
    for (wrong, told) in [
        ("[[users]]\nnam = 1\n", "unknown key `users[0].nam`"),
        ("[[user]]\nname = \"ann\"\n", "did you mean `users`?"),
        ("lanes = 0.5\n[auth]\n", "must be a whole number"),
    ] {
        let ended = check(wrong, &[]);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(told), "{}", ended.text());
    }
    let ended = check("lanes = 1\n", &[]);
    assert_eq!(ended.status.code(), Some(99), "{}", ended.text());
    assert!(
        ended.text().contains("no [auth] and no [[users]]"),
        "{}",
        ended.text()
    );
}

/// People would take one of two such users for the other.
#[test]
fn check_warns_of_users_that_look_alike() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidewire.toml");
    let users =
        "[[users]]\nname = \"pump-1\"\n[[users]]\nname = \"pump-l\"\n[[users]]\nname = \"ann\"\n";
    fs::write(&path, users).unwrap();
    let path = path.display().to_string();
    let ended = Process::start(&["check", &path]).wait();
    assert_eq!(ended.status.code(), Some(99), "{}", ended.text());
    assert!(
        ended
            .text()
            .contains("warning: pump-l looks like this name"),
        "{}",
        ended.text()
    );
    let ended = Process::start(&["check", &path, "--user", "ann"]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
}

/// Ranges of addresses were read by servers only.
#[test]
fn check_finds_an_address_that_no_server_takes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tidewire.toml");
    fs::write(
        &path,
        "[[users]]\nname = \"a\"\naddresses = [\"10.0.0.0/33\"]\n",
    )
    .unwrap();
    let ended = Process::start(&["check", &path.display().to_string()]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(
        ended.text().contains("\"10.0.0.0/33\" is not a range"),
        "{}",
        ended.text()
    );
}

#[test]
fn a_token_file_that_others_may_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "secret\n").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let file = file.display().to_string();
    let ended = Process::start(&["call", "127.0.0.1:1", "add", "--token-file", &file]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    for part in ["is open to other users", "mode 644", "chmod 600"] {
        assert!(ended.text().contains(part), "{part}: {}", ended.text());
    }
    assert!(!ended.text().contains("secret\n"));
}

/// Files for `--auth-jwt`: an issuer with a public key and a secret.
fn write_jwt(folder: &Path, key: &SigningKey) -> String {
    let text = "[[issuers]]\nissuer = \"login\"\naudience = [\"gateway\"]\n\
                [[issuers.keys]]\nkid = \"a\"\nalgorithm = \"ES256\"\nfile = \"a.pem\"\n\
                [[issuers.keys]]\nkid = \"s\"\nalgorithm = \"HS256\"\nfile = \"secret\"\n";
    fs::write(folder.join("a.pem"), key.public_pem()).unwrap();
    write_secret(folder.join("secret"), SECRET);
    let path = folder.join("jwt.toml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

const SECRET: [u8; 32] = [b'x'; 32];

#[test]
fn a_server_with_keys_admits_peers_with_a_jwt_and_follows_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (SigningKey::new(), SigningKey::new());
    let jwt = write_jwt(folder.path(), &first);
    let config = folder.path().join("tidewire.toml");
    let users = "[auth.default_permissions]\ncall = { allow = [\"add\"] }\n\
                 [[users]]\nname = \"eve\"\npermissions.call = { deny = [\">\"] }\n";
    fs::write(&config, format!("auth_jwt = {jwt:?}\n{users}")).unwrap();
    let config = config.display().to_string();
    let (mut server, address) = Process::rpc_server(&["--config", &config]);
    let claims = |name: &str, lifetime| {
        let exp = in_seconds(lifetime);
        json!({"iss": "login", "aud": "gateway", "sub": name, "exp": exp})
    };
    let code = |token: &str| call(folder.path(), &address, token).status.code();
    let ann = first.token("a", &claims("ann", 600));
    assert_eq!(code(&ann), Some(0));
    let by_secret = json!({"alg": "HS256", "kid": "s"});
    let by_secret =
        tidewire_testkit::jwt::token(&by_secret, &claims("ann", 600), |text| hs256(&SECRET, text));
    assert_eq!(code(&by_secret), Some(0));
    let eve = call(
        folder.path(),
        &address,
        &first.token("a", &claims("eve", 600)),
    );
    assert!(
        eve.text().contains("you may not call add"),
        "{}",
        eve.text()
    );
    for wrong in [
        first.token("a", &claims("ann", -600)),
        first.token("b", &claims("ann", 600)),
        second.token("a", &claims("ann", 600)),
    ] {
        assert_eq!(code(&wrong), Some(4));
    }
    // A change is seen without a signal. A broken file changes nothing.
    fs::write(folder.path().join("a.pem"), "typo").unwrap();
    server.expect("the former users stay");
    assert_eq!(code(&ann), Some(0));
    fs::write(folder.path().join("a.pem"), second.public_pem()).unwrap();
    server.expect("the users were read again");
    assert_eq!(code(&ann), Some(4));
    assert_eq!(code(&second.token("a", &claims("ann", 600))), Some(0));
    fs::write(folder.path().join("a.pem"), first.public_pem()).unwrap();
    server.signal(Signal::HUP);
    server.expect("the users were read again");
}

#[test]
fn keys_that_cannot_be_used_stop_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let jwt = write_jwt(folder.path(), &SigningKey::new());
    let secret = folder.path().join("secret");
    let start = || Process::start(&["serve", "--auth-jwt", &jwt]).wait();
    fs::set_permissions(&secret, Permissions::from_mode(0o644)).unwrap();
    let ended = start();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("chmod 600"), "{}", ended.text());
    write_secret(&secret, "short");
    let ended = start();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(
        ended.text().contains("5 bytes is too short"),
        "{}",
        ended.text()
    );
}

/// Regression: every user was said to have tokens, also without a file of tokens.
#[test]
fn check_names_tokens_as_a_proof_only_of_users_with_tokens() {
    let folder = tempfile::tempdir().unwrap();
    new_token(folder.path(), "ann");
    new_token(folder.path(), "gone");
    let tokens = folder.path().join("tokens").display().to_string();
    let path = folder.path().join("tidewire.toml");
    let users =
        "[[users]]\nname = \"ann\"\naddresses = [\"10.0.0.1\"]\n[[users]]\nname = \"bob\"\n";
    let check = |text: &str, more: &[&str]| {
        fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        Process::start(&[&["check", &*path], more].concat()).wait()
    };
    let without = check(users, &[]);
    assert_eq!(without.status.code(), Some(0), "{}", without.text());
    assert!(without.text().contains("ann (address 10.0.0.1)"));
    assert!(without.text().contains("bob (no proof in this file"));

    let by_flag = check(users, &["--auth-tokens", &tokens]);
    let by_key = check(&format!("auth_tokens = \"{tokens}\"\n{users}"), &[]);
    for ended in [by_flag, by_key] {
        assert_eq!(ended.status.code(), Some(99), "{}", ended.text());
        for part in [
            "ann (tokens, address 10.0.0.1)",
            "bob (no proof: neither a token nor another one)",
            "warning: the tokens of gone are refused",
        ] {
            assert!(ended.text().contains(part), "{part}: {}", ended.text());
        }
    }
    let ended = check(users, &["--auth-tokens", "/nowhere/tokens"]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
}

/// Regression: the remedy for what a user may not do was to start another kind of server, or to choose another room.
#[test]
fn a_user_without_permission_is_told_to_request_it() {
    let folder = tempfile::tempdir().unwrap();
    let token = new_token(folder.path(), "ann");
    let file = folder.path().join("ann.token");
    write_secret(&file, &token);
    let file = file.display().to_string();
    let cases: [(&str, &[&str]); 4] = [
        ("pubsub", &["pub", "a", "x"]),
        ("pubsub", &["sub", "a"]),
        ("rpc", &["call", "add", "1 2"]),
        ("chat", &["chat", "--name", "ann"]),
    ];
    for (app, arguments) in cases {
        let (_server, address) =
            server_with_users(folder.path(), app, "[[users]]\nname = \"ann\"\n");
        let all = [&arguments[..1], &[&*address], &arguments[1..]].concat();
        let ended = Process::start(&[&all[..], &["--token-file", &file]].concat()).wait();
        assert_eq!(ended.status.code(), Some(4), "{all:?}: {}", ended.text());
        for part in [
            "you may not",
            "ask the operator of the server for the permission",
        ] {
            assert!(ended.text().contains(part), "{all:?}: {}", ended.text());
        }
    }
}

/// Users of a server of topics: ann may publish everything, and subscribe to this.
fn who_subscribes_to(pattern: &str) -> String {
    format!(
        "[[users]]\nname = \"ann\"\npermissions.publish.allow = [\">\"]\n\
         permissions.subscribe.allow = [\"{pattern}\"]\n"
    )
}

/// A server of topics, and ann's `tidewire sub` for topic `a` at it, which has had a message.
fn subscribed(folder: &Path) -> (Process, Process) {
    let token = new_token(folder, "ann");
    let file = folder.join("ann.token");
    write_secret(&file, &token);
    let (server, address) = server_with_users(folder, "pubsub", &who_subscribes_to("a"));
    let file = file.display().to_string();
    let mut sub = Process::start(&["sub", &address, "a", "--token-file", &file]);
    let publisher = Client::builder().credentials(Token::new(&token).unwrap());
    let publisher = publisher.connect(&address).wait().unwrap();
    tidewire_testkit::wait_until("the subscriber hears", || {
        publisher.publish("a", b"knock").unwrap();
        publisher.flush().wait().unwrap();
        sub.has_line("knock").then_some(())
    });
    (server, sub)
}

/// Regression: a subscriber whose token was revoked tried again in silence.
#[test]
fn a_subscriber_with_a_revoked_token_says_why_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, mut sub) = subscribed(folder.path());
    reload(&mut server, folder.path(), "[auth]\n");
    sub.expect("2: ! a is interrupted: ");
    let line = sub.expect("2: ! still no connection: the server refused the connection: ");
    assert!(line.contains("not authenticated"), "{line}");
    reload(&mut server, folder.path(), &who_subscribes_to("a"));
    sub.expect("2: ! a is resumed");
    let told = sub.transcript().iter();
    let told = told.filter(|line| line.contains("still no connection"));
    assert_eq!(told.count(), 1, "one reason has one line");
}

/// Regression: it ended as if there was no server, with a remedy about the server's protocol.
#[test]
fn a_subscriber_whose_permission_is_withdrawn_is_told_to_ask_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut server, sub) = subscribed(folder.path());
    reload(&mut server, folder.path(), &who_subscribes_to("b"));
    let ended = sub.wait();
    assert_eq!(ended.status.code(), Some(4), "{}", ended.text());
    let last = ended.transcript.iter().rev().take(2);
    let last: Vec<&String> = last.collect();
    assert!(last[0].contains("remedy: ask the operator"), "{last:?}");
    assert!(
        last[1].contains("the renewed subscription is refused"),
        "{last:?}"
    );
}

/// Regression: `--retry` sent a token that was refused again and again, and each time was a failure of its address.
#[test]
fn a_retried_call_sends_refused_credentials_once() {
    let folder = tempfile::tempdir().unwrap();
    new_token(folder.path(), "ann");
    let (mut server, address) =
        server_with_users(folder.path(), "rpc", "[[users]]\nname = \"ann\"\n");
    let guessed = folder.path().join("guessed");
    write_secret(&guessed, "guessed");
    let guessed = guessed.display().to_string();
    let all = [
        "call",
        &address,
        "add",
        "1 2",
        "--retry",
        "--token-file",
        &guessed,
    ];
    let ended = Process::start(&all).wait();
    assert_eq!(ended.status.code(), Some(4), "{}", ended.text());
    server.signal(Signal::INT);
    let served = server.expect("served: ");
    assert!(served.ends_with(" closed.unauthenticated=1"), "{served}");
}
