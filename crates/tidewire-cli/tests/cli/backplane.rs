//! `serve --backplane`: processes that share rooms and topics over a real `nats-server`.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use rustix::process::Signal;
use serde_json::{Value, json};
use tidewire::{Client, TopicEvent};
use tidewire_testkit::certificates::Authority;
use tidewire_testkit::{DEADLINE, NatsServer, wait_until};

use crate::process::{Ended, Process};

/// Starts a node of this application, and returns its address.
fn node(nats: &NatsServer, id: &str, app: &str) -> (Process, String) {
    let address = nats.address();
    Process::server(&["--app", app, "--backplane", &address, "--node", id])
}

#[test]
fn two_processes_share_a_room_and_one_dies() {
    let Some(nats) = NatsServer::start("") else {
        return;
    };
    let (one, first) = node(&nats, "one", "chat");
    let (mut two, second) = node(&nats, "two", "chat");
    let mut ann = Process::chat(&first, "ann");
    let mut bob = Process::chat(&second, "bob");
    ann.expect("bob joined");
    ann.type_line("hello over there");
    bob.expect("hello over there");
    bob.type_line("/msg ann psst");
    ann.expect("psst");
    // Nothing but its silence tells that a killed process has died.
    one.kill();
    two.expect("a node is silent");
    bob.expect("ann left");
    drop(two);
}

#[test]
fn a_stopped_process_comes_back_with_its_members() {
    let Some(nats) = NatsServer::start("") else {
        return;
    };
    let (one, first) = node(&nats, "one", "chat");
    let (_two, second) = node(&nats, "two", "chat");
    let mut ann = Process::chat(&first, "ann");
    let mut bob = Process::chat(&second, "bob");
    ann.expect("bob joined");
    // Bob receives Ann's join now or later, and must have it before she leaves.
    wait_until("bob knows her", || bob.has_line("ann").then_some(()));
    one.signal(Signal::STOP);
    bob.expect("ann left");
    one.signal(Signal::CONT);
    bob.expect("ann joined");
    ann.type_line("back again");
    bob.expect("back again");
}

#[test]
fn a_client_that_returns_to_a_node_reads_messages_of_the_other() {
    let Some(nats) = NatsServer::start_with_streams("") else {
        return;
    };
    let address = nats.address();
    let node = |bind: &str, id: &str| {
        let of = ["--history", ">,messages=10"];
        let cluster = ["--backplane", &address, "--node", id];
        Process::server_at(bind, &[&of[..], &cluster].concat())
    };
    let (one, first) = node("tcp://127.0.0.1:0", "one");
    let (_two, second) = node("tcp://127.0.0.1:0", "two");
    let mut ann = Process::chat(&first, "ann");
    let mut bob = Process::chat(&second, "bob");
    bob.type_line("before");
    ann.expect("[bob]: before");
    one.kill();
    ann.expect("! connection lost: ");
    bob.type_line("while ann was away");
    // The answer means that the node has it.
    bob.type_line("/who");
    bob.expect(" in lobby: ");
    let _one = node(&first, "one");
    ann.expect("* this was said meanwhile:");
    ann.expect("[bob]: while ann was away");
    bob.type_line("after");
    ann.expect("[bob]: after");
    let heard = ann.transcript().iter();
    let twice = heard.filter(|line| line.contains("[bob]: ")).count();
    assert_eq!(twice, 3, "{:#?}", ann.transcript());
}

#[test]
fn topics_cross_processes_and_a_restart_of_nats() {
    let Some(mut nats) = NatsServer::start("") else {
        return;
    };
    let (_one, first) = node(&nats, "one", "pubsub");
    let (_two, second) = node(&nats, "two", "pubsub");
    let mut sub = Process::start(&["sub", &second, "price.>"]);
    let publisher = Client::connect(&first).wait().unwrap();
    for round in ["before", "after"] {
        wait_until("a message crosses", || {
            publisher.publish("price.eur", round.as_bytes()).unwrap();
            publisher.flush().wait().unwrap();
            sub.has_line(round).then_some(())
        });
        nats.kill();
        nats.start_again();
    }
}

