//! The server: its output, its clients, and its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tidewire::{Client, Event, Kind};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};

use crate::process::{Netcat, Process, command};

#[test]
fn it_says_where_it_listens_and_then_that_it_is_ready() {
    let directory = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}", directory.path().join("a b.sock").display());
    let mut server = Process::start(&[
        "serve",
        "--bind",
        "tcp://127.0.0.1:0",
        "--bind",
        &ipc,
        "--bind",
        "tcp://[::1]:0",
        "--lanes",
        "2",
        "--poller",
        "poll",
        "--slow-subscriber",
        "drop_oldest",
    ]);
    server.expect("ready codec=");
    let said: Vec<String> = server
        .transcript()
        .iter()
        .filter(|line| !line.starts_with("2: "))
        .cloned()
        .collect();
    assert_eq!(said.len(), 4, "{said:?}");
    assert_eq!(said[1], format!("listening on {ipc}"));
    assert_eq!(said[3], "ready codec=tw1 lanes=2 poller=poll");

    // All clients meet in the same room, through any address.
    let address = |line: &String| line.trim_start_matches("listening on ").to_owned();
    let clients: Vec<Client> = said[..3]
        .iter()
        .map(|line| Client::connect(&address(line)).wait().unwrap())
        .collect();
    for (index, client) in clients.iter().enumerate() {
        let joined = client
            .join("lobby")
            .named(&format!("user{index}"))
            .wait()
            .unwrap();
        assert_eq!(joined.size_at_join(), Some(index + 1));
    }
    let room = clients[2].join("hall").named("").wait().unwrap();
    let met = clients[1].join("hall").named("").wait().unwrap();
    assert_eq!((met.id(), met.size_at_join()), (room.id(), Some(2)));
    room.say(b"hello").unwrap();
    loop {
        match clients[1].next_event().wait() {
            Event::Message(message) if message.kind == Kind::Deliver => {
                assert_eq!(
                    (message.room(), &*message.payload),
                    (room.id(), &b"hello"[..])
                );
                break;
            }
            Event::Ended => panic!("the connection ended"),
            _ => {}
        }
    }
}

/// Regression: the framing was left out, so a client that used the line as its address was refused.
#[test]
fn an_address_that_it_says_has_the_framing_that_clients_need() {
    let directory = tempfile::tempdir().unwrap();
    let ipc = format!(
        "ipc://{}?framing=none",
        directory.path().join("s").display()
    );
    let binds = ["--bind", &ipc, "--bind", "tcp://127.0.0.1:0?framing=length"];
    let serve = ["serve", "--app", "rpc", "--codec", "uvrpc", "--json"];
    let mut server = Process::start(&[&serve[..], &binds].concat());
    let ready: serde_json::Value = serde_json::from_str(&server.expect("ready")).unwrap();
    let addresses = [0, 1].map(|index| ready["addresses"][index].as_str().unwrap());
    assert_eq!(addresses[0], ipc);
    assert!(
        addresses[1].ends_with("?framing=length"),
        "{}",
        addresses[1]
    );
    for address in addresses {
        let ended = Process::start(&["call", address, "methods", "--codec", "uvrpc"]).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    }
}

#[test]
fn a_person_with_netcat_is_let_in_under_a_free_name() {
    let (mut server, address) = Process::server(&["--codec", "lines"]);
    let mut ann = Netcat::connect(&address);
    ann.expect("Enter username: \n");
    ann.type_line("");
    let refusal = ann.expect("Enter username: \n");
    assert!(
        refusal.starts_with("! a name must not be empty"),
        "{refusal}"
    );
    ann.type_line("ann\r");
    ann.expect("Welcome, ann! You are alone.\n");

    let mut bob = Netcat::connect(&address);
    bob.expect("Enter username: \n");
    bob.type_line("ann");
    let refusal = bob.expect("Enter username: \n");
    assert!(refusal.starts_with("! the name is taken"), "{refusal}");
    bob.type_line("bob");
    bob.expect("Welcome, bob! 2 people are here.\n");
    bob.expect("* ann is here\n");
    ann.expect("* bob joined\n");

    let mut cyd = Netcat::connect(&address);
    cyd.expect("Enter username: \n");
    cyd.type_line("cyd");
    cyd.expect("* bob is here\n");
    ann.expect("* cyd joined\n");
    bob.expect("* cyd joined\n");

    ann.type_line("hello \u{1b}[2Jall");
    bob.expect("[ann]: hello ?[2Jall\n");
    cyd.expect("[ann]: hello ?[2Jall\n");
    bob.type_line("hello ann");
    // The next message that ann receives is bob's: her own message did not come back.
    assert_eq!(ann.expect("\n"), "[bob]: hello ann\n");

    drop(bob);
    assert_eq!(ann.expect("\n"), "* bob left\n");

    server.signal(Signal::INT);
    let goodbye = String::from_utf8(ann.rest()).unwrap();
    assert!(
        goodbye.is_empty() || goodbye.starts_with('!'),
        "{goodbye:?}"
    );
    server.expect("served: ");
    let ended = server.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
}

