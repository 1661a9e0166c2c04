use tidewire_proto::body::GoAwayCode;

use super::*;

const SECOND_NS: u64 = 1_000_000_000;

fn at(port: u16) -> Endpoint {
    Endpoint::Udp(([127, 0, 0, 1], port).into())
}

fn session(number: u32) -> SessionId {
    SessionId::new(0, 0, number)
}

fn address() -> Address {
    "udp://server.example:1".parse().unwrap()
}

fn named() -> Target {
    Target::new(address(), Some(|_| Ok(Vec::new())), Vec::new())
}

fn of(home: Target, credentials: Option<Credentials>) -> Dialer {
    let timeout = Duration::from_secs(5);
    Dialer::new(home, credentials, None, Backoff::default(), timeout)
}

fn found(endpoints: Option<Vec<Endpoint>>, token: Option<&str>) -> LookupResult {
    LookupResult {
        endpoints: endpoints.map(Ok),
        token: token.map(|token| Ok(Token::new(token).unwrap())),
    }
}

/// Connects to the next address by this session.
fn connect(dialer: &mut Dialer, now_ns: u64, id: SessionId) -> Endpoint {
    match dialer.step(now_ns) {
        DialStep::Connect(endpoint) => {
            dialer.note_begun(endpoint.clone(), Ok(id));
            endpoint
        }
        step => panic!("{step:?}"),
    }
}

fn is_waiting(dialer: &mut Dialer, now_ns: u64) -> bool {
    matches!(dialer.step(now_ns), DialStep::Wait)
}

fn failure(dialer: &mut Dialer, now_ns: u64) -> ConnectError {
    match dialer.step(now_ns) {
        DialStep::Failed(failure) => failure,
        step => panic!("{step:?}"),
    }
}

fn nobody() -> ConnectError {
    ConnectError::Closed(CloseReason::HandshakeTimeout)
}

/// Regression: a name was resolved only once, so a server that had moved was never found.
#[test]
fn a_name_is_looked_up_again_only_after_none_of_its_addresses_answered() {
    let mut dialer = of(named(), None);
    assert!(dialer.begin(0) && dialer.is_dialing());
    assert!(matches!(dialer.step(0), DialStep::LookUp(_)));
    assert!(is_waiting(&mut dialer, 0));
    assert!(dialer.handle_found(found(Some(vec![at(1), at(2)]), None), 0));
    assert_eq!(connect(&mut dialer, 0, session(1)), at(1));
    assert!(dialer.note_failure(session(1), nobody()));
    assert_eq!(connect(&mut dialer, 0, session(2)), at(2));
    assert_eq!(dialer.note_open(session(2), 0), Some(at(2)));
    assert!(!dialer.is_dialing() && dialer.open_session() == Some(session(2)));

    // The addresses are known, and the last good one is first.
    dialer.note_end(60 * SECOND_NS, CloseReason::PeerClosed);
    assert!(dialer.begin(0));
    assert_eq!(connect(&mut dialer, 0, session(3)), at(2));
    assert!(dialer.note_failure(session(3), nobody()));
    assert_eq!(connect(&mut dialer, 0, session(4)), at(1));
    assert!(dialer.note_failure(session(4), nobody()));
    assert!(matches!(failure(&mut dialer, 0), ConnectError::Closed(_)));
    assert!(dialer.begin(0));
    assert!(matches!(dialer.step(0), DialStep::LookUp(_)));
}

#[test]
fn the_first_open_session_wins_and_the_others_are_closed() {
    let endpoints = vec![at(1), at(2), at(3)];
    let mut dialer = of(Target::new(address(), None, endpoints), None);
    assert!(dialer.begin(0));
    assert_eq!(connect(&mut dialer, 0, session(1)), at(1));
    assert!(is_waiting(&mut dialer, 0));
    let later_ns = dialer.wake_ns().unwrap();
    assert_eq!(connect(&mut dialer, later_ns, session(2)), at(2));
    assert_eq!(dialer.sessions(), [session(1), session(2)]);
    assert_eq!(dialer.note_open(session(2), later_ns), Some(at(2)));
    assert!(matches!(dialer.step(later_ns), DialStep::Close(id) if id == session(1)));
    assert!(is_waiting(&mut dialer, later_ns));
    assert_eq!(dialer.note_open(session(1), later_ns), None);
    assert!(!dialer.note_failure(session(1), nobody()));
    assert_eq!(dialer.sessions(), [session(2)]);
    assert!(dialer.has(session(2)) && !dialer.has(session(1)));
}

