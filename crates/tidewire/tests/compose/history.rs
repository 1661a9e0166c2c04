//! Messages from before a join: each arrives once, in order, without a gap, on any lane.

use std::collections::HashMap;

use tidewire::{Chat, Client, Event, History, Kind, Room, RoomId, Server};
use tidewire_testkit::fixtures::{lines, tw1};
use tidewire_testkit::{DEADLINE, TestServer};

use crate::message;

fn with_history(lanes: usize, history: History) -> TestServer {
    let builder = Server::builder().lanes(lanes);
    TestServer::over_tcp(builder, &tw1(), move |_| Chat::new().history(history))
}

#[test]
fn the_last_messages_come_before_live_ones_with_their_authors_names() {
    for lanes in 1..=3 {
        let server = with_history(lanes, History::last(3));
        let ada = Client::connect(&server.url()).wait().unwrap();
        let room = ada.join("lobby").named("ada").wait().unwrap().id();
        for number in 0..5_u8 {
            ada.room(room).say(&[number]).unwrap();
        }
        ada.room(room).members().wait().unwrap();
        // The author has left, so the room is gone with its last member.
        ada.close().wait();
        server.wait_for("ada is gone", |metrics| metrics.sessions_closed() == 1);
        let [bob, eve] = [(); 2].map(|()| Client::connect(&server.url()).wait().unwrap());
        let room = bob.join("lobby").named("bob").wait().unwrap();
        room.say(b"live").unwrap();
        for number in 2..5 {
            let told = message(&bob, Kind::Deliver);
            assert_eq!((&*told.name, &told.payload[..]), ("ada", &[number][..]));
            assert_eq!(told.room(), room.id());
        }
        room.members().wait().unwrap();
        eve.join("lobby").named("eve").wait().unwrap();
        for expected in [("ada", &[3][..]), ("ada", &[4]), ("bob", b"live")] {
            let told = message(&eve, Kind::Deliver);
            assert_eq!((&*told.name, &told.payload[..]), expected);
        }
        room.say(b"hello, eve").unwrap();
        let live = message(&eve, Kind::Deliver);
        assert_eq!((&*live.name, &live.payload[..]), ("", &b"hello, eve"[..]));
        bob.close().wait();
        eve.close().wait();
        server.stop();
    }
}

#[test]
fn a_chat_without_history_tells_nothing_and_whispers_are_not_kept() {
    let server = with_history(1, History::default());
    let [ada, bob, eve] = [(); 3].map(|()| Client::connect(&server.url()).wait().unwrap());
    let room = ada.join("lobby").named("ada").wait().unwrap();
    bob.join("lobby").named("bob").wait().unwrap();
    room.whisper("bob", b"secret").wait().unwrap();
    room.say(b"aloud").unwrap();
    room.members().wait().unwrap();
    eve.join("lobby").named("eve").wait().unwrap();
    assert_eq!(message(&eve, Kind::Deliver).payload, b"aloud");
    for client in [ada, bob, eve] {
        client.close().wait();
    }
    server.stop();
}

/// Regression: all messages of the history were dropped for a message that was too large, which was then not kept
/// either. On other lanes it had the number of the next message.
#[test]
fn a_message_too_large_for_a_history_is_said_and_leaves_the_others() {
    for lanes in 1..=3 {
        let limits = History {
            bytes_max: 450,
            ..History::default()
        };
        let builder = Server::builder().lanes(lanes);
        let service = move |_| {
            let chat = Chat::new().history(limits);
            chat.on_say(|cx, message| match &*message.payload {
                // The room itself sends a message beyond the limit.
                b"announce" => {
                    cx.rooms().announce(message.room, &[b'a'; 500])?;
                    message.payload = b"it is announced".into();
                    Ok(())
                }
                _ => Ok(()),
            })
        };
        let server = TestServer::over_tcp(builder, &tw1(), service);
        let [ada, bob, eve] = [(); 3].map(|()| Client::connect(&server.url()).wait().unwrap());
        let room = ada.join("lobby").named("ada").wait().unwrap();
        bob.join("lobby").named("bob").wait().unwrap();
        for payload in [&b"first"[..], &[b'x'; 500], b"announce", b"last"] {
            room.say(payload).unwrap();
        }
        let heard = [(); 5].map(|()| message(&bob, Kind::Deliver).payload);
        let long = [vec![b'x'; 500], vec![b'a'; 500]];
        assert_eq!(
            heard,
            [
                &b"first"[..],
                &long[0],
                &long[1],
                b"it is announced",
                b"last"
            ]
        );
        eve.join("lobby").named("eve").wait().unwrap();
        for expected in [&b"first"[..], b"it is announced", b"last"] {
            assert_eq!(message(&eve, Kind::Deliver).payload, expected);
        }
        for client in [ada, bob, eve] {
            client.close().wait();
        }
        let metrics = server.stop();
        assert_eq!((metrics.chat_messages, metrics.history_skipped), (5, 2));
    }
}

