//! `serve --backplane`: processes that share rooms and topics over a real `nats-server`.

use std::time::Duration;

use rustix::process::Signal;
use tidewire::Client;
use tidewire_testkit::{NatsServer, wait_until};

use crate::process::Process;

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
    one.signal(Signal::STOP);
    bob.expect("ann left");
    one.signal(Signal::CONT);
    bob.expect("ann joined");
    ann.type_line("back again");
    bob.expect("back again");
}

#[test]
fn who_comes_back_to_a_node_reads_what_was_said_at_the_other_one() {
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

/// The bug: the signal waited for the end of the start, and the server ended 17 s later with the code of a failed drain.
#[test]
fn a_signal_ends_a_server_that_waits_for_the_backplane() {
    for signal in [Signal::INT, Signal::TERM] {
        let absent = ["--backplane", "nats://127.0.0.1:1", "--backplane-wait"];
        let bind = ["serve", "--bind", "tcp://127.0.0.1:0"];
        let mut server = Process::start(&[&bind[..], &absent].concat());
        server.expect("waiting for NATS");
        server.signal(signal);
        let ended = server.wait();
        assert_eq!(ended.status.code(), Some(0), "{}", ended.text());
        let told = "stopped before the server was started";
        assert!(ended.text().contains(told), "{}", ended.text());
    }
}