#[test]
fn no_attempt_begins_during_a_pause() {
    let mut dialer = of(Target::new(address(), None, vec![at(1)]), None);
    let pause_ns = nanoseconds(dialer.pause(SECOND_NS));
    assert_eq!(dialer.wake_ns(), Some(SECOND_NS + pause_ns));
    assert!(!dialer.begin(SECOND_NS + pause_ns - 1));
    assert!(is_waiting(&mut dialer, SECOND_NS + pause_ns - 1));
    assert!(dialer.begin(SECOND_NS + pause_ns));
    connect(&mut dialer, SECOND_NS + pause_ns, session(1));
    // The first connection that ends early costs no pause, if the owner wants it so, and the next one does.
    for may_begin in [true, false] {
        let mut dialer = of(Target::new(address(), None, vec![at(1)]), None);
        if !may_begin {
            dialer.pause_but_first(0);
        }
        assert!(dialer.begin(0));
        connect(&mut dialer, 0, session(1));
        assert!(dialer.note_open(session(1), 0).is_some());
        assert!(!dialer.note_end(1, CloseReason::PeerClosed));
        dialer.pause_but_first(1);
        assert_eq!(dialer.begin(1), may_begin);
    }
}

/// Regression: an upstream that was refused for good waited for its silent addresses.
#[test]
fn a_server_that_refuses_for_good_ends_the_attempt_at_once() {
    let endpoints = vec![at(1), at(2)];
    let mut dialer = of(Target::new(address(), None, endpoints), None);
    assert!(dialer.begin(0));
    connect(&mut dialer, 0, session(1));
    let later_ns = dialer.wake_ns().unwrap();
    connect(&mut dialer, later_ns, session(2));
    let reason = CloseReason::GoAway(GoAwayCode::Removed);
    let text = "removed".to_owned();
    assert!(dialer.note_failure(session(2), ConnectError::Refused { reason, text }));
    assert!(matches!(
        failure(&mut dialer, later_ns),
        ConnectError::Refused { .. }
    ));
    assert!(matches!(dialer.step(later_ns), DialStep::Close(id) if id == session(1)));
    assert!(is_waiting(&mut dialer, later_ns) && dialer.is_refused());
    assert!(!dialer.begin(u64::MAX), "it is not tried again by itself");
    dialer.pause(later_ns);
    assert!(dialer.begin(u64::MAX), "its owner may insist");
}

/// Regression: credentials for an earlier connection that came late took the place of the addresses.
#[test]
fn late_credentials_are_not_taken_for_the_addresses() {
    let provider = Credentials::provider(|| Ok(Token::new("present")?));
    let mut dialer = of(named(), Some(provider));
    assert!(!dialer.handle_found(found(None, Some("early")), 0));
    assert!(dialer.begin(0));
    assert!(matches!(dialer.step(0), DialStep::LookUp(_)));
    assert!(!dialer.handle_found(found(None, Some("late")), 0));
    assert!(dialer.is_looking_up() && dialer.token().is_none());
    assert!(dialer.handle_found(found(Some(vec![at(1)]), Some("present")), 0));
    assert_eq!(dialer.token(), Some(&Token::new("present").unwrap()));
    assert_eq!(connect(&mut dialer, 0, session(1)), at(1));
}

#[test]
fn an_attempt_fails_with_its_lookup_and_connects_nowhere() {
    let provider = Credentials::provider(|| Ok(Token::new("token")?));
    let mut dialer = of(Target::new(address(), None, vec![at(1)]), Some(provider));
    assert!(dialer.begin(0));
    assert!(matches!(dialer.step(0), DialStep::LookUp(_)));
    let without = LookupResult {
        endpoints: None,
        token: Some(Err("no file".to_owned())),
    };
    assert!(dialer.handle_found(without, 0));
    assert!(matches!(
        failure(&mut dialer, 0),
        ConnectError::Credentials { cause } if cause == "no file"
    ));
    assert!(is_waiting(&mut dialer, 0) && dialer.is_idle());
}

#[test]
fn a_server_that_others_named_is_left_after_a_failed_attempt() {
    let mut dialer = of(Target::new(address(), None, vec![at(1)]), None);
    dialer.move_to(Target::new(address(), None, vec![at(2)]));
    assert!(dialer.begin(0));
    assert_eq!(connect(&mut dialer, 0, session(1)), at(2));
    assert!(dialer.note_failure(session(1), nobody()));
    failure(&mut dialer, 0);
    assert!(dialer.begin(0));
    assert_eq!(connect(&mut dialer, 0, session(2)), at(1));
    dialer.cancel();
    assert!(matches!(dialer.step(0), DialStep::Close(id) if id == session(2)));
    assert!(dialer.is_idle());
}
