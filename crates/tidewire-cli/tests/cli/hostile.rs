//! Peers that send control characters: none of them reaches a terminal, a log or a report, by any command.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;
use tidewire::{
    Chat, Client, Context, ErrorCode, GoAwayCode, HandlerError, HandlerResult, Kind, Message,
    PubSub, Server,
};
use tidewire_proto::body::{GoAwayBody, JoinBody};
use tidewire_proto::codec::{Codec, Tw1};
use tidewire_proto::handshake::Hello;
use tidewire_proto::text::is_hazardous;
use tidewire_testkit::open_terminal;

use crate::process::{Process, command};

/// A title for the terminal, a forged line, a cleared screen, and a changed direction of writing.
const ATTACK: &str =
    "begin\u{1b}]0;owned\u{7}\r\n[eve]: yes\u{9b}2J\u{202e}\u{2028}\u{85}\u{7f}end";

/// The end of the attack's replacement text.
const END: &str = "end";

/// Checks that bytes are text whose only control characters are line ends, and that the attack is in it.
fn assert_tame(what: &str, bytes: &[u8]) {
    let text = str::from_utf8(bytes).unwrap_or_else(|_| panic!("{what} is not UTF-8: {bytes:?}"));
    let hazard = |it: char| is_hazardous(it) && !matches!(it, '\n' | '\t');
    for line in text.lines() {
        assert!(!line.contains(hazard), "{what}: {line:?}");
        assert!(!line.starts_with("[eve]"), "{what}: {line:?}");
    }
}

fn assert_shown_tame(what: &str, bytes: &[u8]) {
    assert_tame(what, bytes);
    let text = str::from_utf8(bytes).unwrap();
    assert!(
        text.contains("owned") && text.contains(END),
        "{what}: {text:?}"
    );
}

fn run(arguments: &[&str]) -> Output {
    let mut command = command(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

fn serve(
    make: impl Fn(&mut Context<'_>, Message<'_>) -> HandlerResult + Copy + Send + 'static,
) -> Server {
    let builder = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    builder.start(move |_| make).unwrap()
}

/// Runs a command on a terminal until it has shown a line with the attack, and returns its lines so far. A terminal
/// puts a carriage return in front of each line end.
fn on_terminal(command: &mut Command) -> Vec<u8> {
    let (mut screen, tty) = open_terminal();
    let mut child = command
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::from(tty.try_clone().unwrap()))
        .stderr(Stdio::from(tty))
        .spawn()
        .unwrap();
    let mut shown = String::new();
    let mut buffer = [0; 4_096];
    let is_whole = |text: &str| text.find(END).is_some_and(|at| text[at..].contains('\n'));
    while !is_whole(&shown) {
        let count = screen.read(&mut buffer).unwrap();
        shown.push_str(str::from_utf8(&buffer[..count]).unwrap());
    }
    // The process may have ended.
    let _ = child.kill();
    child.wait().unwrap();
    let lines = shown.rsplit_once('\n').map_or("", |(lines, _)| lines);
    lines.replace("\r\n", "\n").trim_end_matches('\r').into()
}

#[test]
fn answers_and_topics_are_tame_on_a_terminal() {
    let answering = serve(|cx, _| cx.reply(ATTACK.replace("\r\n", "").as_bytes()));
    let address = answering.to_string();
    for flags in [&[][..], &["--json"]] {
        let all = [&["call", &address, "any"][..], flags].concat();
        let shown = on_terminal(&mut command(&all));
        assert_shown_tame("call", &shown);
    }

    let builder = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let topics = builder.start(|_| PubSub::new()).unwrap();
    let address = topics.to_string();
    let publisher = Client::connect(&address).wait().unwrap();
    for flags in [&[][..], &["--json"]] {
        let all = [&["sub", &address, "attack"][..], flags].concat();
        let stop = AtomicBool::new(false);
        let shown = thread::scope(|scope| {
            // No line announces a subscription, so this repeats until a message is shown.
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    publisher.publish("attack", ATTACK.as_bytes()).unwrap();
                    publisher.flush().wait().unwrap();
                }
            });
            let shown = on_terminal(&mut command(&all));
            stop.store(true, Ordering::SeqCst);
            shown
        });
        assert_shown_tame("sub", &shown);
    }
}

