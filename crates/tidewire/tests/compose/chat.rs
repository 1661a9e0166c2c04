//! Hooks of a chat, announcements and removed members.

use std::borrow::Cow;
use std::sync::mpsc;

use tidewire::{
    Backoff, Chat, Client, ErrorCode, Event, GoAwayCode, HandlerError, Kind, RequestError, Router,
    Server,
};
use tidewire_proto::body::PresenceBody;
use tidewire_proto::message::PresenceEvent;
use tidewire_testkit::fixtures::{lines, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::message;

fn no(text: &'static str) -> HandlerError {
    HandlerError::new(ErrorCode::NameInvalid, text)
}

fn moderated() -> Chat {
    Chat::new()
        .on_join(|_, room, name| match (room, name) {
            (_, "eve") => Err(no("eve is banned")),
            ("staff", "bob") => Err(no("staff only")),
            _ => Ok(()),
        })
        .on_say(|_, message| {
            if message.payload.starts_with(b"spam") {
                return Err(no("no spam"));
            }
            if message.payload.contains(&b'!') {
                let calm = message.payload.iter().copied().filter(|byte| *byte != b'!');
                let calm: Vec<u8> = calm.collect();
                let from = format!("{}@{}: ", message.from, message.room);
                message.payload = Cow::Owned([from.as_bytes(), &calm].concat());
            }
            Ok(())
        })
}

#[test]
fn hooks_refuse_and_change_what_comes_over_tw1() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| moderated());
    let [ada, bob, eve] = [(); 3].map(|()| Client::connect(&server.url()).wait().unwrap());
    let room = ada.join("lobby", "ada").wait().unwrap().room;
    bob.join("lobby", "bob").wait().unwrap();
    for (client, room, name) in [(&eve, "lobby", "eve"), (&bob, "staff", "")] {
        match client.join(room, name).wait().unwrap_err() {
            RequestError::Refused { code, .. } => assert_eq!(code, ErrorCode::NameInvalid),
            error => panic!("{error}"),
        }
    }
    ada.say(room, b"spam spam").unwrap();
    ada.say(room, b"hello!!").unwrap();
    assert_eq!(message(&bob, Kind::Deliver).payload, b"ada@lobby: hello");
    assert_eq!(message(&ada, Kind::Error).channel, room);
    assert!(ada.whisper(room, "bob", b"spam").wait().is_err());
    ada.whisper(room, "bob", b"psst!").wait().unwrap();
    assert_eq!(message(&bob, Kind::Deliver).payload, b"ada@lobby: psst");
    for client in [ada, bob, eve] {
        client.close().wait();
    }
    assert_eq!(server.stop().said, 1);
}

#[test]
fn hooks_refuse_and_change_what_comes_over_lines() {
    let server = TestServer::over_tcp(Server::builder(), &lines(), |_| moderated());
    let (mut ada, mut bob) = (server.peer(), server.peer());
    assert_eq!(ada.join("lobby", "eve").unwrap_err(), "eve is banned");
    ada.join("lobby", "ada").unwrap();
    bob.join("lobby", "bob").unwrap();
    ada.hear_of("bob");
    ada.say(b"spam");
    assert_eq!(ada.receive().unwrap().payload, b"! no spam");
    ada.say(b"hello!");
    let heard = ("ada".to_owned(), b"ada@lobby: hello".to_vec());
    assert_eq!(bob.hear_said(), heard);
    drop((ada, bob));
    server.stop();
}

#[test]
fn whoever_leaves_or_closes_is_told_to_the_hook() {
    let (sender, left) = mpsc::channel();
    let chat = Chat::new().on_leave(move |_, room, name| {
        sender.send(format!("{name} left {room}")).unwrap();
    });
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| chat.clone());
    let client = Client::connect(&server.url()).wait().unwrap();
    let lobby = client.join("lobby", "ada").wait().unwrap().room;
    client.join("garden", "").wait().unwrap();
    client.leave(lobby).wait().unwrap();
    assert!(client.leave(lobby).wait().is_err(), "she is not there");
    assert_eq!(left.recv_timeout(DEADLINE).unwrap(), "ada left lobby");
    client.close().wait();
    assert_eq!(left.recv_timeout(DEADLINE).unwrap(), "ada left garden");
    server.stop();
    assert!(left.try_recv().is_err());
}

/// Methods by which a moderator speaks as the room and removes members.
fn with_moderator(_: usize) -> Router {
    let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
    Router::new()
        .on("announce", |cx, message| {
            cx.announce("lobby", message.payload)?;
            cx.reply(b"")
        })
        .on("remove", move |cx, message| {
            cx.remove_member("lobby", &text(message.payload))?;
            cx.reply(b"")
        })
        .on("close", move |cx, message| {
            cx.close_member(&text(message.payload), GoAwayCode::Removed, "spam")?;
            cx.reply(b"")
        })
        .with(Chat::new())
}

