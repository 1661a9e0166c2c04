//! In-process names: their owners, and when they are free again.

use tidewire::ConnectError;
use tidewire::address::InprocName;
use tidewire::{Client, Context, HandlerResult, Message, ServeError, Server, Service, serve};
use tidewire_testkit::wait_until;

use crate::{connect_failure, echo, stop};

#[test]
fn the_address_alone_switches_the_transport() {
    let server = serve("inproc://switch", echo).unwrap();
    assert_eq!(server.to_string(), "inproc://switch");
    let client = Client::connect(&server.addresses()[0].to_string())
        .wait()
        .unwrap();
    assert_eq!(client.request(b"hi").wait().unwrap().payload(), b"hi");
    client.close().wait();
    assert_eq!(stop(server).sessions_opened, 1);
}

#[test]
fn connecting_before_binding_fails_with_the_remedy() {
    let error = connect_failure(Client::connect("inproc://nobody").wait());
    assert!(matches!(error, ConnectError::NotListening { .. }));
    let text = error.to_string();
    for part in [
        "inproc://nobody",
        "start the server first",
        "wait for it",
        "per process",
        "ipc://",
    ] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let bare = InprocName::new("nobody").unwrap().connect();
    assert!(matches!(bare, Err(ConnectError::NotListening { .. })));
}

#[test]
fn a_name_has_one_server_and_is_free_when_it_stops() {
    let bind = || serve("inproc://single", echo);
    let first = bind().unwrap();
    let error = bind().unwrap_err();
    assert!(matches!(&error, ServeError::NameInUse { name } if name.as_str() == "single"));
    assert!(error.to_string().contains("choose another name"), "{error}");
    // The failed attempt did not take the name away from the first server.
    let client = Client::connect("inproc://single").wait().unwrap();
    client.close().wait();
    stop(first);
    let second = bind().unwrap();
    drop(second);
    let third = bind().unwrap();
    stop(third);
    let error = connect_failure(Client::connect("inproc://single").wait());
    assert!(matches!(error, ConnectError::NotListening { .. }));
}

#[test]
fn a_server_that_fails_to_start_leaves_its_names_free() {
    let taken = serve("inproc://taken", echo).unwrap();
    let both = Server::builder()
        .listen("inproc://untaken")
        .and_then(|builder| builder.listen("inproc://taken"))
        .unwrap()
        .start(|_| echo);
    assert!(matches!(both, Err(ServeError::NameInUse { .. })));
    stop(serve("inproc://untaken", echo).unwrap());
    stop(taken);
}

/// A service with a lane that ends after a panic.
struct Fragile;

impl Service for Fragile {
    fn on_message(&mut self, _: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        panic!("told to: {:?}", message.kind);
    }

    fn on_panic(&mut self, _: &mut Context<'_>) {
        panic!("told to");
    }
}

#[test]
fn a_failed_lane_closes_its_sessions_and_gives_up_its_name() {
    let builder = Server::builder().listen("inproc://failing").unwrap();
    let failed = builder.start(|_| Fragile).unwrap();
    let client = Client::connect("inproc://failing").wait().unwrap();
    assert!(
        client.request(b"panic").wait().is_err(),
        "it fails, it does not hang"
    );
    wait_until("the lane has ended", || {
        (!failed.is_running()).then_some(())
    });
    let error = connect_failure(Client::connect("inproc://failing").wait());
    assert!(matches!(error, ConnectError::NotListening { .. }));
    let next = serve("inproc://failing", echo).unwrap();
    // The end of the former server does not take the name away from the new one.
    drop(failed);
    let client = Client::connect("inproc://failing").wait().unwrap();
    assert_eq!(
        client.request(b"better").wait().unwrap().payload(),
        b"better"
    );
    client.close().wait();
    stop(next);
}