#[test]
fn the_latest_value_of_a_topic_is_kept_for_all_processes() {
    let Some(nats) = NatsServer::start_with_streams("") else {
        return;
    };
    let address = nats.address();
    let node = |id: &str| {
        let of = ["--app", "pubsub", "--history", "state.>,messages=1"];
        Process::server(&[&of[..], &["--backplane", &address, "--node", id]].concat())
    };
    let (one, first) = node("one");
    let (_two, second) = node("two");
    let publisher = Client::connect(&first).wait().unwrap();
    let mut near = Process::start(&["sub", &first, "state.door"]);
    for value in ["closed", "open"] {
        publisher.publish("state.door", value.as_bytes()).unwrap();
        near.expect(value);
    }
    drop(publisher);
    one.kill();
    let mut late = Process::start(&["sub", &second, "state.door"]);
    late.expect("open");
    assert!(!late.has_line("closed"));
}

/// Each confirmed message is in the stream already, so an end of the node right after the confirmation loses none.
#[test]
fn messages_that_a_node_confirmed_are_in_the_history_when_it_is_killed() {
    const CONFIRMED: usize = 1_000;
    let Some(nats) = NatsServer::start_with_streams("") else {
        return;
    };
    let address = nats.address();
    let node = |id: &str| {
        let of = ["--history", "state.>,messages=2000,bytes=1000000"];
        let cluster = ["--backplane", &address, "--node", id];
        Process::server(&[&["--app", "pubsub"], &of[..], &cluster].concat())
    };
    let (_two, second) = node("two");
    let reader = Client::connect(&second).wait().unwrap();
    for round in 0..10 {
        let topic = format!("state.round-{round}");
        let (one, first) = node(&format!("one-{round}"));
        let publisher = Client::connect(&first).wait().unwrap();
        let publish = |number: usize| {
            let text = number.to_string();
            publisher.publish(&topic, text.as_bytes()).unwrap();
        };
        (0..CONFIRMED).for_each(publish);
        publisher.flush().wait().unwrap();
        // These are not confirmed. Those that are stored come after the others.
        (CONFIRMED..CONFIRMED + 100).for_each(publish);
        one.kill();
        let stored = reader.subscribe(&topic).events_max(4_000).wait().unwrap();
        for number in 0..CONFIRMED {
            let Some(TopicEvent::Message(message)) = stored.next_event().wait_for(DEADLINE) else {
                panic!("round {round}: message {number} is missing");
            };
            assert_eq!(message.payload, number.to_string().as_bytes());
        }
    }
}

#[test]
fn pub_succeeds_only_if_its_message_is_stored() {
    let Some(mut nats) = NatsServer::start_with_streams("") else {
        return;
    };
    let of = ["--app", "pubsub", "--history", "state.>,messages=10"];
    let address = nats.address();
    let (mut node, first) = Process::server(&[&of[..], &["--backplane", &address]].concat());
    let publish = |text: &str| Process::start(&["pub", &first, "state.door", text]).wait();
    assert_eq!(publish("1").status.code(), Some(0));
    nats.kill();
    node.expect("the node is cut off");
    let ended = publish("2");
    assert_eq!(ended.status.code(), Some(5), "{}", ended.text());
    assert!(
        ended.text().contains("the confirmation"),
        "{}",
        ended.text()
    );
    nats.start_again();
    assert_eq!(publish("3").status.code(), Some(0));
    let mut reader = Process::start(&["sub", &first, "state.door"]);
    for text in ["1", "2", "3"] {
        reader.expect(text);
    }
}

