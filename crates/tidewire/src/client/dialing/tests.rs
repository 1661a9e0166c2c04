use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::time::Duration;

use tidewire_io::socket::SocketError;
use tidewire_proto::codec::RequestIds;

use super::*;

use crate::address::{Address, Endpoint};
use crate::auth::{Credentials, Token};
use crate::client::event_queue::EventBounds;
use crate::client::table::RequestTable;
use crate::client::{Client, ClientBuilder, Connecting};
use crate::dial::{Backoff, DialStep, LookupResult, Target};
use crate::service::Service;

/// Starts to connect to a host whose name resolves to these endpoints.
fn connect_to(endpoints: Vec<Endpoint>) -> Connecting {
    let address = endpoints[0].clone().into();
    let target = Target::new(address, None, endpoints);
    Connecting::new(Client::builder().start_to(target, false))
}

/// Returns a port without a listener. No other process can take it while the returned listener lives.
fn dead_end() -> (TcpListener, Endpoint) {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    // The listener holds the port number on one loopback address, and the endpoint uses another address.
    let address = (
        std::net::Ipv4Addr::new(127, 0, 0, 99),
        holder.local_addr().unwrap().port(),
    );
    (holder, SocketAddr::from(address).into())
}

/// Regression: the kernel reports a closed UDP port as refused, and the client stopped there instead of trying the next
/// address.
#[test]
fn the_addresses_of_a_name_are_tried_in_order_over_udp() {
    let server =
        crate::serve("udp://127.0.0.1:0", |cx, message| cx.reply(message.payload)).unwrap();
    let held = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    let dead = Endpoint::Udp((std::net::Ipv4Addr::new(127, 0, 0, 99), port).into());
    let endpoints = vec![dead.clone(), server.addresses()[0].clone()];
    let client = connect_to(endpoints).wait().unwrap();
    let reply = client.request(b"found").wait().unwrap();
    assert_eq!(reply.payload(), b"found");
    client.close().wait();

    let outcome = connect_to(vec![dead.clone(), dead]).wait();
    assert!(
        matches!(outcome, Err(ConnectError::Socket(_))),
        "{outcome:?}"
    );
}

#[test]
fn the_addresses_of_a_name_are_tried_in_order() {
    let server =
        crate::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload)).unwrap();
    let (_held, dead) = dead_end();
    let live = server.addresses()[0].clone();
    let nobody = || dead.clone();
    let endpoints = vec![nobody(), nobody(), live, nobody()];
    let client = connect_to(endpoints).wait().unwrap();
    assert_eq!(client.request(b"found").wait().unwrap().payload(), b"found");
    client.close().wait();

    let outcome = connect_to(vec![nobody(), nobody()]).wait();
    assert!(
        matches!(
            outcome,
            Err(ConnectError::Socket(SocketError::Refused { .. }))
        ),
        "{outcome:?}"
    );
}

/// Regression: a lookup that ended just before the lane slept did not wake it, and the client never connected.
#[test]
fn a_lane_does_not_sleep_while_the_results_of_its_lookup_wait() {
    let table = RequestTable::new(1 << 20, false);
    let link = Arc::new(Link::new(table, EventBounds::default()));
    let address = "tcp://server.example:1".parse().unwrap();
    let target = Target::new(address, Some(|_| Ok(Vec::new())), Vec::new());
    let dialer = Dialer::new(target, None, None, Backoff::default(), Duration::MAX);
    let dialing = Dialing::new(dialer, None, false, false);
    let mut service = ClientService::new(Arc::clone(&link), dialing, RequestIds::Bits32, 1, false);
    let found = || LookupResult {
        endpoints: None,
        token: None,
    };
    assert!(service.dialing.dialer.begin(0));
    assert!(matches!(
        service.dialing.dialer.step(0),
        DialStep::LookUp(_)
    ));
    assert!(!service.has_work());
    link.set_found(found());
    assert!(service.has_work());
    service.dialing.dialer.cancel();
    assert!(!service.has_work(), "late results are not awaited");
}

