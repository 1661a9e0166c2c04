//! Authenticators that answer later, fail or panic.

use std::io::Read as _;
use std::sync::Mutex;
use std::thread;

use tidewire::Limits;
use tidewire::auth::{AuthFailure, AuthOutcome, AuthRequest, Authenticate, LateAnswer};

use super::*;

/// Gives its answers to the test.
#[derive(Clone, Default)]
struct Slow(Arc<Mutex<Vec<LateAnswer>>>);

impl Authenticate for Slow {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        match request.token() {
            b"panic" => panic!("the backend is broken"),
            b"drop" => drop(request.later()),
            _ => self.0.lock().unwrap().push(request.later()),
        }
        AuthOutcome::Later
    }
}

impl Slow {
    fn server(&self, codec: AnyCodec, limits: Limits) -> Server {
        let builder = Server::builder()
            .authenticate(self.clone())
            .codec(codec)
            .limits(limits);
        let builder = builder.listen("tcp://127.0.0.1:0").unwrap();
        builder.start(|_| tell_name).unwrap()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn take(&self) -> LateAnswer {
        loop {
            if let Some(answer) = self.0.lock().unwrap().pop() {
                return answer;
            }
            thread::yield_now();
        }
    }
}

fn tw1() -> AnyCodec {
    AnyCodec::by_name("tw1").unwrap()
}

#[test]
fn a_late_answer_opens_the_session_and_earlier_messages_are_handled() {
    for codec in [tw1(), raw()] {
        let slow = Slow::default();
        let server = slow.server(codec.clone(), Limits::default());
        let address = server.to_string();
        let asks = thread::spawn(move || {
            let client = Client::builder()
                .codec(codec)
                .connect(&address)
                .wait()
                .unwrap();
            name_of(&client)
        });
        let answer = slow.take();
        assert_eq!(server.metrics().authenticated, 0);
        answer.send(AuthOutcome::admit(everything("ann")));
        assert_eq!(asks.join().unwrap(), "ann");
    }
}

#[test]
fn an_answer_that_never_comes_ends_with_the_handshake_and_one_too_late_does_nothing() {
    let slow = Slow::default();
    let mut limits = Limits::default();
    limits
        .connections
        .set_handshake_timeout(std::time::Duration::from_millis(50));
    let server = slow.server(tw1(), limits);
    let error = connect(&server, None).unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::Refused { .. } | ConnectError::Closed(_)
        ),
        "{error}"
    );
    until("the session has ended", || {
        server.metrics().closed_by("handshake_timeout") == 1
    });
    slow.take().send(AuthOutcome::admit(everything("ann")));
    assert_eq!(server.metrics().authenticated, 0);
}

#[test]
fn a_backend_that_panics_drops_its_answer_or_lies_refuses() {
    let slow = Slow::default();
    let server = slow.server(tw1(), Limits::default());
    for token in ["panic", "drop"] {
        let text = full(connect(&server, Some(&Token::new(token).unwrap())));
        assert!(text.contains("cannot be checked now"), "{token}: {text}");
    }
    let address = server.to_string();
    let asks = thread::spawn(move || refusal(connect_to(&address, None)));
    slow.take()
        .send(AuthOutcome::Refused(AuthFailure::NotYetValid));
    assert!(asks.join().unwrap().contains("not valid yet"));
    assert!(server.is_running());
}

/// Regression: attempts counted at their answer only, so an address could have any number of them in flight.
#[test]
fn answers_in_flight_are_bounded_per_address_and_departed_peers_keep_their_place() {
    let slow = Slow::default();
    let server = slow.server(tw1(), Limits::default());
    let waiting: Vec<_> = (0..64).map(|_| greet(&server, b"guess")).collect();
    until("the backend has as many as it gets", || slow.count() == 64);
    // Whoever leaves does not free the place that the backend still works for.
    drop(waiting);
    let address = server.to_string();
    let token = Token::new("guess").unwrap();
    let asks = thread::spawn(move || connect_to(&address, Some(&token)).map(|it| name_of(&it)));
    until("it waits for its turn", || {
        server.metrics().sessions_opened == 65
    });
    assert_eq!(slow.count(), 64);
    let first = slow.0.lock().unwrap().remove(0);
    first.send(AuthOutcome::Refused(AuthFailure::Unavailable));
    until("there is a place again", || slow.count() == 64);
    slow.take().send(AuthOutcome::admit(everything("ann")));
    assert_eq!(asks.join().unwrap().unwrap(), "ann");
}