#[test]
fn a_method_of_another_process_is_called_until_it_dies() {
    let Some(nats) = NatsServer::start("") else {
        return;
    };
    let address = nats.address();
    let node = |id: &str, methods: &str| {
        let of = ["--app", "rpc", "--methods", methods];
        Process::server(&[&of[..], &["--backplane", &address, "--node", id]].concat())
    };
    let (one, _) = node("one", "add,sleep");
    let (_two, second) = node("two", "time");
    let client = Client::connect(&second).wait().unwrap();
    let ask = |method: &str, payload: &[u8]| {
        let request = client.request(payload).method(method);
        request.timeout(Duration::from_secs(60)).send()
    };
    assert_eq!(ask("add", b"2 40").wait().unwrap().payload(), b"42");
    assert!(ask("time", b"").wait().is_ok(), "its own");
    let error = ask("echo", b"").wait().unwrap_err();
    assert!(
        error.to_string().contains("no node has this method"),
        "{error}"
    );
    assert_eq!(ask("sleep", b"1").wait().unwrap().payload(), b"awake");
    one.kill();
    // NATS notices the end of a process at once, but not before it.
    wait_until("no process has the method", || {
        let request = client.request(b"1").method("add");
        let error = request.timeout(Duration::from_secs(1)).wait().err()?;
        error.to_string().contains("no node").then_some(())
    });
    let wrong = ["serve", "--app", "rpc", "--methods", "divide"];
    let ended = Process::start(&wrong).wait();
    let text = ended.transcript.join("\n");
    assert!(
        text.contains("no method") && text.contains("add, echo"),
        "{text}"
    );
}

#[test]
fn a_backplane_that_is_not_there_is_an_error_with_a_remedy() {
    let arguments = [
        "serve",
        "--backplane",
        "nats://127.0.0.1:1",
        "--bind",
        "tcp://127.0.0.1:0",
    ];
    let ended = Process::start(&arguments).wait();
    assert_eq!(ended.status.code(), Some(3), "unreachable");
    let text = ended.transcript.join("\n");
    assert!(text.contains("cannot reach NATS at 127.0.0.1:1"), "{text}");
    let ended = Process::start(&["serve", "--node", "a", "--bind", "tcp://127.0.0.1:0"]).wait();
    let text = ended.transcript.join("\n");
    assert!(text.contains("add --backplane"), "{text}");
}

/// Regression: the signal waited for the end of the start, and the server ended 17 s later with the code of a failed
/// drain.
#[test]
fn a_signal_ends_a_server_that_waits_for_the_backplane() {
    for signal in [Signal::INT, Signal::TERM] {
        let absent = ["--backplane", "nats://127.0.0.1:1", "--backplane-wait"];
        let bind = ["serve", "--bind", "tcp://127.0.0.1:0"];
        let mut server = Process::start(&[&bind[..], &absent].concat());
        server.expect("waiting for it");
        server.signal(signal);
        let ended = server.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        let told = "stopped before the server was started";
        assert!(ended.text().contains(told), "{}", ended.text());
    }
}

/// Starts a node that must not start.
fn refused(address: &str, more: &[&str]) -> Ended {
    let of = ["serve", "--bind", "tcp://127.0.0.1:0"];
    let node = ["--backplane", address, "--node", "one"];
    Process::start(&[&of[..], &node, more].concat()).wait()
}

/// Starts a node with these flags. It has reached NATS when this returns.
fn accepted(address: &str, more: &[&str]) -> (Process, String) {
    Process::server(&[&["--backplane", address, "--node", "one"], more].concat())
}

#[test]
fn a_wrong_password_has_the_exit_code_of_a_refusal_and_is_not_shown() {
    let users = r#"authorization { user: "node", password: "right" }"#;
    let Some(nats) = NatsServer::start(users) else {
        return;
    };
    let with = |password: &str| format!("nats://node:{password}@127.0.0.1:{}", nats.port());
    let ended = refused(&with("stolen"), &[]);
    let text = ended.text();
    assert_eq!(ended.status.code(), Some(4), "{text}");
    assert!(text.contains("refuses the credentials"), "{text}");
    assert!(!text.contains("stolen"), "{text}");
    accepted(&with("right"), &[]);
}

