//! The work of operators with a running server: reload, rotate, inspect, and take out of service.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::Signal;
use tidewire::{Backoff, Client};
use tidewire_testkit::{hello_frame, wait_until};

use crate::admin;
use crate::process::{DEADLINE, Process};

fn address_of(line: &str) -> String {
    line.trim_start_matches("listening on ").to_owned()
}

/// Starts an echo server with this file of settings. Returns it with its address.
fn configured(path: &Path, text: &str) -> (Process, String) {
    fs::write(path, text).unwrap();
    let path = path.display().to_string();
    let mut server = Process::start(&["serve", "--app", "echo", "--config", &path]);
    let line = server.expect("listening on ");
    server.expect("ready codec=");
    (server, address_of(&line))
}

#[test]
fn a_hangup_changes_level_and_limits_and_says_what_needs_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tidewire.toml");
    let bind = "bind = \"tcp://127.0.0.1:0\"\n";
    let (mut server, address) = configured(&path, &format!("{bind}sessions_per_address_max = 1\n"));
    let first = Client::connect(&address).wait().unwrap();
    assert!(
        Client::connect(&address).wait().is_err(),
        "one for each address"
    );

    let changed = "sessions_per_address_max = 2\nlog_level = \"debug\"\nlanes = 2\ndrain_ms = 1\n";
    fs::write(&path, format!("{bind}{changed}")).unwrap();
    server.signal(Signal::HUP);
    let line = server.expect("settings were read again");
    assert!(
        line.contains("log_level, sessions_per_address_max"),
        "{line}"
    );
    let line = server.expect("need a restart");
    assert!(line.contains("drain_ms, lanes"), "{line}");
    let second = Client::connect(&address).wait().unwrap();
    assert!(
        Client::connect(&address).wait().is_err(),
        "two for each address"
    );
    drop(second);
    server.expect("DEBUG");

    // A file with a mistake changes nothing, and the server continues.
    fs::write(
        &path,
        "sessions_per_address_max = 0\nlog_level = \"loud\"\n",
    )
    .unwrap();
    server.signal(Signal::HUP);
    let line = server.expect("the settings stay as they are");
    assert!(line.contains("tidewire.toml:2"), "{line}");
    assert_eq!(first.request(b"x").wait().unwrap().payload(), b"x");

    // The log says again which settings need a restart, as long as they differ.
    fs::write(&path, format!("{bind}{changed}")).unwrap();
    server.signal(Signal::HUP);
    let line = server.expect("need a restart");
    assert!(line.contains("drain_ms, lanes"), "{line}");
    server.signal(Signal::TERM);
    server.expect("served: ");
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn the_first_user_signal_logs_the_counters() {
    let (mut server, address) = Process::server(&[]);
    let client = Client::connect(&address).wait().unwrap();
    server.signal(Signal::USR1);
    let line = server.expect("served: ");
    assert!(
        line.contains("INFO") && line.contains("sessions=1"),
        "{line}"
    );
    client.join("lobby").named("ann").wait().unwrap();
}

#[test]
fn a_server_serves_on_for_the_time_before_its_drain() {
    let (mut server, address, admin) = admin::start(&["--drain-delay-ms", "3600000"]);
    let status = |path: &str| admin::ask(&admin, &format!("GET {path}"), "")[9..12].to_owned();
    assert_eq!(status("/readyz"), "200");
    server.signal(Signal::TERM);
    server.expect("not ready any more");
    assert_eq!(status("/readyz"), "503", "a load balancer sees it");
    assert_eq!(status("/healthz"), "200", "nobody shall kill it");
    let client = Client::connect(&address).wait().unwrap();
    client.join("lobby").named("ann").wait().unwrap();
    // A second signal does not wait.
    server.signal(Signal::TERM);
    server.expect("stopped before the drain was finished");
    assert_eq!(server.wait().status.code(), Some(143));

    let (server, _) = Process::server(&["--drain-delay-ms", "1"]);
    server.signal(Signal::TERM);
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(0));
    // The log has its own thread, so its lines may come after the program's lines.
    for text in ["draining", "served: "] {
        let has_line = ended.transcript.iter().any(|line| line.contains(text));
        assert!(has_line, "{text:?} is not in {:#?}", ended.transcript);
    }
}

/// Regression: a log that was moved or deleted without a signal continued in an invisible file.
#[test]
fn a_log_that_is_moved_or_deleted_goes_on_in_a_new_file_and_loses_no_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let file = path.display().to_string();
    let levels = "info,tidewire::engine=debug";
    let (mut server, address) = Process::server(&["--log-file", &file, "--log-level", levels]);
    let mut sessions = 0;
    let mut connect = || {
        for _ in 0..10 {
            Client::connect(&address).wait().unwrap().close().wait();
            sessions += 1;
        }
    };
    let begins = |why: &str| {
        wait_until(why, || {
            let log = fs::read_to_string(&path).unwrap_or_default();
            log.contains("opened again").then_some(())
        });
    };
    for number in 0..3 {
        connect();
        fs::rename(&path, directory.path().join(format!("log.{number}"))).unwrap();
        // These lines come before the server sees that the file is gone, or after.
        connect();
        begins("a new file begins");
    }
    // The name is a full disk for a while.
    let moved = directory.path().join("log.3");
    fs::rename(&path, &moved).unwrap();
    symlink("/dev/full", &path).unwrap();
    wait_until("the failure is logged", || {
        let log = fs::read_to_string(&moved).unwrap();
        log.contains("the log goes on in it").then_some(())
    });
    connect();
    fs::remove_file(&path).unwrap();
    begins("there is room again");
    server.signal(Signal::INT);
    server.expect("2: served: ");
    assert_eq!(server.wait().status.code(), Some(0));
    let mut logged = 0;
    for entry in fs::read_dir(directory.path()).unwrap() {
        let log = fs::read_to_string(entry.unwrap().path()).unwrap();
        logged += log.matches("session closed: ").count();
        let failures = log.matches("the log goes on in it").count();
        assert!(failures <= 1, "the failure is logged once: {log}");
    }
    assert_eq!(logged, sessions);
}