/// Regression: a token went in plain text to any host. 0.0.0.0 leads to this machine, but is no loopback address, like
/// addresses of other machines.
#[test]
fn credentials_go_to_another_machine_only_over_tls_or_when_allowed() {
    let server =
        crate::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload)).unwrap();
    let Endpoint::Tcp(local) = server.addresses()[0] else {
        panic!("it listens on TCP");
    };
    let remote = Endpoint::from(SocketAddr::from(([0, 0, 0, 0], local.port())));
    let (_held, dead) = dead_end();
    let token = || Client::builder().credentials(Token::new("secret").unwrap());
    let connect = |builder: ClientBuilder, endpoints: Vec<Endpoint>, resolver| {
        let address = "tcp://server.example:7000".parse().unwrap();
        let target = Target::new(address, resolver, endpoints);
        Connecting::new(builder.start_to(target, false)).wait()
    };
    let refused = |outcome: Result<Client, ConnectError>, by: &Endpoint| match outcome {
        Err(ConnectError::PlaintextCredentials { endpoint }) => {
            assert_eq!(endpoint, *by);
        }
        other => panic!("{other:?}"),
    };
    // The second address of a name is checked, too, and also addresses of a look-up.
    refused(connect(token(), vec![dead, remote.clone()], None), &remote);
    let look_up = |_: &Address| Ok(vec![Endpoint::Udp(([0, 0, 0, 0], 9).into())]);
    let found = Endpoint::Udp(([0, 0, 0, 0], 9).into());
    refused(connect(token(), Vec::new(), Some(look_up)), &found);
    let provider = Credentials::provider(|| Ok(Token::new("secret")?));
    let provider = Client::builder().credentials(provider);
    refused(connect(provider, vec![remote.clone()], None), &remote);
    assert_eq!(server.metrics().sessions_opened, 0, "nothing was dialled");

    for allowed in [Client::builder(), token().allow_plaintext_credentials()] {
        let client = connect(allowed, vec![remote.clone()], None).unwrap();
        assert_eq!(client.request(b"here").wait().unwrap().payload(), b"here");
    }
    let client = connect(token(), vec![local.into()], None).unwrap();
    assert_eq!(client.request(b"here").wait().unwrap().payload(), b"here");
}

/// Regression: a name was resolved only once, so a client never found a server that had moved.
#[test]
fn a_host_is_looked_up_again_after_none_of_its_addresses_answered() {
    static FOUND: Mutex<Vec<Endpoint>> = Mutex::new(Vec::new());
    let find = |endpoints: Vec<Endpoint>| *FOUND.lock().unwrap() = endpoints;
    let serve = || crate::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload));
    let (_held, dead) = dead_end();
    let before = serve().unwrap();
    find(vec![dead, before.addresses()[0].clone()]);
    let pause = Duration::from_millis(1);
    let builder = Client::builder().reconnect(Backoff {
        first: pause,
        max: pause,
    });
    let address = "tcp://server.example:7000".parse().unwrap();
    let resolver = |_: &Address| Ok(FOUND.lock().unwrap().clone());
    let target = Target::new(address, Some(resolver), Vec::new());
    let client = Connecting::new(builder.start_to(target, false));
    let client = client.wait().unwrap();
    assert_eq!(client.request(b"here").wait().unwrap().payload(), b"here");

    let after = serve().unwrap();
    find(vec![after.addresses()[0].clone()]);
    drop(before);
    let moved = client.request(b"there").idempotent();
    let reply = moved.timeout(Duration::from_secs(60)).wait().unwrap();
    assert_eq!(reply.payload(), b"there");
    client.close().wait();
}

/// An address that accepts connections and says nothing.
fn silent() -> (TcpListener, Endpoint) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address.into())
}