#[test]
fn signals_drain_and_the_summary_accounts_for_every_message() {
    for signal in [Signal::INT, Signal::TERM] {
        let (mut server, address) = Process::server(&["--drain-ms", "20000"]);
        let client = Client::connect(&address).wait().unwrap();
        let other = Client::connect(&address).wait().unwrap();
        let room = client.join("lobby").named("al").wait().unwrap();
        other.join("lobby").named("bo").wait().unwrap();
        for _ in 0..10 {
            room.say(b"last words").unwrap();
        }
        assert_eq!(room.members().wait().unwrap().len(), 2);
        server.signal(signal);
        let mut heard = 0;
        loop {
            match other.next_event().wait() {
                Event::Message(message) if message.kind == Kind::Deliver => heard += 1,
                Event::Ended => break,
                _ => {}
            }
        }
        assert_eq!(heard, 10, "what was said before the drain arrives");
        let summary = server.expect("served: ");
        assert!(summary.contains("sessions=2 "), "{summary}");
        assert!(summary.contains("chat_messages=10 "), "{summary}");
        let count = |key: &str| -> u64 {
            let (_, rest) = summary.split_once(key).unwrap();
            rest.split(' ').next().unwrap().parse().unwrap()
        };
        assert_eq!(
            count(" offered="),
            count(" delivered=") + count(" dropped="),
            "{summary}"
        );
        let ended = server.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    }
}

#[test]
fn a_second_signal_stops_at_once() {
    let (mut server, address) = Process::server(&["--drain-ms", "3600000"]);
    // This peer is accepted, ignores the go-away and never closes: the drain waits for it.
    let mut stuck = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 1 << 20,
        credentials: &[],
        agent: "stuck",
    };
    let mut frame = Vec::new();
    hello.encode_frame(&mut frame).unwrap();
    stuck.write_all(&frame).unwrap();
    stuck.read_exact(&mut [0]).unwrap();
    server.signal(Signal::INT);
    server.expect("draining");
    server.signal(Signal::INT);
    server.expect("served: ");
    server.expect("error: stopped before the drain was finished");
    assert_eq!(server.wait().status.code(), Some(130));
    drop(stuck);
}

#[test]
fn a_drain_cut_off_at_its_deadline_is_a_failure_that_says_so() {
    let arguments = ["--app", "echo", "--codec", "raw", "--drain-ms", "50"];
    let (mut server, address) = Process::server(&arguments);
    let mut greedy = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    greedy
        .set_write_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    // The client reads no echoes, until the server cannot write and therefore does not read either.
    let block = [b'x'; 64 * 1024];
    while greedy.write(&block).is_ok() {}
    server.signal(Signal::INT);
    let summary = server.expect("served: ");
    assert!(summary.contains(" cut_off=1"), "{summary}");
    server.expect("sessions cut off: 1");
    assert_eq!(server.wait().status.code(), Some(1));
    drop(greedy);
}

