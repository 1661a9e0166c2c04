//! `serve --app pubsub`, `pub` and `sub` from a shell: through pipes, with exit codes.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Output, Stdio};

use rustix::process::Signal;
use tidewire::{Client, Policy};

use crate::process::{Process, command};

fn server() -> (Process, String) {
    Process::server(&["--app", "pubsub"])
}

/// Starts a subscriber, and waits until the server has it. No line announces that, so the test counts.
fn subscriber(address: &str, arguments: &[&str]) -> Process {
    let mut all = vec!["sub", address];
    all.extend_from_slice(arguments);
    Process::start(&all)
}

/// Publishes until `sub` prints the first message, so that later messages arrive.
fn reach(process: &mut Process, address: &str, topic: &str, expected: &str) {
    let client = Client::connect(address).wait().unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let topic = topic.to_owned();
    let knocking = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::SeqCst) {
            client.publish(&topic, b"knock").unwrap();
            client.flush().wait().unwrap();
        }
    });
    process.expect(expected);
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    knocking.join().unwrap();
}

fn publish(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails at once takes no input.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

#[test]
fn lines_go_from_one_pipe_to_another() {
    let (mut server, address) = server();
    let mut sub = subscriber(&address, &["readings.7"]);
    reach(&mut sub, &address, "readings.7", "knock");
    let lines: String = (0..5000).map(|number| format!("line {number}\n")).collect();
    let ended = publish(&["pub", &address, "readings.7", "-"], lines.as_bytes());
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let ended = publish(&["pub", &address, "readings.7", "the end"], b"");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    sub.expect("the end");
    let heard: Vec<&String> = sub
        .transcript()
        .iter()
        .filter(|line| *line != "knock")
        .collect();
    assert_eq!(heard.len(), 5001);
    for (number, line) in heard[..5000].iter().enumerate() {
        assert_eq!(**line, format!("line {number}"));
    }
    sub.signal(Signal::INT);
    assert_eq!(sub.wait().status.code(), Some(0));
    server.signal(Signal::INT);
    let summary = server.expect("served: ");
    assert!(summary.contains(" published="), "{summary}");
    assert_eq!(server.wait().status.code(), Some(0));
}

#[test]
fn wildcards_show_the_topic_and_json_is_for_programs() {
    let (_server, address) = server();
    let mut plain = subscriber(&address, &["a.>"]);
    let mut json = subscriber(&address, &["a.*", "--json", "--policy", "drop_oldest"]);
    reach(&mut plain, &address, "a.b", "a.b knock");
    reach(
        &mut json,
        &address,
        "a.b",
        r#"{"payload":"knock","topic":"a.b"}"#,
    );
    let ended = publish(&["pub", &address, "a.b.c", "deep", "--json"], b"");
    assert_eq!(ended.stdout, b"{\"published\":1,\"topic\":\"a.b.c\"}\n");
    plain.expect("a.b.c deep");
    // The payload starts like a flag and contains an escape sequence: a pipe gets the bytes, JSON escapes them.
    publish(&["pub", &address, "a.x", "--\u{1b}[2J"], b"");
    plain.expect("a.x --\u{1b}[2J");
    json.expect(r#"{"payload":"--\u001b[2J","topic":"a.x"}"#);
}

#[test]
fn a_count_ends_it_and_a_timeout_without_enough_is_a_failure() {
    let (_server, address) = server();
    let mut counted = subscriber(&address, &["tick", "--count", "1"]);
    reach(&mut counted, &address, "tick", "knock");
    let ended = counted.wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    assert_eq!(ended.transcript, ["knock"]);

    let ended = subscriber(&address, &["silent", "--duration", "0.05"]).wait();
    assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
    let ended = subscriber(&address, &["silent", "--duration", "0.05", "--count", "3"]).wait();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.text().contains("only 0 of 3 messages came"),
        "{}",
        ended.text()
    );
}

#[test]
fn a_reader_that_has_enough_ends_it_politely() {
    let (_server, address) = server();
    let mut child = command(&["sub", &address, "flood"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let client = Client::connect(&address).wait().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                client.publish("flood", b"water").unwrap();
                client.flush().wait().unwrap();
            }
        });
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        reader.read_line(&mut line).unwrap();
        drop(reader);
        let output = child.wait_with_output().unwrap();
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    });
    assert_eq!(line, "water\n");
}

/// Starts a subscriber of `flood` that was read once and is not read any more.
fn stalled(address: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut sub = command(&["sub", address, "flood", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let client = Client::connect(address).wait().unwrap();
    let mut lines = BufReader::new(sub.stdout.take().unwrap()).lines();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                client.publish("flood", b"knock").unwrap();
                client.flush().wait().unwrap();
            }
        });
        lines.next().unwrap().unwrap();
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    (sub, lines)
}

