//! Credentials that expire, and newer credentials.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use tidewire::auth::{AuthOutcome, AuthRequest, Authenticate, Credentials};
use tidewire::{CloseReason, Event};
use tidewire_testkit::DEADLINE;

use super::*;

/// Tokens that are milliseconds from now.
struct Short;

impl Authenticate for Short {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        let text = str::from_utf8(request.token()).unwrap();
        let milliseconds = text.parse().unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "credentials expire by the wall clock"
        )]
        let at = SystemTime::now() + Duration::from_millis(milliseconds);
        AuthOutcome::admit(everything("ann").expires_at(at))
    }
}

fn server() -> Server {
    serve_with(Short, |_| tell_name)
}

fn next(client: &Client) -> Event {
    client
        .next_event()
        .wait_for(DEADLINE)
        .expect("an event comes")
}

#[test]
fn a_session_whose_credentials_expire_is_warned_and_then_ends() {
    let server = server();
    let client = connect(&server, Some(&Token::new("3000").unwrap())).unwrap();
    assert!(matches!(next(&client), Event::Opened { .. }));
    let left = match next(&client) {
        Event::CredentialsExpire { left } => left,
        other => panic!("{other:?}"),
    };
    assert!(left <= Duration::from_millis(3_000));
    let closed = next(&client);
    let reason = CloseReason::GoAway(GoAwayCode::Unauthenticated);
    assert!(
        matches!(&closed, Event::Closed { reason: it, .. } if *it == reason),
        "{closed:?}"
    );
    until("the end is counted", || {
        server.metrics().closed_by("credentials_expired") == 1
    });
}

#[test]
fn a_provider_is_asked_for_newer_credentials_and_the_session_stays() {
    let server = server();
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let credentials = Credentials::provider(move || {
        // Only the first token expires soon.
        let time = match counter.fetch_add(1, Ordering::SeqCst) {
            0 => "3000",
            _ => "1000000",
        };
        Ok(Token::new(time)?)
    });
    let client = Client::builder().credentials(credentials);
    let client = client.connect(&server.to_string()).wait().unwrap();
    until("newer credentials are confirmed", || {
        server.metrics().authenticated == 2
    });
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    assert_eq!(name_of(&client), "ann");
    assert_eq!(server.metrics().sessions_opened, 1);
    let mut warnings = 0;
    while let Some(event) = client.next_event().wait_for(Duration::ZERO) {
        warnings += u32::from(matches!(event, Event::CredentialsExpire { .. }));
    }
    assert_eq!(warnings, 1);
}

#[test]
fn a_provider_that_fails_is_the_error_of_the_connection() {
    let server = server();
    for panics in [false, true] {
        let credentials = Credentials::provider(move || match panics {
            true => panic!("the provider is broken"),
            false => Err("no such file".into()),
        });
        let client = Client::builder().credentials(credentials);
        let error = client.connect(&server.to_string()).wait().unwrap_err();
        assert!(
            matches!(error, ConnectError::Credentials { .. }),
            "{error:?}"
        );
    }
}
