//! Users that change while their sessions are open.

use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use tidewire::auth::{Access, AuthOutcome, AuthRequest, Authenticate, Credentials, KnownPeers};
use tidewire::{Backoff, Event, PubSub, ServerBuilder};
use tidewire_testkit::DEADLINE;
use tidewire_testkit::certificates::{Authority, usual};

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

/// Lets the server ask another authenticator.
fn replace(server: &Server, next: impl Authenticate) {
    server.replace_authenticator(Ok::<_, String>(next)).unwrap();
}

#[test]
fn permissions_that_are_taken_away_end_sessions_that_use_them_and_no_others() {
    let tokens = TokenFolder::new();
    let [ann, bob] = ["ann", "bob"].map(|name| tokens.add(name));
    let both =
        |permissions: Permissions| users(&[("ann", permissions.clone()), ("bob", permissions)]);
    let authenticator = tokens.chain(both(may_subscribe(">")));
    let server = Server::builder()
        .lanes(2)
        .authenticate(authenticator)
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

    replace(&server, tokens.chain(both(may_subscribe("public.>"))));
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
    let tokens = TokenFolder::new();
    let ann = tokens.add("ann");
    let known = || users(&[("ann", Permissions::everything())]);
    let authenticator = tokens.chain(known());
    let server = serve_with(authenticator, |_| tell_name);
    let client = connect(&server, Some(&ann)).unwrap();
    server.reauthenticate();
    assert_eq!(name_of(&client), "ann", "nothing has changed");
    std::fs::write(tokens.path(), "").unwrap();
    replace(&server, tokens.chain(known()));
    assert_eq!(
        end_of(&client),
        CloseReason::GoAway(GoAwayCode::Unauthenticated)
    );
    assert!(refusal(connect(&server, Some(&ann))).contains("wrong"));
}

/// Serves with the first authenticator, connects, and checks that the session ends only with the third.
fn follows_proofs<A: Authenticate>(
    builder: ServerBuilder,
    connect: impl Fn(&str) -> Result<Client, ConnectError>,
    authenticators: [A; 3],
) {
    let [first, same, other] = authenticators;
    let authenticator = first;
    let builder = builder.authenticate(authenticator);
    let server = builder.start(|_| tell_name).unwrap();
    let client = connect(&server.to_string()).unwrap();
    assert_eq!(name_of(&client), "ann");
    replace(&server, same);
    assert_eq!(name_of(&client), "ann", "nothing has changed");
    replace(&server, other);
    let reason = CloseReason::GoAway(GoAwayCode::Unauthenticated);
    assert_eq!(end_of(&client), reason);
    assert!(refusal(connect(&server.to_string())).contains("needs credentials"));
    until("the end is counted", || {
        server.metrics().closed_by("unauthenticated") == 2
    });
}

/// Regression: a session went on when its user stayed and its proof was taken away.
#[test]
fn a_proof_that_is_taken_away_ends_its_sessions() {
    let known = Arc::new(users(&[("ann", Permissions::everything())]));
    let listen = |address: &str| Server::builder().listen(address).unwrap();
    let plain = |address: &str| connect_to(address, None);

    let folder = tempfile::tempdir().unwrap();
    let own = std::fs::metadata(folder.path()).unwrap().uid();
    let peers = || KnownPeers::new(Arc::clone(&known));
    let by = |uid| peers().unix_user(uid, "ann");
    let socket = format!("ipc://{}/socket", folder.path().display());
    follows_proofs(listen(&socket), plain, [own, own, own + 1].map(by));

    let by = |network| peers().address(network, "ann").unwrap();
    let networks = ["127.0.0.0/8", "127.0.0.1", "10.0.0.0/8"];
    follows_proofs(listen("tcp://127.0.0.1:0"), plain, networks.map(by));

    let by = |name| peers().certificate(name, "ann");
    let (authority, own) = usual();
    let clients = Authority::new("clients");
    let (chain, key) = clients.sign_client("ann").pair();
    let tls = authority.client().identity(chain, key);
    let secure = |address: &str| Client::builder().tls(tls.clone()).connect(address).wait();
    let names = ["ann.example", "ann.example", "bob.example"];
    let builder = Server::builder().tls(own.server().require_clients_of(clients.pem()));
    let builder = builder.listen("tls://127.0.0.1:0").unwrap();
    follows_proofs(builder, secure, names.map(by));
}

