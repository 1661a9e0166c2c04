//! Clients with cut connections receive the missed messages: none twice, and none is missing without a notice.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tidewire::{
    Backoff, Chat, Client, Event, History, Kind, Limits, PubSub, RequestError, Router, Server,
    TopicEvent,
};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{DEADLINE, TestServer};

use crate::message;

/// A relay that cuts each connection after a random number of bytes from the server.
struct Cutter {
    address: String,
    is_over: Arc<AtomicBool>,
}

impl Cutter {
    /// Cuts after fewer than `bytes_max` bytes.
    fn start(server: &TestServer, bytes_max: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        let target = server.url().replace("tcp://", "");
        let is_over = Arc::new(AtomicBool::new(false));
        let cutter = Self {
            address,
            is_over: Arc::clone(&is_over),
        };
        thread::spawn(move || {
            let mut seed = 0x2545_F491_4F6C_DD1D_u64;
            for near in listener.incoming() {
                // xorshift
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let bytes = match is_over.load(Ordering::SeqCst) {
                    true => usize::MAX,
                    false => 200 + seed as usize % bytes_max,
                };
                let (near, far) = (near.unwrap(), TcpStream::connect(&target).unwrap());
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                thread::spawn(move || relay(near_too, far_too, usize::MAX));
                thread::spawn(move || relay(far, near, bytes));
            }
        });
        cutter
    }

    /// New connections are not cut any more.
    fn stop_cutting(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    fn client(&self) -> Client {
        let backoff = Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(20),
        };
        let client = Client::builder().reconnect(backoff);
        client.connect(&self.address).wait().unwrap()
    }
}

