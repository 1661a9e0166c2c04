//! Tests of the chat with history: late joins, kicks, and a restart.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidewire::{Backoff, Client, ErrorCode, Event, Kind, RequestError, Room};

/// The running example. Dropping it kills it.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(file: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_chat_history"))
            .arg("tcp://127.0.0.1:0")
            .arg(file)
            .arg("sesame")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let address = line.split_whitespace().last().unwrap().to_owned();
        Self { child, address }
    }

    fn connect(&self) -> Client {
        let client = Client::builder().reconnect(Backoff::default());
        client.connect(&self.address).wait().unwrap()
    }

    /// Stops the example as an operator does, and waits for its end.
    fn stop(&mut self) {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").arg(id).status().unwrap();
        assert!(kill.success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of this test, which is deleted afterwards.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> Self {
        let name = format!("tidewire-{name}-{}", std::process::id());
        let kept = Self(std::env::temp_dir().join(name));
        // The file may be left from a former process with the same id.
        let _ = std::fs::remove_file(&kept.0);
        kept
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the author and the text of the next message of a room. The author is known for messages of the history only.
fn heard(client: &Client) -> (String, String) {
    loop {
        match client.next_event().wait_for(DEADLINE) {
            Some(Event::Message(message)) if message.kind == Kind::Deliver => {
                let text = String::from_utf8(message.payload).unwrap();
                return (message.name.to_string(), text);
            }
            None | Some(Event::Ended | Event::Closed { .. }) => panic!("no message came"),
            _ => {}
        }
    }
}

fn send_numbers(room: &Room, numbers: std::ops::Range<u32>) {
    for number in numbers {
        room.say(number.to_string().as_bytes()).unwrap();
    }
    // All earlier messages have been delivered when this reply arrives.
    room.members().wait().unwrap();
}

/// Joins, and expects exactly these numbers of ada's messages before a new one.
fn expect_history(server: &Running, room: &Room, numbers: std::ops::Range<u32>) {
    let late = server.connect();
    late.join("lobby").named("late").wait().unwrap();
    room.say(b"live").unwrap();
    for number in numbers {
        assert_eq!(heard(&late), ("ada".to_owned(), number.to_string()));
    }
    assert_eq!(heard(&late), (String::new(), "live".to_owned()));
    late.close().wait();
}

#[test]
fn a_new_member_gets_the_last_50_messages_even_after_a_restart() {
    let kept = TemporaryFile::new("chat-history");
    let mut server = Running::start(&kept.0);
    let ada = server.connect();
    let room = ada.join("lobby").named("ada").wait().unwrap();
    send_numbers(&room, 0..120);
    expect_history(&server, &room, 70..120);
    ada.close().wait();
    server.stop();

    // A line that a crash cut off affects no other line.
    let cut = [&std::fs::read(&kept.0).unwrap()[..], b"say\tlob"].concat();
    std::fs::write(&kept.0, cut).unwrap();
    let server = Running::start(&kept.0);
    let ada = server.connect();
    let room = ada.join("lobby").named("ada").wait().unwrap();
    for number in 71..120 {
        assert_eq!(heard(&ada), ("ada".to_owned(), number.to_string()));
    }
    assert_eq!(heard(&ada), ("ada".to_owned(), "live".to_owned()));
    send_numbers(&room, 200..250);
    expect_history(&server, &room, 200..250);
    ada.close().wait();
}

fn expect_refused(server: &Running, name: &str) {
    let client = server.connect();
    let error = client.join("lobby").named(name).wait().unwrap_err();
    let RequestError::Refused { .. } = error else {
        panic!("{error}");
    };
    assert!(error.to_string().contains("kicked"), "{error}");
    client.close().wait();
}

#[test]
fn a_kicked_member_stays_banned_after_a_restart() {
    let kept = TemporaryFile::new("chat-kick");
    let mut server = Running::start(&kept.0);
    let [moderator, eve] = [(); 2].map(|()| server.connect());
    let room = moderator.join("lobby").named("ada").wait().unwrap();
    eve.join("lobby").named("eve").wait().unwrap();
    let kick = |payload: &[u8]| moderator.request(payload).method("kick").wait();
    assert!(kick(b"guess eve").is_err());
    assert!(kick(b"sesame eve\nsay\tlobby\tada\tforged").is_err());
    assert_eq!(room.members().wait().unwrap().len(), 2);
    kick(b"sesame eve").unwrap();

    loop {
        match eve.next_event().wait() {
            Event::Closed { reason, .. } => {
                assert!(reason.is_final());
                break;
            }
            Event::Ended => panic!("she was not told"),
            _ => {}
        }
    }
    assert_eq!(
        eve.next_event().wait(),
        Event::Ended,
        "she does not reconnect"
    );
    expect_refused(&server, "eve");
    // The name looks like hers: the first letter is Cyrillic.
    expect_refused(&server, "\u{435}ve");
    assert_eq!(room.members().wait().unwrap().len(), 1);
    moderator.close().wait();
    server.stop();

    let server = Running::start(&kept.0);
    expect_refused(&server, "eve");
    let bob = server.connect();
    bob.join("lobby").named("bob").wait().unwrap();
    bob.close().wait();
}

/// Regression: every kick made the list longer, in this run and in later runs.
#[test]
fn the_list_of_kicked_names_has_a_bound() {
    let kept = TemporaryFile::new("chat-kicks");
    let lines: String = (0..999)
        .map(|number| format!("kick\tname{number}\n"))
        .collect();
    std::fs::write(&kept.0, lines).unwrap();
    let mut server = Running::start(&kept.0);
    let moderator = server.connect();
    let kick = |name: &str| {
        let payload = format!("sesame {name}");
        moderator.request(payload.as_bytes()).method("kick").wait()
    };
    kick("eve").unwrap();
    match kick("mallory").unwrap_err() {
        RequestError::Refused { code, .. } => assert_eq!(code, ErrorCode::LimitReached),
        error => panic!("{error}"),
    }
    expect_refused(&server, "eve");
    let mallory = server.connect();
    mallory.join("lobby").named("mallory").wait().unwrap();
    mallory.close().wait();
    moderator.close().wait();
    server.stop();
    let text = std::fs::read_to_string(&kept.0).unwrap();
    assert!(text.ends_with("kick\teve\n"), "the refused one is not kept");
}

/// A test that waits longer than this has failed.
const DEADLINE: Duration = Duration::from_secs(60);
