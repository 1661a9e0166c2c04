//! Users that change while their sessions are open.

use tidewire::auth::{Access, Replaceable};
use tidewire::{Event, PubSub};
use tidewire_testkit::DEADLINE;

use super::*;

fn may_subscribe(pattern: &'static str) -> Permissions {
    Permissions {
        subscribe: Access::new([pattern], []).unwrap(),
        publish: Access::new([pattern], []).unwrap(),
        ..Permissions::nothing()
    }
}

/// Waits for the end of a client's session.
fn end_of(client: &Client) -> CloseReason {
    loop {
        if let Event::Closed { reason, .. } = client.next_event().wait_for(DEADLINE).unwrap() {
            return reason;
        }
    }
}

#[test]
fn permissions_that_are_taken_away_end_sessions_that_use_them_and_no_others() {
    let tokens = Tokens::new();
    let [ann, bob] = ["ann", "bob"].map(|name| tokens.add(name));
    let both =
        |permissions: Permissions| users(&[("ann", permissions.clone()), ("bob", permissions)]);
    let replaceable = Replaceable::new(tokens.chain(both(may_subscribe(">"))));
    let server = Server::builder()
        .lanes(2)
        .authenticate(replaceable.clone())
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| PubSub::new())
        .unwrap();
    let ann = connect(&server, Some(&ann)).unwrap();
    let _subscribed = ann.subscribe("secret.plans").wait().unwrap();
    let bob = connect(&server, Some(&bob)).unwrap();
    let _other = bob.subscribe("public.news").wait().unwrap();
    bob.publish("secret.a", b"1").unwrap();
    bob.request(b"").wait().unwrap();
    assert_eq!(server.metrics().forbidden, 0);

    replaceable.replace(tokens.chain(both(may_subscribe("public.>"))));
    server.reauthenticate();
    assert_eq!(
        end_of(&ann),
        CloseReason::GoAway(GoAwayCode::Unauthenticated)
    );
    // The session does not remember the permissions of before, once its lane has read the users, too.
    until("his message is refused", || {
        bob.publish("secret.a", b"1").unwrap();
        bob.request(b"").wait().unwrap();
        server.metrics().forbidden > 0
    });
    until("only her session has ended", || {
        server.metrics().closed_by("unauthenticated") == 1
    });
}

#[test]
fn a_revoked_token_ends_its_sessions() {
    let tokens = Tokens::new();
    let ann = tokens.add("ann");
    let known = || users(&[("ann", Permissions::everything())]);
    let replaceable = Replaceable::new(tokens.chain(known()));
    let server = Server::builder()
        .authenticate(replaceable.clone())
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .start(|_| tell_name)
        .unwrap();
    let client = connect(&server, Some(&ann)).unwrap();
    server.reauthenticate();
    assert_eq!(name_of(&client), "ann", "nothing has changed");
    std::fs::write(&tokens.path, "").unwrap();
    replaceable.replace(tokens.chain(known()));
    server.reauthenticate();
    assert_eq!(
        end_of(&client),
        CloseReason::GoAway(GoAwayCode::Unauthenticated)
    );
    assert!(refusal(connect(&server, Some(&ann))).contains("wrong"));
}
