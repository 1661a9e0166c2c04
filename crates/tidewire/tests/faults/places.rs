//! Addresses that are in use, stale, or not a socket.

use std::os::unix::net::UnixListener;

use tidewire::{Client, ServeError, Server};
use tidewire_io::socket::SocketError;

use crate::{echo, whole_story};

fn serve(address: &str) -> Result<Server, ServeError> {
    tidewire::serve(address, echo)
}

#[test]
fn a_port_in_use_is_named_with_its_remedy() {
    let first = serve("tcp://127.0.0.1:0").unwrap();
    let error = serve(&first.to_string()).unwrap_err();
    assert!(
        matches!(error, ServeError::Socket(SocketError::InUse { .. })),
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
    // A listener of the standard library leaves its file when it is dropped, like a killed server.
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
        matches!(error, ServeError::Socket(SocketError::InUse { .. })),
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
        matches!(error, ServeError::Socket(SocketError::NotASocket { .. })),
        "{error:?}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}

#[test]
fn an_address_without_a_server_is_an_error_with_a_remedy() {
    let server = serve("tcp://127.0.0.1:0").unwrap();
    let address = server.to_string();
    drop(server);
    let story = whole_story(&Client::connect(&address).wait().unwrap_err());
    assert!(story.contains("is the server running?"), "{story}");
}

/// Starts a server at these addresses.
fn serve_all(addresses: &[String]) -> Result<Server, ServeError> {
    let mut builder = Server::builder();
    for address in addresses {
        builder = builder.listen(address).unwrap();
    }
    builder.start(|_| echo)
}

/// Whether this machine has IPv6.
fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}

fn assert_answers(address: &str) {
    let client = Client::connect(address).wait().unwrap();
    assert_eq!(client.request(b"?").wait().unwrap().payload(), b"?");
    client.close().wait();
}

/// A port that is free at all addresses at this moment.
fn free_port(transport: &str) -> u16 {
    let server = serve_all(&[format!("{transport}://[::]:0")]).unwrap();
    server.addresses()[0].socket_address().unwrap().port()
}

/// Regression: the second of the two was "in use", in both orders, and where the system's `bindv6only` is set, `[::]`
/// alone served no IPv4.
#[test]
fn every_address_of_both_families_is_served_at_one_port_in_any_order() {
    if !has_ipv6() {
        return;
    }
    for transport in ["tcp", "udp"] {
        for hosts in [&["[::]"][..], &["[::]", "0.0.0.0"], &["0.0.0.0", "[::]"]] {
            let port = free_port(transport);
            let address = |host: &&str| format!("{transport}://{host}:{port}");
            let addresses: Vec<String> = hosts.iter().map(address).collect();
            let server = serve_all(&addresses).unwrap();
            assert_eq!(server.addresses().len(), hosts.len());
            assert_answers(&address(&"127.0.0.1"));
            assert_answers(&address(&"[::1]"));
        }
    }
}

/// Regression: a server listened at only one of the two loopback addresses, and clients of the other address were
/// refused.
#[test]
fn localhost_is_listened_on_at_both_loopback_addresses() {
    for transport in ["tcp", "udp", "ws"] {
        let server = serve_all(&[format!("{transport}://localhost:0")]).unwrap();
        let ports = server.addresses().iter();
        let ports: Vec<u16> = ports
            .map(|it| it.socket_address().unwrap().port())
            .collect();
        assert_eq!(ports.len(), if has_ipv6() { 2 } else { 1 });
        assert!(ports.iter().all(|port| *port == ports[0]), "{ports:?}");
        for address in server.addresses() {
            assert_answers(&address.to_string());
        }
    }
}

/// Regression: the error advised to stop the process that has the port, which was this server.
#[test]
fn a_server_says_that_it_has_an_address_already_itself() {
    let port = free_port("tcp");
    for (one, two) in [
        ("tcp://127.0.0.1", "tcp://127.0.0.1"),
        ("tcp://0.0.0.0", "ws://127.0.0.1"),
        ("tcp://[::]", "tcp://127.0.0.1"),
        ("udp://127.0.0.1", "udp://0.0.0.0"),
    ] {
        let addresses = [one, two].map(|it| format!("{it}:{port}"));
        let error = serve_all(&addresses).unwrap_err();
        assert!(matches!(error, ServeError::Twice { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("this server listens on"), "{text}");
        assert!(text.contains(&addresses[0]), "{text}");
    }
    let error = serve_all(&["inproc://twice", "inproc://twice"].map(str::to_owned)).unwrap_err();
    assert!(matches!(error, ServeError::Twice { .. }), "{error:?}");
}
