//! Servers of one process as nodes of a cluster on a real `nats-server`.

mod histories;
mod slow;
mod start;

use tidewire::backplane::{BackplaneError, NodeSettings};
use tidewire::{Chat, ServeError, Server};
use tidewire_nats::Nats;
use tidewire_testkit::backplane::Engine;
use tidewire_testkit::backplane::suite::{chat, chat_of, member, settings};
use tidewire_testkit::{NatsServer, Peer, RoomEvent};

tidewire_testkit::backplane_suite!(NatsEngine::start_with_streams());

/// A `nats-server`, and the user that nodes give.
#[derive(Debug)]
struct NatsEngine {
    server: NatsServer,
    /// Put in front of the host in the address.
    user: &'static str,
}

impl NatsEngine {
    /// Starts a server with this configuration; `None` without the program.
    fn start(configuration: &str) -> Option<Self> {
        let server = NatsServer::start(configuration)?;
        Some(Self { server, user: "" })
    }

    /// Pauses NATS, or lets it continue.
    fn pause(&self, is_paused: bool) {
        self.server.pause(is_paused);
    }

    fn start_with_streams() -> Option<Self> {
        let server = NatsServer::start_with_streams("")?;
        Some(Self { server, user: "" })
    }

    fn nats(&self) -> Nats {
        let address = format!("nats://{}127.0.0.1:{}", self.user, self.server.port());
        Nats::new(&address).expect("a valid address")
    }

