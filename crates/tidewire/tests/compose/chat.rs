//! Hooks of a chat, announcements, and removed members.

use std::borrow::Cow;
use std::sync::mpsc;

use tidewire::{
    Backoff, Chat, Client, ErrorCode, Event, GoAwayCode, HandlerError, Kind, Limits, RequestError,
    RoomId, Router, Server,
};
use tidewire_proto::message::PresenceEvent;
use tidewire_testkit::fixtures::{lines, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::{message, refusal};

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
fn hooks_refuse_and_change_messages_over_tw1() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| moderated());
    let [ada, bob, eve] = [(); 3].map(|()| Client::connect(&server.url()).wait().unwrap());
    let room = ada.join("lobby").named("ada").wait().unwrap();
    bob.join("lobby").named("bob").wait().unwrap();
    for (client, room, name) in [(&eve, "lobby", "eve"), (&bob, "staff", "")] {
        match client.join(room).named(name).wait().unwrap_err() {
            RequestError::Refused { code, .. } => assert_eq!(code, ErrorCode::NameInvalid),
            error => panic!("{error}"),
        }
    }
    room.say(b"spam spam").unwrap();
    room.say(b"hello!!").unwrap();
    assert_eq!(message(&bob, Kind::Deliver).payload, b"ada@lobby: hello");
    assert_eq!(refusal(&ada).0, room.id().0);
    assert!(room.whisper("bob", b"spam").wait().is_err());
    room.whisper("bob", b"psst!").wait().unwrap();
    assert_eq!(message(&bob, Kind::Deliver).payload, b"ada@lobby: psst");
    for client in [ada, bob, eve] {
        client.close().wait();
    }
    assert_eq!(server.stop().chat_messages, 1);
}

#[test]
fn hooks_refuse_and_change_messages_over_lines() {
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
    assert_eq!(bob.next_message(), heard);
    drop((ada, bob));
    server.stop();
}

/// Regression: the hook did not run for members whom a handler removed from a room.
#[test]
fn the_hook_is_told_once_for_each_way_of_leaving() {
    for lanes in 1..=3 {
        let (sender, left) = mpsc::channel();
        let service = move |_| {
            let sender = sender.clone();
            let chat = Chat::new().on_leave(move |cx, room, name| {
                let known = cx.session().name();
                assert_eq!(known, Some(name), "the call is about who leaves");
                sender.send(format!("{name} left {room}")).unwrap();
            });
            let chat = chat.on_say(|cx, message| match &*message.payload {
                b"/leave" => {
                    let room = cx.rooms().join("other", "")?.room;
                    Ok(cx.rooms().leave(room)?)
                }
                _ => Ok(()),
            });
            with_moderator(chat)
        };
        let server = TestServer::over_tcp(Server::builder().lanes(lanes), &tw1(), service);
        let connect = |()| Client::connect(&server.url()).wait().unwrap();
        let [moderator, ada, bob, eve] = [(); 4].map(connect);
        let call = |name, payload| moderator.request(payload).method(name).wait();
        let expect = |line: &str| assert_eq!(left.recv_timeout(DEADLINE).unwrap(), line);
        let join = |client: &Client, name| client.join("lobby").named(name).wait().unwrap().id();
        join(&ada, "ada");
        let garden = ada.join("garden").named("").wait().unwrap();
        // The member leaves by itself.
        garden.leave().wait().unwrap();
        expect("ada left garden");
        assert!(garden.leave().wait().is_err(), "she is not there");
        // A handler removes the member, on its own lane and on another lane, before the member can join again.
        join(&bob, "bob");
        for name in ["ada", "bob"] {
            call("remove", name.as_bytes()).unwrap();
            assert!(call("remove", name.as_bytes()).is_err() || lanes > 1);
            expect(&format!("{name} left lobby"));
        }
        let lobby = join(&ada, "");
        ada.room(lobby).say(b"/leave").unwrap();
        expect("ada left other");
        // The session ends: closed by a handler, closed by the member, lost, and with the server.
        call("close", b"ada").unwrap();
        expect("ada left lobby");
        join(&bob, "");
        bob.close().wait();
        expect("bob left lobby");
        join(&eve, "eve");
        drop(eve);
        expect("eve left lobby");
        let dan = connect(());
        join(&dan, "dan");
        server.stop();
        expect("dan left lobby");
        assert_eq!(left.try_recv().ok(), None);
    }
}