/// Regression: an open session kept its first expiry.
#[test]
fn the_expiry_of_an_open_session_follows_the_reload() {
    let tokens = TokenFolder::new();
    let ann = tokens.add("ann");
    let known = || users(&[("ann", Permissions::everything())]);
    let authenticator = tokens.chain(known());
    let server = serve_with(authenticator, |_| tell_name);
    let client = connect(&server, Some(&ann)).unwrap();
    let line = std::fs::read_to_string(tokens.path()).unwrap();
    #[expect(
        clippy::disallowed_methods,
        reason = "credentials expire by the wall clock"
    )]
    let soon = SystemTime::now() + Duration::from_secs(4);
    let soon = soon.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let expiring = format!("{} {}\n", line.trim_end(), soon.as_secs());
    std::fs::write(tokens.path(), expiring).unwrap();
    replace(&server, tokens.chain(known()));
    let mut is_warned = false;
    let reason = loop {
        match client.next_event().wait_for(DEADLINE).unwrap() {
            Event::CredentialsExpire { .. } => is_warned = true,
            Event::Closed { reason, .. } => break reason,
            _ => {}
        }
    };
    assert_eq!(reason, CloseReason::GoAway(GoAwayCode::Unauthenticated));
    assert!(is_warned);
    until("the end is counted", || {
        server.metrics().closed_by("credentials_expired") == 1
    });
}

/// A reload that lowers the limit of sessions ends only the excess sessions.
#[test]
fn sessions_above_a_new_limit_end() {
    let tokens = TokenFolder::new();
    let ann = tokens.add("ann");
    let known = |sessions_max| {
        let mut users = Users::new(Permissions::everything());
        let limits = IdentityLimits {
            sessions_max: Some(sessions_max),
            ..IdentityLimits::default()
        };
        users.add("ann", None, limits).unwrap();
        users
    };
    let authenticator = tokens.chain(known(5));
    let server = serve_with(authenticator, |_| tell_name);
    let clients: Vec<Client> = (0..5)
        .map(|_| connect(&server, Some(&ann)).unwrap())
        .collect();
    replace(&server, tokens.chain(known(2)));
    until("three have ended", || {
        server.metrics().closed_by("unauthenticated") == 3
    });
    let open = clients.iter().filter(|it| it.request(b"").wait().is_ok());
    assert_eq!(open.count(), 2);
    assert!(full(connect(&server, Some(&ann))).contains("as many sessions"));
}

/// Admits all peers as ann for the time in the token, with permission for the subscriptions that follow in the token.
struct Scoped;

impl Authenticate for Scoped {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        let text = str::from_utf8(request.token()).unwrap();
        let (milliseconds, pattern) = text.split_once(':').unwrap();
        let time = Duration::from_millis(milliseconds.parse().unwrap());
        let permissions = Permissions {
            subscribe: Access::new([pattern], []).unwrap(),
            ..Permissions::everything()
        };
        #[expect(
            clippy::disallowed_methods,
            reason = "credentials expire by the wall clock"
        )]
        let at = SystemTime::now() + time;
        AuthOutcome::admit(Identity::new("ann", permissions).expires_at(at))
    }
}

/// Regression: newer credentials with fewer permissions kept subscriptions that only the former credentials allowed.
#[test]
fn newer_credentials_with_fewer_permissions_end_a_session_that_has_more() {
    let server = serve_with(Scoped, |_| PubSub::new());
    let asked = AtomicUsize::new(0);
    let credentials = Credentials::provider(move || {
        let first = asked.fetch_add(1, Ordering::SeqCst) == 0;
        Ok(Token::new(if first { "3000:>" } else { "1000000:public" })?)
    });
    let client = Client::builder().credentials(credentials);
    let client = client.connect(&server.to_string()).wait().unwrap();
    let _secret = client.subscribe("secret").wait().unwrap();
    assert_eq!(
        end_of(&client),
        CloseReason::GoAway(GoAwayCode::Unauthenticated)
    );
}

/// Admits all peers, and then fails.
struct Broken;

impl Authenticate for Broken {
    fn authenticate(&self, _: &mut AuthRequest<'_>) -> AuthOutcome {
        AuthOutcome::admit(everything("ann"))
    }

    fn current(&self, _: &Arc<Identity>) -> Option<Arc<Identity>> {
        panic!("the users cannot be read");
    }
}

/// Regression: after a panic of the authenticator at a reload, the sessions stayed, also those of users who were
/// removed.
#[test]
fn a_panic_at_a_reload_ends_the_sessions_that_it_is_about() {
    let server = serve_with(Broken, |_| tell_name);
    let client = connect(&server, None).unwrap();
    server.reauthenticate();
    assert_eq!(
        end_of(&client),
        CloseReason::GoAway(GoAwayCode::Unauthenticated)
    );
    assert_eq!(name_of(&connect(&server, None).unwrap()), "ann");
}