/// Regression: of 100 clients of one address that logged in together at a slow login server, 70 were refused.
#[test]
fn a_hundred_honest_logins_of_one_address_at_a_slow_authenticator_are_all_let_in() {
    let slow = Slow::default();
    let builder = Server::builder().authenticate(slow.clone()).lanes(2);
    let builder = builder.listen("tcp://127.0.0.1:0").unwrap();
    let server = builder.start(|_| tell_name).unwrap();
    let mut streams: Vec<_> = (0..100)
        .map(|number| greet(&server, format!("user-{number}").as_bytes()))
        .collect();
    until("the backend has as many as it gets", || slow.count() == 64);
    for _ in 0..100 {
        slow.take().send(AuthOutcome::admit(everything("ann")));
    }
    until("all are let in", || server.metrics().authenticated == 100);
    for stream in &mut streams {
        let mut header = [0; 5];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header[4], tidewire::Kind::Welcome as u8);
    }
    let metrics = server.metrics();
    assert_eq!((metrics.auth_refused, slow.count()), (0, 0));
    assert_eq!(metrics.closed.iter().sum::<u64>(), 0);
}

/// Regression: a guess did not count if its session ended before the answer.
#[test]
fn a_guess_counts_also_if_its_session_has_ended() {
    let slow = Slow::default();
    let mut limits = Limits::default();
    limits
        .connections
        .set_handshake_timeout(std::time::Duration::from_millis(50));
    let server = slow.server(tw1(), limits);
    for guess in 0..30_u8 {
        drop(greet(&server, &[b'a' + guess]));
    }
    until("all have given up", || {
        server.metrics().closed_by("handshake_timeout") == 30
    });
    for _ in 0..30 {
        slow.take().send(AuthOutcome::Refused(AuthFailure::Wrong));
    }
    let _next = greet(&server, b"guess");
    until("it is refused", || server.metrics().auth_refused == 1);
    assert_eq!(slow.count(), 0);
}

/// Regression: an answer to a question that was answered already counted as a refusal.
#[test]
fn only_the_first_answer_counts() {
    /// Admits at once, and drops the token for a late answer.
    struct Hasty;

    impl Authenticate for Hasty {
        fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
            drop(request.later());
            AuthOutcome::admit(everything("ann"))
        }
    }
    let server = serve_with(Hasty, |_| tell_name);
    let client = connect(&server, None).unwrap();
    assert_eq!(name_of(&client), "ann");
    assert_eq!(server.metrics().auth_refused, 0);
}

/// Regression: an authenticator took a late answer and left the decision to the next authenticator, which answered
/// late, too. The drop of the first answer refused the peer.
#[test]
fn the_late_answer_of_the_authenticator_that_decides_counts() {
    /// Takes a late answer, and does not need it.
    struct Undecided;

    impl Authenticate for Undecided {
        fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
            drop(request.later());
            AuthOutcome::Unknown
        }
    }
    let slow = Slow::default();
    let chain = Chain::new().then(Undecided).then(slow.clone());
    let server = serve_with(chain, |_| tell_name);
    let client = thread::scope(|scope| {
        let client = scope.spawn(|| connect(&server, None));
        slow.take().send(AuthOutcome::admit(everything("ann")));
        client.join().unwrap().unwrap()
    });
    assert_eq!(name_of(&client), "ann");
    assert_eq!(server.metrics().auth_refused, 0);
}
