//! Servers and clients over UDP, which differ from the others only in their address.

use std::net::UdpSocket;

use rustix::process::Signal;
use tidewire::Client;
use tidewire_proto::codec::uvrpc::BroadcastMessage;

use crate::process::{DEADLINE, Process};

const ANY_PORT: &str = "udp://127.0.0.1:0";

#[test]
fn people_chat_over_udp() {
    let (mut server, address) = Process::server_at(ANY_PORT, &[]);
    assert!(address.starts_with("udp://127.0.0.1:"), "{address}");
    let mut ada = Process::chat(&address, "ada");
    let mut bob = Process::chat(&address, "bob");
    ada.expect("bob");
    bob.type_line("hello over there");
    ada.expect("hello over there");
    for person in [&mut ada, &mut bob] {
        person.end_input();
    }
    assert_eq!(ada.wait().status.code(), Some(0));
    assert_eq!(bob.wait().status.code(), Some(0));
    server.signal(Signal::INT);
    let summary = server.expect("served: ");
    assert!(summary.contains(" sessions=2 "), "{summary}");
    assert!(summary.contains(" datagrams.in="), "{summary}");
    // The server validated the address of each client. A repeated hello is challenged again.
    assert!(summary.contains(" datagrams.challenges="), "{summary}");
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn topics_go_over_udp() {
    let (server, address) = Process::server_at(ANY_PORT, &["--app", "pubsub"]);
    let mut subscriber = Process::start(&["sub", &address, "news.*"]);
    let client = Client::connect(&address).wait().unwrap();
    // Until it is subscribed, published messages do not reach it.
    let mut heard = false;
    while !heard {
        client.publish("news.today", b"sunny").unwrap();
        client.flush().wait().unwrap();
        heard = subscriber.has_line("sunny");
    }
    client.close().wait();
    subscriber.signal(Signal::INT);
    assert_eq!(subscriber.wait().status.code(), Some(0));
    drop(server);
}

/// Regression: the library can, and the commands refused it.
#[test]
fn topics_go_over_udp_in_the_format_of_uvrpc() {
    let codec = ["--codec", "uvrpc"];
    let serve = ["--app", "pubsub", "--trust-datagram-peers"];
    let (server, address) = Process::server_at(ANY_PORT, &[&serve[..], &codec].concat());
    let news = ["sub", &address, "news.*"];
    let mut subscriber = Process::start(&[&news[..], &codec].concat());
    // A registration is the nine bytes of the original, and a published message a datagram of its own.
    let original = UdpSocket::bind("127.0.0.1:0").unwrap();
    original
        .connect(address.trim_start_matches("udp://"))
        .unwrap();
    original.set_read_timeout(Some(DEADLINE)).unwrap();
    original.send(b"UVRPC_REG").unwrap();
    let mut heard = false;
    while !heard {
        let publish = ["pub", &address, "news.today", "sunny"];
        let ended = Process::start(&[&publish[..], &codec].concat()).wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        heard = subscriber.has_line("news.today sunny");
    }
    let mut buffer = [0; 2048];
    let count = original.recv(&mut buffer).unwrap();
    let message = BroadcastMessage::decode(&buffer[..count]).unwrap();
    assert_eq!((message.topic, message.data), ("news.today", &b"sunny"[..]));
    subscriber.signal(Signal::INT);
    assert_eq!(subscriber.wait().status.code(), Some(0));
    drop(server);

    let ended = Process::start(&["sub", "127.0.0.1:1", "news", "--codec", "uvrpc"]).wait();
    assert_eq!(ended.status.code(), Some(2));
    let remedy = "use --codec tw1, or json, or uvrpc over udp://";
    assert!(ended.text().contains(remedy), "{}", ended.text());
}

#[test]
fn a_person_with_netcat_is_answered_when_trusted() {
    let arguments = ["--codec", "lines", "--trust-datagram-peers"];
    let (server, address) = Process::server_at(ANY_PORT, &arguments);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .connect(address.trim_start_matches("udp://"))
        .unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket.send(b"ada\n").unwrap();
    let mut buffer = [0; 2048];
    let count = socket.recv(&mut buffer).unwrap();
    let text = String::from_utf8_lossy(&buffer[..count]);
    assert!(text.contains("Welcome, ada"), "{text}");
    drop(server);
}

#[test]
fn answers_longer_than_the_question_need_trust_and_both_sides_say_so() {
    let warned = |arguments: &[&str]| {
        let (mut server, address) = Process::server_at(ANY_PORT, arguments);
        let ended = Process::start(&[
            "call",
            &address,
            "methods",
            "--codec",
            "uvrpc",
            "--timeout",
            "0.2",
        ])
        .wait();
        server.signal(Signal::INT);
        server.expect("served: ");
        let log = server.wait().text();
        (log.contains("longer than what the client sent"), log, ended)
    };
    let (warned_plain, log, ended) = warned(&["--app", "rpc", "--codec", "uvrpc"]);
    assert!(warned_plain, "{log}");
    assert!(log.contains("over_budget"), "{log}");
    assert_eq!(ended.status.code(), Some(5), "{}", ended.text());
    assert!(
        ended.text().contains("--trust-datagram-peers"),
        "{}",
        ended.text()
    );
    let trusting = ["--app", "rpc", "--codec", "uvrpc", "--trust-datagram-peers"];
    let (warned_trusting, log, _) = warned(&trusting);
    assert!(!warned_trusting, "{log}");
    let (warned_echo, log, _) = warned(&["--app", "echo", "--codec", "uvrpc"]);
    assert!(!warned_echo, "{log}");
}

/// Regression: it started without a warning, and refused every subscriber.
#[test]
fn a_pubsub_server_without_possible_subscribers_does_not_start() {
    let log = |arguments: &[&str]| {
        let pubsub = ["--app", "pubsub", "--codec", "uvrpc"];
        let (server, _) = Process::server_at(ANY_PORT, &[&pubsub[..], arguments].concat());
        server.signal(Signal::INT);
        let ended = server.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        ended.text()
    };
    let text = log(&[]);
    assert!(
        text.contains("every subscriber over udp:// is refused"),
        "{text}"
    );
    assert!(text.contains("use --trust-datagram-peers"), "{text}");
    let text = log(&["--trust-datagram-peers"]);
    assert!(!text.contains("is refused"), "{text}");
}

#[test]
fn a_server_that_is_not_there_is_unreachable_and_a_taken_port_says_so() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", taken.local_addr().unwrap());
    let ended = Process::start(&["serve", "--bind", &address]).wait();
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(
        ended.text().contains("any free port, which is port 0"),
        "{}",
        ended.text()
    );
    drop(taken);
    let ended = Process::start(&["pub", &address, "topic", "text"]).wait();
    assert_eq!(ended.status.code(), Some(3), "{}", ended.text());
    assert!(ended.text().contains("tidewire serve"), "{}", ended.text());
}
