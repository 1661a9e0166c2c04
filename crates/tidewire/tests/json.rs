//! The codec `json` at a server: people without a hello, tokens, and messages with mistakes.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewire::auth::{Identity, Permissions, Tokens};
use tidewire::{AnyCodec, Chat, Client, Limits, Server};
use tidewire_testkit::fixtures::echo;
use tidewire_testkit::identities::{TokenFolder, tell_name, users};
use tidewire_testkit::{DEADLINE, TestServer};

fn json_refusal(cause: &str) -> String {
    let text = format!("not authenticated: {cause}");
    format!(r#"{{"kind":"go-away","code":"unauthenticated","number":8,"text":"{text}"}}"#)
}

fn json() -> AnyCodec {
    AnyCodec::by_name("json").unwrap()
}

/// A person with `nc`.
struct Person(BufReader<TcpStream>);

impl Person {
    fn at(server: &str) -> Self {
        let stream = TcpStream::connect(server.trim_start_matches("tcp://")).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn send(&self, bytes: impl AsRef<[u8]>) {
        self.0.get_ref().write_all(bytes.as_ref()).unwrap();
    }

    /// Returns the next line; empty at the end.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\n"));
        self.hear()
    }

    fn end(&mut self) -> String {
        self.0.get_ref().shutdown(Shutdown::Write).unwrap();
        self.hear()
    }
}

#[test]
fn a_person_talks_to_a_program_without_a_hello() {
    let server = TestServer::over_tcp(Server::builder(), &json(), |_| Chat::new());
    let client = Client::builder().codec(json()).connect(&server.url());
    let client = client.wait().unwrap();
    let room = client.join("lobby").named("bob").wait().unwrap();
    let mut ada = Person::at(&server.url());
    // The line comes in two pieces, and ends as on a terminal of another system.
    ada.send(r#"{"kind":"join","room":"lob"#);
    ada.send("by\",\"name\":\"ada\"}\r\n");
    assert_eq!(
        ada.hear(),
        r#"{"kind":"joined","channel":1,"member":2,"count":2}"#
    );
    let here = r#"{"kind":"presence","channel":1,"event":"here","member":1,"name":"bob"}"#;
    assert_eq!(ada.hear(), here);
    room.say(b"hi \"ada\"\n").unwrap();
    assert_eq!(
        ada.hear(),
        r#"{"kind":"deliver","channel":1,"member":1,"name":"bob","data":"hi \"ada\"\n"}"#
    );
    let whisper = r#"{"kind":"whisper","id":5,"channel":1,"to":"bob","json":{"a":[1]}}"#;
    assert_eq!(ada.ask(whisper), r#"{"kind":"reply","id":5,"channel":1}"#);
    let list = r#"{"kind":"list","id":6,"channel":1}"#;
    assert_eq!(
        ada.ask(list),
        r#"{"kind":"members","id":6,"channel":1,"members":[{"member":1,"name":"bob"},{"member":2,"name":"ada"}]}"#
    );
    let members: Vec<String> = room
        .members()
        .wait()
        .unwrap()
        .into_iter()
        .map(|it| it.1)
        .collect();
    assert_eq!(members, ["bob", "ada"]);
    let stranger = r#"{"kind":"say","channel":7,"data":"x"}"#;
    assert_eq!(
        ada.ask(stranger),
        r#"{"kind":"error","channel":7,"code":"not-joined","number":6,"text":"not in that room"}"#
    );
    assert_eq!(ada.ask(r#"{"kind":"ping"}"#), r#"{"kind":"pong"}"#);
    assert_eq!(ada.end(), "");
    drop(client);
    let metrics = server.stop();
    assert_eq!((metrics.chat_messages, metrics.refused), (1, 1));
}

#[test]
fn only_a_token_needs_a_hello() {
    let tokens = TokenFolder::new();
    let token = tokens.add("ada");
    let names = ["ada", Identity::ANONYMOUS];
    let users = Arc::new(users(&names.map(|name| (name, Permissions::everything()))));
    let builder = Server::builder().authenticate(tokens.chain(Arc::clone(&users)));
    let server = TestServer::over_tcp(builder, &json(), |_| tell_name);
    let who = r#"{"kind":"request","id":1}"#;
    let named = |name: &str| format!(r#"{{"kind":"reply","id":1,"data":"{name}"}}"#);
    let mut anonymous = Person::at(&server.url());
    assert_eq!(anonymous.ask(who), named(Identity::ANONYMOUS));
    let mut ada = Person::at(&server.url());
    let welcome = ada.ask(&format!(
        r#"{{"kind":"hello","token":"{}"}}"#,
        token.secret()
    ));
    assert!(
        welcome.starts_with(r#"{"kind":"welcome","version":1,"#),
        "{welcome}"
    );
    assert_eq!(ada.ask(who), named("ada"));
    let client = Client::builder().codec(json()).credentials(token);
    let client = client.connect(&server.url()).wait().unwrap();
    assert_eq!(client.request(b"").wait().unwrap().payload(), b"ada");
    let mut eve = Person::at(&server.url());
    let refusal = eve.ask(r#"{"kind":"hello","token":"wrong"}"#);
    assert_eq!(refusal, json_refusal("the credentials are wrong"));
    assert_eq!(eve.hear(), "");
    drop((anonymous, ada, client));
    assert_eq!(server.stop().closed_by("unauthenticated"), 1);

    let only = Tokens::read(tokens.path(), users).unwrap();
    let closed = Server::builder().authenticate(only);
    let server = TestServer::over_tcp(closed, &json(), |_| tell_name);
    let mut anonymous = Person::at(&server.url());
    assert_eq!(
        anonymous.ask(who),
        json_refusal("the server needs credentials")
    );
    assert_eq!(anonymous.hear(), "");
    assert_eq!(server.stop().closed_by("unauthenticated"), 1);
}

#[test]
fn a_mistake_ends_the_session_and_says_what_to_change() {
    let server = TestServer::over_tcp(Server::builder(), &json(), |_| echo);
    let mistakes: [(&[u8], &str); 9] = [
        (b"[\"join\"]\n", "a message is a JSON object"),
        (b"hello\n", "no valid JSON at byte 1"),
        (b"[[[[\n", "a message is a JSON object"),
        (
            b"{\"kind\":\"say\",\"dta\":\"x\"}\n",
            "unknown field \\\"dta\\\"",
        ),
        (
            b"{\"kind\":\"request\",\"id\":-1}\n",
            "field \\\"id\\\" must be a whole number",
        ),
        (
            b"{\"kind\":\"request\",\"data\":\"\\ud800\"}\n",
            "no valid JSON at byte",
        ),
        (
            b"{\"kind\":\"request\",\"data\":\"\xFF\"}\n",
            "no valid JSON at byte",
        ),
        (b"{\"kind\":\"request\"", "no valid JSON at byte"),
        (
            b"{\"kind\":\"welcome\"}\n",
            "malformed payload of a Welcome frame",
        ),
    ];
    for (mistake, text) in &mistakes[..7] {
        // As the first message, and as a later one.
        for is_first in [true, false] {
            let mut person = Person::at(&server.url());
            if !is_first {
                let answer = person.ask(r#"{"kind":"request","id":1,"data":"a"}"#);
                assert_eq!(answer, r#"{"kind":"reply","id":1,"data":"a"}"#);
            }
            person.send(mistake);
            let told = person.hear();
            assert!(
                told.contains("\"number\":4,") && told.contains(text),
                "{told}"
            );
            assert_eq!(person.hear(), "");
        }
    }
    // Half a line is no message.
    let mut person = Person::at(&server.url());
    person.send(mistakes[7].0);
    assert_eq!(person.end(), "");
    let mut person = Person::at(&server.url());
    person.ask(r#"{"kind":"ping"}"#);
    person.send(mistakes[8].0);
    assert!(person.hear().contains(mistakes[8].1));
    // The first line of another protocol is named.
    let mut browser = Person::at(&server.url());
    browser.send("GET / HTTP/1.1\r\n\r\n");
    assert!(browser.hear().contains("look like HTTP"));
    while !browser.hear().is_empty() {}
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("decode"), 15);
    assert_eq!(metrics.closed_by("handshake"), 1);
    assert_eq!(metrics.closed_by("peer_closed"), 1);
}

#[test]
fn messages_have_a_largest_length() {
    const LIMIT: usize = 4_096;
    let mut limits = Limits::default();
    limits.connections.set_frame_bytes_max(LIMIT);
    let builder = Server::builder().limits(limits);
    let server = TestServer::over_tcp(builder, &json(), |_| echo);
    let around = r#"{"kind":"request","id":1,"data":""}"#.len() + 1;
    let request = |bytes: usize| {
        let data = "x".repeat(bytes - around);
        format!(r#"{{"kind":"request","id":1,"data":"{data}"}}"#)
    };
    for (before, longest) in [("", 2_048), (r#"{"kind":"ping"}"#, LIMIT)] {
        for (bytes, fits) in [(longest, true), (longest + 1, false)] {
            let mut person = Person::at(&server.url());
            if !before.is_empty() {
                person.ask(before);
            }
            let answer = person.ask(&request(bytes));
            assert_eq!(answer.starts_with(r#"{"kind":"reply""#), fits, "{answer}");
            assert_eq!(answer.contains("exceeds the limit"), !fits, "{answer}");
        }
    }
    // The reply to this one is longer than the request, because bytes of base64 become escapes.
    let mut person = Person::at(&server.url());
    let zeros = "A".repeat(2_000);
    let answer = person.ask(&format!(
        r#"{{"kind":"request","id":1,"data64":"{zeros}"}}"#
    ));
    assert!(answer.starts_with(r#"{"kind":"error","id":1,"#), "{answer}");
    drop(person);
    let metrics = server.stop();
    assert_eq!(metrics.closed_by("decode"), 2);
}

/// Regression: the time of a person for the first message was also a client's time for the welcome.
#[test]
fn a_client_waits_for_a_welcome_as_long_as_its_limits_say() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut limits = Limits::default();
    limits
        .connections
        .set_handshake_timeout(Duration::from_millis(100));
    limits.handshakes.set_login_timeout(Duration::from_secs(20));
    let before = Instant::now();
    let address = format!("tcp://{}", silent.local_addr().unwrap());
    let builder = Client::builder().codec(json()).limits(limits.connections);
    assert!(builder.connect(&address).wait().is_err());
    assert!(before.elapsed() < Duration::from_secs(10));
}
