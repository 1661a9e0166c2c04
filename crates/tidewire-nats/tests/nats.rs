//! Servers of one process as nodes of a cluster on a real `nats-server`.

use std::error::Error;
use std::time::Duration;

use tidewire::backplane::{BackplaneError, NodeSettings};
use tidewire::{Chat, ServeError, Server};
use tidewire_nats::{Nats, NatsError};
use tidewire_testkit::NatsServer;
use tidewire_testkit::backplane::Engine;
use tidewire_testkit::backplane::suite::{chat, chat_of, member, settings};

tidewire_testkit::backplane_suite!(NatsEngine::start(""));

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
