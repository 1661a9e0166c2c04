//! `serve --backplane`: processes that share rooms and topics over a real `nats-server`.

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
