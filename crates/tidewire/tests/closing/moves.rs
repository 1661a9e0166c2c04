//! Servers that drain and send their clients elsewhere.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use tidewire::address::Successor;
use tidewire::auth::{
    AuthOutcome, AuthRequest, Authenticate, Credentials, Identity, Permissions, Token,
};
use tidewire::{AnyCodec, Client, ClientBuilder, ConnectError, Event, Server, ServerBuilder};
use tidewire_proto::body::MovedBody;
use tidewire_proto::codec::Codec;
use tidewire_proto::handshake::{FEATURE_MOVED, PROTOCOL_VERSION, Welcome};
use tidewire_proto::message::{FLAG_MOVED, Kind, Message};
use tidewire_testkit::certificates::{Authority, usual};
use tidewire_testkit::fixtures::{codec, echo};
use tidewire_testkit::logs::Logs;
use tidewire_testkit::{DEADLINE, assert_conserved, wait_until};

use crate::{SOON, event};

fn serve(builder: ServerBuilder, address: &str) -> Server {
    let builder = builder.listen(address).unwrap();
    builder.start(|_| echo).unwrap()
}

fn plain() -> Server {
    serve(Server::builder(), "tcp://127.0.0.1:0")
}

fn moving() -> ClientBuilder {
    Client::builder().reconnect(SOON).follow_moves(true)
}

fn successor(server: &Server) -> Successor {
    server.to_string().parse().unwrap()
}

fn ask(client: &Client, payload: &[u8]) {
    let reply = client.request(payload).idempotent().wait().unwrap();
    assert_eq!(reply.payload(), payload);
}

/// Ends a server, and sends its clients to the other one. Both must account for everything.
fn hand_over(from: Server, to: &Server) {
    let stopped = from.shutdown_to(&successor(to), DEADLINE);
    assert_conserved(&stopped);
    assert_eq!(stopped.metrics.sessions_cut_off, 0);
}

#[test]
fn clients_go_where_a_draining_server_sends_them() {
    let (old, new) = (plain(), plain());
    let client = moving().connect(&old.to_string()).wait().unwrap();
    let stays = Client::connect(&old.to_string()).wait().unwrap();
    let busy = client.clone();
    let asking = thread::spawn(move || {
        // No request is lost: requests that the old server refused or did not read are sent again to the new server.
        for number in 0..2_000_u32 {
            ask(&busy, &number.to_le_bytes());
        }
    });
    wait_until("some requests were answered", || {
        (old.metrics().frames_in >= 10).then_some(())
    });
    hand_over(old, &new);
    asking.join().unwrap();
    ask(&client, b"over there");
    let text = event(&stays, |event| match event {
        Event::Closed { text, .. } => Some(text),
        _ => None,
    });
    // A client without support for addresses receives the usual go-away.
    assert_eq!(&*text, "the server is shutting down");
    drop((client, stays));
    let stopped = new.shutdown(DEADLINE);
    assert_conserved(&stopped);
    assert_eq!(stopped.metrics.sessions_opened, 1);
}

#[test]
fn a_client_returns_when_the_new_server_is_gone() {
    let (old, new) = (plain(), plain());
    let home = old.to_string();
    let client = moving().connect(&home).wait().unwrap();
    hand_over(old, &new);
    ask(&client, b"at the new one");
    let old = serve(Server::builder(), &home);
    assert_conserved(&new.shutdown(DEADLINE));
    ask(&client, b"at home");
    drop(client);
    let stopped = old.shutdown(DEADLINE);
    assert_conserved(&stopped);
    assert_eq!(stopped.metrics.sessions_opened, 1);
}

#[test]
fn a_lazy_client_follows_at_its_next_use() {
    let (old, new) = (plain(), plain());
    let builder = Client::builder().follow_moves(true);
    let client = builder.connect_lazy(&old.to_string()).unwrap();
    ask(&client, b"here");
    hand_over(old, &new);
    event(&client, |event| {
        matches!(event, Event::Closed { .. }).then_some(())
    });
    ask(&client, b"there");
    assert_eq!(new.metrics().sessions_opened, 1);
}