#[test]
fn messages_of_a_chat_are_harmless_on_a_terminal() {
    let builder = Server::builder().listen("tcp://127.0.0.1:0").unwrap();
    let server = builder.start(|_| Chat::new()).unwrap();
    let address = server.to_string();
    let bob = Client::connect(&address).wait().unwrap();
    let room = bob.join("lobby").named("bob").wait().unwrap();
    for flags in [&[][..], &["--json"]] {
        let all = [&["chat", &address, "--name", "ann"][..], flags].concat();
        let mut chat = Process::start(&all);
        // The line that says so differs between the two forms.
        chat.expect("bob");
        bob.room(room.id()).say(ATTACK.as_bytes()).unwrap();
        chat.expect("owned");
        chat.end_input();
        for line in &chat.wait().transcript {
            assert_tame("chat", line.as_bytes());
        }
    }
}

/// The frames of clients with the attack in each text that a server reads.
fn hostile_frames() -> Vec<Vec<u8>> {
    let hello = |agent: &'static str, credentials: &'static [u8]| {
        let mut frame = Vec::new();
        let hello = Hello {
            version: 1,
            features: 0,
            frame_bytes_max: 1 << 20,
            credentials,
            agent,
        };
        hello.encode_frame(&mut frame).unwrap();
        frame
    };
    let after_hello = |kind, name, body: &[u8]| {
        let mut frames = hello("tests", b"");
        let message = Message {
            name,
            ..Message::with_id(kind, 0, 1, body)
        };
        Tw1.encode(&message, &mut frames).unwrap();
        frames
    };
    let join = |room, name| {
        let mut body = Vec::new();
        JoinBody { room, name }.encode(&mut body).unwrap();
        body
    };
    let (mut go_away, text) = (Vec::new(), ATTACK);
    let code = GoAwayCode::ProtocolError;
    GoAwayBody { code, text }.encode(&mut go_away);
    vec![
        hello(ATTACK, b""),
        hello("tests", ATTACK.as_bytes()),
        ATTACK.as_bytes().to_vec(),
        after_hello(Kind::Join, "", &join("lobby", ATTACK)),
        after_hello(Kind::Join, "", &join(ATTACK, "ann")),
        after_hello(Kind::Request, ATTACK, b""),
        after_hello(Kind::Publish, ATTACK, b""),
        after_hello(Kind::Subscribe, "", ATTACK.as_bytes()),
        after_hello(Kind::GoAway, "", &go_away),
        [hello("tests", b""), ATTACK.as_bytes().to_vec()].concat(),
    ]
}

#[test]
fn texts_of_clients_are_harmless_in_the_log_of_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    let tokens = tokens.to_str().unwrap();
    let made = run(&["token", "new", "ann", "--file", tokens]);
    assert!(made.status.success(), "{made:?}");
    let with_users = ["--auth-tokens", tokens];
    let cases: [(&str, &[&str]); 4] = [
        ("chat", &[]),
        ("pubsub", &["--log-format", "json"]),
        ("rpc", &with_users),
        ("chat", &["--codec", "lines"]),
    ];
    for (app, flags) in cases {
        let all = [&["--app", app, "--log-level", "trace"][..], flags].concat();
        let (mut server, address) = Process::server(&all);
        for frames in hostile_frames() {
            let mut stream = TcpStream::connect(address.trim_start_matches("tcp://")).unwrap();
            stream.write_all(&frames).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            // The server may reset the connection; it has read all of it by then, or refused it.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        server.signal(Signal::INT);
        server.expect("served: sessions=10");
        for line in &server.wait().transcript {
            assert_tame(app, line.as_bytes());
        }
    }
}

#[test]
fn reasons_of_refusals_are_tame_in_errors_and_reports() {
    let refusing = serve(|_, _| Err(HandlerError::new(ErrorCode::Forbidden, ATTACK)));
    let address = refusing.to_string();
    let commands: [&[&str]; 5] = [
        &["call", &address, "any"],
        &["call", &address, "any", "--json"],
        &["sub", &address, "topic"],
        &["sub", &address, "topic", "--json"],
        &["chat", &address, "--name", "ann"],
    ];
    for arguments in commands {
        let output = run(arguments);
        let all = [&output.stdout[..], &output.stderr].concat();
        assert_shown_tame(arguments[0], &all);
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("report");
    let flags = ["--quick", "--plain", "--target", &address, "--out"];
    let output = run(&[&["load"][..], &flags, &[out.to_str().unwrap()]].concat());
    let all = [&output.stdout[..], &output.stderr].concat();
    assert_shown_tame("load", &all);
    for file in fs::read_dir(&out).unwrap() {
        let path = file.unwrap().path();
        assert_tame(&path.display().to_string(), &fs::read(&path).unwrap());
    }
}
