//! `serve --admin` and `tidewire top`, as operators use them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::process::Process;

/// A server with an admin server, and the address of the latter.
pub(crate) fn start(arguments: &[&str]) -> (Process, String, String) {
    let mut all = vec![
        "serve",
        "--bind",
        "tcp://127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    all.extend_from_slice(arguments);
    let mut server = Process::start(&all);
    let line = server.expect("listening on ");
    let ready = server.expect("ready codec=");
    let admin = ready.split("admin=http://").nth(1).unwrap();
    let address = line.trim_start_matches("listening on ").to_owned();
    (server, address, admin.trim_end_matches('/').to_owned())
}

pub(crate) fn ask(admin: &str, request: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    let request =
        format!("{request} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_drain_from_the_dashboard_ends_the_server_in_order() {
    let (server, address, admin) = start(&["--json=false"]);
    let _client = Process::chat(&address, "ann");
    assert!(ask(&admin, "GET /readyz", "").starts_with("HTTP/1.1 200"));
    assert!(ask(&admin, "GET /metrics", "").contains("tidewire_sessions_open 1.0"));
    let drained = ask(
        &admin,
        "POST /api/drain",
        "X-Tidewire-Admin: 1\r\nContent-Length: 0\r\n",
    );
    assert!(drained.starts_with("HTTP/1.1 202"), "{drained}");
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    assert!(
        ended.text().contains("served: sessions=1"),
        "{}",
        ended.text()
    );
}

#[test]
fn a_reload_from_the_dashboard_reads_the_users_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tidewire.toml");
    let write = |room: &str| {
        let users = "[[users]]\nname = \"anonymous\"\npermissions.join = { allow = [";
        std::fs::write(&file, format!("{users}\"{room}\"] }}\n")).unwrap();
    };
    write(">");
    let (mut server, _, admin) = start(&["--config", &file.display().to_string()]);
    write("lobby");
    let reloaded = ask(
        &admin,
        "POST /api/reload",
        "X-Tidewire-Admin: 1\r\nContent-Length: 0\r\n",
    );
    assert!(reloaded.starts_with("HTTP/1.1 202"), "{reloaded}");
    server.expect("2: ");
    let read_again = || ask(&admin, "GET /api/overview", "").contains("\"auth_reloads\":1");
    tidewire_testkit::wait_until("the users are read again", || read_again().then_some(()));
}

#[test]
fn top_prints_the_figures_once_as_text_and_as_json() {
    let (_server, address, admin) = start(&["--lanes", "2"]);
    let _client = Process::chat(&address, "ann");
    let ended = Process::start(&["top", &admin, "--once", "--json"]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let overview: Value = serde_json::from_str(ended.text().trim()).unwrap();
    assert_eq!(overview["sessions"]["open"], 1);
    assert!(overview["interval_seconds"].as_f64().unwrap() > 0.0);
    let ended = Process::start(&["top", &admin, "--once"]).wait();
    assert!(ended.text().contains("sessions 1 open"), "{}", ended.text());
    let ended = Process::start(&["top", &admin]).wait();
    assert_eq!(
        ended.status.code(),
        Some(2),
        "no terminal: {}",
        ended.text()
    );
    let served = address.trim_start_matches("tcp://");
    let ended = Process::start(&["top", served, "--once"]).wait();
    assert_eq!(ended.status.code(), Some(3), "{}", ended.text());
}

/// Regression: a server of `ws://` answers 404 over HTTP, and `top` advised to read the server's log.
#[test]
fn top_says_when_it_asks_the_address_of_clients() {
    for flags in [&[][..], &["--web"]] {
        let (_server, address) = Process::server_at("ws://127.0.0.1:0", flags);
        let place = address.trim_start_matches("ws://").trim_end_matches('/');
        let ended = Process::start(&["top", place, "--once"]).wait();
        assert_eq!(ended.status.code(), Some(3), "{}", ended.text());
        assert!(
            ended.text().contains("the address of --admin"),
            "{}",
            ended.text()
        );
    }
}

/// Regression: the text was `invalid socket address syntax`, and the help said `HOST:PORT`.
#[test]
fn an_admin_address_that_is_none_is_refused_with_an_example() {
    for address in [
        "localhost:9090",
        "9090",
        "127.0.0.1",
        "http://127.0.0.1:9090/",
    ] {
        let ended = Process::start(&["serve", "--admin", address]).wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(
            ended.text().contains("such as 127.0.0.1:9090"),
            "{}",
            ended.text()
        );
    }
}

#[test]
fn a_token_protects_the_figures_and_top_sends_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admin.token");
    std::fs::write(&file, "c2VjcmV0\n").unwrap();
    let name = file.display().to_string();
    let mode =
        |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    let all = [
        "serve",
        "--bind",
        "tcp://127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--admin-token-file",
        &name,
    ];
    let ended = Process::start(&all).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("chmod 600"), "{}", ended.text());
    mode(0o600);
    let (_server, _, admin) = start(&["--admin-token-file", &name]);
    assert!(ask(&admin, "GET /metrics", "").starts_with("HTTP/1.1 401"));
    let ended = Process::start(&["top", &admin, "--once"]).wait();
    assert_eq!(ended.status.code(), Some(4), "{}", ended.text());
    let ended = Process::start(&["top", &admin, "--once", "--token-file", &name]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
}

#[test]
fn an_admin_address_that_others_reach_is_refused_in_plain_text() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("admin.token");
    std::fs::write(&file, "c2VjcmV0\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let name = file.display().to_string();
    for (flags, told) in [
        (vec!["--admin", "0.0.0.0:0"], "has no token"),
        (vec!["--admin", "0.0.0.0:0", "--insecure"], "has no token"),
        (
            vec!["--admin", "0.0.0.0:0", "--admin-token-file", &name],
            "without encryption",
        ),
        // Regression: one flag opened all addresses, so the admin address could not be opened alone or stay closed
        // alone.
        (
            vec![
                "--admin",
                "0.0.0.0:0",
                "--admin-token-file",
                &name,
                "--insecure",
            ],
            "without encryption",
        ),
        (
            vec![
                "--admin",
                "0.0.0.0:0",
                "--admin-token-file",
                &name,
                "--admin-tls",
            ],
            "needs a certificate",
        ),
        (vec!["--admin-token-file", &name], "there is none"),
        (vec!["--admin-tls"], "there is none"),
        (vec!["--health-metrics"], "there is none"),
        (
            vec![
                "--admin",
                "127.0.0.1:0",
                "--admin-host",
                "https://ops.example:9090/",
            ],
            "write ops.example",
        ),
    ] {
        let mut all = vec!["serve", "--bind", "tcp://127.0.0.1:0"];
        all.extend(flags);
        let ended = Process::start(&all).wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(told), "{told}: {}", ended.text());
    }
}

