//! Limits on sessions, rooms and messages.

use tidewire::limits::ConnectionLimits;
use tidewire::{Chat, Client, ConnectError, Kind, Limits, RequestError, ServeError, Server};
use tidewire_proto::body::{ErrorCode, GoAwayCode};
use tidewire_testkit::{Peer, RoomEvent, TestServer, wait_until};

use crate::{echo, last_words, limited, lines, tw1, whole_story};

#[test]
fn sessions_beyond_the_limit_are_refused_with_a_reason_and_places_come_back() {
    let builder = limited(|limits| {
        limits.sessions.set_max(2);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    let first = server.peer();
    let mut second = server.peer();
    let mut third = Peer::silent(server.wire(), &tw1());
    assert_eq!(last_words(&third.drain()), Some(GoAwayCode::LimitReached));
    let error = Client::connect(&server.url()).wait().unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::Refused { .. } | ConnectError::Closed(_)
        ),
        "{error:?}"
    );
    let story = whole_story(&error);
    assert!(story.contains("limit"), "{story}");
    second.ask(b"unharmed");
    assert_eq!(second.answer().payload, b"unharmed");
    drop(first);
    server.wait_for("a place is free", |metrics| metrics.sessions_closed() == 1);
    let mut fourth = server.peer();
    fourth.ask(b"in at last");
    assert_eq!(fourth.answer().payload, b"in at last");
    drop((second, third, fourth));
    let metrics = server.stop();
    assert_eq!((metrics.sessions_opened, metrics.sessions_refused), (3, 2));
}

#[test]
fn sessions_of_one_address_are_limited_and_others_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = format!("ipc://{}", directory.path().join("s").display());
    let builder = limited(|limits| {
        limits.sessions.set_per_address_max(2);
    });
    let builder = builder.listen(&path).unwrap();
    let server = TestServer::over_tcp(builder, &tw1(), |_| echo);
    // The first address is the Unix socket, the second the port.
    let port = server.server().addresses()[1].to_string();
    let first = Client::connect(&port).wait().unwrap();
    let second = Client::connect(&port).wait().unwrap();
    assert!(Client::connect(&port).wait().is_err());
    let local = Client::connect(&path).wait().unwrap();
    assert_eq!(local.request(b"hello").wait().unwrap().payload(), b"hello");
    first.close().wait();
    wait_until("the address has a place again", || {
        Client::connect(&port).wait().ok()
    })
    .close()
    .wait();
    second.close().wait();
    local.close().wait();
    let metrics = server.stop();
    assert!(metrics.sessions_refused >= 1);
}

#[test]
fn rooms_are_limited_for_a_session_and_for_the_server() {
    let builder = limited(|limits| {
        limits.rooms.set_per_session_max(2);
        limits.rooms.set_max(3);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| Chat::new());
    let ada = Client::connect(&server.url()).wait().unwrap();
    let bob = Client::connect(&server.url()).wait().unwrap();
    let limit_reached = |result: Result<tidewire::Room, RequestError>| {
        matches!(
            result,
            Err(RequestError::Refused {
                code: ErrorCode::LimitReached,
                ..
            })
        )
    };
    let one = ada.join("one").named("ada").wait().unwrap();
    ada.join("two").named("").wait().unwrap();
    assert!(
        limit_reached(ada.join("three").named("").wait()),
        "two rooms are enough"
    );
    bob.join("three").named("bob").wait().unwrap();
    assert!(
        limit_reached(bob.join("four").named("").wait()),
        "the server has three"
    );
    one.leave().wait().unwrap();
    bob.join("four").named("").wait().unwrap();
    ada.close().wait();
    bob.close().wait();
    server.stop();
}

/// Regression: one address took all rooms of the server, with 64 from each of its connections. All other clients were
/// refused, and the text did not say which limit was reached.
#[test]
fn one_address_cannot_take_the_rooms_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = format!("ipc://{}", directory.path().join("s").display());
    let builder = limited(|limits| {
        limits.rooms.set_per_session_max(2);
        limits.rooms.set_per_address_max(3);
        limits.rooms.set_max(4);
    });
    let builder = builder.listen(&path).unwrap();
    let server = TestServer::over_tcp(builder, &tw1(), |_| Chat::new());
    let port = server.server().addresses()[1].to_string();
    let refusal = |result: Result<tidewire::Room, RequestError>| match result {
        Err(RequestError::Refused { code, text, .. }) => {
            assert_eq!(code, ErrorCode::LimitReached);
            text
        }
        other => panic!("not refused: {other:?}"),
    };
    let greedy: Vec<_> = (0..2)
        .map(|_| Client::connect(&port).wait().unwrap())
        .collect();
    let first = greedy[0].join("a").named("ada").wait().unwrap();
    greedy[0].join("b").named("").wait().unwrap();
    let text = refusal(greedy[0].join("c").named("").wait());
    assert!(text.contains("rooms_per_session_max"), "{text}");
    greedy[1].join("c").named("bob").wait().unwrap();
    let text = refusal(greedy[1].join("d").named("").wait());
    assert!(text.contains("rooms_per_address_max"), "{text}");
    greedy[1].join("a").named("").wait().unwrap();
    // Another address can still create a room, until the server's limit.
    let other = Client::connect(&path).wait().unwrap();
    other.join("d").named("eve").wait().unwrap();
    let text = refusal(other.join("e").named("").wait());
    assert!(text.contains("rooms_max"), "{text}");
    // A room counts for the address that created it, until the room is empty.
    first.leave().wait().unwrap();
    let third = Client::connect(&port).wait().unwrap();
    refusal(third.join("f").named("fay").wait());
    greedy[1].room(first.id()).leave().wait().unwrap();
    // The last place is for addresses with few rooms.
    refusal(third.join("f").named("fay").wait());
    other.join("f").named("").wait().unwrap();
    for client in greedy.into_iter().chain([other, third]) {
        client.close().wait();
    }
    server.stop();
}

