//! Tables of a server over UDP, attacked from one address and from fifty. A victim of another address connects before
//! the attack, another victim later.

use std::net::{Ipv4Addr, UdpSocket};

use tidewire::{AnyCodec, Kind, Message, Server};
use tidewire_proto::codec::uvrpc::{BroadcastMessage, REGISTRATION};
use tidewire_proto::codec::{Codec, Decoded};
use tidewire_testkit::{TestServer, challenge_answer, hello_frame};

use crate::{broadcast, codec, echo, frame, limited, peer_at, port_of, received};

const ATTACKERS: [u8; 2] = [1, 50];

/// Victims have these numbers in 127.0.1.0/24; attackers have those from 100 on.
const BEFORE: u8 = 1;
const AFTER: u8 = 2;

fn socket_at(server: &TestServer, number: u8) -> UdpSocket {
    peer_at(Ipv4Addr::new(127, 0, 1, number), port_of(server))
}

/// Regression: fifty addresses took all registrations.
#[test]
fn the_last_registrations_are_for_addresses_that_have_few() {
    for attackers in ATTACKERS {
        let server = broadcast::serve(Server::builder().lanes(1));
        let mut decided = 0;
        let mut register = |number: u8| {
            let socket = socket_at(&server, number);
            let before = server.metrics().registrations;
            socket.send(REGISTRATION).unwrap();
            decided += 1;
            let metrics = server.wait_for("it is decided on", |metrics| {
                metrics.registrations + metrics.registrations_refused == decided
            });
            (metrics.registrations > before).then_some(socket)
        };
        let before = register(BEFORE).expect("it is the first");
        let mut held = Vec::new();
        for number in (100..).take(attackers.into()) {
            held.extend(std::iter::from_fn(|| register(number)));
        }
        let after = register(AFTER).expect("a place is left");
        let publisher = broadcast::client(&server);
        publisher.request(b"hi").method("t").wait().unwrap();
        for socket in [&before, &after] {
            let message = received(socket);
            assert_eq!(BroadcastMessage::decode(&message).unwrap().data, b"hi");
        }
        publisher.close().wait();
        let registered = held.len() as u64 + 2;
        let metrics = server.stop();
        assert_eq!(metrics.registrations, registered);
        assert_eq!(metrics.registrations_refused, u64::from(attackers));
        let dropped: u64 = metrics.room_dropped.iter().sum();
        assert_eq!(metrics.room_offered, registered);
        assert_eq!(metrics.room_offered, metrics.room_delivered + dropped);
    }
}

/// Sends a datagram, and returns the kind and the payload of the first frame of the answer. Pings are left out.
fn ask(codec: &AnyCodec, socket: &UdpSocket, datagram: &[u8]) -> (Kind, Vec<u8>) {
    socket.send(datagram).unwrap();
    loop {
        let answer = received(socket);
        let Ok(Decoded::Frame { message, .. }) = codec.decode(&answer, 65_536) else {
            panic!("not a frame: {answer:?}");
        };
        if message.kind != Kind::Ping || message.payload.len() == COOKIE_BYTES {
            return (message.kind, message.payload.to_vec());
        }
    }
}

/// The length of a challenge. Other pings are empty.
const COOKIE_BYTES: usize = 8;

#[test]
fn over_udp_too_the_address_with_the_most_sessions_makes_room_for_newcomers_of_others() {
    let tw1 = codec("tw1");
    for attackers in ATTACKERS {
        let builder = limited(|limits| {
            limits.sessions.set_max(200);
        });
        let server = TestServer::over_udp(builder.lanes(1), &tw1, |_| echo);
        let enter = |number: u8| {
            let socket = socket_at(&server, number);
            let (_, cookie) = ask(&tw1, &socket, &hello_frame());
            let (kind, _) = ask(&tw1, &socket, &challenge_answer(&cookie));
            (kind == Kind::Welcome).then_some(socket)
        };
        let before = enter(BEFORE).expect("it is the first");
        let rounds = (0..attackers).cycle().take(400);
        let held: Vec<_> = rounds.filter_map(|round| enter(100 + round)).collect();
        assert_eq!(held.len(), 199);
        let after = [enter(AFTER), enter(AFTER)].map(|it| it.expect("a place"));
        let request = frame(&tw1, &Message::with_id(Kind::Request, 0, 1, b"in"));
        for socket in after.iter().chain([&before, &held[0]]) {
            let (kind, payload) = ask(&tw1, socket, &request);
            assert_eq!((kind, &payload[..]), (Kind::Reply, &b"in"[..]));
        }
        for socket in held.iter().chain(&after).chain([&before]) {
            socket.send(&[]).unwrap();
        }
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("displaced"), 2, "one for each newcomer");
        assert_eq!(metrics.sessions_refused, 400 - 199);
    }
}
