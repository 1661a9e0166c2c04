//! Servers of one process as nodes of a cluster on a real `nats-server`.

use std::error::Error;
use std::time::Duration;

use tidewire::backplane::{BackplaneError, NodeSettings};
use tidewire::{Chat, Client, History, ServeError, Server, TopicEvent};
use tidewire_nats::{Nats, NatsError};
use tidewire_testkit::backplane::Engine;
use tidewire_testkit::backplane::kept::{Reader, kept_topics, publish};
use tidewire_testkit::backplane::suite::{chat, chat_of, member, settings};
use tidewire_testkit::{DEADLINE, Heard, NatsServer, Peer, wait_until};

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

    /// Pauses NATS, or lets it go on.
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
}

/// The error of NATS behind an error of the backplane.
fn cause(error: &BackplaneError) -> &NatsError {
    let BackplaneError::Engine(cause) = error else {
        panic!("{error}");
    };
    let cause: &(dyn Error + 'static) = &**cause;
    cause.downcast_ref().expect("an error of NATS")
}

#[test]
fn an_unreachable_nats_is_a_clear_error_or_waited_for() {
    let Some(mut engine) = NatsEngine::start("") else {
        return;
    };
    engine.cut();
    let error = NatsEngine::refusal(engine.nats(), settings("one"));
    assert!(
        matches!(cause(&error), NatsError::Unreachable { .. }),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains(&engine.server.port().to_string()),
        "{error}"
    );
    let nats = engine.nats().wait_at_start(true);
    let waiting = std::thread::spawn(move || {
        let builder = Server::builder().backplane(nats, settings("one"));
        builder.start(|_| Chat::new()).map(drop)
    });
    engine.mend();
    waiting
        .join()
        .unwrap()
        .expect("the server starts with NATS");
}

#[test]
fn wrong_credentials_are_refused_at_the_start_and_not_shown() {
    let users = r#"authorization { user: "node", password: "right" }"#;
    let Some(mut engine) = NatsEngine::start(users) else {
        return;
    };
    engine.user = "node:wrong@";
    let waits = engine.nats().wait_at_start(true);
    for nats in [engine.nats(), waits] {
        let error = NatsEngine::refusal(nats, settings("one"));
        assert!(matches!(cause(&error), NatsError::Denied { .. }), "{error}");
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    engine.user = "node:right@";
    chat(&engine, "one").stop();
    let missing = engine.nats().credentials_file("/nowhere/node.creds");
    let error = NatsEngine::refusal(missing, settings("one"));
    assert!(
        matches!(cause(&error), NatsError::Credentials { .. }),
        "{error}"
    );
}

#[test]
fn permissions_that_are_too_narrow_are_an_error_at_the_start() {
    let users = r#"authorization { users: [
        { user: "deaf", password: "p", permissions: { subscribe: "other.>" } }
        { user: "mute", password: "p", permissions: { publish: "other.>" } }
    ] }"#;
    let Some(mut engine) = NatsEngine::start(users) else {
        return;
    };
    for user in ["deaf:p@", "mute:p@"] {
        engine.user = user;
        let mut settings = settings("one");
        // NATS answers at once, but the machine may be busy.
        settings.claim = Duration::from_secs(60);
        let error = NatsEngine::refusal(engine.nats(), settings);
        assert!(matches!(error, BackplaneError::Refused { .. }), "{error}");
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

/// Waits for an announcement with this text.
fn announced(peer: &mut Peer, text: &str) {
    loop {
        if let Heard::Message { payload, .. } = peer.hear().expect("an event, not the end")
            && String::from_utf8_lossy(&payload).contains(text)
        {
            return;
        }
    }
}

/// Messages that `peer` gets up to the last one, and those that it is told to be missing. Announcements are not counted.
fn count_to(peer: &mut Peer, last: u64) -> (u64, u64) {
    let (mut got, mut lost) = (0, 0);
    loop {
        match peer.hear().expect("an event, not the end") {
            Heard::Gap(count) => lost += count,
            Heard::Message { payload, .. } => {
                let Ok(number) = payload.try_into().map(u64::from_le_bytes) else {
                    continue;
                };
                assert!(number >= got + lost, "{number} after {got} and {lost}");
                got += 1;
                if number == last {
                    return (got, lost);
                }
            }
            _ => {}
        }
    }
}

/// NATS stops for a moment, and then so long that the nodes give it up. Each message arrives, or is told as missing.
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
    // Its node notices later, and would not notice a NATS that goes on now.
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
            Heard::Refused(_) => break,
            Heard::Presence(..) => {}
            other => panic!("{other:?}"),
        }
    }
    ann.say(&[b'x'; 6_000]);
    loop {
        match bob.hear().expect("an event, not the end") {
            Heard::Message { payload, .. } => break assert_eq!(payload.len(), 6_000),
            Heard::Presence(..) => {}
            other => panic!("{other:?}"),
        }
    }
    drop((ann, bob));
    one.stop();
    two.stop();
}