#[test]
fn a_name_for_the_admin_server_is_answered_and_others_are_not() {
    let (_server, _, admin) = start(&["--admin-host", "ops.example"]);
    for (host, status) in [("ops.example", "200"), ("evil.example", "421")] {
        let mut stream = TcpStream::connect(&admin).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let answer = std::io::read_to_string(stream).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{answer}"
        );
    }
    let ended = Process::start(&["serve", "--admin-host", "ops.example"]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("there is none"), "{}", ended.text());
}

/// Regression: a load balancer on another machine reached /readyz only if the whole server was insecure.
#[test]
fn health_has_an_address_of_its_own_for_other_machines() {
    let mut server = Process::start(&[
        "serve",
        "--bind=tcp://127.0.0.1:0",
        "--health=0.0.0.0:0",
        "--health-metrics",
    ]);
    let ready = server.expect("ready codec=");
    let port = ready.rsplit(':').next().unwrap().trim_end_matches('/');
    assert!(ready.contains(" health=http://0.0.0.0:"), "{ready}");
    let health = format!("127.0.0.1:{port}");
    for (path, status) in [
        ("readyz", 200),
        ("metrics", 200),
        ("api/overview", 404),
        ("", 404),
    ] {
        let answer = ask(&health, &format!("GET /{path}"), "");
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{path}: {answer}"
        );
    }
}

#[test]
fn an_encrypted_admin_address_is_for_other_machines_and_top_reaches_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let made = Process::start(&[
        "cert",
        "dev",
        "--out",
        &directory.path().display().to_string(),
    ])
    .wait();
    assert_eq!(made.status.code(), Some(0), "{}", made.text());
    let token = path("admin.token");
    std::fs::write(&token, "c2VjcmV0\n").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut server = Process::start(&[
        "serve",
        "--bind=tcp://127.0.0.1:0",
        "--admin=0.0.0.0:0",
        "--admin-tls",
        &format!("--tls-cert={}", path("server.pem")),
        &format!("--tls-key={}", path("server.key")),
        &format!("--admin-token-file={token}"),
    ]);
    let ready = server.expect("ready codec=");
    let port = ready.rsplit(':').next().unwrap().trim_end_matches('/');
    assert!(ready.contains(" admin=https://0.0.0.0:"), "{ready}");
    let address = format!("https://localhost:{port}");
    let top = |more: &[&str]| {
        let all = [&["top", &*address, "--once"], more].concat();
        Process::start(&all).wait()
    };
    let ca = path("ca.pem");
    let shown = top(&["--ca", &ca, "--token-file", &token]);
    assert_eq!(shown.status.code(), Some(0), "{}", shown.text());
    assert!(shown.text().contains("sessions 0 open"), "{}", shown.text());
    let refused = top(&["--ca", &ca]);
    assert_eq!(refused.status.code(), Some(4), "{}", refused.text());
    let untrusted = top(&["--token-file", &token]);
    assert_eq!(untrusted.status.code(), Some(3), "{}", untrusted.text());
}
