//! Addresses that are in use, stale, or not a socket.

use std::os::unix::net::UnixListener;

use tidewire::{Client, ServeError, Server};
use tidewire_io::socket::BindError;

use crate::{echo, whole_story};

fn serve(address: &str) -> Result<Server, ServeError> {
    tidewire::serve(address, echo)
}

#[test]
fn a_port_in_use_is_named_with_its_remedy() {
    let first = serve("tcp://127.0.0.1:0").unwrap();
    let error = serve(&first.to_string()).unwrap_err();
    assert!(
        matches!(error, ServeError::Bind(BindError::InUse { .. })),
        "{error:?}"
    );
    let story = whole_story(&error);
    for part in [&first.to_string()[..], "in use", "choose another port"] {
        assert!(story.contains(part), "{part} is missing: {story}");
    }
    // The server that has the address is not affected.
    let client = Client::connect(&first.to_string()).wait().unwrap();
    assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
}

#[test]
fn the_socket_file_of_a_dead_server_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    // A listener of the standard library leaves its file behind when it is dropped, as a killed server does.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let address = format!("ipc://{}", path.display());
    let server = serve(&address).unwrap();
    let client = Client::connect(&address).wait().unwrap();
    assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
    client.close().wait();
    drop(server);
    assert!(!path.exists(), "an orderly end removes the file");
}

#[test]
fn the_socket_of_a_live_server_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let address = format!("ipc://{}", directory.path().join("s").display());
    let first = serve(&address).unwrap();
    let error = serve(&address).unwrap_err();
    assert!(
        matches!(error, ServeError::Bind(BindError::InUse { .. })),
        "{error:?}"
    );
    let client = Client::connect(&address).wait().unwrap();
    assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
    client.close().wait();
    drop(first);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("precious");
    std::fs::write(&path, b"data").unwrap();
    let error = serve(&format!("ipc://{}", path.display())).unwrap_err();
    assert!(
        matches!(error, ServeError::Bind(BindError::NotASocket { .. })),
        "{error:?}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[test]
fn nobody_at_an_address_is_named_with_its_remedy() {
    let server = serve("tcp://127.0.0.1:0").unwrap();
    let address = server.to_string();
    drop(server);
    let story = whole_story(&Client::connect(&address).wait().unwrap_err());
    assert!(story.contains("is the server running?"), "{story}");
}
