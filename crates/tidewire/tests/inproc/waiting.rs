//! Connecting before there is a server, if the client chooses so.

use std::time::Duration;

use tidewire::limits::ConnectionLimits;
use tidewire::{Backoff, Client, ConnectError, Event, Limits, Server, serve};
use tidewire_testkit::wait_until;

use crate::caller::{Caller, CallerEvent, alone, next};
use crate::{codec, connect_failure, echo, stop};

#[test]
fn connecting_before_binding_waits_by_choice() {
    let _alone = alone();
    for name in ["tw1", "lines"] {
        let target = format!("inproc://late-{name}");
        let (caller, heard) = Caller::start(codec(name), Limits::default(), &target, 3);
        for _ in 0..3 {
            assert_eq!(next(&heard), CallerEvent::Called);
        }
        // A server with another name does not wake connections that wait for this one.
        let other = serve(&format!("{target}-not"), echo).unwrap();
        assert!(heard.try_recv().is_err(), "nothing can have opened");
        let server = Server::builder()
            .codec(codec(name))
            .listen(&target)
            .unwrap();
        let server = server.start(|_| echo).unwrap();
        let mut told: Vec<CallerEvent> = (0..6).map(|_| next(&heard)).collect();
        told.sort_by_key(|told| format!("{told:?}"));
        let hello = || CallerEvent::Heard(b"hello".to_vec());
        let opened = [0, 1, 2].map(CallerEvent::Opened);
        assert_eq!(told[..3], [hello(), hello(), hello()]);
        assert_eq!(told[3..], opened);
        drop(caller);
        drop(other);
        assert_eq!(stop(server).sessions_opened, 3);
    }
}

#[test]
fn a_client_waits_for_its_server() {
    let _alone = alone();
    let waiting = std::thread::spawn(|| {
        let client = Client::builder()
            .wait_for_server()
            .connect("inproc://awaited")
            .wait()
            .unwrap();
        let reply = client.request(b"at last").wait().unwrap();
        assert_eq!(reply.payload(), b"at last");
        client.close().wait();
    });
    let server = serve("inproc://awaited", echo).unwrap();
    waiting.join().unwrap();
    assert_eq!(stop(server).sessions_opened, 1);
}

#[test]
fn a_client_that_reconnects_waits_again() {
    let _alone = alone();
    let server = serve("inproc://restarted", echo).unwrap();
    let client = Client::builder()
        .wait_for_server()
        .reconnect(Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(1),
        })
        .connect("inproc://restarted")
        .wait()
        .unwrap();
    assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    stop(server);
    assert!(matches!(client.next_event().wait(), Event::Closed { .. }));
    assert!(matches!(
        client.next_event().wait(),
        Event::Reconnecting { .. }
    ));
    let server = serve("inproc://restarted", echo).unwrap();
    // One attempt was enough, whether it came before the server or after.
    assert!(matches!(client.next_event().wait(), Event::Opened { .. }));
    client.close().wait();
    stop(server);
}

#[test]
fn waiting_ends_with_the_handshake_timeout() {
    let _alone = alone();
    for name in ["tw1", "lines"] {
        let mut limits = ConnectionLimits::default();
        limits.set_handshake_timeout(Duration::from_millis(30));
        let target = format!("inproc://never-{name}");
        let outcome = Client::builder()
            .codec(codec(name))
            .limits(limits)
            .wait_for_server()
            .connect(&target)
            .wait();
        let error = connect_failure(outcome);
        assert!(
            matches!(error, ConnectError::WaitedInVain { .. }),
            "{error}"
        );
        // A caller that gave up is removed: the later server gets no connection from it.
        let server = Server::builder()
            .codec(codec(name))
            .listen(&target)
            .unwrap();
        let server = server.start(|_| echo).unwrap();
        assert_eq!(stop(server).sessions_opened, 0);
    }
}

#[test]
fn only_names_of_this_process_can_be_waited_for() {
    let outcome = Client::builder()
        .wait_for_server()
        .connect("tcp://127.0.0.1:9")
        .wait();
    assert!(matches!(connect_failure(outcome), ConnectError::CannotWait));
}

#[test]
fn only_so_many_wait() {
    let _alone = alone();
    const WAITING_MAX: usize = 256;
    let (caller, heard) = Caller::start(
        codec("tw1"),
        Limits::default(),
        "inproc://crowded",
        WAITING_MAX + 20,
    );
    let told: Vec<CallerEvent> = (0..WAITING_MAX + 20).map(|_| next(&heard)).collect();
    let waiting = told
        .iter()
        .filter(|told| **told == CallerEvent::Called)
        .count();
    assert_eq!(waiting, WAITING_MAX);
    let refusal = told
        .iter()
        .find(|told| **told != CallerEvent::Called)
        .unwrap();
    assert!(
        matches!(refusal, CallerEvent::RefusedAtOnce(text) if text.contains("too many connections already wait")),
        "{refusal:?}"
    );
    // The server accepts all waiting connections.
    let server = serve("inproc://crowded", echo).unwrap();
    let all = waiting as u64;
    wait_until("everybody is in", || {
        (server.metrics().sessions_opened == all).then_some(())
    });
    drop(caller);
    stop(server);
}
