//! Sockets against the real kernel: both families, good and bad endings.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

use std::fs;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt;
use tidewire_io::poller::{Events, Interest, PollerChoice, Token, open};
use tidewire_io::socket::{
    AcceptError, KeepAlive, Listener, Presence, SocketAddress, SocketError, SocketOptions, Stream,
};

fn any_port() -> SocketAddress {
    SocketAddress::Tcp("127.0.0.1:0".parse().unwrap())
}

fn at(path: &Path) -> SocketAddress {
    SocketAddress::Unix(path.to_path_buf())
}

fn listen(address: &SocketAddress) -> Listener {
    Listener::bind(address, &SocketOptions::default()).unwrap()
}

/// Blocks until the stream is ready in that direction.
fn await_ready(stream: &Stream, interest: Interest) {
    let mut poller = open(PollerChoice::Auto).unwrap();
    poller.add(stream.as_fd(), Token(0), interest).unwrap();
    let mut events = Events::with_capacity(1);
    while events.is_empty() {
        poller.wait(&mut events, None).unwrap();
    }
}

fn connected(listener: &Listener) -> (Stream, Stream) {
    let client = Stream::connect(listener.local_address()).unwrap();
    await_ready(&client, Interest::WRITE);
    client.finish_connect().unwrap();
    (client, listener.accept().unwrap().stream)
}

fn read_all(stream: &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = [0; 1_024];
    loop {
        await_ready(stream, Interest::READ);
        match stream.read(&mut buffer).unwrap() {
            0 => return all,
            length => all.extend_from_slice(&buffer[..length]),
        }
    }
}

#[test]
fn bytes_travel_both_ways_over_both_families() {
    let directory = tempfile::tempdir().unwrap();
    for address in [any_port(), at(&directory.path().join("socket"))] {
        let listener = listen(&address);
        let (mut client, mut server) = connected(&listener);
        let pieces = [b"gather".as_slice(), b"", b"ed write"].map(IoSlice::new);
        assert_eq!(client.write_vectored(&pieces).unwrap(), 14);
        client.shutdown_write().unwrap();
        assert_eq!(read_all(&mut server), b"gathered write");
        assert_eq!(server.write(b"answer").unwrap(), 6);
        drop(server);
        assert_eq!(read_all(&mut client), b"answer");
        let gone = client.write(b"more");
        // Over TCP the kernel may still take the first write after the end; it never raises a signal.
        assert!(gone.is_ok() || gone.unwrap_err().kind() == ErrorKind::BrokenPipe);
    }
}

