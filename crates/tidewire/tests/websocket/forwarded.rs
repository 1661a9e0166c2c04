//! Clients behind proxies that name them in their requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use tidewire::auth::{IdentityLimits, KnownPeers, Permissions, Users};
use tidewire::{Context, HandlerResult, Kind, Limits, Message, Server};
use tidewire_testkit::DEADLINE;

/// Answers with the address of the peer, which is the text of a line.
fn who(cx: &mut Context<'_>, _: Message<'_>) -> HandlerResult {
    let peer = cx
        .session()
        .peer()
        .map(ToString::to_string)
        .unwrap_or_default();
    Ok(cx.send(Message::new(Kind::OneWay, 0, peer.as_bytes()))?)
}

fn server(listed: &str, limits: Limits) -> Server {
    let builder = Server::builder().codec(tidewire::AnyCodec::by_name("lines").unwrap());
    let builder = builder.limits(limits).forwarded_for_from(listed).unwrap();
    builder
        .listen("ws://127.0.0.1:0/")
        .unwrap()
        .start(|_| who)
        .unwrap()
}

/// Sends the request of a proxy with these headers. Returns the head of the answer, and the connection.
fn request(server: &Server, headers: &str) -> (String, TcpStream) {
    let address = server.addresses()[0].socket_address().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    (String::from_utf8(head).unwrap(), stream)
}

/// Asks as a proxy that sends these headers. Returns the connection and the server's answer.
fn ask(server: &Server, headers: &str) -> (TcpStream, String) {
    let (_, mut stream) = request(server, headers);
    // A text message "hi" with a mask of zeros.
    stream
        .write_all(&[0x81, 0x82, 0, 0, 0, 0, b'h', b'i'])
        .unwrap();
    let mut frame = [0; 2];
    let said = match stream.read_exact(&mut frame) {
        Ok(()) if frame[0] == 0x81 => {
            let mut text = vec![0; usize::from(frame[1])];
            stream.read_exact(&mut text).unwrap();
            String::from_utf8(text).unwrap().trim_end().to_owned()
        }
        _ => String::new(),
    };
    (stream, said)
}

#[test]
fn a_session_has_the_address_that_a_listed_proxy_appended() {
    let server = server("127.0.0.0/8", Limits::default());
    for (headers, expected) in [
        ("X-Forwarded-For: 203.0.113.7\r\n", "203.0.113.7"),
        (
            "X-Forwarded-For: 203.0.113.66, 203.0.113.7\r\n",
            "203.0.113.7",
        ),
        ("X-Forwarded-For: 203.0.113.7, 127.0.0.9\r\n", "203.0.113.7"),
        ("X-Forwarded-For: forged, 203.0.113.7\r\n", "203.0.113.7"),
        ("Forwarded: for=\"[2001:db8::7]:4000\"\r\n", "[2001:db8::7]"),
        ("", "127.0.0.1"),
        ("X-Forwarded-For: forged\r\n", "127.0.0.1"),
    ] {
        let (_, said) = ask(&server, headers);
        assert!(
            said.contains(&format!("//{expected}:")),
            "{headers}: {said}"
        );
    }
}

/// Regression: such a session counted for the proxy, and so for all its clients.
#[test]
fn a_request_with_both_headers_is_refused() {
    let server = server("127.0.0.0/8", Limits::default());
    let both = "X-Forwarded-For: 203.0.113.7\r\nForwarded: for=203.0.113.8\r\n";
    let (head, _) = request(&server, both);
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
}

/// Regression: until its handshake was over, a connection counted for the proxy, so one client could use up the share
/// of all.
#[test]
fn one_client_of_a_proxy_cannot_use_up_the_limits_of_others() {
    let mut limits = Limits::default();
    limits.sessions.set_per_address_max(2);
    limits.handshakes.set_per_address_per_second_max(1);
    let server = server("127.0.0.1", limits);
    let address = server.addresses()[0].socket_address().unwrap();
    let silent: Vec<_> = (0..5)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    tidewire_testkit::wait_until("all silent ones are in", || {
        (server.metrics().sessions_opened == 5).then_some(())
    });
    let of = |host: u8| ask(&server, &format!("X-Forwarded-For: 203.0.113.{host}\r\n"));
    for _ in 0..2 {
        let (_, said) = of(1);
        assert!(said.contains("//203.0.113.1:"), "{said}");
    }
    // A slow machine needs a few more than the rate allows.
    let is_refused = (0..1_000).any(|_| !of(1).1.contains("//203.0.113.1:"));
    assert!(is_refused, "the rate of the client is limited");
    let (_kept, said) = of(2);
    assert!(said.contains("//203.0.113.2:"), "{said}");
    assert_eq!(server.metrics().handshakes_refused, 1);
    drop(silent);
}