/// Publishes `count` messages, all of which the server takes.
fn flood(address: &str, count: u64, payload_bytes: usize) {
    let client = Client::connect(address).wait().unwrap();
    let payload = vec![b'x'; payload_bytes];
    for number in 1..=count {
        client.publish("flood", &payload).unwrap();
        if number % 50 == 0 {
            client.flush().wait().unwrap();
        }
    }
    client.flush().wait().unwrap();
}

/// Regression: its memory grew with all published messages, to 820 MB in an hour at a pager.
#[test]
fn a_stalled_reader_costs_little_memory_and_learns_its_losses() {
    const PUBLISHED: u64 = 12_000;
    const PAYLOAD_BYTES: usize = 10_000;
    const MEMORY_BYTES_MAX: usize = PUBLISHED as usize * PAYLOAD_BYTES / 2;
    let policy = ["--app", "pubsub", "--slow-subscriber", "drop_oldest"];
    let (_server, address) = Process::server(&policy);
    let (mut sub, mut lines) = stalled(&address);
    flood(&address, PUBLISHED, PAYLOAD_BYTES);
    let status = std::fs::read_to_string(format!("/proc/{}/status", sub.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak_kb: usize = peak
        .and_then(|peak| peak.trim().strip_suffix(" kB"))
        .unwrap()
        .parse()
        .unwrap();
    assert!(peak_kb * 1024 < MEMORY_BYTES_MAX, "{peak_kb} kB");

    let (mut delivered, mut missing) = (0, 0);
    while delivered + missing < PUBLISHED {
        let line = lines.next().unwrap().unwrap();
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        match object["gap"].as_u64() {
            Some(count) => missing += count,
            None => delivered += u64::from(object["payload"] != "knock"),
        }
    }
    assert_eq!(delivered + missing, PUBLISHED);
    assert!(missing > 0 && delivered > 0, "{delivered} and {missing}");
    sub.kill().unwrap();
    let notes = String::from_utf8(sub.wait_with_output().unwrap().stderr).unwrap();
    let note = "messages of flood were lost here: the server dropped them";
    assert!(notes.contains(note), "{notes}");
}

/// Regression: with the server's usual policy a reader that stalled lost half of the messages, and the only notice was
/// that the peer closed.
#[test]
fn an_interruption_says_that_messages_are_missing() {
    let (_server, address) = server();
    let (mut sub, lines) = stalled(&address);
    flood(&address, 12_000, 10_000);
    // The pipe stays open, because a subscriber without a reader ends.
    let mut objects =
        lines.map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    let object = objects
        .by_ref()
        .find(|object| object.get("interrupted").is_some())
        .unwrap();
    assert_eq!(object["missing"], "unknown");
    // The notice follows on another stream when the subscription continues.
    let mut notes = BufReader::new(sub.stderr.take().unwrap()).lines();
    let is_told = notes.any(|note| {
        note.unwrap()
            .contains("are missing, and their number is unknown")
    });
    assert!(is_told, "the notes ended without it");
    sub.kill().unwrap();
    sub.wait().unwrap();
}

#[test]
fn a_subscriber_survives_its_server_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("ipc://{}", directory.path().join("s").display());
    let serve = || {
        let mut server = Process::start(&["serve", "--app", "pubsub", "--bind", &address]);
        server.expect("ready codec=tw1");
        server
    };
    let server = serve();
    let mut sub = subscriber(&address, &["a.*"]);
    reach(&mut sub, &address, "a.b", "a.b knock");
    server.kill();
    sub.expect("2: ! a.* is interrupted: ");
    let _server = serve();
    sub.expect("2: ! a.* is resumed");
    publish(&["pub", &address, "a.c", "again"], b"");
    sub.expect("a.c again");
}

#[test]
fn a_message_too_large_for_a_frame_is_not_lost_silently() {
    for bind in ["tcp://127.0.0.1:0", "udp://127.0.0.1:0"] {
        let (mut server, address) = Process::server_at(bind, &["--app", "pubsub"]);
        let large = "x".repeat(2 << 20);
        let input = format!("first\n{large}\nthird\n");
        let ended = publish(&["pub", &address, "a", "--json"], input.as_bytes());
        assert_eq!(ended.status.code(), Some(2), "{bind}");
        let object: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(
            (&object["published"], &object["error"]["exit_code"]),
            (&1.into(), &2.into())
        );
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.starts_with("confirmed: 1 messages\nerror: "), "{said}");
        assert!(said.contains("message 2 is not published"), "{said}");
        assert!(said.contains("remedy: send less at once"), "{said}");
        // The messages before it have arrived.
        server.signal(Signal::INT);
        let summary = server.expect("served: ");
        assert!(summary.contains(" published=1"), "{summary}");
        assert_eq!(server.wait().status.code(), Some(0));
    }
}