#[test]
fn nothing_blocks() {
    let listener = listen(&any_port());
    assert!(matches!(listener.accept(), Err(AcceptError::WouldBlock)));
    let (mut client, _server) = connected(&listener);
    let empty = client.read(&mut [0; 8]).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    client.set_send_buffer_bytes(4_096).unwrap();
    client.set_receive_buffer_bytes(4_096).unwrap();
    let full = loop {
        if let Err(cause) = client.write(&[0; 4_096]) {
            break cause;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
}

#[test]
fn more_pieces_than_the_kernel_takes_are_a_short_write() {
    let (mut near, mut far) = Stream::pair().unwrap();
    let pieces = vec![IoSlice::new(b"x"); Stream::PIECES_MAX + 10];
    assert_eq!(near.write_vectored(&pieces).unwrap(), Stream::PIECES_MAX);
    assert_eq!(far.read(&mut [0; 4_096]).unwrap(), Stream::PIECES_MAX);
}

#[test]
fn a_chosen_port_and_the_peers_are_known_by_address() {
    let listener = listen(&any_port());
    let SocketAddress::Tcp(local) = *listener.local_address() else {
        panic!("a TCP listener has a TCP address");
    };
    assert_ne!(local.port(), 0);
    let client = Stream::connect(listener.local_address()).unwrap();
    let accepted = listener.accept().unwrap();
    assert_eq!(client.peer(), Some(local));
    assert_eq!(accepted.peer, accepted.stream.peer());
    assert_eq!(accepted.peer.unwrap().ip(), local.ip());
}

#[test]
fn the_peer_of_a_unix_socket_is_a_process() {
    let directory = tempfile::tempdir().unwrap();
    let address = at(&directory.path().join("socket"));
    let listener = listen(&address);
    let client = Stream::connect(&address).unwrap();
    let accepted = listener.accept().unwrap();
    assert_eq!((client.peer(), accepted.peer), (None, None));
    let credentials = accepted.stream.peer_credentials().unwrap();
    assert_eq!(credentials.process_id, std::process::id());
}

#[test]
fn tcp_sends_at_once_on_both_ends() {
    let listener = listen(&any_port());
    let (client, server) = connected(&listener);
    for stream in [client, server] {
        assert!(rustix::net::sockopt::tcp_nodelay(stream.as_fd()).unwrap());
    }
}

#[test]
fn a_reset_is_an_error_and_not_an_end() {
    let listener = listen(&any_port());
    let (client, mut server) = connected(&listener);
    client.reset_on_close().unwrap();
    drop(client);
    await_ready(&server, Interest::READ);
    let reset = server.read(&mut [0; 8]).unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_stream_survives_the_way_through_a_bare_descriptor() {
    let listener = listen(&any_port());
    let (client, mut server) = connected(&listener);
    let peer = client.peer();
    let bare = OwnedFd::from(client);
    rustix::io::ioctl_fionbio(&bare, false).unwrap();
    let mut client = Stream::try_from(bare).unwrap();
    assert_eq!(client.peer(), peer);
    let empty = client.read(&mut [0; 8]).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock, "non-blocking again");
    client.write(b"x").unwrap();
    await_ready(&server, Interest::READ);
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 1);
}

#[test]
fn a_port_in_use_is_refused_and_free_again_after_close() {
    let listener = listen(&any_port());
    let address = listener.local_address().clone();
    let refused = Listener::bind(&address, &SocketOptions::default()).unwrap_err();
    assert!(matches!(refused, SocketError::InUse { .. }), "{refused:?}");
    // A connection that its server closed first would hold the port without address reuse.
    let (client, server) = connected(&listener);
    drop((server, listener, client));
    listen(&address);
}

#[test]
fn an_address_of_another_machine_is_not_available() {
    // 192.0.2.0/24 is reserved for documentation.
    let foreign = SocketAddress::Tcp("192.0.2.1:0".parse().unwrap());
    let refused = Listener::bind(&foreign, &SocketOptions::default()).unwrap_err();
    assert!(matches!(refused, SocketError::AddressNotAvailable { .. }));
}

#[test]
fn a_socket_file_is_removed_by_its_own_listener_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let listener = listen(&at(&path));
    drop(listener);
    assert!(!path.exists());

    let first = listen(&at(&path));
    fs::remove_file(&path).unwrap();
    let second = listen(&at(&path));
    drop(first);
    assert!(path.exists(), "it is the second's now");
    drop(second);
    assert!(!path.exists());
}

#[test]
fn only_the_file_of_a_dead_server_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    // The socket is bound, closed and not unlinked, as a killed process leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = listen(&at(&path));
    let refused = Listener::bind(&at(&path), &SocketOptions::default()).unwrap_err();
    assert!(matches!(refused, SocketError::InUse { .. }), "{refused:?}");
    assert!(refused.to_string().contains("ss -lxp"));
    // The first server also sees the probe of the second server as a connection.
    while listener.accept().is_ok() {}
    connected(&listener);
}

#[test]
fn a_live_server_with_a_full_backlog_is_not_taken_for_dead() {
    let directory = tempfile::tempdir().unwrap();
    let address = at(&directory.path().join("socket"));
    let options = SocketOptions {
        backlog: 0,
        ..SocketOptions::default()
    };
    let _listener = Listener::bind(&address, &options).unwrap();
    let mut waiting = Vec::new();
    let busy = loop {
        match Stream::connect(&address) {
            Ok(stream) => waiting.push(stream),
            Err(cause) => break cause,
        }
    };
    assert!(matches!(busy, SocketError::Busy { .. }), "{busy:?}");
    let refused = Listener::bind(&address, &SocketOptions::default()).unwrap_err();
    assert!(matches!(refused, SocketError::InUse { .. }));
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes");
    fs::write(&path, "precious").unwrap();
    let refused = Listener::bind(&at(&path), &SocketOptions::default()).unwrap_err();
    assert!(matches!(refused, SocketError::NotASocket { .. }));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_path_that_cannot_be_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let missing = at(&directory.path().join("no/such/socket"));
    let refused = Listener::bind(&missing, &SocketOptions::default()).unwrap_err();
    assert!(matches!(refused, SocketError::NoDirectory { .. }));
    let long = at(&directory.path().join("x".repeat(120)));
    let refused = Listener::bind(&long, &SocketOptions::default()).unwrap_err();
    assert!(matches!(refused, SocketError::PathTooLong { .. }));
}