/// Copies until one side ends, or this many bytes were copied.
fn relay(mut from: TcpStream, mut to: TcpStream, mut left: usize) {
    let mut bytes = [0; 4096];
    while left > 0
        && let Ok(count) = from.read(&mut bytes)
        && count > 0
        && to.write_all(&bytes[..count.min(left)]).is_ok()
    {
        left -= count.min(left);
    }
    for end in [from, to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// The messages of one publisher at a reader: each is received, reported as missing, or still to come.
#[derive(Debug, Default)]
struct Ledger {
    next: u64,
    got: u64,
    missing: u64,
    recoveries: u64,
}

impl Ledger {
    fn note_message(&mut self, payload: &[u8]) {
        let number = u64::from_le_bytes(payload[..8].try_into().unwrap());
        assert_eq!(number, self.next, "{self:?}");
        self.next += 1;
        self.got += 1;
    }

    fn note_missing(&mut self, count: u64) {
        self.next += count;
        self.missing += count;
    }

    fn note_recovered(&mut self, missing: Option<u64>) {
        self.recoveries += 1;
        self.note_missing(missing.expect("the server did not start anew"));
    }
}

/// Reads a topic until its last message.
fn read_topic(cutter: &Cutter, messages: u64, all_are_there: &Barrier) -> Ledger {
    let client = cutter.client();
    let subscription = loop {
        // The connection may be cut before the reply.
        match client.subscribe("news.today").wait() {
            Ok(subscription) => break subscription,
            Err(error) => assert!(!matches!(error, RequestError::Refused { .. }), "{error}"),
        }
    };
    all_are_there.wait();
    let mut ledger = Ledger::default();
    while ledger.next < messages {
        match subscription.next_event().wait_for(DEADLINE) {
            Some(TopicEvent::Message(message)) => {
                let offset = message.position.unwrap().offset;
                ledger.note_message(&message.payload);
                assert_eq!(offset, ledger.next, "the first offset is 1");
            }
            Some(TopicEvent::Gap { lost }) => ledger.note_missing(lost),
            Some(TopicEvent::Recovered { missing }) => ledger.note_recovered(missing),
            Some(TopicEvent::Interrupted { .. } | TopicEvent::Resumed) => {}
            other => panic!("{other:?} after {ledger:?}"),
        }
    }
    client.close().wait();
    ledger
}

/// Publishes numbered messages while readers are cut off at random. Each twentieth is of this size. Returns their
/// ledgers.
fn cut_readers(lanes: usize, history: History, large_bytes: usize) -> Vec<Ledger> {
    const MESSAGES: u64 = 4_000;
    const READERS: usize = 4;
    let builder = Server::builder().lanes(lanes);
    let server = TestServer::over_tcp(builder, &tw1(), move |_| {
        PubSub::new().history("news.>", history)
    });
    let cutter = Cutter::start(&server, 6_000);
    let publisher = Client::connect(&server.url()).wait().unwrap();
    let ledgers: Vec<Ledger> = thread::scope(|scope| {
        let all_are_there = Arc::new(Barrier::new(READERS + 1));
        let reader = |_| {
            let all_are_there = Arc::clone(&all_are_there);
            let cutter = &cutter;
            scope.spawn(move || read_topic(cutter, MESSAGES, &all_are_there))
        };
        let readers: Vec<_> = (0..READERS).map(reader).collect();
        all_are_there.wait();
        for number in 0..MESSAGES {
            let mut payload = number.to_le_bytes().to_vec();
            let bytes = match number % 20 {
                19 => large_bytes,
                _ => 8 + number as usize % 60,
            };
            payload.resize(bytes, b'x');
            publisher.publish("news.today", &payload).unwrap();
            if number.is_multiple_of(16) {
                publisher.flush().wait().unwrap();
            }
        }
        cutter.stop_cutting();
        let readers = readers.into_iter();
        readers.map(|reader| reader.join().unwrap()).collect()
    });
    publisher.close().wait();
    server.stop();
    for ledger in &ledgers {
        let Ledger { got, missing, .. } = *ledger;
        assert_eq!(got + missing, MESSAGES, "{ledger:?}");
    }
    ledgers
}

#[test]
fn a_subscriber_with_random_cuts_gets_each_message_of_a_topic_once() {
    for lanes in 1..=3 {
        let history = History {
            messages_max: 100_000,
            bytes_max: 64 << 20,
            ..History::default()
        };
        let ledgers = cut_readers(lanes, history, 8);
        assert!(ledgers.iter().all(|ledger| ledger.missing == 0));
        let recoveries: u64 = ledgers.iter().map(|ledger| ledger.recoveries).sum();
        assert!(recoveries > 0, "no connection was cut");
    }
}

#[test]
fn losses_of_a_short_history_are_reported_exactly() {
    for lanes in 1..=3 {
        cut_readers(lanes, History::last(3), 8);
    }
}

/// Regression: a message that was too large to keep was reported as missing by the reply, and again as a gap.
#[test]
fn messages_too_large_for_the_history_are_counted_exactly() {
    for lanes in 1..=3 {
        let history = History {
            messages_max: 1_000,
            bytes_max: 1_000,
            ..History::default()
        };
        let ledgers = cut_readers(lanes, history, 1_000);
        assert!(ledgers.iter().any(|ledger| ledger.missing > 0));
    }
}

/// Members on all lanes send, and a member that is cut off at random receives all messages of each in order.
#[test]
fn a_member_with_random_cuts_misses_nothing_in_a_room() {
    const MESSAGES: u64 = 600;
    const SPEAKERS: usize = 3;
    for lanes in 1..=3 {
        let history = History {
            messages_max: 100_000,
            bytes_max: 64 << 20,
            ..History::default()
        };
        let builder = Server::builder().lanes(lanes);
        let server = TestServer::over_tcp(builder, &tw1(), move |_| Chat::new().history(history));
        let cutter = Cutter::start(&server, 4_000);
        let speakers: Vec<Client> = (0..SPEAKERS)
            .map(|_| Client::connect(&server.url()).wait().unwrap())
            .collect();
        thread::scope(|scope| {
            let listener = scope.spawn(|| listen(&cutter, SPEAKERS, MESSAGES));
            let talks: Vec<_> = speakers
                .iter()
                .enumerate()
                .map(|(index, speaker)| scope.spawn(move || talk(speaker, index, MESSAGES)))
                .collect();
            talks.into_iter().for_each(|talk| talk.join().unwrap());
            cutter.stop_cutting();
            let ledgers = listener.join().unwrap();
            assert!(ledgers.iter().all(|ledger| ledger.got == MESSAGES));
        });
        speakers.iter().for_each(|client| client.close().wait());
        server.stop();
    }
}

fn talk(speaker: &Client, index: usize, messages: u64) {
    let joined = speaker
        .join("lobby")
        .named(&format!("speaker{index}"))
        .wait();
    let room = joined.unwrap().id();
    for number in 0..messages {
        let mut payload = number.to_le_bytes().to_vec();
        payload.push(index as u8);
        speaker.room(room).say(&payload).unwrap();
        if number.is_multiple_of(8) {
            speaker.room(room).members().wait().unwrap();
        }
    }
    speaker.room(room).members().wait().unwrap();
}

fn listen(cutter: &Cutter, speakers: usize, messages: u64) -> Vec<Ledger> {
    let client = cutter.client();
    let mut ledgers: Vec<Ledger> = (0..speakers).map(|_| Ledger::default()).collect();
    let (mut last, mut attempt) = (0, 0);
    while ledgers.iter().any(|ledger| ledger.next < messages) {
        match client.next_event().wait_for(DEADLINE) {
            Some(Event::Opened { .. }) => {
                // The server may not have seen yet that the former connection has ended.
                attempt += 1;
                match client
                    .join("lobby")
                    .named(&format!("listener{attempt}"))
                    .wait()
                {
                    Ok(_) => {}
                    Err(error) => {
                        assert!(!matches!(error, RequestError::Refused { .. }), "{error}");
                    }
                }
            }
            Some(Event::Message(heard)) if heard.kind == Kind::Deliver => {
                let offset = heard.position.unwrap().offset;
                assert!(offset > last, "{offset} after {last}");
                last = offset;
                ledgers[usize::from(heard.payload[8])].note_message(&heard.payload);
            }
            Some(Event::Recovered { missing, .. }) => assert_eq!(missing, Some(0)),
            Some(Event::Ended) | None => panic!("no event: {ledgers:?}"),
            Some(_) => {}
        }
    }
    client.close().wait();
    ledgers
}

/// A history that is larger than an output is sent in pieces, while others continue to send.
#[test]
fn a_large_history_comes_in_pieces_before_the_live_messages() {
    const KEPT: u64 = 4_000;
    const LIVE: u64 = 200;
    for lanes in 1..=2 {
        let history = History {
            messages_max: 100_000,
            bytes_max: 64 << 20,
            ..History::default()
        };
        let mut limits = Limits::default();
        limits.connections.set_queue_bytes_max(256 * 1024);
        let builder = Server::builder().lanes(lanes).limits(limits);
        let server = TestServer::over_tcp(builder, &tw1(), move |_| Chat::new().history(history));
        let [ada, bob] = [(); 2].map(|()| Client::connect(&server.url()).wait().unwrap());
        let room = ada.join("lobby").named("ada").wait().unwrap();
        let say = |number: u64| {
            let mut payload = number.to_le_bytes().to_vec();
            payload.resize(1_000, b'x');
            room.say(&payload).unwrap();
            if number.is_multiple_of(64) {
                room.members().wait().unwrap();
            }
        };
        (0..KEPT).for_each(say);
        room.members().wait().unwrap();
        let bobs = bob.join("lobby").named("bob").wait().unwrap();
        (KEPT..KEPT + LIVE).for_each(say);
        bobs.say(b"heard by ada alone").unwrap();
        let (mut ledger, mut roster) = (Ledger::default(), 0);
        // The members come after the history, which may include live messages.
        while ledger.next < KEPT + LIVE || roster == 0 {
            match bob.next_event().wait_for(DEADLINE) {
                Some(Event::Message(heard)) if heard.kind == Kind::Deliver => {
                    ledger.note_message(&heard.payload);
                }
                Some(Event::Presence { .. }) => roster += 1,
                Some(_) => {}
                None => panic!("no message after {ledger:?}"),
            }
        }
        assert_eq!(roster, 1, "ada is there");
        assert_eq!(message(&ada, Kind::Deliver).payload, b"heard by ada alone");
        for client in [ada, bob] {
            client.close().wait();
        }
        let metrics = server.stop();
        assert!(metrics.history_replayed >= KEPT);
    }
}

#[test]
fn a_topic_keeps_its_latest_value_without_subscribers() {
    for lanes in 1..=3 {
        let builder = Server::builder().lanes(lanes);
        let server = TestServer::over_tcp(builder, &tw1(), |_| {
            PubSub::new().history("state.*", History::last(1))
        });
        let [writer, reader] = [(); 2].map(|()| Client::connect(&server.url()).wait().unwrap());
        for value in [b"1", b"2"] {
            writer.publish("state.door", value).unwrap();
        }
        writer.publish("other", b"not kept").unwrap();
        writer.flush().wait().unwrap();
        let other = reader.subscribe("other").wait().unwrap();
        let door = reader.subscribe("state.door").wait().unwrap();
        let value = |expected: &[u8]| match door.next_event().wait_for(DEADLINE) {
            Some(TopicEvent::Message(message)) => {
                assert_eq!(message.payload, expected);
                message.position.unwrap()
            }
            other => panic!("{other:?}"),
        };
        let position = value(b"2");
        writer.publish("state.door", b"3").unwrap();
        assert_eq!(value(b"3").offset, position.offset + 1);
        // The second value is gone, and a third was published.
        drop(door);
        let again = reader.subscribe("state.door").since(tidewire::Position {
            offset: position.offset - 1,
            ..position
        });
        let again = again.wait().unwrap();
        let missing = Some(1);
        assert_eq!(
            again.next_event().wait_for(DEADLINE),
            Some(TopicEvent::Recovered { missing })
        );
        drop((again, other));
        for client in [writer, reader] {
            client.close().wait();
        }
        server.stop();
    }
}

/// A pattern with a wildcard has no positions, so its subscriber is told that something may be missing.
#[test]
fn a_wildcard_is_told_that_it_does_not_know_what_is_missing() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        PubSub::new().history(">", History::default())
    });
    let cutter = Cutter::start(&server, 300);
    let client = cutter.client();
    let everything = client.subscribe(">").wait().unwrap();
    let publisher = Client::connect(&server.url()).wait().unwrap();
    let missing = loop {
        publisher.publish("news", &[b'x'; 100]).unwrap();
        publisher.flush().wait().unwrap();
        match everything.next_event().wait_for(DEADLINE) {
            Some(TopicEvent::Recovered { missing }) => break missing,
            Some(_) => {}
            None => panic!("no event"),
        }
    };
    assert_eq!(missing, None);
    for client in [publisher, client] {
        client.close().wait();
    }
    server.stop();
}

#[test]
fn a_client_that_does_not_know_positions_is_refused() {
    let server = TestServer::over_tcp(Server::builder(), &tw1(), |_| {
        Router::new()
            .with(Chat::new().history_of("kept", History::default()))
            .with(PubSub::new().history("kept", History::default()))
    });
    let mut peer = server.peer();
    let error = peer.join("kept", "ada").unwrap_err();
    assert!(error.contains("history"), "{error}");
    assert!(peer.join("free", "ada").is_ok());
    drop(peer);
    server.stop();
}