#[test]
fn mistakes_have_a_code_and_a_remedy() {
    let (_chat, chat) = Process::server(&[]);
    let (_server, pubsub) = server();
    let cases: [(&[&str], i32, &str); 14] = [
        (
            &["pub", &pubsub, "a", "x", "--codec", "srmp"],
            2,
            "codec srmp has no topics",
        ),
        (
            &["sub", &pubsub, "a", "--codec", "lines"],
            2,
            "use --codec tw1",
        ),
        (
            &["pub", &pubsub, "a.*", "x"],
            2,
            "wildcards are not allowed",
        ),
        (&["pub", &pubsub, "a..b", "x"], 2, r#""a..b" is refused: "#),
        (&["pub", &pubsub, "a..b", "x"], 2, "empty segment"),
        (
            &["sub", &pubsub, "a", "--group", "a b"],
            2,
            "give a name such as",
        ),
        (&["sub", &pubsub, "a.>.b"], 2, "whole last segment"),
        (&["sub", &pubsub], 2, "PATTERN"),
        (
            &["sub", &pubsub, "a.*", "--since", "7:2"],
            2,
            "give --since a number",
        ),
        (
            &["sub", &pubsub, "a", "--since", "noon"],
            2,
            "neither a position",
        ),
        (
            &["sub", &pubsub, "a", "--policy", "block"],
            4,
            "choose another policy",
        ),
        (&["pub", &chat, "a", "x"], 4, "serve --app pubsub"),
        (&["sub", &chat, "a"], 4, "serve --app pubsub"),
        (
            &["pub", "ipc:///nowhere/at/all.sock", "a", "x"],
            3,
            "does not exist",
        ),
    ];
    for (arguments, code, text) in cases {
        let output = publish(arguments, b"");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: "), "{stderr}");
        assert!(stderr.contains(text), "{arguments:?}: {stderr}");
    }
    let output = publish(&["serve", "--app", "pubsub", "--codec", "lines"], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("has no topics"));
}

/// The server's own policy applies to subscribers that name none.
#[test]
fn the_servers_policy_is_the_default() {
    for policy in [Policy::DropOldest, Policy::Block] {
        let (_server, address) =
            Process::server(&["--app", "pubsub", "--slow-subscriber", policy.name()]);
        let client = Client::connect(&address).wait().unwrap();
        assert!(client.subscribe("a").wait().is_ok());
        assert!(
            client
                .subscribe("b")
                .policy(Policy::Conflate)
                .wait()
                .is_ok()
        );
    }
}

#[test]
fn a_subscriber_in_a_queue_group_shares_the_messages_with_another_member() {
    let (_server, address) = server();
    let mut worker = subscriber(&address, &["job", "--group", "workers"]);
    reach(&mut worker, &address, "job", "knock");
    let client = Client::connect(&address).wait().unwrap();
    let member = client.subscribe("job").group("workers").wait().unwrap();
    for number in 0..10 {
        client
            .publish("job", format!("{number}.").as_bytes())
            .unwrap();
    }
    client.flush().wait().unwrap();
    drop(member);
    // Without the other member it gets this one.
    client.publish("job", b"the end").unwrap();
    worker.expect("the end");
    let jobs = worker
        .transcript()
        .iter()
        .filter(|line| line.ends_with('.'));
    assert_eq!(jobs.count(), 5);
}

#[test]
fn a_subscriber_begins_with_the_newest_messages_or_after_a_position() {
    let (_server, address) =
        Process::server(&["--app", "pubsub", "--history", "news.*,messages=4"]);
    let publish_lines = |lines: &[u8]| {
        let ended = publish(&["pub", &address, "news.today", "-"], lines);
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    };
    // Returns the messages, and the notices about them.
    let sub = |count: &str, more: &[&str]| {
        let all = ["news.today", "--count", count];
        let ended = subscriber(&address, &[&all[..], more].concat()).wait();
        let is_notice = |line: &String| line.starts_with("2: ");
        let (notices, heard): (Vec<String>, Vec<String>) =
            ended.transcript.into_iter().partition(is_notice);
        (heard, notices.join("\n"))
    };
    publish_lines(b"one\ntwo\nthree\n");
    assert_eq!(sub("2", &["--since", "2"]).0, ["two", "three"]);
    // With a wildcard each topic begins with its newest message.
    let ended = publish(&["pub", &address, "news.other", "-"], b"four\n");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let ended = subscriber(&address, &["news.*", "--count", "2", "--since", "1"]).wait();
    assert_eq!(ended.transcript, ["news.other four", "news.today three"]);
    let (heard, _) = sub("1", &["--json"]);
    let object: serde_json::Value = serde_json::from_str(&heard[0]).unwrap();
    assert_eq!(object["payload"], "one");
    let position = object["position"].as_str().unwrap();
    let (heard, notice) = sub("2", &["--since", position]);
    assert_eq!(heard, ["two", "three"]);
    assert!(
        notice.contains("nothing of news.today is missing"),
        "{notice}"
    );
    publish_lines(b"four\nfive\nsix\n");
    // The history has four messages, and five were published after the position.
    let (heard, notice) = sub("4", &["--since", position]);
    assert_eq!(heard, ["three", "four", "five", "six"]);
    assert!(
        notice.contains("1 messages of news.today are missing"),
        "{notice}"
    );
}