#[test]
fn a_socket_file_has_exactly_the_requested_mode() {
    let directory = tempfile::tempdir().unwrap();
    // Without a mode only the user of the server may connect, whatever the umask is.
    for (asked, mode) in [(Some(0o600), 0o600), (Some(0o666), 0o666), (None, 0o600)] {
        let path = directory.path().join(format!("{asked:?}"));
        let options = SocketOptions {
            unix_mode: asked,
            ..SocketOptions::default()
        };
        let _listener = Listener::bind(&at(&path), &options).unwrap();
        let found = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(found & 0o777, mode);
    }
}

#[test]
fn connecting_without_a_server_is_a_named_error() {
    let directory = tempfile::tempdir().unwrap();
    let missing = at(&directory.path().join("socket"));
    let refused = Stream::connect(&missing).unwrap_err();
    assert!(matches!(refused, SocketError::NotFound { .. }));

    let path = directory.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let refused = Stream::connect(&at(&path)).unwrap_err();
    assert!(matches!(refused, SocketError::Refused { .. }));

    // The port was free a moment ago, and the system does not give it to another socket so soon.
    let address = listen(&any_port()).local_address().clone();
    let refused = Stream::connect(&address).and_then(|stream| {
        await_ready(&stream, Interest::WRITE);
        stream.finish_connect()
    });
    assert!(matches!(refused, Err(SocketError::Refused { .. })));
}

#[test]
fn a_socket_connected_to_itself_counts_as_refused() {
    // Binding first provokes a case that otherwise takes thousands of attempts: TCP's simultaneous open of a socket
    // with itself.
    let local = match *listen(&any_port()).local_address() {
        SocketAddress::Tcp(local) => local,
        SocketAddress::Unix(_) => panic!("a TCP listener has a TCP address"),
    };
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &local).unwrap();
    rustix::net::connect(&socket, &local).unwrap();
    let stream = Stream::try_from(socket).unwrap();
    assert_eq!(stream.peer(), Some(local));
    let refused = stream.finish_connect();
    assert!(matches!(refused, Err(SocketError::Refused { .. })));
}

