//! The shortest uses of the library.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidewire::{AnyCodec, Chat, Client, Event, Kind, Server};
use tidewire_testkit::fixtures::echo;

#[test]
fn echo_over_tcp() {
    let server = tidewire::serve("tcp://127.0.0.1:0", echo).unwrap();
    let client = Client::connect(&server.to_string()).wait().unwrap();
    for size in [0, 1, 100, 70_000, 1_000_000] {
        let payload = vec![7; size];
        assert_eq!(client.request(&payload).wait().unwrap().payload(), payload);
    }
    client.close().wait();
    let stopped = server.shutdown(Duration::from_secs(5));
    assert!(stopped.failures.is_empty());
    assert_eq!(stopped.metrics.sessions_closed(), 1);
}

#[test]
fn two_clients_chat() {
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| Chat::new())
        .unwrap();
    let address = server.to_string();
    let alice = Client::connect(&address).wait().unwrap();
    let bob = Client::connect(&address).wait().unwrap();
    let a = alice.join("lobby").named("alice").wait().unwrap();
    let b = bob.join("lobby").named("bob").wait().unwrap();
    assert_eq!((a.size_at_join(), b.size_at_join()), (Some(1), Some(2)));
    assert!(bob.join("other").named("alice").wait().is_err());
    a.say(b"hello").unwrap();
    loop {
        match bob.next_event().wait() {
            Event::Message(message) if message.kind == Kind::Deliver => {
                assert_eq!(message.payload, b"hello");
                break;
            }
            Event::Ended => panic!("ended"),
            _ => {}
        }
    }
    assert_eq!(bob.room(b.id()).members().wait().unwrap().len(), 2);
    bob.room(b.id()).whisper("alice", b"psst").wait().unwrap();
    assert!(bob.room(b.id()).whisper("carol", b"psst").wait().is_err());
    bob.room(b.id()).leave().wait().unwrap();
    alice.close().wait();
    bob.close().wait();
    let stopped = server.shutdown(Duration::from_secs(5));
    assert_eq!(stopped.metrics.room_in_flight(), 0, "{:?}", stopped.metrics);
}

#[test]
fn lines_with_netcat_manners() {
    let server = Server::builder()
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .codec(AnyCodec::by_name("lines").unwrap())
        .start(|_| Chat::new())
        .unwrap();
    let address = server.addresses()[0].to_string();
    let mut stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "Enter username: \n");
    stream.write_all(b"\n").unwrap();
    line.clear();
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("! "), "{line}");
    line.clear();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "Enter username: \n");
    stream.write_all(b"zed\r\n").unwrap();
    line.clear();
    lines.read_line(&mut line).unwrap();
    assert!(line.starts_with("Welcome, zed!"), "{line}");
    drop((stream, lines));
    let stopped = server.shutdown(Duration::from_secs(5));
    assert_eq!(stopped.metrics.sessions_closed(), 1);
}