#[test]
fn a_refused_first_join_gives_the_name_back() {
    let builder = limited(|limits| {
        limits.rooms.set_max(1);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| Chat::new());
    let mut ada = server.peer();
    ada.join("only", "ada").unwrap();
    let mut bob = server.peer();
    bob.join("second", "bob").unwrap_err();
    let mut other = server.peer();
    other.join("only", "bob").unwrap();
    drop((ada, bob, other));
    server.stop();
}

#[test]
fn saying_too_much_is_refused_and_the_session_goes_on() {
    let builder = limited(|limits| {
        limits.connections.set_frame_bytes_max(2048);
    });
    let server = TestServer::over_tcp(builder, &tw1(), |_| Chat::new());
    let mut ada = server.peer();
    ada.join("lobby", "ada").unwrap();
    let mut bob = server.peer();
    bob.join("lobby", "bob").unwrap();
    ada.hear_of("bob");
    ada.say(&vec![b'x'; 2048 - 8]);
    match ada.hear() {
        Some(RoomEvent::Refused(text)) => assert!(text.contains("limit"), "{text}"),
        other => panic!("not refused: {other:?}"),
    }
    ada.say(b"shorter");
    assert_eq!(bob.next_message().1, b"shorter");
    drop((ada, bob));
    assert_eq!(server.stop().refused, 1);
}

#[test]
fn a_line_that_fits_alone_but_not_after_its_name_is_refused() {
    let server = TestServer::over_tcp(Server::builder(), &lines(), |_| Chat::new());
    let mut ada = server.peer();
    ada.join("lobby", "ada").unwrap();
    let mut bob = server.peer();
    bob.join("lobby", "bob").unwrap();
    ada.hear_of("bob");
    ada.say(&vec![b'x'; 8190]);
    assert!(matches!(ada.hear(), Some(RoomEvent::Refused(_))));
    ada.say(b"shorter");
    assert_eq!(bob.next_message().1, b"shorter");
    drop((ada, bob));
    assert_eq!(server.stop().refused, 1);
}

#[test]
fn saying_something_in_a_room_one_is_not_in_is_refused() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| Chat::new());
    let mut peer = server.peer();
    peer.say(b"anybody?");
    let refusal = peer.receive().unwrap();
    assert_eq!((refusal.kind, refusal.id), (Kind::Error, 0));
    drop(peer);
    assert_eq!(server.stop().refused, 1);
}

#[test]
fn servers_and_clients_refuse_limits_that_make_no_sense() {
    let builder = limited(|limits| {
        limits.sessions.set_max(0);
    });
    let outcome = builder.start(|_| echo);
    assert!(
        matches!(&outcome, Err(ServeError::Setting(error)) if error.setting() == "sessions.max")
    );

    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| echo);
    let mut limits = Limits::default();
    limits.sessions.set_max(1);
    limits.memory.set_bytes_max(0);
    let error = server.server().change_limits(&limits).unwrap_err();
    assert_eq!(error.setting(), "memory.bytes_max");
    // The other limit has not changed, either.
    let clients = [(); 2].map(|()| Client::connect(&server.url()).wait().unwrap());

    let mut limits = ConnectionLimits::default();
    limits.set_turn_bytes_max(0);
    let outcome = Client::builder()
        .limits(limits)
        .connect(&server.url())
        .wait();
    assert!(matches!(
        &outcome,
        Err(ConnectError::Start(error))
            if matches!(
                error.downcast_ref(),
                Some(ServeError::Setting(error)) if error.setting() == "connections.turn_bytes_max"
            )
    ));
    drop(clients);
    server.stop();
}