#[test]
fn programs_read_its_address_and_the_final_counts() {
    let mut server = Process::start(&["serve", "--json", "--bind", "tcp://127.0.0.1:0"]);
    let ready: serde_json::Value = serde_json::from_str(&server.expect("ready")).unwrap();
    assert_eq!(ready["codec"], "tw1");
    let client = Client::connect(ready["addresses"][0].as_str().unwrap())
        .wait()
        .unwrap();
    let room = client.join("lobby").named("al").wait().unwrap();
    room.say(b"to nobody").unwrap();
    assert_eq!(room.members().wait().unwrap().len(), 1);
    client.close().wait();
    server.signal(Signal::INT);
    let served: serde_json::Value = serde_json::from_str(&server.expect("served")).unwrap();
    assert_eq!(served["chat_messages"], 1);
    assert_eq!(
        served["offered"].as_u64(),
        served["delivered"]
            .as_u64()
            .zip(served["dropped"].as_u64())
            .map(|(one, other)| one + other)
    );
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn a_connection_that_says_nothing_is_closed_after_the_timeout() {
    let (_server, address) = Process::server(&["--timeout", "0.05"]);
    let mut silent = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    let mut farewell = Vec::new();
    silent.read_to_end(&mut farewell).unwrap();
    assert!(!farewell.is_empty(), "it is told why");
}

#[test]
fn it_ends_with_its_parent_if_told_so() {
    let (mut server, _) = Process::server(&["--exit-with-stdin"]);
    server.type_line("this is not the end");
    server.end_input();
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn it_tells_its_parent_the_figures_of_its_lanes() {
    let (mut server, address) = Process::server(&["--app", "echo", "--exit-with-stdin"]);
    let mut ask = || -> serde_json::Value {
        server.type_line("");
        let line = server.expect("{");
        serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap()
    };
    let before = ask();
    let client = Client::connect(&address).wait().unwrap();
    for _ in 0..100 {
        assert_eq!(client.request(b"again").wait().unwrap().payload(), b"again");
    }
    let after = ask();
    let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    // Each request was read and answered.
    assert!(grown("system_calls") >= 200, "{after}");
    // A session was made for it.
    assert!(
        grown("allocations") > 0 && grown("allocated_bytes") > 0,
        "{after}"
    );
    client.close().wait();
    server.end_input();
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn an_end_of_stdin_means_nothing_otherwise() {
    let (mut server, address) = Process::server(&[]);
    server.end_input();
    let client = Client::connect(&address).wait().unwrap();
    assert!(client.join("lobby").named("al").wait().is_ok());
    server.signal(Signal::TERM);
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn a_server_continues_without_a_reader_of_its_output() {
    // Both pipes are closed before the server prints anything: it must start all the same, and neither panic nor end.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("chat.sock");
    let ipc = format!("ipc://{}", path.display());
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = command(&["serve", "--bind", &ipc, "--exit-with-stdin"])
        .stdin(Stdio::piped())
        .stdout(writer.try_clone().unwrap())
        .stderr(writer)
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + crate::process::DEADLINE;
    let client = loop {
        match Client::connect(&ipc).wait() {
            Ok(client) => break client,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error:?}"),
        }
        std::thread::yield_now();
    };
    assert!(client.join("lobby").named("al").wait().is_ok());
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_log_goes_to_stderr_and_can_be_silenced() {
    let mut child = command(&["serve", "--bind", "tcp://127.0.0.1:0", "--exit-with-stdin"])
        .env("RUST_LOG", "off")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        lines
            .next()
            .unwrap()
            .unwrap()
            .starts_with("listening on tcp://127.0.0.1:")
    );
    assert_eq!(
        lines.next().unwrap().unwrap(),
        "ready codec=tw1 lanes=1 poller=epoll"
    );
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(lines.next().is_none());
}

#[test]
fn an_echo_speaks_foreign_codecs_and_a_sink_counts_its_messages() {
    let connect = |address: &str| TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    let (_echo, address) = Process::server(&["--app", "echo", "--codec", "srmp"]);
    let mut stream = connect(&address);
    // A request, sequence 1, and a one-way string: the examples of the SRMP format.
    stream
        .write_all(b"\x01\x01\x04\x00Open\x40\x05\x02\x00hi")
        .unwrap();
    let mut reply = [0; 8];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"\x81\x01\x04\x00Open");

    let (_sink, address) = Process::server(&["--app", "sink", "--codec", "length-field"]);
    let mut stream = connect(&address);
    stream.write_all(b"\x05\x00hello").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());

    // Three strings of two sessions, and then the request for their number.
    let (_sink, address) = Process::server(&["--app", "sink", "--codec", "srmp"]);
    let mut streams = [connect(&address), connect(&address)];
    for (stream, words) in [(0, 1), (1, 1), (0, 2)] {
        for _ in 0..words {
            streams[stream].write_all(b"\x40\x05\x02\x00hi").unwrap();
        }
    }
    for (stream, count) in streams.iter_mut().zip([3, 1]) {
        stream.write_all(b"\x01\x01\x04\x00Open").unwrap();
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[4..], u64::to_le_bytes(count));
    }
}

/// Regression: the exit code was 1, with which the unit of systemd starts the server again and again.
#[test]
fn limits_that_contradict_each_other_are_a_mistake_of_the_configuration() {
    let output = command(&["serve", "--rooms-max", "60000"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("at most 4512") && text.contains("--topics-max"),
        "{text}"
    );
}

#[test]
fn a_chat_refuses_a_codec_without_rooms() {
    let output = command(&["serve", "--app", "chat", "--codec", "srmp"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("has no rooms") && text.contains("remedy: "),
        "{text}"
    );
}
