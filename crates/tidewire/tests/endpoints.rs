//! Addresses and socket options, from the text of an address to a message and back.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tidewire::{Client, ConnectError, ServeError, Server};
use tidewire_io::socket::{KeepAlive, SocketError, SocketOptions};
use tidewire_testkit::fixtures::echo;
use tidewire_testkit::{DEADLINE, assert_conserved, wait_until};

fn serve(address: &str, options: SocketOptions) -> Result<Server, ServeError> {
    Server::builder()
        .socket_options(options)
        .listen(address)?
        .start(|_| echo)
}

/// Sends a request through `address`, and stops the server.
fn ask(server: Server, address: &str, options: SocketOptions) {
    let client = Client::builder()
        .socket_options(options)
        .connect(address)
        .wait();
    let client = client.unwrap();
    let answer = client.request(b"anybody there?").wait().unwrap();
    assert_eq!(answer.payload(), b"anybody there?");
    client.close().wait();
    let stopped = server.shutdown(DEADLINE);
    assert_conserved(&stopped);
    assert_eq!(stopped.metrics.sessions_opened, 1);
}

/// Returns the port that a server got in place of 0.
fn port_of(server: &Server) -> String {
    let address = server.to_string();
    let (_, port) = address.rsplit_once(':').unwrap();
    assert!(port.parse::<u16>().unwrap() > 0, "{address}");
    port.to_owned()
}

#[test]
fn every_kind_of_tcp_address_is_served_and_reported() {
    let plain = SocketOptions::default;
    for (listened, asked) in [
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:"),
        ("127.0.0.1:0", "tcp://localhost:"),
        ("tcp://localhost:0", "tcp://localhost:"),
        ("tcp://*:0", "tcp://127.0.0.1:"),
    ] {
        let server = serve(listened, plain()).unwrap();
        let address = format!("{asked}{}", port_of(&server));
        ask(server, &address, plain());
    }
}