/// Regression: at a full server a connection of a proxy displaced a session of another address before its client was
/// known.
#[test]
fn a_silent_connection_of_a_proxy_displaces_no_client_and_a_named_client_may() {
    let mut limits = Limits::default();
    limits.sessions.set_max(4);
    let server = server("127.0.0.1", limits);
    let address = server.addresses()[0].socket_address().unwrap();
    let of = |host: u8| ask(&server, &format!("X-Forwarded-For: 203.0.113.{host}\r\n"));
    let kept = [1, 1, 1, 1].map(of);
    assert!(kept.iter().all(|(_, said)| !said.is_empty()));
    let silent: Vec<_> = (0..5)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    tidewire_testkit::wait_until("all silent ones are in", || {
        (server.metrics().sessions_opened == 9).then_some(())
    });
    assert_eq!(server.metrics().closed_by("displaced"), 0);
    let (_newcomer, said) = of(2);
    assert!(said.contains("//203.0.113.2:"), "{said}");
    // The newcomer has its answer before the end of the displaced session is counted.
    tidewire_testkit::wait_until("one session is displaced", || {
        (server.metrics().closed_by("displaced") == 1).then_some(())
    });
    drop((kept, silent));
}

#[test]
fn other_addresses_are_not_believed() {
    let server = server("10.0.0.0/8", Limits::default());
    let (_, said) = ask(&server, "X-Forwarded-For: 203.0.113.7\r\n");
    assert!(said.contains("//127.0.0.1:"), "{said}");
}

#[test]
fn limits_count_for_the_client_and_not_for_the_proxy() {
    let mut limits = Limits::default();
    limits.sessions.set_per_address_max(2);
    let server = server("127.0.0.1", limits);
    let of = |host: u8| ask(&server, &format!("X-Forwarded-For: 203.0.113.{host}\r\n"));
    let kept: Vec<_> = [1, 1, 2, 3].map(of).into_iter().collect();
    assert!(kept.iter().all(|(_, said)| !said.is_empty()));
    let (_, said) = of(1);
    assert!(said.contains("as many sessions as it may have"), "{said}");
    tidewire_testkit::wait_until("it is counted", || {
        (server.metrics().closed_by("session_limit") == 1).then_some(())
    });
    drop(kept);
    tidewire_testkit::wait_until("the places are free", || {
        (server.metrics().closed.iter().sum::<u64>() == 5).then_some(())
    });
    let again = [1, 1].map(of);
    assert!(again.iter().all(|(_, said)| !said.is_empty()));
}

#[test]
fn the_address_of_a_forwarding_proxy_proves_no_user() {
    let mut users = Users::new(Permissions::everything());
    for name in ["internal", "outside"] {
        users.add(name, None, IdentityLimits::default()).unwrap();
    }
    let by_address = KnownPeers::new(Arc::new(users)).address("127.0.0.0/8", "internal");
    let by_address = by_address
        .unwrap()
        .address("203.0.113.0/24", "outside")
        .unwrap();
    let builder = Server::builder().codec(tidewire::AnyCodec::by_name("lines").unwrap());
    let builder = builder
        .authenticate(by_address)
        .forwarded_for_from("127.0.0.1")
        .unwrap();
    let server = builder
        .listen("ws://127.0.0.1:0/")
        .unwrap()
        .start(|_| who)
        .unwrap();
    let (_kept, said) = ask(&server, "X-Forwarded-For: 203.0.113.7\r\n");
    assert!(said.contains("//203.0.113.7:"), "{said}");
    let (_, said) = ask(&server, "");
    assert!(!said.contains("127.0.0.1"), "{said}");
    let metrics = server.metrics();
    assert_eq!((metrics.authenticated, metrics.auth_refused), (1, 1));
}
