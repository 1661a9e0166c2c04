//! `cert dev`, `serve --tls-cert` and the commands that connect to it: the recipes of docs/security.md.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Process, command};

/// A directory with the files of `cert dev`, and the output of the command.
fn certificates() -> (TempDir, String) {
    let directory = TempDir::new().unwrap();
    let output = dev(&directory);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    (directory, String::from_utf8(output.stdout).unwrap())
}

fn dev(directory: &TempDir) -> Output {
    let out = directory.path().to_str().unwrap();
    command(&["cert", "dev", "--out", out]).output().unwrap()
}

fn path(directory: &TempDir, name: &str) -> String {
    directory.path().join(name).to_str().unwrap().to_owned()
}

/// Starts a server of methods with the files, which requires certificates of clients, and these flags.
fn serve(directory: &TempDir, flags: &[&str]) -> (Process, String) {
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| path(directory, name));
    let tls = [
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ];
    let all = [&["--app", "rpc"][..], &tls, flags].concat();
    let (server, address) = Process::server_at("tls://127.0.0.1:0", &all);
    assert!(address.starts_with("tls://127.0.0.1:"), "{address}");
    (server, address)
}

fn call(address: &str, flags: &[&str]) -> Output {
    let all = [&["call", address, "add", "2 40"][..], flags].concat();
    command(&all).output().unwrap()
}

/// Flags of a client with the certificate of `cert dev`.
fn client(directory: &TempDir) -> [String; 6] {
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| path(directory, name));
    [
        "--ca".to_owned(),
        ca,
        "--cert".to_owned(),
        cert,
        "--key".to_owned(),
        key,
    ]
}