/// Regression: a peer that did not read held up to 4 MB of the kernel's memory.
#[test]
fn the_kernel_takes_few_bytes_for_a_peer_that_does_not_read() {
    let options = SocketOptions::default();
    let bytes_max = options.unsent_bytes_max.unwrap() as usize;
    let narrow = SocketOptions {
        receive_buffer_bytes: Some(4_096),
        ..SocketOptions::default()
    };
    let listener = Listener::bind(&any_port(), &options).unwrap();
    let client = Stream::connect_with(listener.local_address(), &narrow).unwrap();
    await_ready(&client, Interest::WRITE);
    let mut accepted = loop {
        match listener.accept() {
            Ok(accepted) => break accepted.stream,
            Err(AcceptError::WouldBlock) => {}
            Err(cause) => panic!("{cause}"),
        }
    };
    let mut taken = 0;
    // The peer's own buffer takes its part a moment later.
    for _ in 0..1_000 {
        match accepted.write(&[0; 60_000]) {
            Ok(count) => taken += count,
            Err(cause) => assert_eq!(cause.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!(taken >= bytes_max, "{taken}");
    // A record of the kernel may pass the limit, and the peer's buffer takes some kilobytes.
    assert!(taken < 3 * bytes_max, "{taken}");
}

#[test]
fn a_look_at_a_connection_tells_whether_the_peer_is_there() {
    let listener = listen(&any_port());
    let mut client = Stream::connect(listener.local_address()).unwrap();
    await_ready(&client, Interest::WRITE);
    let accepted = listener.accept().unwrap().stream;
    assert_eq!(accepted.presence(), Presence::Silent);
    assert!(accepted.since_arrival().is_some());
    assert_eq!(client.write(b"hello").unwrap(), 5);
    await_ready(&accepted, Interest::READ);
    assert_eq!(accepted.presence(), Presence::Speaking);
    client.shutdown_write().unwrap();
    while accepted.presence() != Presence::HalfClosed {}
    client.reset_on_close().unwrap();
    drop(client);
    while accepted.presence() != Presence::Gone {}
    let (near, far) = Stream::pair().unwrap();
    assert_eq!(near.since_arrival(), None, "a Unix socket");
    drop(far);
    assert_eq!(near.presence(), Presence::Gone);
}

#[test]
fn the_time_since_the_last_bytes_counts_from_their_arrival_and_not_from_accept() {
    let listener = listen(&any_port());
    let mut client = Stream::connect(listener.local_address()).unwrap();
    await_ready(&client, Interest::WRITE);
    client.write(b"hello").unwrap();
    let wait = Duration::from_millis(50);
    let began = std::time::Instant::now();
    while began.elapsed() < wait {}
    let accepted = listener.accept().unwrap().stream;
    // The kernel counts in ticks of up to 10 ms.
    assert!(accepted.since_arrival().unwrap() >= wait - Duration::from_millis(20));
}

#[test]
fn options_are_in_force_on_both_ends() {
    let seconds = Duration::from_secs;
    let options = SocketOptions {
        nodelay: false,
        keep_alive: Some(KeepAlive {
            idle: seconds(70),
            interval: seconds(11),
            count: 4,
        }),
        send_buffer_bytes: Some(50_000),
        receive_buffer_bytes: Some(60_000),
        ..SocketOptions::default()
    };
    let directory = tempfile::tempdir().unwrap();
    for address in [any_port(), at(&directory.path().join("socket"))] {
        let listener = Listener::bind(&address, &options).unwrap();
        let client = Stream::connect_with(listener.local_address(), &options).unwrap();
        let accepted = listener.accept().unwrap().stream;
        for end in [&client, &accepted] {
            // The kernel doubles the requested size.
            assert_eq!(sockopt::socket_send_buffer_size(end).unwrap(), 100_000);
            assert_eq!(sockopt::socket_recv_buffer_size(end).unwrap(), 120_000);
            if end.is_tcp() {
                assert!(!sockopt::tcp_nodelay(end).unwrap());
                assert!(sockopt::socket_keepalive(end).unwrap());
                assert_eq!(sockopt::tcp_keepidle(end).unwrap(), seconds(70));
                assert_eq!(sockopt::tcp_keepintvl(end).unwrap(), seconds(11));
                assert_eq!(sockopt::tcp_keepcnt(end).unwrap(), 4);
            }
        }
    }
    let listener = listen(&any_port());
    let (client, accepted) = connected(&listener);
    for end in [&client, &accepted] {
        assert!(!sockopt::socket_keepalive(end).unwrap(), "by default none");
    }
    assert!(sockopt::socket_reuseaddr(&listener).unwrap());
    let options = SocketOptions {
        reuse_address: false,
        ..SocketOptions::default()
    };
    let strict = Listener::bind(&any_port(), &options).unwrap();
    assert!(!sockopt::socket_reuseaddr(&strict).unwrap());
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let options = SocketOptions {
        receive_buffer_bytes: Some(0),
        ..SocketOptions::default()
    };
    for address in [any_port(), at(&path)] {
        let refused = Listener::bind(&address, &options).unwrap_err();
        assert!(
            matches!(refused, SocketError::Options { .. }),
            "{refused:?}"
        );
        let source = std::error::Error::source(&refused).unwrap().to_string();
        assert!(source.starts_with("receive_buffer_bytes is 0"), "{source}");
        let refused = Stream::connect_with(&address, &options).unwrap_err();
        assert!(matches!(refused, SocketError::Options { .. }));
    }
    assert!(!path.exists());
}

#[test]
fn an_abstract_socket_has_a_name_and_no_file() {
    let name = format!("@tidewire-test-{}", std::process::id());
    let address = at(Path::new(&name));
    let listener = listen(&address);
    assert_eq!(
        listener.local_address().to_string(),
        format!("ipc://{name}")
    );
    assert!(!Path::new(&name).exists());
    let (mut client, mut accepted) = connected(&listener);
    client.write(b"hello").unwrap();
    await_ready(&accepted, Interest::READ);
    assert_eq!(accepted.read(&mut [0; 8]).unwrap(), 5);

    let refused = Listener::bind(&address, &SocketOptions::default()).unwrap_err();
    assert!(matches!(refused, SocketError::InUse { .. }), "{refused:?}");
    drop(listener);
    let refused = Stream::connect(&address).unwrap_err();
    assert!(matches!(refused, SocketError::Refused { .. }));
    let options = SocketOptions {
        unix_mode: Some(0o600),
        ..SocketOptions::default()
    };
    let refused = Listener::bind(&address, &options).unwrap_err();
    let source = std::error::Error::source(&refused).unwrap().to_string();
    assert!(source.contains("no file and so no unix_mode"), "{source}");
    listen(&address);
}

#[test]
fn both_ends_of_a_unix_socket_know_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let address = at(&directory.path().join("socket"));
    let listener = listen(&address);
    let (client, accepted) = connected(&listener);
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    for end in [&client, &accepted] {
        let found = end.peer_credentials().unwrap();
        assert_eq!(found.process_id, std::process::id());
        assert_eq!((found.user_id, found.group_id), (user, group));
    }
    let (client, _accepted) = connected(&listen(&any_port()));
    assert_eq!(client.peer_credentials(), None);
}