/// The nodes of a second cluster that was given the prefix and the ids of the first one by mistake do not start, and the
/// first cluster does not notice.
#[test]
fn a_second_cluster_with_the_same_prefix_and_ids_does_not_start() {
    let Some(engine) = NatsEngine::start("") else {
        return;
    };
    let [one, two] = ["one", "two"].map(|id| chat(&engine, id));
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    for id in ["one", "two"] {
        let mut settings = settings(id);
        settings.claim = Duration::from_secs(60);
        let error = NatsEngine::refusal(engine.nats(), settings);
        assert!(
            matches!(&error, BackplaneError::DuplicateNode { id: taken } if taken == id),
            "{error}"
        );
    }
    ann.say(b"unharmed");
    assert_eq!(bob.next_message().1, b"unharmed");
    drop((ann, bob));
    one.stop();
    assert_eq!(two.stop().backplane_lost, 0);
}

/// A topic that JetStream has no space for refuses its subscribers. What is published waits, and arrives when there is space.
#[test]
fn a_topic_without_space_refuses_subscribers_and_keeps_what_is_published() {
    const MESSAGES: usize = 5;
    let streams = |bytes| format!("jetstream {{ store_dir: streams, max_file_store: {bytes} }}");
    let Some(server) = NatsServer::start(&streams("300KB")) else {
        return;
    };
    let mut engine = NatsEngine { server, user: "" };
    // The stream of a topic takes some 170 KB.
    let one = kept_topics(&engine, "one", History::last(100));
    let two = kept_topics(&engine, "two", History::last(100));
    let first = Reader::subscribe(&one, "state.first", None);
    let client = Client::connect(&two.url()).wait().unwrap();
    let error = client.subscribe("state.second").wait().unwrap_err();
    assert!(error.to_string().contains("storage"), "{error}");
    for number in 0..MESSAGES {
        publish(&client, "state.second", &number.to_string());
    }
    publish(&client, "state.first", "unharmed");
    let mut first = first;
    assert_eq!(first.hear(), "unharmed");
    assert!(client.subscribe("state.second").wait().is_err());
    engine.cut();
    engine.server.configure(&streams("10MB"));
    engine.mend();
    let subscription = wait_until("there is space", || {
        client.subscribe("state.second").wait().ok()
    });
    for number in 0..MESSAGES {
        match subscription.next_event().wait_for(DEADLINE) {
            Some(TopicEvent::Message(message)) => {
                assert_eq!(message.payload, number.to_string().as_bytes());
            }
            other => panic!("{other:?}"),
        }
    }
    drop((first, client, subscription));
    let metrics = two.stop();
    assert_eq!((metrics.backplane_unsent, metrics.backplane_lost), (0, 0));
    one.stop();
}

/// NATS without JetStream is known at the start, if histories are wanted.
#[test]
fn histories_without_jetstream_are_a_clear_error_at_the_start() {
    let Some(engine) = NatsEngine::start("") else {
        return;
    };
    let mut settings = settings("one");
    settings.keeps_histories = true;
    let error = NatsEngine::refusal(engine.nats(), settings);
    assert!(
        matches!(cause(&error), NatsError::NoStreams { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("--jetstream"), "{error}");
}
