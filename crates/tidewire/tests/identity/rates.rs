//! The rate of an identity, over all its sessions and connections.

use std::time::Duration;

use tidewire::limits::{RateLimit, WhenExceeded};

use super::*;

/// A server for Ann, who may send this many messages at once and few later.
fn serve(messages: u32, lanes: usize) -> (Server, Token) {
    let tokens = TokenFolder::new();
    let ann = tokens.add("ann");
    let rate = RateLimit::new(WhenExceeded::Refuse)
        .messages_per_second(1)
        .burst(Duration::from_secs(u64::from(messages)));
    let limits = IdentityLimits {
        rate: Some(rate),
        ..IdentityLimits::default()
    };
    let mut known = Users::new(Permissions::everything());
    known.add("ann", None, limits).unwrap();
    let builder = Server::builder().authenticate(tokens.chain(known));
    let builder = builder.lanes(lanes).listen("tcp://127.0.0.1:0").unwrap();
    (builder.start(|_| tell_name).unwrap(), ann)
}

/// Regression: each connection began with a full burst, so a user with a rate of 10 sent 54,020 messages in 2 s.
#[test]
fn a_user_that_connects_again_does_not_begin_with_a_full_burst() {
    let (server, ann) = serve(1_000, 1);
    let mut sent = 0;
    for _ in 0..30 {
        let client = connect(&server, Some(&ann)).unwrap();
        let asked: Vec<_> = (0..50).map(|_| client.request(b"").send()).collect();
        sent += asked.len() as u64;
        asked.into_iter().for_each(|it| drop(it.wait()));
    }
    let metrics = server.metrics();
    let passed = sent - metrics.rate_refused;
    // A slow machine refills some.
    assert!((1_000..1_400).contains(&passed), "{passed} of {sent}");
}

#[test]
fn all_sessions_of_a_user_share_its_rate_on_all_lanes() {
    let (server, ann) = serve(1_000, 2);
    let clients = [(); 4].map(|()| connect(&server, Some(&ann)).unwrap());
    let asked: Vec<_> = (0..1_500)
        .map(|number| clients[number % clients.len()].request(b"").send())
        .collect();
    let refused = asked.into_iter().filter_map(|it| it.wait().err()).count();
    assert!((100..=500).contains(&refused), "{refused}");
    assert_eq!(server.metrics().rate_refused, refused as u64);
}