/// Members and moderator on as many lanes as there may be.
fn moderated_server(lanes: usize) -> (TestServer, Client, [Client; 3]) {
    let builder = Server::builder().lanes(lanes);
    let server = TestServer::over_tcp(builder, &tw1(), with_moderator);
    let connect = |()| {
        let reconnect = Backoff::default();
        let client = Client::builder().reconnect(reconnect);
        client.connect(&server.url()).wait().unwrap()
    };
    let moderator = connect(());
    let members = [(); 3].map(connect);
    (server, moderator, members)
}

#[test]
fn a_room_speaks_to_its_members_on_all_lanes() {
    for lanes in 1..=3 {
        let (server, moderator, members) = moderated_server(lanes);
        let call = |name, payload| moderator.request(payload).method(name).wait();
        assert!(call("announce", b"anybody?").is_err(), "no such room");
        for (client, name) in members.iter().zip(["ada", "bob", "eve"]) {
            client.join("lobby", name).wait().unwrap();
        }
        call("announce", b"closing soon").unwrap();
        for client in &members {
            let heard = message(client, Kind::Deliver);
            assert_eq!((heard.id, &heard.payload[..]), (0, &b"closing soon"[..]));
        }
        members.iter().for_each(|client| client.close().wait());
        moderator.close().wait();
        let metrics = server.stop();
        assert_eq!((metrics.said, metrics.room_delivered >= 3), (1, true));
    }
}

#[test]
fn a_removed_member_is_told_and_may_come_again() {
    for lanes in 1..=3 {
        let (server, moderator, members) = moderated_server(lanes);
        let mut room = 0;
        for (client, name) in members.iter().zip(["ada", "bob", "eve"]) {
            room = client.join("lobby", name).wait().unwrap().room;
        }
        let call = |name, payload| moderator.request(payload).method(name).wait();
        assert!(call("remove", b"nobody").is_err());
        for (client, name) in members.iter().zip(["ada", "bob"]) {
            call("remove", name.as_bytes()).unwrap();
            // Who is removed hears of it as the others do.
            for client in [client, &members[2]] {
                loop {
                    let presence = message(client, Kind::Presence);
                    let body = PresenceBody::decode(&presence.payload).unwrap();
                    if (body.event, body.name) == (PresenceEvent::Left, name) {
                        break;
                    }
                }
            }
            assert!(client.list(room).wait().is_err(), "{name} is out");
        }
        assert_eq!(members[2].list(room).wait().unwrap().len(), 1);
        members[0].join("lobby", "").wait().unwrap();
        assert_eq!(members[2].list(room).wait().unwrap().len(), 2);
        members.iter().for_each(|client| client.close().wait());
        moderator.close().wait();
        server.stop();
    }
}

#[test]
fn a_closed_member_stays_away() {
    for lanes in 1..=3 {
        let (server, moderator, members) = moderated_server(lanes);
        for (client, name) in members.iter().zip(["ada", "bob", "eve"]) {
            client.join("lobby", name).wait().unwrap();
        }
        for (client, name) in members.iter().zip(["ada", "bob", "eve"]) {
            let close = moderator.request(name.as_bytes()).method("close");
            close.wait().unwrap();
            let text = loop {
                match client.next_event().wait_for(DEADLINE).unwrap() {
                    Event::Closed { reason, text } => {
                        assert!(reason.is_final());
                        break text;
                    }
                    Event::Ended => panic!("it was not told"),
                    _ => {}
                }
            };
            assert_eq!(&*text, "spam");
            assert_eq!(client.next_event().wait_for(DEADLINE), Some(Event::Ended));
        }
        moderator.close().wait();
        assert_eq!(server.stop().sessions_opened, 4);
    }
}

#[test]
fn an_announcement_is_a_notice_over_lines_and_a_removed_member_says_nothing_more() {
    let server = TestServer::over_tcp(Server::builder(), &lines(), |_| {
        // The last words of the first member are the moderator's commands.
        Chat::new().on_say(|cx, message| {
            match &*message.payload {
                b"/announce" => cx.announce(message.room, b"\x1b[2Jcleared")?,
                b"/remove" => cx.remove_member(message.room, "bob")?,
                _ => return Ok(()),
            }
            Err(no("done"))
        })
    });
    let (mut ada, mut bob) = (server.peer(), server.peer());
    ada.join("lobby", "ada").unwrap();
    bob.join("lobby", "bob").unwrap();
    ada.hear_of("bob");
    ada.say(b"/announce");
    let mut heard = [
        ada.receive().unwrap().payload,
        ada.receive().unwrap().payload,
    ];
    heard.sort();
    assert_eq!(heard, [&b"! done"[..], b"* ?[2Jcleared"]);
    ada.say(b"/remove");
    let told = |peer: &mut tidewire_testkit::Peer, expected: &[u8]| {
        while peer.receive().unwrap().payload != expected {}
    };
    told(&mut bob, b"* bob left");
    bob.say(b"am I still here?");
    told(&mut bob, b"! not in that room");
    told(&mut ada, b"* bob left");
    drop((ada, bob));
    server.stop();
}