/// Regression: the hook ran for messages that were then refused.
#[test]
fn the_hook_sees_only_messages_that_will_be_sent() {
    let mut limits = Limits::default();
    limits.connections.set_frame_bytes_max(1_000);
    let (sender, seen) = mpsc::channel();
    let chat = Chat::new().on_say(move |_, message| {
        sender.send(message.payload.to_vec()).unwrap();
        Ok(())
    });
    let builder = Server::builder().limits(limits);
    let server = TestServer::over_tcp(builder, &tw1(), |_| chat.clone());
    let [ada, bob] = [(); 2].map(|()| Client::connect(&server.url()).wait().unwrap());
    let room = ada.join("lobby").named("ada").wait().unwrap();
    let refused = |client: &Client, code| assert_eq!(refusal(client).1, code);
    room.say(&[b'x'; 950]).unwrap();
    refused(&ada, ErrorCode::LimitReached);
    bob.room(room.id()).say(b"I am not in").unwrap();
    refused(&bob, ErrorCode::NotJoined);
    assert!(room.whisper("nobody", b"psst").wait().is_err());
    assert!(bob.room(room.id()).whisper("ada", b"psst").wait().is_err());
    room.say(b"said").unwrap();
    room.whisper("ada", b"whispered").wait().unwrap();
    for expected in [&b"said"[..], b"whispered"] {
        assert_eq!(seen.recv_timeout(DEADLINE).unwrap(), expected);
    }
    ada.close().wait();
    bob.close().wait();
    server.stop();
    assert_eq!(seen.try_recv().ok(), None);
}

/// Adds methods with which a moderator sends as the room and removes members.
fn with_moderator(chat: Chat) -> Router {
    let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
    Router::new()
        .on("announce", |cx, message| {
            cx.rooms().announce("lobby", message.payload)?;
            cx.reply(b"")
        })
        .on("remove", move |cx, message| {
            cx.rooms().remove_member("lobby", &text(message.payload))?;
            cx.reply(b"")
        })
        .on("close", move |cx, message| {
            cx.rooms()
                .close_member(&text(message.payload), GoAwayCode::Removed, "spam")?;
            cx.reply(b"")
        })
        .with(chat)
}

/// A server whose members and moderator are spread over all lanes.
fn moderated_server(lanes: usize) -> (TestServer, Client, [Client; 3]) {
    let builder = Server::builder().lanes(lanes);
    let server = TestServer::over_tcp(builder, &tw1(), |_| with_moderator(Chat::new()));
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
            client.join("lobby").named(name).wait().unwrap();
        }
        call("announce", b"closing soon").unwrap();
        for client in &members {
            let heard = message(client, Kind::Deliver);
            assert_eq!((heard.id, &heard.payload[..]), (0, &b"closing soon"[..]));
        }
        members.iter().for_each(|client| client.close().wait());
        moderator.close().wait();
        let metrics = server.stop();
        assert_eq!(
            (metrics.chat_messages, metrics.room_delivered >= 3),
            (1, true)
        );
    }
}

#[test]
fn a_removed_member_is_told_and_may_come_again() {
    for lanes in 1..=3 {
        let (server, moderator, members) = moderated_server(lanes);
        let mut room = RoomId(0);
        for (client, name) in members.iter().zip(["ada", "bob", "eve"]) {
            room = client.join("lobby").named(name).wait().unwrap().id();
        }
        let call = |name, payload| moderator.request(payload).method(name).wait();
        assert!(call("remove", b"nobody").is_err());
        for (client, name) in members.iter().zip(["ada", "bob"]) {
            call("remove", name.as_bytes()).unwrap();
            // The removed member gets the event as the others do.
            for client in [client, &members[2]] {
                loop {
                    let event = client.next_event().wait_for(DEADLINE).expect("news");
                    if let Event::Presence {
                        name: left,
                        event: PresenceEvent::Left,
                        ..
                    } = event
                        && left == name
                    {
                        break;
                    }
                }
            }
            assert!(client.room(room).members().wait().is_err(), "{name} is out");
        }
        assert_eq!(members[2].room(room).members().wait().unwrap().len(), 1);
        members[0].join("lobby").named("").wait().unwrap();
        assert_eq!(members[2].room(room).members().wait().unwrap().len(), 2);
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
            client.join("lobby").named(name).wait().unwrap();
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
        // The first member's messages are the moderator's commands.
        Chat::new().on_say(|cx, message| {
            match &*message.payload {
                b"/announce" => cx.rooms().announce(message.room, b"\x1b[2Jcleared")?,
                b"/remove" => cx.rooms().remove_member(message.room, "bob")?,
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