#[test]
fn an_encrypted_connection_moves_only_to_a_host_with_a_valid_certificate() {
    let (authority, identity) = usual();
    let other = Authority::new("another");
    let at = "tls://127.0.0.1:0";
    for (certificate, moves) in [
        (identity.server(), true),
        (other.sign_server().server(), false),
    ] {
        let old = serve(Server::builder().tls(identity.server()), at);
        let new = serve(Server::builder().tls(certificate), at);
        let builder = moving().tls(authority.client());
        let token = Token::new("secret").unwrap();
        let client = builder.credentials(token).connect(&old.to_string()).wait();
        let client = client.unwrap();
        hand_over(old, &new);
        if moves {
            ask(&client, b"there");
        } else {
            event(&client, |event| match event {
                Event::Reconnecting { cause, .. } if cause.contains("certificate") => Some(()),
                _ => None,
            });
        }
        assert_eq!(new.metrics().frames_in > 0, moves);
    }
}

#[test]
fn a_codec_without_go_away_ends_as_usual() {
    let builder = || Server::builder().codec(codec("length-field"));
    let (old, new) = (serve(builder(), "tcp://127.0.0.1:0"), plain());
    let client = moving().codec(codec("length-field"));
    let client = client.connect(&old.to_string()).wait().unwrap();
    ask(&client, b"hello");
    hand_over(old, &new);
    event(&client, |event| {
        matches!(event, Event::Reconnecting { .. }).then_some(())
    });
    assert_eq!(new.metrics().sessions_opened, 0);
}

/// A server that welcomes each client, and sends the first client elsewhere. Ends with its second client.
fn sending_to(address: &str) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = format!("tcp://{}", listener.local_addr().unwrap());
    let mut body = Vec::new();
    let moved = MovedBody {
        code: tidewire::GoAwayCode::Shutdown,
        address,
        text: "",
    };
    moved.encode(&mut body).unwrap();
    let serving = thread::spawn(move || {
        for is_first in [true, false] {
            let (mut stream, _) = listener.accept().unwrap();
            let features = read_hello(&mut stream) & FEATURE_MOVED;
            assert_eq!(features, FEATURE_MOVED, "the client asks for addresses");
            let welcome = Welcome {
                version: PROTOCOL_VERSION,
                features,
                frame_bytes_max: 1 << 20,
                heartbeat_ms: 0,
                session: 1,
                agent: "hostile",
                expires_in_ms: 0,
            };
            let mut out = Vec::new();
            welcome.encode_frame(&mut out).unwrap();
            if is_first {
                let message = Message {
                    flags: FLAG_MOVED,
                    ..Message::new(Kind::GoAway, 0, &body)
                };
                AnyCodec::default().encode(&message, &mut out).unwrap();
            }
            stream.write_all(&out).unwrap();
            if let Err(error) = stream.read_to_end(&mut Vec::new()) {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        }
    });
    (home, serving)
}

/// Reads a hello, and returns its features.
fn read_hello(stream: &mut TcpStream) -> u32 {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    // Behind kind, flags, channel, magic and version.
    u32::from_le_bytes(frame[10..14].try_into().unwrap())
}

/// A client that was sent to this address comes back to the server that it knows.
fn comes_back(builder: ClientBuilder, address: &str) {
    let (home, serving) = sending_to(address);
    let client = builder.connect(&home).wait().unwrap();
    for _ in 0..2 {
        event(&client, |event| {
            matches!(event, Event::Opened { .. }).then_some(())
        });
    }
    drop(client);
    serving.join().unwrap();
}

#[test]
fn an_address_that_a_client_must_not_follow_is_ignored_and_logged() {
    static LOGS: OnceLock<Logs> = OnceLock::new();
    let logs = LOGS.get_or_init(Logs::capture);
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let port = trap.local_addr().unwrap().port();
    for (address, told) in [
        ("no address".to_owned(), "visible ASCII"),
        (format!("tls://127.0.0.1:{port}"), "its transport is not"),
        (format!("ws://127.0.0.1:{port}/"), "its transport is not"),
        (format!("udp://127.0.0.1:{port}"), "go to other servers"),
        ("ipc:///tmp/moved".to_owned(), "go to other servers"),
        ("tcp://*:1".to_owned(), "to listen on"),
        ("tcp://\u{1b}[31mred:1".to_owned(), "visible ASCII"),
        (
            format!("tcp://{}:1", "long".repeat(60)),
            "use a shorter name",
        ),
    ] {
        comes_back(moving(), &address);
        let text = logs.text();
        let told = text.lines().rfind(|line| line.contains(told));
        assert!(
            told.is_some_and(|line| line.contains("WARN")),
            "{address}: {text}"
        );
        assert!(!text.contains('\u{1b}'), "raw bytes of a peer");
    }
    let nobody = trap.accept().unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::WouldBlock);
}