#[test]
fn a_drain_sends_clients_to_another_server() {
    let (mut new, there) = Process::rpc_server(&[]);
    let (mut old, here) = Process::rpc_server(&["--drain-to", &there]);
    let builder = Client::builder()
        .reconnect(Backoff::default())
        .follow_moves(true);
    let client = builder.connect(&here).wait().unwrap();
    let add = || client.request(b"2 40").method("add").idempotent().wait();
    assert_eq!(add().unwrap().payload(), b"42");
    old.signal(Signal::TERM);
    old.expect("served: ");
    assert_eq!(old.wait().status.code(), Some(0));
    assert_eq!(add().unwrap().payload(), b"42");
    drop(client);
    new.signal(Signal::TERM);
    let line = new.expect("served: ");
    assert!(line.contains("sessions=1 "), "{line}");
}

#[test]
fn an_address_that_no_client_can_go_to_is_refused_at_the_start() {
    for (address, why) in [
        ("tcp://*:8080", "an address to listen on"),
        ("udp://b.example:8080", "go to other servers"),
        ("b.example", "no valid port"),
    ] {
        let ended = Process::start(&["serve", "--drain-to", address]).wait();
        assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
        assert!(ended.text().contains(why), "{}", ended.text());
    }
    let bind = ["serve", "--app", "rpc", "--bind", "tcp://127.0.0.1:0"];
    let elsewhere = [&bind[..], &["--drain-to", "tls://b.example:8443"]].concat();
    let mut server = Process::start(&elsewhere);
    server.expect("no client will go where --drain-to sends it");
}

#[test]
fn the_header_of_a_listed_proxy_names_the_client() {
    let flags = ["--app", "echo", "--codec", "raw", "--proxy-protocol-from"];
    let networks = ["192.0.2.7,127.0.0.0/8"];
    let logged = ["--log-level", "info,tidewire::engine=debug"];
    let (mut server, address, admin) = admin::start(&[&flags[..], &networks, &logged].concat());
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    // Version 2 and the command PROXY, TCP over IPv4, and 12 bytes: from 203.0.113.7:4000 to 192.0.2.1:443.
    let about = [0x21, 0x11, 0, 12];
    let addresses = [203, 0, 113, 7, 192, 0, 2, 1, 15, 160, 1, 187];
    let sent = [&signature[..], &about, &addresses, b"x"].concat();
    let mut peer = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    peer.write_all(&sent).unwrap();
    let mut echoed = [0];
    peer.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"x", "the header is not echoed");
    let sessions = admin::ask(&admin, "GET /api/sessions", "");
    assert!(sessions.contains("203.0.113.7:4000"), "{sessions}");
    let (_, id) = sessions.split_once("\"id\":\"").unwrap();
    let (id, _) = id.split_once('"').unwrap();
    let close = format!("POST /api/sessions/{id}/close");
    let headers = "X-Tidewire-Admin: 1\r\nContent-Length: 4\r\n\r\n{}";
    let closed = admin::ask(&admin, &close, headers);
    assert!(closed.starts_with("HTTP/1.1 202"), "{closed}");
    // The lane and the admin server log on threads of their own. Both name the client, and not the proxy.
    let lines = [server.expect("closed"), server.expect("closed")];
    for text in ["session closed: ", "the admin server closed a session"] {
        let line = lines.iter().find(|line| line.contains(text));
        let line = line.unwrap_or_else(|| panic!("no line with {text:?}: {lines:?}"));
        assert!(line.contains(" peer=tcp://203.0.113.7:4000 "), "{line}");
    }
    let ended = Process::start(&["serve", "--proxy-protocol-from", "10.0.0.0/33"]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    let text = ended.text();
    assert!(text.contains("correct --proxy-protocol-from"), "{text}");
}

#[test]
fn a_connection_ends_at_its_maximum_age_and_after_the_grace_period_at_the_latest() {
    let flags = ["--app", "echo", "--connection-age-max", "1"];
    let grace = ["--connection-age-grace", "1"];
    let (_server, address, admin) = admin::start(&[&flags[..], &grace].concat());
    // This peer says nothing after its hello, and does not heed the go-away.
    let mut peer = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    peer.set_read_timeout(Some(DEADLINE)).unwrap();
    peer.write_all(&hello_frame()).unwrap();
    let mut heard = Vec::new();
    peer.read_to_end(&mut heard).unwrap();
    let heard = String::from_utf8_lossy(&heard);
    assert!(heard.contains("its maximum age"), "{heard}");
    let overview = admin::ask(&admin, "GET /api/overview", "");
    assert!(overview.contains("\"connections_retired\":1"), "{overview}");
}

/// Regression: after SIGHUP with a broken file, the second line of the log said that there are users in it.
#[test]
fn a_broken_file_without_users_is_not_said_to_have_users() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidewire.toml");
    fs::write(&file, "lanes = 1\n").unwrap();
    let (mut server, _) = Process::server(&["--config", &file.display().to_string()]);
    fs::write(&file, "lanes = = 1\n").unwrap();
    server.signal(Signal::HUP);
    server.expect("the settings stay as they are");
    server.signal(Signal::TERM);
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    assert!(!ended.text().contains("without users"), "{}", ended.text());
}
