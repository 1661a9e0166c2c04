//! Sessions behind a proxy that sends PROXY headers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tidewire::auth::{IdentityLimits, KnownPeers, Permissions, Users};
use tidewire::{Client, Context, HandlerResult, Message, Server, ServerBuilder};
use tidewire_testkit::certificates::usual;
use tidewire_testkit::fixtures::{limited, tw1};
use tidewire_testkit::{TestServer, hello_frame};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// A header for a client at 203.0.113.`host`:4000, with an extension of this many bytes.
pub(crate) fn header(host: u8, extension: usize) -> Vec<u8> {
    let mut body = vec![203, 0, 113, host, 192, 0, 2, 1, 15, 160, 1, 187];
    if extension > 0 {
        let length = u16::try_from(extension).unwrap().to_be_bytes();
        body.extend([&[4][..], &length].concat());
        body.resize(body.len() + extension, b'x');
    }
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[0x21, 0x11], &length, &body].concat()
}

/// Answers with the address of the peer.
fn who(cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    let peer = cx
        .session()
        .peer()
        .map(ToString::to_string)
        .unwrap_or_default();
    cx.reply(peer.as_bytes())
}

pub(crate) fn behind_loopback(builder: ServerBuilder) -> ServerBuilder {
    builder.proxy_protocol_from("127.0.0.0/8").unwrap()
}

fn server(builder: ServerBuilder) -> TestServer {
    TestServer::over_tcp(behind_loopback(builder), &tw1(), |_| who)
}

fn port(server: &TestServer) -> u16 {
    server.address().socket_address().unwrap().port()
}

/// A proxy for one connection, which sends these pieces first. Returns its port.
fn proxy(server: &TestServer, pieces: Vec<Vec<u8>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let to = port(server);
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(("127.0.0.1", to)).unwrap();
        far.set_nodelay(true).unwrap();
        for piece in pieces {
            far.write_all(&piece).unwrap();
        }
        let (mut near_too, mut far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        std::thread::spawn(move || {
            // Either side may end the connection.
            let _ = std::io::copy(&mut far_too, &mut near_too);
            let _ = near_too.shutdown(std::net::Shutdown::Both);
        });
        let _ = std::io::copy(&mut &near, &mut far);
        let _ = far.shutdown(std::net::Shutdown::Both);
    });
    own
}

/// The server's address of a client behind this proxy.
fn seen_by(scheme: &str, port: u16, path: &str) -> String {
    let client = Client::builder()
        .tls(usual().0.client())
        .connect(&format!("{scheme}://127.0.0.1:{port}{path}"))
        .wait()
        .unwrap();
    let reply = client.request(b"who am I?").wait().unwrap();
    String::from_utf8(reply.payload().to_vec()).unwrap()
}

#[test]
fn a_session_has_the_address_of_its_client_however_its_header_is_cut() {
    let server = server(Server::builder());
    let whole = header(7, 300);
    let single = whole.iter().map(|byte| vec![*byte]).collect();
    let joined = [&whole[..], &hello_frame()].concat();
    for pieces in [vec![whole], single] {
        let seen = seen_by("tcp", proxy(&server, pieces), "");
        assert_eq!(seen, "tcp://203.0.113.7:4000");
    }
    // Bytes after the header in the same write are read as usual.
    let mut stream = TcpStream::connect(("127.0.0.1", port(&server))).unwrap();
    stream.write_all(&joined).unwrap();
    stream.read_exact(&mut [0; 8]).unwrap();
    drop(stream);
    let metrics = server.stop();
    assert_eq!(
        (metrics.proxy_headers_refused, metrics.sessions_opened),
        (0, 3)
    );
}

#[test]
fn the_header_comes_before_tls_and_websocket() {
    let make = |_| who;
    let tls = TestServer::over_tls(
        behind_loopback(Server::builder()).tls(usual().1.server()),
        &tw1(),
        make,
    );
    let seen = seen_by("tls", proxy(&tls, vec![header(8, 0)]), "");
    assert!(seen.ends_with("://203.0.113.8:4000"), "{seen}");
    let web = TestServer::over_websocket(behind_loopback(Server::builder()), &tw1(), make);
    let url = web.url();
    let path = url.trim_start_matches("ws://").split_once('/');
    let path = path.map_or(String::new(), |(_, path)| format!("/{path}"));
    let seen = seen_by("ws", proxy(&web, vec![header(9, 0)]), &path);
    assert!(seen.contains("://203.0.113.9:4000"), "{seen}");
}

#[test]
fn limits_count_for_the_client_and_not_for_the_proxy() {
    let server = server(limited(|limits| {
        limits.sessions.set_per_address_max(1);
    }));
    let connect = |host| {
        let port = proxy(&server, vec![header(host, 0)]);
        Client::connect(&format!("tcp://127.0.0.1:{port}")).wait()
    };
    let clients: Vec<Client> = (1..=3).map(|host| connect(host).unwrap()).collect();
    assert!(connect(2).is_err(), "it has one");
    drop(clients);
    let metrics = server.stop();
    assert_eq!((metrics.sessions_opened, metrics.sessions_refused), (3, 1));
}

/// Regression: until its header was whole, a connection counted for the proxy, so silent connections locked out the
/// clients of the proxy.
#[test]
fn connections_without_their_header_keep_no_client_out() {
    let server = server(limited(|limits| {
        limits.sessions.set_per_address_max(1);
    }));
    let silent: Vec<_> = (0..3)
        .map(|_| TcpStream::connect(("127.0.0.1", port(&server))).unwrap())
        .collect();
    // Connections are accepted in their order.
    let seen = seen_by("tcp", proxy(&server, vec![header(7, 0)]), "");
    assert_eq!(seen, "tcp://203.0.113.7:4000");
    drop(silent);
    server.wait_for("the silent ones are gone", |metrics| {
        metrics.proxy_headers_refused == 3
    });
    let metrics = server.stop();
    assert_eq!((metrics.sessions_opened, metrics.sessions_refused), (1, 0));
}