/// The connections that wait at a listener. They have ended or not.
fn accepted(listener: &TcpListener) -> usize {
    let mut count = 0;
    loop {
        match listener.accept() {
            Ok(_) => count += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Regression: a silent first address cost the whole timeout, at each connect.
#[test]
fn a_silent_first_address_does_not_keep_a_client_from_the_second_and_is_not_tried_first_again() {
    let server =
        crate::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload)).unwrap();
    let (listener, nobody) = silent();
    let endpoints = vec![nobody, server.addresses()[0].clone()];
    let address = endpoints[0].clone().into();
    let target = Target::new(address, None, endpoints);
    // The test would not end within this timeout.
    let timeout = Duration::from_secs(3_600);
    let mut limits = crate::limits::ConnectionLimits::default();
    limits.set_handshake_timeout(timeout);
    let builder = Client::builder().limits(limits).reconnect(Backoff {
        first: Duration::from_millis(1),
        max: Duration::from_millis(1),
    });
    let client = Connecting::new(builder.start_to(target, false));
    let client = client.wait().unwrap();
    assert_eq!(client.request(b"found").wait().unwrap().payload(), b"found");
    assert_eq!(accepted(&listener), 1);
    for session in server.sessions().list() {
        session.close().unwrap();
    }
    while !matches!(client.next_event().wait(), Event::Closed { .. }) {}
    let again = client.request(b"again").idempotent().timeout(timeout);
    assert_eq!(again.wait().unwrap().payload(), b"again");
    assert_eq!(accepted(&listener), 0, "the last good one is first");
    client.close().wait();
    let metrics = server.shutdown(Duration::from_secs(10)).metrics;
    assert_eq!(metrics.sessions_opened, 2);
}

/// Regression: each address had its own timeout, so a name with silent addresses took several timeouts.
#[test]
fn one_timeout_holds_for_all_addresses() {
    let listeners = [(); 3].map(|()| silent());
    let endpoints: Vec<Endpoint> = listeners.iter().map(|(_, at)| at.clone()).collect();
    let target = Target::new(endpoints[0].clone().into(), None, endpoints);
    let mut limits = crate::limits::ConnectionLimits::default();
    limits.set_handshake_timeout(Duration::from_millis(10));
    let client = Connecting::new(Client::builder().limits(limits).start_to(target, false));
    let outcome = client.wait();
    assert!(
        matches!(
            outcome,
            Err(ConnectError::Closed(CloseReason::HandshakeTimeout))
        ),
        "{outcome:?}"
    );
    let tried = listeners.map(|(listener, _)| accepted(&listener));
    assert_eq!(tried, [1, 0, 0], "the others would have begun later");
}

/// Regression: pauses were reset at each accepted connection, so the client dialled a server that accepts and closes
/// without longer pauses.
#[test]
fn pauses_grow_at_a_server_that_accepts_and_closes() {
    const ROUNDS: u32 = 8;
    let server =
        crate::serve("tcp://127.0.0.1:0", |cx, message| cx.reply(message.payload)).unwrap();
    let backoff = Backoff {
        first: Duration::from_millis(1),
        max: Duration::from_secs(3_600),
    };
    let connecting = Client::builder().reconnect(backoff);
    let client = connecting.connect(&server.to_string()).wait().unwrap();
    let mut round = 0;
    while round < ROUNDS {
        match client.next_event().wait() {
            Event::Opened { .. } => {
                for session in server.sessions().list() {
                    // A session that has already ended is closed as well.
                    let _ = session.close();
                }
            }
            Event::Reconnecting { delay, .. } => {
                assert!(
                    delay >= backoff.delay(round, 0.0),
                    "pause {round}: {delay:?}"
                );
                round += 1;
            }
            _ => {}
        }
    }
    client.close().wait();
}

/// Regression: a resolver that did not answer kept a client waiting beyond its timeout.
#[test]
fn an_attempt_ends_although_the_name_of_the_server_is_still_looked_up() {
    static GATE: Mutex<()> = Mutex::new(());
    let gate = GATE.lock().unwrap();
    let address = "tcp://server.example:7000".parse().unwrap();
    let resolver = |_: &Address| {
        drop(GATE.lock().unwrap());
        Ok(Vec::new())
    };
    let mut limits = crate::limits::ConnectionLimits::default();
    limits.set_handshake_timeout(Duration::from_millis(10));
    let target = Target::new(address, Some(resolver), Vec::new());
    let client = Client::builder().limits(limits);
    let outcome = Connecting::new(client.start_to(target, false)).wait();
    let late = crate::address::AddressError::LookupTimeout {
        host: "server.example".to_owned(),
        timeout: Duration::from_millis(10),
    };
    assert!(
        matches!(&outcome, Err(ConnectError::Address(error)) if *error == late),
        "{outcome:?}"
    );
    drop(gate);
}

/// Regression: credentials for an earlier connection that came late took the place of the addresses that the lane
/// waited for, and the client never connected again.
#[test]
fn late_credentials_do_not_take_the_place_of_addresses() {
    let link = Link::new(RequestTable::new(1 << 20, false), EventBounds::default());
    let token = |text: &str| Some(Ok(Token::new(text).unwrap()));
    let addresses = || LookupResult {
        endpoints: Some(Ok(vec![dead_end().1])),
        token: token("present"),
    };
    let late = || LookupResult {
        endpoints: None,
        token: token("late"),
    };
    for (first, second) in [(addresses(), late()), (late(), addresses())] {
        link.set_found(first);
        link.set_found(second);
        let found = link.take_found().unwrap();
        assert!(found.endpoints.is_some());
        assert_eq!(
            found.token.unwrap().unwrap(),
            Token::new("present").unwrap()
        );
        assert!(!link.has_found());
    }
    // A lane that waits for credentials alone receives the newer credentials.
    link.set_found(late());
    assert!(link.take_found().unwrap().endpoints.is_none());
}
