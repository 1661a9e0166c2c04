//! Names: no name can be mistaken for another, and no line with a name for another kind of line.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use tidewire::{Chat, Client, RequestError, Server};
use tidewire_proto::body::{ErrorCode, validate_name};
use tidewire_testkit::{DEADLINE, TestServer};

use super::codec;

const FORGED: &str = "bob -> you";

/// Regression: the name `bob -> you` made its owner's messages look like a whisper from bob.
#[test]
fn a_name_cannot_forge_a_whisper() {
    let server = TestServer::over_tcp(Server::builder(), &codec("lines"), |_| Chat::new());
    let mut ann = server.peer();
    ann.join("lobby", "ann").unwrap();
    let mut mallory = server.peer();
    for name in [
        FORGED,
        "* ann left",
        "ann]: I quit; [ann",
        "ann\u{200b}",
        "you",
    ] {
        let refusal = mallory.join("lobby", name).unwrap_err();
        let why = validate_name(name).unwrap_err();
        assert_eq!(refusal, format!("{why}; try another name"));
    }
    mallory.join("lobby", "mallory").unwrap();
    mallory.say(b"psst");
    assert_eq!(ann.receive().unwrap().payload, b"* mallory joined");
    assert_eq!(ann.receive().unwrap().payload, b"[mallory]: psst");
    drop((ann, mallory));
    server.stop();
}

/// One rule applies to all ways by which a name comes in, and to rooms.
#[test]
fn members_and_rooms_are_refused_by_the_same_rule() {
    let server = TestServer::over_tcp(Server::builder(), &codec("tw1"), |_| Chat::new());
    let client = Client::connect(&server.url()).wait().unwrap();
    for name in [FORGED, "p\u{430}ypal", "Zoe\u{308}", "a\u{202e}b", "🐙"] {
        let why = validate_name(name).unwrap_err().to_string();
        let refused = |text: String| {
            let code = ErrorCode::NameInvalid;
            let number = i32::from(code.to_wire());
            RequestError::Refused { code, number, text }
        };
        assert_eq!(
            client.join("lobby").named(name).wait().unwrap_err(),
            refused(why.clone())
        );
        assert_eq!(
            client.join(name).named("ann").wait().unwrap_err(),
            refused(format!("room: {why}"))
        );
    }
    client.close().wait();
    server.stop();
}

/// Regression: `adminl` was allowed beside `admin1`, and people could not tell them apart.
#[test]
fn names_that_look_alike_are_not_present_together() {
    let server = TestServer::over_tcp(Server::builder(), &codec("tw1"), |_| Chat::new());
    let (real, fake) = (
        Client::connect(&server.url()).wait().unwrap(),
        Client::connect(&server.url()).wait().unwrap(),
    );
    real.join("den1").named("admin1").wait().unwrap();
    let refused = |text: &str| RequestError::Refused {
        code: ErrorCode::NameTaken,
        number: 4,
        text: text.to_owned(),
    };
    assert_eq!(
        fake.join("den1").named("adminl").wait().unwrap_err(),
        refused("the name looks like one that is in use")
    );
    assert_eq!(
        fake.join("denl").named("bob").wait().unwrap_err(),
        refused("room: the name looks like that of another room")
    );
    // The refused join gave the name back.
    let joined = fake.join("den1").named("bob").wait().unwrap();
    assert_eq!(joined.size_at_join(), Some(2));
    real.close().wait();
    fake.close().wait();
    let metrics = server.stop();
    assert_eq!(metrics.room_in_flight(), 0, "{metrics:?}");
}

/// Regression: a program that reads lines waited for ever for the end of the prompt, as the seed's own chat client
/// does.
#[test]
fn the_prompt_is_a_line_and_a_typed_name_is_composed() {
    let server = TestServer::over_tcp(Server::builder(), &codec("lines"), |_| Chat::new());
    let mut stream = TcpStream::connect(server.url().trim_start_matches("tcp://")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "Enter username: ");
    stream.write_all("Zoe\u{308}\n".as_bytes()).unwrap();
    let welcome = lines.next().unwrap().unwrap();
    assert_eq!(welcome, "Welcome, Zoë! You are alone.");
    drop((stream, lines));
    server.stop();
}