#[test]
fn a_health_check_has_the_address_of_the_proxy() {
    let server = server(Server::builder());
    let local = [SIGNATURE, &[0x20, 0, 0, 0]].concat();
    for header in [local, b"PROXY UNKNOWN\r\n".to_vec()] {
        let seen = seen_by("tcp", proxy(&server, vec![header]), "");
        assert!(seen.starts_with("tcp://127.0.0.1:"), "{seen}");
    }
}

/// nginx writes no other version.
#[test]
fn a_line_of_version_1_has_the_address_of_the_client_however_it_is_cut() {
    let server = server(Server::builder());
    let line = b"PROXY TCP4 203.0.113.7 192.0.2.1 4000 443\r\n".to_vec();
    let single = line.iter().map(|byte| vec![*byte]).collect();
    for pieces in [vec![line.clone()], single] {
        let seen = seen_by("tcp", proxy(&server, pieces), "");
        assert_eq!(seen, "tcp://203.0.113.7:4000");
    }
    // The hello in the same write is not read too far.
    let mut stream = TcpStream::connect(("127.0.0.1", port(&server))).unwrap();
    stream
        .write_all(&[&line[..], &hello_frame()].concat())
        .unwrap();
    stream.read_exact(&mut [0; 8]).unwrap();
    drop(stream);
    let metrics = server.stop();
    assert_eq!(
        (metrics.proxy_headers_refused, metrics.sessions_opened),
        (0, 3)
    );
}

/// Regression: a connection with a header without an address was the user of the proxy's network.
#[test]
fn the_address_of_a_proxy_proves_no_user() {
    let mut users = Users::new(Permissions::everything());
    for name in ["internal", "outside"] {
        users.add(name, None, IdentityLimits::default()).unwrap();
    }
    let by_address = KnownPeers::new(Arc::new(users));
    let by_address = by_address.address("127.0.0.0/8", "internal").unwrap();
    let by_address = by_address.address("203.0.113.0/24", "outside").unwrap();
    let server = server(Server::builder().authenticate(by_address));
    let local = [SIGNATURE, &[0x20, 0, 0, 0]].concat();
    for header in [local, b"PROXY UNKNOWN\r\n".to_vec()] {
        let port = proxy(&server, vec![header]);
        let refused = Client::connect(&format!("tcp://127.0.0.1:{port}")).wait();
        assert!(refused.is_err(), "{refused:?}");
    }
    let seen = seen_by("tcp", proxy(&server, vec![header(7, 0)]), "");
    assert_eq!(seen, "tcp://203.0.113.7:4000");
    let metrics = server.stop();
    assert_eq!((metrics.authenticated, metrics.auth_refused), (1, 2));
}

#[test]
fn bytes_that_are_no_header_end_the_connection_and_are_counted() {
    let server = server(Server::builder());
    let longest = [SIGNATURE, &[0x21, 0x11, 0xff, 0xff], &vec![0; 65_535]].concat();
    let text = b"PROXY TCP4 203.0.113.7 192.0.2.1 4000 443\n".to_vec();
    let mut bad = vec![
        longest,
        text,
        hello_frame(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    let whole = header(7, 3);
    bad.extend((0..whole.len()).map(|cut| whole[..cut].to_vec()));
    let count = bad.len() as u64;
    for bytes in bad {
        let mut stream = TcpStream::connect(("127.0.0.1", port(&server))).unwrap();
        // The server may have closed before the last byte.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut heard = Vec::new();
        let _ = stream.read_to_end(&mut heard);
        assert_eq!(heard, b"", "nothing is said to whoever has no header");
    }
    server.wait_for("all are refused", |metrics| {
        metrics.proxy_headers_refused == count
    });
    assert_eq!(server.stop().sessions_opened, 0);
}

#[test]
fn a_header_that_does_not_come_is_waited_for_as_long_as_a_handshake() {
    let server = server(limited(|limits| {
        limits
            .connections
            .set_handshake_timeout(Duration::from_millis(20));
    }));
    let mut stream = TcpStream::connect(("127.0.0.1", port(&server))).unwrap();
    stream.write_all(&header(7, 0)[..20]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    server.wait_for("it is refused", |metrics| {
        metrics.proxy_headers_refused == 1
    });
    // A drain does not wait for such a connection either.
    let waiting = TcpStream::connect(("127.0.0.1", port(&server))).unwrap();
    assert_eq!(server.stop().sessions_opened, 0);
    drop(waiting);
}

#[test]
fn a_header_from_another_address_is_not_believed() {
    let builder = Server::builder()
        .proxy_protocol_from("203.0.113.0/24")
        .unwrap();
    let server = TestServer::over_tcp(builder, &tw1(), |_| who);
    let mut stream = TcpStream::connect(("127.0.0.1", port(&server))).unwrap();
    stream.write_all(&header(7, 0)).unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    server.wait_for("it is no hello", |metrics| {
        metrics.closed_by("handshake") + metrics.closed_by("decode") == 1
    });
    let seen = seen_by("tcp", port(&server), "");
    assert!(seen.starts_with("tcp://127.0.0.1:"), "{seen}");
    assert_eq!(server.stop().proxy_headers_refused, 0);
}