/// Otherwise a server on this machine could have a token sent in plain text over the network. No packet goes there.
#[test]
fn credentials_do_not_move_to_another_machine_in_plain_text() {
    let token = Token::new("secret").unwrap();
    comes_back(moving().credentials(token), "tcp://192.0.2.1:9");
}

#[test]
fn a_client_that_does_not_follow_asks_for_no_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = format!("tcp://{}", listener.local_addr().unwrap());
    let connecting = Client::builder().connect(&home);
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(read_hello(&mut stream) & FEATURE_MOVED, 0);
    drop(stream);
    assert!(connecting.wait().is_err());
}

#[test]
fn clients_of_json_go_there_too() {
    let server = || serve(Server::builder().codec(codec("json")), "tcp://127.0.0.1:0");
    let (old, new) = (server(), server());
    let client = moving().codec(codec("json"));
    let client = client.connect(&old.to_string()).wait().unwrap();
    hand_over(old, &new);
    ask(&client, b"there");
    assert_eq!(new.metrics().sessions_opened, 1);
}

/// Regression: the length of the address and the address were the beginning of the text. Over UDP such a go-away may
/// overtake the welcome.
#[test]
fn a_refusal_with_an_address_has_its_text() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let home = format!("tcp://{}", listener.local_addr().unwrap());
    let connecting = moving().connect(&home);
    let (mut stream, _) = listener.accept().unwrap();
    read_hello(&mut stream);
    let (mut body, mut out) = (Vec::new(), Vec::new());
    let moved = MovedBody {
        code: tidewire::GoAwayCode::Shutdown,
        address: "tcp://192.0.2.1:9",
        text: "bye",
    };
    moved.encode(&mut body).unwrap();
    let message = Message {
        flags: FLAG_MOVED,
        ..Message::new(Kind::GoAway, 0, &body)
    };
    AnyCodec::default().encode(&message, &mut out).unwrap();
    stream.write_all(&out).unwrap();
    let outcome = connecting.wait();
    let Err(ConnectError::Refused { text, .. }) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(text, "bye");
}

/// Admits all peers for two seconds.
struct Brief;

impl Authenticate for Brief {
    fn authenticate(&self, _: &mut AuthRequest<'_>) -> AuthOutcome {
        #[expect(
            clippy::disallowed_methods,
            reason = "credentials expire by the wall clock"
        )]
        let at = SystemTime::now() + Duration::from_secs(2);
        AuthOutcome::admit(Identity::new("ann", Permissions::everything()).expires_at(at))
    }
}

/// Regression: newer credentials that came while the name of the next server was looked up were taken for its
/// addresses, and the lane of the client panicked.
#[test]
fn late_credentials_are_no_addresses_of_the_next_server() {
    let old = serve(Server::builder().authenticate(Brief), "tcp://127.0.0.1:0");
    let new = plain();
    let named = new.to_string().replace("127.0.0.1", "localhost");
    let asked = AtomicU32::new(0);
    let credentials = Credentials::provider(move || {
        // The first token comes at once. The renewal ends in the middle of the next look-up.
        let number = asked.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(u64::from(number.min(2)) * 600));
        Ok(Token::new("ann")?)
    });
    let client = moving().credentials(credentials);
    let client = client.connect(&old.to_string()).wait().unwrap();
    event(&client, |event| {
        matches!(event, Event::CredentialsExpire { .. }).then_some(())
    });
    assert_conserved(&old.shutdown_to(&named.parse().unwrap(), DEADLINE));
    ask(&client, b"there");
    assert_eq!(new.metrics().sessions_opened, 1);
}