#[test]
fn lines_have_a_history_too() {
    let server = TestServer::over_tcp(Server::builder(), &lines(), |_| {
        Chat::new().history(History::last(2))
    });
    let (mut ada, mut bob) = (server.peer(), server.peer());
    ada.join("lobby", "ada").unwrap();
    for text in [b"one", b"two", b"six"] {
        ada.say(text);
    }
    server.wait_for("it is said", |metrics| metrics.chat_messages == 3);
    bob.join("lobby", "bob").unwrap();
    for text in [b"two", b"six"] {
        assert_eq!(bob.next_message(), ("ada".to_owned(), text.to_vec()));
    }
    drop((ada, bob));
    server.stop();
}

/// Members of all lanes send while others join. Each new member gets all messages of each sender, from the history or
/// live.
#[test]
fn a_member_that_joins_while_others_talk_gets_each_message_once() {
    const MESSAGES: u32 = 400;
    const NEWCOMERS: usize = 24;
    for lanes in 1..=3 {
        let history = History {
            messages_max: 10_000,
            bytes_max: 512 * 1024,
            ..History::default()
        };
        let server = with_history(lanes, history);
        let speakers: Vec<Client> = (0..3)
            .map(|_| Client::connect(&server.url()).wait().unwrap())
            .collect();
        let newcomers: Vec<Client> = (0..NEWCOMERS)
            .map(|_| Client::connect(&server.url()).wait().unwrap())
            .collect();
        let mut room = RoomId(0);
        for (number, speaker) in speakers.iter().enumerate() {
            let joined = speaker
                .join("lobby")
                .named(&format!("speaker{number}"))
                .wait();
            room = joined.unwrap().id();
        }
        std::thread::scope(|scope| {
            for (number, speaker) in speakers.iter().enumerate() {
                scope.spawn(move || {
                    for count in 0..MESSAGES {
                        speaker.room(room).say(&words(number, count)).unwrap();
                        if count % 8 == 0 {
                            // A pause, so that not all others join before or after the messages.
                            speaker.room(room).members().wait().unwrap();
                        }
                    }
                });
            }
            for (number, newcomer) in newcomers.iter().enumerate() {
                newcomer
                    .join("lobby")
                    .named(&format!("newcomer{number}"))
                    .wait()
                    .unwrap();
            }
        });
        for newcomer in &newcomers {
            check_rows(newcomer, speakers.len(), MESSAGES);
            newcomer.close().wait();
        }
        speakers.iter().for_each(|client| client.close().wait());
        server.stop();
    }
}

/// Many members join at once on all lanes, and each gets the messages of a former run once.
#[test]
fn a_room_begins_with_the_messages_of_a_former_run() {
    for lanes in 1..=3 {
        let kept = |numbers: std::ops::Range<u8>| {
            let forged = ("\u{1b}[2J".to_owned(), b"no such name".to_vec());
            let kept = numbers.map(|number| ("ada".to_owned(), vec![number]));
            kept.chain([forged]).collect::<Vec<_>>()
        };
        let chat = Chat::new()
            .history(History::last(3))
            .restore_history("lobby", kept(0..5))
            .restore_history("garden", kept(7..8));
        let builder = Server::builder().lanes(lanes);
        let server = TestServer::over_tcp(builder, &tw1(), move |_| chat.clone());
        let clients = [(); 6].map(|()| Client::connect(&server.url()).wait().unwrap());
        let joins: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(number, client)| client.join("lobby").named(&format!("guest{number}")).send())
            .collect();
        let rooms: Vec<Room> = joins.into_iter().map(|join| join.wait().unwrap()).collect();
        rooms[0].say(b"live").unwrap();
        for client in &clients[1..] {
            for expected in [
                ("ada", &[2][..]),
                ("ada", &[3]),
                ("ada", &[4]),
                ("", b"live"),
            ] {
                let told = message(client, Kind::Deliver);
                assert_eq!((&*told.name, &told.payload[..]), expected);
            }
        }
        clients[1].join("garden").named("").wait().unwrap();
        assert_eq!(message(&clients[1], Kind::Deliver).payload, [7]);
        clients.iter().for_each(|client| client.close().wait());
        server.stop();
    }
}

fn words(speaker: usize, count: u32) -> Vec<u8> {
    let mut payload = vec![u8::try_from(speaker).unwrap()];
    payload.extend_from_slice(&count.to_le_bytes());
    payload
}

/// Reads all messages of every sender.
fn check_rows(newcomer: &Client, speakers: usize, messages: u32) {
    let mut next: HashMap<u8, u32> = HashMap::new();
    let mut ended = 0;
    while ended < speakers {
        let event = newcomer.next_event().wait_for(DEADLINE);
        let Some(Event::Message(heard)) = event else {
            assert!(
                event.is_some(),
                "a speaker was not heard to the end: {next:?}"
            );
            continue;
        };
        if heard.kind != Kind::Deliver {
            continue;
        }
        let (speaker, count) = heard.payload.split_first().unwrap();
        let count = u32::from_le_bytes(count.try_into().unwrap());
        let expected = next.insert(*speaker, count + 1).unwrap_or(0);
        assert_eq!(count, expected, "of speaker {speaker}");
        ended += usize::from(count + 1 == messages);
    }
}
