//! `tidewire pub -` when its server goes away or a signal comes, and the output of a failure for programs.

use std::io::ErrorKind;
use std::sync::mpsc;

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Process, command};

/// Starts a server of topics in `directory`. Its socket file is free again after a kill.
fn serve(address: &str) -> Process {
    let mut server = Process::start(&["serve", "--app", "pubsub", "--bind", address]);
    server.expect("ready codec=tw1");
    server
}

fn socket(directory: &tempfile::TempDir) -> String {
    format!("ipc://{}", directory.path().join("s").display())
}

/// The JSON object among the lines of an ended command.
fn object(text: &str) -> Value {
    let line = text.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("no object: {text}"))).unwrap()
}

/// Regression: a restart of the server ended `tail -f | tidewire pub`, and a script could not know where to continue.
#[test]
fn a_publisher_reconnects_on_request_and_counts_confirmed_messages() {
    let directory = tempfile::tempdir().unwrap();
    let address = socket(&directory);
    let server = serve(&address);
    let mut publisher = Process::start(&["pub", &address, "a", "-", "--reconnect", "--json"]);
    let mut sub = Process::start(&["sub", &address, "a"]);
    // Publishes until the subscriber receives a message, so that the connection is known to be used.
    let mut offered = 0_u64;
    while !sub.has_line("before") {
        publisher.type_line("before");
        offered += 1;
        std::thread::yield_now();
    }
    server.kill();
    publisher.expect("2: ! the connection ended: ");
    publisher.type_line("while there is no server");
    let _server = serve(&address);
    sub.expect("2: ! a is resumed");
    publisher.type_line("after");
    offered += 2;
    publisher.end_input();
    let ended = publisher.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let object = object(&ended.text());
    assert_eq!(object["published"], offered, "{object}");
    assert!(object.get("error").is_none(), "{object}");
    sub.expect("after");
}

/// Regression: if the client told of lost messages before it told of the end of the connection, the command said that
/// they must fit a frame, with exit code 1.
#[test]
fn a_publisher_without_that_request_says_how_many_messages_are_confirmed() {
    let directory = tempfile::tempdir().unwrap();
    let address = socket(&directory);
    let server = serve(&address);
    let mut sub = Process::start(&["sub", &address, "a"]);
    let mut publisher = Process::start(&["pub", &address, "a", "-", "--json"]);
    while !sub.has_line("knock") {
        publisher.type_line("knock");
        std::thread::yield_now();
    }
    server.kill();
    // The next confirmation, a second after the last line, fails. The publisher may have ended already, at the
    // confirmation of the earlier lines.
    match publisher.try_type_line("in vain") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        typed => typed.unwrap(),
    }
    publisher.expect("2: confirmed: ");
    let ended = publisher.wait();
    assert_eq!(ended.status.code(), Some(3), "{}", ended.text());
    let object = object(&ended.text());
    assert!(object["published"].is_u64(), "{object}");
    assert_eq!(object["error"]["exit_code"], 3, "{object}");
}

#[test]
fn a_publisher_that_is_told_to_end_confirms_what_it_has_read() {
    let directory = tempfile::tempdir().unwrap();
    let address = socket(&directory);
    let _server = serve(&address);
    let mut sub = Process::start(&["sub", &address, "a"]);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut publisher = Process::start(&["pub", &address, "a", "-", "--json"]);
        let mut offered = 0_u64;
        let text = format!("until {code}");
        while !sub.has_line(&text) {
            publisher.type_line(&text);
            offered += 1;
            std::thread::yield_now();
        }
        publisher.signal(signal);
        publisher.expect("2: confirmed: ");
        let ended = publisher.wait();
        assert_eq!(ended.status.code(), Some(code), "{}", ended.text());
        let published = object(&ended.text())["published"].as_u64().unwrap();
        assert!((1..=offered).contains(&published), "{published} {offered}");
    }
}

#[test]
fn a_call_that_is_told_to_end_ends_in_order() {
    let (asked, is_asked) = mpsc::channel();
    let server = tidewire::serve("tcp://127.0.0.1:0", move |cx, _| {
        asked.send(cx.defer()).unwrap();
        Ok(())
    })
    .unwrap();
    let address = server.to_string();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let call = Process::start(&["call", &address, "never", "--json", "--timeout", "900"]);
        let _unanswered = is_asked.recv().unwrap();
        call.signal(signal);
        let ended = call.wait();
        assert_eq!(ended.status.code(), Some(code), "{}", ended.text());
        let object = object(&ended.text());
        assert_eq!(object["error"]["exit_code"], code, "{object}");
    }
}

/// Regression: nothing was printed when the server was unreachable, and nothing when `pub` failed.
#[test]
fn programs_get_an_object_whenever_a_command_fails() {
    for arguments in [
        &["call", "127.0.0.1:1", "add", "1 2", "--json"][..],
        &["pub", "127.0.0.1:1", "a", "b", "--json"],
        &["sub", "127.0.0.1:1", "a", "--json"],
        &["chat", "127.0.0.1:1", "--name", "ann", "--json"],
    ] {
        let ended = command(arguments).output().unwrap();
        assert_eq!(ended.status.code(), Some(3), "{ended:?}");
        let object: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(object["error"]["exit_code"], 3, "{object}");
        let text = object["error"]["text"].as_str().unwrap();
        assert!(text.contains("connection refused"), "{object}");
    }
    let (_server, address) = Process::server(&["--app", "chat"]);
    let ended = command(&["pub", &address, "a", "b", "--json"])
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(4), "{ended:?}");
    let object: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(object["published"], 0, "{object}");
    // A chat server names what it does not have.
    let ended = command(&["call", &address, "add", "1 2"]).output().unwrap();
    let text = String::from_utf8(ended.stderr).unwrap();
    assert!(text.contains("a chat server has no such request"), "{text}");
}

/// Regression: `sub` dialled only its own server until it was back, or for ever.
#[test]
fn a_subscriber_follows_a_drain_and_names_its_reason() {
    let (_new, there) = Process::server(&["--app", "pubsub"]);
    let (old, here) = Process::server(&["--app", "pubsub", "--drain-to", &there]);
    let mut sub = Process::start(&["sub", &here, "a"]);
    while !sub.has_line("here") {
        command(&["pub", &here, "a", "here"]).output().unwrap();
    }
    old.signal(Signal::TERM);
    let line = sub.expect("2: ! a is interrupted: ");
    assert!(line.contains("the server is shutting down"), "{line}");
    assert_eq!(old.wait().status.code(), Some(0));
    sub.expect("2: ! a is resumed");
    let ended = command(&["pub", &there, "a", "there"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    sub.expect("there");
}