#[test]
fn a_nats_with_tls_is_trusted_by_the_authority_of_the_flag() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("of nats");
    let server = authority.sign_server();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let ca = file("ca.pem", authority.text());
    let [chain, key] = [("nats.pem", &server.chain), ("nats.key", &server.key)]
        .map(|(name, text)| file(name, text));
    let tls = format!("tls {{ cert_file: \"{chain}\", key_file: \"{key}\" }}");
    let Some(nats) = NatsServer::start(&tls) else {
        return;
    };
    let address = format!("tls://127.0.0.1:{}", nats.port());
    accepted(&address, &["--backplane-ca", &ca]);
    // Regression: it was taken for a NATS that is not there, which is waited for.
    let ended = refused(&address, &["--backplane-wait"]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    let told = "cannot encrypt the connection to NATS";
    assert!(ended.text().contains(told), "{}", ended.text());
}

/// A token as NATS signs its own.
fn token(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let (issuer_id, subject) = (issuer.public_key(), subject.public_key());
    let claims = json!({"iss": issuer_id, "sub": subject, "jti": "1", "iat": 1, "nats": nats});
    let encode = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encode(header), encode(claims));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn the_file_of_credentials_lets_a_node_in() {
    let operator = KeyPair::new_operator();
    let (account, user) = (KeyPair::new_account(), KeyPair::new_user());
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "conn": -1, "wildcards": true});
    let of_operator = token(
        &operator,
        &operator,
        &json!({"type": "operator", "version": 2}),
    );
    let of_account = json!({"type": "account", "version": 2, "limits": limits});
    let of_account = token(&operator, &account, &of_account);
    let of_user = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
    let of_user = token(&account, &user, &of_user);
    let id = account.public_key();
    let accounts = format!("resolver: MEMORY\nresolver_preload: {{ {id}: {of_account} }}");
    let Some(nats) = NatsServer::start(&format!("operator: {of_operator}\n{accounts}")) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("node.creds");
    let seed = user.seed().unwrap();
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(&file, text).unwrap();
    let set_mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&file, mode).unwrap();
    };
    set_mode(0o644);
    let shown = file.display().to_string();
    let ended = refused(&nats.address(), &["--backplane-credentials", &shown]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains("chmod 600"), "{}", ended.text());
    set_mode(0o600);
    let file = file.display().to_string();
    accepted(&nats.address(), &["--backplane-credentials", &file]);
    assert_eq!(refused(&nats.address(), &[]).status.code(), Some(4));
    let missing = format!("{file}.old");
    let ended = refused(&nats.address(), &["--backplane-credentials", &missing]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.text());
    assert!(ended.text().contains(&missing), "{}", ended.text());
}

#[test]
fn a_node_that_waits_starts_when_nats_does() {
    let Some(mut nats) = NatsServer::start("") else {
        return;
    };
    nats.kill();
    let address = nats.address();
    let of = ["serve", "--bind", "tcp://127.0.0.1:0"];
    let mut node =
        Process::start(&[&of[..], &["--backplane", &address, "--backplane-wait"]].concat());
    node.expect("waiting for it");
    nats.start_again();
    node.expect("ready codec=");
}

#[test]
fn a_node_that_is_cut_off_refuses_messages_if_it_is_told_to() {
    let Some(mut nats) = NatsServer::start("") else {
        return;
    };
    let (mut node, address) = accepted(&nats.address(), &["--backplane-cut-off", "fail"]);
    let [mut ann, mut bob] = ["ann", "bob"].map(|name| Process::chat(&address, name));
    nats.kill();
    node.expect("the node is cut off");
    ann.type_line("is anyone there?");
    ann.expect("! the server refused your message: the server is cut off");
    nats.start_again();
    node.expect("the node reaches its backplane again");
    ann.type_line("hello again");
    bob.expect("[ann]: hello again");
    assert!(!bob.has_line("is anyone there?"));
}