#[test]
fn the_files_of_cert_dev_serve_and_connect_and_keys_are_private() {
    let (directory, printed) = certificates();
    for name in ["server.key", "client.key"] {
        let metadata = fs::metadata(path(&directory, name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
    }
    let commands: Vec<&str> = printed.lines().collect();
    assert_eq!(commands.len(), 2, "{printed}");
    assert!(
        commands[0].starts_with("tidewire serve ") && commands[1].starts_with("tidewire call ")
    );
    let (_server, address) = serve(&directory, &[]);
    let flags = client(&directory);
    let output = call(&address, &flags.each_ref().map(String::as_str));
    assert_eq!(output.stdout, b"42\n", "{output:?}");

    // A second time would replace certificates that are in use.
    let again = dev(&directory);
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("ca.pem"));
}

#[test]
fn each_mistake_is_told_with_its_remedy() {
    let (directory, _) = certificates();
    let (mut server, address) = serve(&directory, &[]);
    let ca = path(&directory, "ca.pem");
    let mistakes: [(&[&str], i32, &str); 5] = [
        (&[], 3, "CA file"),
        (&["--ca", &ca], 3, "requires a client certificate"),
        (
            &["--ca", &ca, "--server-name", "elsewhere"],
            3,
            "not for this host",
        ),
        (&["--ca", "/nowhere/ca.pem"], 2, "/nowhere/ca.pem"),
        (&["--cert", &ca], 2, "--key"),
    ];
    for (flags, code, text) in mistakes {
        let output = call(&address, flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {stderr}");
        assert!(stderr.contains(text), "{flags:?}: {stderr}");
    }
    server.expect("TLS failed: ");

    let plain = call(&address.replace("tls://", "tcp://"), &[]);
    let stderr = String::from_utf8_lossy(&plain.stderr).into_owned();
    assert!(stderr.contains("the peer speaks TLS"), "{stderr}");

    let odd = command(&["cert", "dev", "--out", "/nowhere/x", "tls://gateway:8443"]).output();
    let stderr = String::from_utf8(odd.unwrap().stderr).unwrap();
    assert!(stderr.contains("without tls:// and port"), "{stderr}");

    let twice = path(&directory, "");
    let outs = [
        (format!("{ca}/x"), "that this user may write"),
        (twice, "without such files"),
    ];
    for (out, remedy) in outs {
        let refused = command(&["cert", "dev", "--out", &out]).output().unwrap();
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(stderr.contains(remedy), "{out}: {stderr}");
    }

    let [cert, key] = ["server.pem", "server.key"].map(|name| path(&directory, name));
    let mut plain = Process::start(&[
        "serve",
        "--bind",
        "tcp://127.0.0.1:0",
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
    ]);
    plain.expect("nothing is encrypted");

    let incomplete: [(&[&str], &str); 5] = [
        (
            &[
                "--tls-cert",
                &key,
                "--tls-key",
                &cert,
                "--bind",
                "tls://127.0.0.1:0",
            ],
            "is open to other users",
        ),
        (&["--auth-tokens", "/nowhere/tokens"], "tidewire token new"),
        (&["--bind", "tls://127.0.0.1:0"], "without a certificate"),
        (&["--tls-cert", &ca], "--tls-key FILE"),
        (&["--tls-client-ca", &ca], "--tls-cert FILE"),
    ];
    for (flags, text) in incomplete {
        let ended = Process::start(&[&["serve"][..], flags].concat()).wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(text), "{}", ended.text());
    }
}

#[test]
fn a_hangup_reads_the_certificate_again_and_keeps_the_old_one_if_it_is_broken() {
    let (directory, _) = certificates();
    let (mut server, address) = serve(&directory, &[]);
    let flags = client(&directory);
    let flags = flags.each_ref().map(String::as_str);
    fs::write(path(&directory, "server.pem"), "no certificate").unwrap();
    server.signal(Signal::HUP);
    server.expect("the new certificate is refused");
    assert_eq!(call(&address, &flags).stdout, b"42\n");
    let (other, _) = certificates();
    for name in ["server.pem", "server.key"] {
        fs::copy(path(&other, name), path(&directory, name)).unwrap();
    }
    server.expect("the certificate that was read again");
    let refused = call(&address, &flags);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
}

/// Each key has an effect: forbidden connections are refused, and allowed connections are served.
#[test]
fn the_keys_of_tls_and_users_are_those_of_the_flags() {
    let (directory, _) = certificates();
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| path(&directory, name));
    let tokens = path(&directory, "tokens");
    let made = command(&["token", "new", "ann", "--file", &tokens])
        .output()
        .unwrap();
    let token = String::from_utf8(made.stdout).unwrap();
    let config = path(&directory, "tidewire.toml");
    let start = |keys: &str| {
        fs::write(&config, format!("app = \"rpc\"\n{keys}")).unwrap();
        Process::server_at("tls://127.0.0.1:0", &["--config", &config])
    };
    let pair = format!("tls_cert = \"{cert}\"\ntls_key = \"{key}\"\n");
    let with_clients = format!("{pair}tls_client_ca = \"{ca}\"\n");
    let identity = client(&directory);
    let identity = identity.each_ref().map(String::as_str);
    let bare = ["--ca", &*ca];
    let code = |address: &str, flags: &[&str]| call(address, flags).status.code();

    let (_server, address) = start(&pair);
    assert_eq!(code(&address, &bare), Some(0));
    let (_server, address) = start(&with_clients);
    assert_eq!(
        (code(&address, &bare), code(&address, &identity)),
        (Some(3), Some(0))
    );
    let (_server, address) = start(&format!("{with_clients}tls_client_auth = \"optional\"\n"));
    assert_eq!(
        (code(&address, &bare), code(&address, &identity)),
        (Some(0), Some(0))
    );
    let (_server, address) = start(&format!(
        "{pair}tls_1_2 = true\nauth_tokens = \"{tokens}\"\n"
    ));
    assert_eq!(code(&address, &bare), Some(4));
    let known = command(&["call", &address, "add", "2 40", "--ca", &ca])
        .env("TIDEWIRE_TOKEN", token.trim())
        .output()
        .unwrap();
    assert_eq!(known.stdout, b"42\n", "{known:?}");
    fs::write(&config, format!("{pair}insecure = true\n")).unwrap();
    let _open = Process::server_at("tls://0.0.0.0:0", &["--config", &config]);

    for (keys, told) in [
        ("tls_certificate = \"a\"\n", "tls_certificate"),
        ("tls_1_2 = 7\n", "tls_1_2"),
        ("tls_client_auth = \"perhaps\"\n", "perhaps"),
        ("insecure = \"yes\"\n", "insecure"),
    ] {
        fs::write(&config, keys).unwrap();
        let ended = Process::start(&["serve", "--config", &config]).wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(told), "{}", ended.text());
    }
}

/// Regression: all authorities of `cert dev` had one name, so a client with an older authority said that the
/// certificate is not acceptable, without a remedy.
#[test]
fn a_client_with_the_authority_of_an_earlier_run_is_told_that_it_is_another_one() {
    let [(former, _), (present, _)] = [certificates(), certificates()];
    let (mut server, address) = serve(&present, &[]);
    let output = call(&address, &["--ca", &path(&former, "ca.pem")]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    for part in [
        "not signed by an authority that this side trusts",
        "CA file",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let line = server.expect("TLS failed: ");
    assert!(line.contains("does not trust"), "{line}");
    // The same for the certificate of a client.
    let [cert, key] = ["client.pem", "client.key"].map(|name| path(&former, name));
    let own = [
        "--ca",
        &path(&present, "ca.pem"),
        "--cert",
        &cert,
        "--key",
        &key,
    ];
    let output = call(&address, &own);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(
        text.contains("does not trust the authority of this side's certificate"),
        "{text}"
    );
}
