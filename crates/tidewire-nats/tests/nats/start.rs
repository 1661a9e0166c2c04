//! Faults of NATS, and of the settings for it, end the start with their name.

use std::error::Error;
use std::time::Duration;

use async_nats::rustls::crypto::CryptoProvider;
use tidewire::backplane::BackplaneError;
use tidewire::{Chat, History, Server};
use tidewire_nats::{Nats, NatsError};
use tidewire_testkit::backplane::Engine;
use tidewire_testkit::backplane::histories::Reader;
use tidewire_testkit::backplane::suite::{chat, member, settings};
use tidewire_testkit::certificates::{self, Authority};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{NatsServer, TestServer};

use crate::{NatsEngine, announced};

/// The error of NATS that caused an error of the backplane.
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

/// Regression: a certificate that is not trusted was called a NATS that cannot be reached, and waited for. With two
/// providers of cryptography in the program, TLS ended the thread.
#[test]
fn tls_needs_the_right_authority_and_a_wrong_one_is_not_waited_for() {
    let (authority, identity) = certificates::usual();
    let Some(mut engine) = NatsEngine::start("") else {
        return;
    };
    let server = &mut engine.server;
    server.file("cert.pem", &identity.chain);
    server.file("key.pem", &identity.key);
    let right = server.file("right.pem", authority.text());
    let wrong = server.file("wrong.pem", Authority::new("another").text());
    let empty = server.file("empty.pem", "no certificate");
    server.configure("tls { cert_file: cert.pem, key_file: key.pem }");
    server.kill();
    server.start_again();
    let address = format!("tls://127.0.0.1:{}", server.port());
    let nats = || Nats::new(&address).expect("a valid address");
    let untrusted = nats().authority_file(wrong).wait_at_start(true);
    for nats in [nats(), untrusted] {
        let error = NatsEngine::refusal(nats, settings("one"));
        assert!(matches!(cause(&error), NatsError::Tls { .. }), "{error}");
    }
    for path in [empty, "/nowhere/ca.pem".into()] {
        let error = NatsEngine::refusal(nats().authority_file(&path), settings("one"));
        let is_of_file =
            matches!(cause(&error), NatsError::Authority { path: of, .. } if *of == path);
        assert!(is_of_file, "{error}");
    }
    let [one, two] = ["one", "two"].map(|id| {
        let nats = nats().authority_file(&right);
        let builder = Server::builder().backplane(nats, settings(id));
        TestServer::over_tcp(builder, &tw1(), |_| Chat::new())
    });
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    ann.say(b"encrypted");
    assert_eq!(bob.next_message().1, b"encrypted");
    // The client of NATS would have taken the choice of the whole process.
    assert!(CryptoProvider::get_default().is_none());
    drop((ann, bob));
    one.stop();
    assert_eq!(two.stop().backplane_received, 1);
}

/// Regression: the authorities were read at the start only. After NATS had a certificate of a new authority, nodes were
/// cut off until they were started again.
#[test]
fn nodes_come_back_with_the_authority_that_the_file_has_now() {
    let Some(mut engine) = NatsEngine::start("") else {
        return;
    };
    let server = &mut engine.server;
    server.configure("tls { cert_file: cert.pem, key_file: key.pem }");
    let renew = |server: &mut NatsServer, name: &str| {
        let authority = Authority::new(name);
        let identity = authority.sign_server();
        server.file("cert.pem", &identity.chain);
        server.file("key.pem", &identity.key);
        server.start_again();
        authority
    };
    server.kill();
    let first = renew(server, "first");
    let ca = server.file("ca.pem", first.text());
    let address = format!("tls://127.0.0.1:{}", server.port());
    let [one, two] = ["one", "two"].map(|id| {
        let nats = Nats::new(&address).expect("a valid address");
        let builder = Server::builder().backplane(nats.authority_file(&ca), settings(id));
        TestServer::over_tcp(builder, &tw1(), |_| Chat::new())
    });
    let (mut ann, mut bob) = (member(&one, "ann"), member(&two, "bob"));
    ann.hear_of("bob");
    server.kill();
    announced(&mut ann, "cut off");
    announced(&mut bob, "cut off");
    let second = renew(server, "second");
    server.file("ca.pem", second.text());
    announced(&mut ann, "again");
    announced(&mut bob, "again");
    ann.say(b"after");
    announced(&mut bob, "after");
    drop((ann, bob));
    one.stop();
    two.stop();
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

/// Starts a `nats-server` with users u0, u1 and so on, with these permissions.
fn with_users(permissions: &[String]) -> Option<NatsServer> {
    let users = permissions.iter().enumerate().map(|(number, may)| {
        format!("{{ user: u{number}, password: p, permissions: {{ {may} }} }}\n")
    });
    let users: String = users.collect();
    NatsServer::start_with_streams(&format!("authorization {{ users: [ {users} ] }}"))
}

/// Regression: a user that may publish to nodes but not to rooms started, and its messages were lost silently.
#[test]
fn permissions_that_are_too_narrow_are_an_error_at_the_start() {
    let mut users: Vec<String> = ["subscribe: \"other.>\"", "publish: \"other.>\""]
        .map(Into::into)
        .into();
    let plain = users.len();
    for kind in ["room", "topic", "service", "stored", "followed"] {
        let ways = match kind {
            "stored" => &["publish"][..],
            "followed" => &["subscribe"],
            _ => &["publish", "subscribe"],
        };
        let denied = |way| format!("{way}: {{ allow: \">\", deny: \"tidewire.{kind}.>\" }}");
        users.extend(ways.iter().map(denied));
    }
    let without_jetstream = users.len();
    users.push("publish: \"tidewire.>\"".into());
    users.push(
        "publish: [\"tidewire.>\", \"$JS.API.>\"], subscribe: [\"tidewire.>\", \"_INBOX.>\"]"
            .into(),
    );
    let Some(server) = with_users(&users) else {
        return;
    };
    for (number, permissions) in users.iter().enumerate() {
        let address = format!("nats://u{number}:p@127.0.0.1:{}", server.port());
        let nats = Nats::new(&address).expect("a valid address");
        let mut settings = settings("one");
        settings.keeps_histories = number >= plain;
        if number > without_jetstream {
            // This user may do all that a node does.
            let builder = Server::builder().backplane(nats, settings);
            let chat = Chat::new().history(History::last(10));
            let server = TestServer::over_tcp(builder, &tw1(), move |_| chat.clone());
            let (ann, mut bob) = ["ann", "bob"]
                .map(|name| Reader::join(&server, name, None))
                .into();
            ann.say("stored");
            assert_eq!(bob.hear(), "stored");
            drop((ann, bob));
            assert_eq!(server.stop().backplane_sent, 1);
            continue;
        }
        // NATS answers at once, but the machine may be busy.
        settings.claim = Duration::from_secs(60);
        let error = NatsEngine::refusal(nats, settings);
        if number == without_jetstream {
            let cause = cause(&error);
            assert!(matches!(cause, NatsError::NoStreams { .. }), "{cause}");
        } else {
            let is_refused = matches!(error, BackplaneError::Refused { .. });
            assert!(is_refused, "{permissions}: {error}");
        }
    }
}

/// The nodes of a second cluster with the prefix and the ids of the first by mistake do not start, and the first
/// cluster does not notice.
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
