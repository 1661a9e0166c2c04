//! Runs the examples as a new user would: a server, then a client.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use tidewire::{Client, Event, Kind};

/// A running example server. Dropping it kills it.
struct Running(Child);

impl Running {
    /// Starts a server on a free port. Returns it with its address, the last word of its first line.
    fn start(program: &str) -> (Self, String) {
        Self::start_with(program, &[])
    }

    /// Starts a server with further arguments.
    fn start_with(program: &str, arguments: &[&str]) -> (Self, String) {
        let mut child = Command::new(program)
            .arg("tcp://127.0.0.1:0")
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = child.stdout.take().unwrap();
        let running = Self(child);
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.split_whitespace().last().unwrap().to_owned();
        assert!(address.starts_with("tcp://127.0.0.1:"), "{line:?}");
        (running, address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already; the test has then noticed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_echo_client_gets_its_words_back() {
    let (_server, address) = Running::start(env!("CARGO_BIN_EXE_echo_server"));
    let output = Command::new(env!("CARGO_BIN_EXE_echo_client"))
        .arg(&address)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"hello\n");
}

#[test]
fn every_question_of_the_pipelined_client_is_answered() {
    let (_server, address) = Running::start(env!("CARGO_BIN_EXE_echo_server"));
    let output = Command::new(env!("CARGO_BIN_EXE_pipelined_client"))
        .arg(&address)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"100000 of 100000 answered\n");
}

#[test]
fn the_newsroom_passes_messages_to_all_the_others() {
    let (_server, address) = Running::start(env!("CARGO_BIN_EXE_room_server"));
    let clients: Vec<Client> = (0..3)
        .map(|_| Client::connect(&address).wait().unwrap())
        .collect();
    // The refusal shows that the server has opened all earlier sessions, so every client is in the room.
    for client in &clients {
        let error = client.request(b"?").wait().unwrap_err();
        assert!(error.to_string().contains("takes no requests"), "{error}");
    }
    clients[0].send(b"extra!").unwrap();
    clients[1].send(b"extra too!").unwrap();
    assert_eq!(next_delivery(&clients[0]), b"extra too!");
    assert_eq!(next_delivery(&clients[1]), b"extra!");
    let mut both = [next_delivery(&clients[2]), next_delivery(&clients[2])];
    both.sort();
    assert_eq!(both, [b"extra too!".to_vec(), b"extra!".to_vec()]);
}

fn next_delivery(client: &Client) -> Vec<u8> {
    loop {
        match client.next_event().wait() {
            Event::Message(message) if message.kind == Kind::Deliver => return message.payload,
            Event::Ended | Event::Closed { .. } => panic!("the connection ended"),
            _ => {}
        }
    }
}

#[test]
fn the_thermometer_speaks_a_codec_of_its_own() {
    let output = Command::new(env!("CARGO_BIN_EXE_checksum_codec"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = "temperature: 21.5\nconnections ended by damaged frames: 1\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), said);
}

#[test]
fn the_worker_server_answers_methods_by_name() {
    let (_server, address) = Running::start(env!("CARGO_BIN_EXE_worker_server"));
    let client = Client::connect(&address).wait().unwrap();
    let call = |method| client.request(b"hello").method(method).wait();
    assert_eq!(call("echo").unwrap().payload(), b"hello");
    assert_eq!(call("shout").unwrap().payload(), b"HELLO");
    assert!(call("whisper").is_err());
}

/// A hundred sleeping requests are in flight together, and an error has no details.
#[test]
fn async_handlers_answer_from_tokio() {
    let (_server, address) = Running::start(env!("CARGO_BIN_EXE_async_handlers"));
    let client = Client::connect(&address).wait().unwrap();
    let words: Vec<String> = (0..100).map(|number| format!("word {number}")).collect();
    let requests: Vec<_> = words
        .iter()
        .map(|word| client.request(word.as_bytes()).method("shout").send())
        .collect();
    for (request, word) in requests.into_iter().zip(&words) {
        let answer = request.wait().unwrap();
        assert_eq!(answer.payload(), word.to_uppercase().as_bytes());
    }
    let text = client.request(b"manifest").method("read").wait();
    assert!(text.unwrap().payload().starts_with(b"[package]"));
    let refused = |method, payload: &[u8]| {
        let error = client.request(payload).method(method).wait().unwrap_err();
        error.to_string()
    };
    let error = refused("read", b"missing");
    assert!(
        error.contains("the service failed to handle this"),
        "{error}"
    );
    assert!(!error.contains("No such file"), "{error}");
    assert!(refused("whisper", b"").contains("there is no method"));
}

#[test]
fn the_forwarding_gateway_asks_its_backend_and_outlives_it() {
    let (backend, backend_address) = Running::start(env!("CARGO_BIN_EXE_worker_server"));
    let gateway = env!("CARGO_BIN_EXE_forwarding_gateway");
    let (_gateway, address) = Running::start_with(gateway, &[&backend_address]);
    let client = Client::connect(&address).wait().unwrap();
    let call = |method| client.request(b"hello").method(method).wait();
    assert_eq!(call("echo").unwrap().payload(), b"hello");
    assert_eq!(call("twice").unwrap().payload(), b"hellohello");
    drop(backend);
    for _ in 0..5 {
        assert!(call("echo").is_err() && call("twice").is_err());
    }
}

#[test]
fn the_typed_client_shops_at_the_typed_server() {
    let (_server, address) = Running::start(env!("CARGO_BIN_EXE_typed_server"));
    let output = Command::new(env!("CARGO_BIN_EXE_typed_client"))
        .arg(&address)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected = "an apple costs 100 cents\n2 apples cost 200 cents\nonly 1 left\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn errors_are_printed_in_words() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", free.local_addr().unwrap());
    // While the address is in use, no other server can listen there.
    for server in [
        env!("CARGO_BIN_EXE_echo_server"),
        env!("CARGO_BIN_EXE_room_server"),
        env!("CARGO_BIN_EXE_worker_server"),
        env!("CARGO_BIN_EXE_typed_server"),
        env!("CARGO_BIN_EXE_forwarding_gateway"),
        env!("CARGO_BIN_EXE_async_handlers"),
        env!("CARGO_BIN_EXE_device_gateway"),
        env!("CARGO_BIN_EXE_market_data"),
    ] {
        let output = Command::new(server).arg(&address).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.starts_with("error: cannot listen on "), "{text}");
        assert!(text.contains("is in use"), "{text}");
    }
    drop(free);
    let client = env!("CARGO_BIN_EXE_echo_client");
    let output = Command::new(client).arg(&address).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("error: cannot connect to "), "{text}");
}