#[test]
fn ipv6_is_served_where_the_machine_has_it() {
    let plain = SocketOptions::default;
    for listened in ["tcp://[::1]:0", "tcp://[::]:0"] {
        match serve(listened, plain()) {
            Ok(server) => {
                let address = format!("tcp://[::1]:{}", port_of(&server));
                ask(server, &address, plain());
            }
            Err(ServeError::Socket(
                SocketError::AddressNotAvailable { .. } | SocketError::Io { .. },
            )) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn options_reach_the_sockets_of_servers_and_clients() {
    let options = SocketOptions {
        ipv6_only: false,
        nodelay: false,
        keep_alive: Some(KeepAlive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            count: 3,
        }),
        send_buffer_bytes: Some(32 * 1024),
        unsent_bytes_max: Some(32 * 1024),
        receive_buffer_bytes: Some(32 * 1024),
        reuse_address: false,
        backlog: 16,
        unix_mode: Some(0o600),
    };
    let server = serve("tcp://127.0.0.1:0", options.clone()).unwrap();
    let address = server.to_string();
    ask(server, &address, options.clone());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let address = format!("ipc://{}", path.display());
    let server = serve(&address, options.clone()).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    ask(server, &address, options);
    assert!(!path.exists());
}

#[test]
fn options_that_cannot_be_name_themselves() {
    let options = SocketOptions {
        ipv6_only: false,
        send_buffer_bytes: Some(usize::MAX),
        ..SocketOptions::default()
    };
    let is_named = |error: &dyn Error| error.to_string().starts_with("send_buffer_bytes is ");
    match serve("tcp://127.0.0.1:0", options.clone()) {
        Err(ServeError::Socket(error @ SocketError::Options { .. })) => {
            assert!(is_named(error.source().unwrap()), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    let server = serve("tcp://127.0.0.1:0", SocketOptions::default()).unwrap();
    let client = Client::builder().socket_options(options);
    match client.connect(&server.to_string()).wait() {
        Err(ConnectError::Socket(error @ SocketError::Options { .. })) => {
            assert!(is_named(error.source().unwrap()), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_conserved(&server.shutdown(DEADLINE));
}

#[test]
fn a_socket_file_of_a_dead_server_is_replaced_and_that_of_a_live_one_refused() {
    let plain = SocketOptions::default;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let address = format!("ipc://{}", path.display());
    // The state that a killed server leaves: bound, closed, not unlinked.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = serve(&address, plain()).unwrap();
    match serve(&address, plain()) {
        Err(ServeError::Socket(error @ SocketError::InUse { .. })) => {
            let text = error.to_string();
            assert!(
                text.contains("another path") && !text.contains("tcp"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
    let client = Client::connect(&address).wait().unwrap();
    assert_eq!(
        client.request(b"unharmed").wait().unwrap().payload(),
        b"unharmed"
    );
    client.close().wait();
    // The second server probed for a listener, which was a connection, too.
    assert_conserved(&server.shutdown(DEADLINE));
    assert!(!path.exists());
}

#[test]
fn an_abstract_name_needs_no_file() {
    let address = format!("ipc://@tidewire-endpoints-{}", std::process::id());
    let server = serve(&address, SocketOptions::default()).unwrap();
    assert_eq!(server.to_string(), address);
    ask(server, &address, SocketOptions::default());
    let with_mode = SocketOptions {
        unix_mode: Some(0o600),
        ..SocketOptions::default()
    };
    match serve(&address, with_mode) {
        Err(ServeError::Socket(SocketError::Options { source, .. })) => {
            let text = source.to_string();
            assert!(text.contains("has no file and so no unix_mode"), "{text}");
        }
        other => panic!("{other:?}"),
    }
}

/// Lanes that poll for work before they sleep behave as all others.
#[test]
fn lanes_may_spin_before_they_sleep() {
    let directory = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}", directory.path().join("s").display());
    for address in ["tcp://127.0.0.1:0", &ipc, "inproc://endpoints/spin"] {
        let server = Server::builder()
            .lanes(2)
            .spin_us(50)
            .listen(address)
            .unwrap()
            .start(|_| echo)
            .unwrap();
        let clients = [50, 0].map(|spin_us| {
            let client = Client::builder().spin_us(spin_us);
            client.connect(&server.to_string()).wait().unwrap()
        });
        for number in 0..500_u32 {
            for client in &clients {
                let answer = client.request(&number.to_le_bytes()).wait().unwrap();
                assert_eq!(answer.payload(), number.to_le_bytes());
            }
        }
        for client in &clients {
            client.close().wait();
        }
        let stopped = server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        // A hello and 500 requests from each.
        assert!(stopped.metrics.frames_in >= 2 * 501);
    }
}

/// By default a lane polls for work only where polling costs nothing but its own time.
#[test]
fn lanes_look_for_work_by_themselves_only_within_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}", directory.path().join("s").display());
    for (address, looks) in [
        ("tcp://127.0.0.1:0", false),
        (&ipc, false),
        (
            "inproc://endpoints/looks",
            tidewire_io::affinity::online_cores() > 1,
        ),
    ] {
        let server = serve(address, SocketOptions::default()).unwrap();
        let client = Client::connect(&server.to_string()).wait().unwrap();
        for number in 0..100_u32 {
            let answer = client.request(&number.to_le_bytes()).wait().unwrap();
            assert_eq!(answer.payload(), number.to_le_bytes());
        }
        let mut frames = 101;
        if looks {
            // After little work the lane lets the threads of its peers run it. If the next request always comes before
            // the lane is idle, the lane has no reason to look.
            wait_until("the lane looks for more", || {
                let asked: Vec<_> = (0..128).map(|_| client.request(b"much").send()).collect();
                frames += asked.len() as u64;
                for request in asked {
                    request.wait().unwrap();
                }
                (server.metrics().spins > 0).then_some(())
            });
        }
        client.close().wait();
        let stopped = server.shutdown(DEADLINE);
        assert_conserved(&stopped);
        let metrics = &stopped.metrics;
        assert_eq!(metrics.frames_in, frames, "a hello and the requests");
        assert_eq!(metrics.spins > 0, looks, "{address}");
        assert!(metrics.spins_found <= metrics.spins);
    }
}