/// Regression: an anonymous member kept the name of a user who was added later, so the user was refused.
#[test]
fn an_anonymous_member_loses_the_name_of_a_new_user() {
    let tokens = TokenFolder::new();
    let token = tokens.add("ann");
    let both = || {
        let everything = Permissions::everything();
        users(&[
            (Identity::ANONYMOUS, everything.clone()),
            ("ann", everything),
        ])
    };
    let before = users(&[(Identity::ANONYMOUS, Permissions::everything())]);
    let authenticator = anonymous_of(before);
    let server = serve_with(authenticator, |_| tidewire::Chat::new());
    let [squatter, other] = [(); 2].map(|()| connect(&server, None).unwrap());
    squatter.join("lobby").named("ann").wait().unwrap();
    other.join("lobby").named("bob").wait().unwrap();
    replace(&server, tokens.chain(both()));
    assert_eq!(
        end_of(&squatter),
        CloseReason::GoAway(GoAwayCode::Unauthenticated)
    );
    let ann = connect(&server, Some(&token)).unwrap();
    let room = ann.join("lobby").named("").wait().unwrap();
    other.room(room.id()).members().wait().unwrap();
}

fn anonymous_of(users: Users) -> Chain {
    Chain::new().then(KnownPeers::new(Arc::new(users)).admit_anonymous())
}

/// Regression: a revoked client tried again at the usual pace, and each attempt was a failure of its address.
#[test]
fn the_pauses_grow_when_the_server_refuses_the_credentials() {
    let tokens = TokenFolder::new();
    let ann = tokens.add("ann");
    let known = |names: &[(&str, Permissions)]| tokens.chain(users(names));
    let authenticator = known(&[("ann", Permissions::everything())]);
    let server = serve_with(authenticator, |_| tell_name);
    let quick = Duration::from_millis(1);
    let backoff = Backoff {
        first: quick,
        max: quick,
    };
    let client = Client::builder().credentials(ann).reconnect(backoff);
    let client = client.connect(&server.to_string()).wait().unwrap();
    replace(&server, known(&[]));
    let mut pauses = Vec::new();
    while pauses.len() < 2 {
        let event = client.next_event().wait_for(DEADLINE).unwrap();
        if let Event::Reconnecting { delay, cause } = event {
            pauses.push((delay, cause));
        }
    }
    // The first pause is after the end of the session, and the second one after an attempt that the server refused.
    let [_, (refused, cause)] = &pauses[..] else {
        unreachable!("two were taken");
    };
    assert!(*refused >= Duration::from_millis(500), "{refused:?}");
    assert!(
        cause.contains("the server refused the connection"),
        "{cause}"
    );
}

/// Regression: users and tokens of a configuration took memory beside the limit of the server.
#[test]
fn users_and_tokens_count_in_the_account_of_memory_and_their_reload_too() {
    const USERS: usize = 10_000;
    const PATTERN: &str = "a.rather.long.pattern.of.this.user.alone.>";
    let tokens = TokenFolder::new();
    tokens.add("user-0");
    let chain = |count: usize| {
        let mut all = Users::new(Permissions::nothing());
        for number in 0..count {
            let own = Some(may_subscribe(PATTERN));
            let limits = IdentityLimits::default();
            all.add(&format!("user-{number}"), own.as_ref(), limits)
                .unwrap();
        }
        tokens.chain(all)
    };
    let authenticator = chain(USERS);
    let server = serve_with(authenticator, |_| tell_name);
    let held = || server.metrics().memory_bytes as usize;
    let large = held();
    // Two lists of patterns each.
    assert!(large > USERS * 2 * PATTERN.len(), "{large}");
    let replace = |count| {
        let next: Result<Chain, String> = Ok(chain(count));
        server.replace_authenticator(next).unwrap();
        held()
    };
    let small = replace(1);
    assert!(small + USERS * 2 * PATTERN.len() < large, "{small} {large}");
    let lines = (0..USERS).map(|number| format!("user-0 {number:064x}\n"));
    std::fs::write(tokens.path(), lines.collect::<String>()).unwrap();
    let with_tokens = replace(1);
    assert!(with_tokens > small + USERS * 32, "{with_tokens} {small}");
    // The users are shared by both authenticators of the chain, and count once.
    assert_eq!(replace(USERS) - with_tokens, large - small);
}
