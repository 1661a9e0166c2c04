//! Sessions that are replaced by newer sessions of their identity or with their name.

use std::io::{ErrorKind, Read as _};
use std::time::Duration;

use tidewire::{Chat, Event, Limits};
use tidewire_proto::body::JoinBody;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::Kind;
use tidewire_testkit::{DEADLINE, wait_until};

use super::*;

/// A chat for Ann, who may have one session.
fn serve(replaces_oldest: bool) -> (Server, Token) {
    let tokens = TokenFolder::new();
    let ann = tokens.add("ann");
    let mut known = Users::new(Permissions::everything());
    let limits = IdentityLimits {
        sessions_max: Some(1),
        replaces_oldest,
        ..IdentityLimits::default()
    };
    known.add("ann", None, limits).unwrap();
    let server = Server::builder()
        .lanes(2)
        .authenticate(tokens.chain(known))
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| Chat::new())
        .unwrap();
    (server, ann)
}

/// A peer that says hello and joins, and then never answers anything.
fn deaf(server: &Server, credentials: &[u8], name: &str) -> TcpStream {
    let mut hello = Vec::new();
    // A member takes frames as long as the server's.
    let own = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 1 << 20,
        credentials,
        agent: "test",
    };
    own.encode_frame(&mut hello).unwrap();
    let mut stream = TcpStream::connect(server.addresses()[0].socket_address().unwrap()).unwrap();
    stream.write_all(&hello).unwrap();
    let (mut join, mut body) = (Vec::new(), Vec::new());
    let room = "lobby";
    JoinBody { room, name }.encode(&mut body).unwrap();
    let message = Message::with_id(Kind::Join, 0, 1, &body);
    AnyCodec::by_name("tw1")
        .unwrap()
        .encode(&message, &mut join)
        .unwrap();
    stream.write_all(&join).unwrap();
    // The welcome, and the reply to the join.
    assert_eq!(kind_of_next(&mut stream), Kind::Welcome as u8);
    assert_eq!(kind_of_next(&mut stream), Kind::Reply as u8);
    stream
}

/// Reads a frame.
fn kind_of_next(stream: &mut TcpStream) -> u8 {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut rest = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut rest).unwrap();
    rest[0]
}

/// Regression: a session of a vanished peer kept its user's only place for a minute.
#[test]
fn a_silent_session_gives_way_to_a_newer_one_of_its_user() {
    let (server, ann) = serve(false);
    let mut gone = deaf(&server, ann.secret().as_bytes(), "");
    let client = connect(&server, Some(&ann)).unwrap();
    wait_until("it gave way", || {
        (server.metrics().closed_by("replaced") == 1).then_some(())
    });
    client.join("lobby").named("").wait().unwrap();
    // The silent peer is told the reason, because it may still be there.
    gone.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut told = Vec::new();
    match gone.read_to_end(&mut told) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("gave way to a newer session"), "{told:?}");
    assert_eq!(server.metrics().auth_refused, 0);
}

#[test]
fn a_session_that_answers_keeps_its_place_and_the_newcomer_is_told() {
    let (server, ann) = serve(false);
    let client = connect(&server, Some(&ann)).unwrap();
    client.join("lobby").named("").wait().unwrap();
    for _ in 0..3 {
        let text = full(connect(&server, Some(&ann)));
        assert!(text.contains("as many sessions as it may have"), "{text}");
    }
    client
        .room(client.join("other").named("").wait().unwrap().id())
        .leave()
        .wait()
        .unwrap();
    let metrics = server.metrics();
    assert_eq!(
        (metrics.closed_by("replaced"), metrics.auth_refused),
        (0, 3)
    );
}

#[test]
fn with_replace_the_newest_session_stays_and_the_older_client_does_not_come_back() {
    let (server, ann) = serve(true);
    let connect = || {
        Client::builder()
            .credentials(ann.clone())
            .reconnect(tidewire::Backoff::default())
            .connect(&server.to_string())
            .wait()
            .unwrap()
    };
    let older = connect();
    older.join("lobby").named("").wait().unwrap();
    let newer = connect();
    newer.join("lobby").named("").wait().unwrap();
    let reason = loop {
        if let Event::Closed { reason, .. } = older.next_event().wait_for(DEADLINE).unwrap() {
            break reason;
        }
    };
    assert_eq!(reason, CloseReason::GoAway(GoAwayCode::Removed));
    assert!(older.join("other").named("").wait().is_err());
    newer.join("other").named("").wait().unwrap();
    until("the end of the older session is counted", || {
        server.metrics().closed_by("replaced") == 1
    });
}

/// Regression: the name of a peer that was gone stayed taken for a minute, and `tidewire chat` ended at once.
#[test]
fn a_name_of_a_silent_session_goes_to_a_newcomer() {
    let server = Server::builder()
        .lanes(2)
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| Chat::new())
        .unwrap();
    let _gone = deaf(&server, b"", "ann");
    let client = connect(&server, None).unwrap();
    client.join("lobby").named("ann").wait().unwrap();
    until("the end of the silent session is counted", || {
        server.metrics().closed_by("replaced") == 1
    });
    // She answers, so she keeps it.
    let other = connect(&server, None).unwrap();
    assert_eq!(
        code(other.join("lobby").named("ann").wait()),
        ErrorCode::NameTaken
    );
    other.join("lobby").named("bob").wait().unwrap();
    assert_eq!(server.metrics().closed_by("replaced"), 1);
}

/// Whoever waits for a place and leaves takes none, and the time of a handshake ends every wait.
#[test]
fn newcomers_that_leave_or_wait_too_long_take_no_place() {
    let tokens = TokenFolder::new();
    let ann = tokens.add("ann");
    let mut known = Users::new(Permissions::everything());
    let limits = IdentityLimits {
        sessions_max: Some(1),
        ..IdentityLimits::default()
    };
    known.add("ann", None, limits).unwrap();
    let mut limits = Limits::default();
    limits
        .connections
        .set_handshake_timeout(Duration::from_millis(300));
    let server = Server::builder()
        .authenticate(tokens.chain(known))
        .limits(limits)
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| Chat::new())
        .unwrap();
    let _gone = deaf(&server, ann.secret().as_bytes(), "");
    drop(greet(&server, ann.secret().as_bytes()));
    let _waits = greet(&server, ann.secret().as_bytes());
    until("both have ended, and the silent session, too", || {
        server.metrics().closed.iter().sum::<u64>() == 3
    });
    assert_eq!(server.metrics().closed_by("replaced"), 1);
    let client = connect(&server, Some(&ann)).unwrap();
    client.join("lobby").named("").wait().unwrap();
}