    /// Starts a node that is expected to fail, and returns why.
    fn refusal(nats: Nats, settings: NodeSettings) -> BackplaneError {
        let started = Server::builder()
            .listen("tcp://127.0.0.1:0")
            .expect("a valid address")
            .backplane(nats, settings)
            .start(|_| Chat::new());
        match started {
            Err(ServeError::Backplane(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

impl Engine for NatsEngine {
    type Backplane = Nats;

    fn backplane(&self) -> Nats {
        self.nats()
    }

    fn cut(&mut self) {
        self.server.kill();
    }

    fn mend(&mut self) {
        self.server.start_again();
    }

    fn lose_streams(&mut self) {
        self.server.lose_streams();
        self.server.start_again();
    }

    fn save_streams(&mut self) {
        self.server.save_streams();
    }

    fn restore_streams(&mut self) {
        self.server.restore_streams();
    }
}

#[test]
fn a_small_limit_of_packets_refuses_long_messages_and_a_tiny_one_the_start() {
    let Some(engine) = NatsEngine::start("max_payload: 8192") else {
        return;
    };
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(&[b'x'; 8000]);
    let refusal = ann.hear();
    let text = format!("{refusal:?}");
    assert!(text.contains("Refused"), "{text}");
    ann.say(&[b'x'; 6000]);
    assert_eq!(bob.next_message().1.len(), 6000);
    drop((ann, bob));
    one.stop();
    two.stop();
    let Some(engine) = NatsEngine::start("max_payload: 2048") else {
        return;
    };
    let error = NatsEngine::refusal(engine.nats(), settings("one"));
    assert!(
        matches!(error, BackplaneError::PacketLimit { bytes: 2048 }),
        "{error}"
    );
}

#[test]
fn two_clusters_with_different_prefixes_do_not_hear_each_other() {
    let Some(engine) = NatsEngine::start("") else {
        return;
    };
    let of = |prefix: &str| {
        let nats = engine.nats().prefix(prefix).expect("a valid prefix");
        let builder = Server::builder().backplane(nats, settings("one"));
        tidewire_testkit::TestServer::over_tcp(
            builder,
            &tidewire::AnyCodec::by_name("tw1").expect("a codec"),
            |_| Chat::new(),
        )
    };
    // The same id is no conflict, because they are two clusters.
    let (red, blue) = (of("red"), of("blue"));
    let (mut ann, bob) = (member(&red, "ann"), member(&blue, "bob"));
    ann.say(b"only red");
    red.wait_for("the message crosses", |metrics| metrics.backplane_sent == 1);
    drop((ann, bob));
    red.stop();
    assert_eq!(blue.stop().backplane_received, 0);
}

#[test]
fn names_of_rooms_cannot_break_out_of_their_subjects() {
    let Some(engine) = NatsEngine::start("") else {
        return;
    };
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let rooms = ["a.b", "a-b", "a'c", "über"];
    let mut heard = Vec::new();
    for room in rooms {
        let mut ann = one.peer();
        ann.join(room, &format!("ann-{}", heard.len()))
            .expect("a free name");
        let mut bob = two.peer();
        bob.join(room, &format!("bob-{}", heard.len()))
            .expect("a free name");
        ann.hear_of(&format!("bob-{}", heard.len()));
        heard.push((ann, bob));
    }
    for (room, (ann, _)) in rooms.iter().zip(&mut heard) {
        ann.say(room.as_bytes());
    }
    for (room, (_, bob)) in rooms.iter().zip(&mut heard) {
        assert_eq!(bob.next_message().1, room.as_bytes());
    }
    drop(heard);
    one.stop();
    assert_eq!(two.stop().backplane_received, rooms.len() as u64);
}

#[test]
fn a_server_without_members_gets_no_messages() {
    let Some(engine) = NatsEngine::start("") else {
        return;
    };
    let [one, two] = ["one", "two"].map(|id| chat_of(Server::builder(), &engine, settings(id)));
    let mut ann = member(&one, "ann");
    for _ in 0..100 {
        ann.say(b"to nobody");
    }
    one.wait_for("the messages leave", |metrics| {
        metrics.backplane_sent == 100
    });
    drop(ann);
    one.stop();
    assert_eq!(two.stop().backplane_received, 0);
}

/// Waits for a message or an announcement with this text.
fn announced(peer: &mut Peer, text: &str) {
    loop {
        if let RoomEvent::Message { payload, .. } = peer.hear().expect("an event, not the end")
            && String::from_utf8_lossy(&payload).contains(text)
        {
            return;
        }
    }
}

/// Counts messages that `peer` receives up to the last, and messages that are reported as missing. A message begins
/// with its number. Announcements are not counted.
fn count_to(peer: &mut Peer, last: u64) -> (u64, u64) {
    let (mut got, mut lost, mut next) = (0, 0, 0);
    loop {
        match peer.hear().expect("an event, not the end") {
            RoomEvent::Gap(count) => lost += count,
            RoomEvent::Message { payload, .. } if !payload.starts_with(b"this server") => {
                let number = payload.first_chunk().expect("its number");
                let number = u64::from_le_bytes(*number);
                assert!(number >= next, "{number} in place of {next}");
                next = number + 1;
                got += 1;
                if number == last {
                    return (got, lost);
                }
            }
            _ => {}
        }
    }
}

/// NATS stops for a moment, and then so long that the nodes give it up. Each message arrives, or is reported as
/// missing.
#[test]
fn a_nats_that_is_stopped_and_goes_on_loses_nothing_in_silence() {
    const MESSAGES: u64 = 100;
    let Some(engine) = NatsEngine::start("") else {
        return;
    };
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    let mut number = 0_u64;
    let mut say = |ann: &mut Peer, count: u64| {
        for _ in 0..count {
            ann.say(&number.to_le_bytes());
            number += 1;
        }
        number - 1
    };
    engine.pause(true);
    let last = say(&mut ann, MESSAGES);
    engine.pause(false);
    assert_eq!(count_to(&mut bob, last), (MESSAGES, 0));
    engine.pause(true);
    say(&mut ann, MESSAGES);
    announced(&mut ann, "cut off");
    // Its node notices later, and would not notice a NATS that continues now.
    announced(&mut bob, "cut off");
    say(&mut ann, MESSAGES);
    engine.pause(false);
    announced(&mut ann, "again");
    announced(&mut bob, "again");
    let last = say(&mut ann, 1);
    let (got, lost) = count_to(&mut bob, last);
    drop((ann, bob));
    one.stop();
    let metrics = two.stop();
    assert_eq!(
        metrics.backplane_received + metrics.backplane_lost,
        last + 1
    );
    assert!(
        got + lost <= 2 * MESSAGES + 1 && lost >= MESSAGES,
        "{got} and {lost}"
    );
}

/// Regression: a NATS that came back with a smaller limit was given packets that it does not take.
#[test]
fn a_nats_that_comes_back_with_a_smaller_limit_refuses_long_messages() {
    let Some(mut engine) = NatsEngine::start("") else {
        return;
    };
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(&[b'x'; 9_000]);
    assert_eq!(bob.next_message().1.len(), 9_000);
    engine.server.kill();
    announced(&mut ann, "cut off");
    announced(&mut bob, "cut off");
    engine.server.configure("max_payload: 8192");
    engine.server.start_again();
    announced(&mut ann, "again");
    announced(&mut bob, "again");
    ann.say(&[b'x'; 9_000]);
    loop {
        match ann.hear().expect("an event, not the end") {
            RoomEvent::Refused(_) => break,
            RoomEvent::Presence(..) => {}
            other => panic!("{other:?}"),
        }
    }
    ann.say(&[b'x'; 6_000]);
    loop {
        match bob.hear().expect("an event, not the end") {
            RoomEvent::Message { payload, .. } => break assert_eq!(payload.len(), 6_000),
            RoomEvent::Presence(..) => {}
            other => panic!("{other:?}"),
        }
    }
    drop((ann, bob));
    one.stop();
    two.stop();
}
