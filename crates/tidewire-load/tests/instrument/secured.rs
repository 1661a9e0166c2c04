//! Servers that authenticate clients: tokens of agents, newer tokens during a run, and each refusal with its reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tidewire::auth::{
    AuthOutcome, AuthRequest, Authenticate, Identity, IdentityLimits, Permissions, Token, Tokens,
    Users,
};
use tidewire::tls::{ClientTls, TlsFault};
use tidewire::{Chat, CloseReason, ConnectError, GoAwayCode, Server, ServerBuilder, Service};
use tidewire_load::credentials::TokenSource;
use tidewire_load::plan::{PlanError, RunOptions};
use tidewire_load::report::Report;
use tidewire_load::run::Silent;
use tidewire_proto::layer::LayerError;
use tidewire_testkit::TestServer;
use tidewire_testkit::certificates::usual;
use tidewire_testkit::fixtures::{echo, tw1};

use crate::proof::run;
use crate::proof::{SEED, assert_sound};
use crate::workloads::{only, scenario};

fn serve<S: Service>(builder: ServerBuilder, make: impl FnMut(usize) -> S) -> TestServer {
    TestServer::over_tls(builder.tls(usual().1.server()), &tw1(), make)
}

fn try_run(
    server: &TestServer,
    lines: &str,
    adjust: impl FnOnce(&mut RunOptions),
) -> Result<Report, PlanError> {
    let mut options = RunOptions::new(vec![server.address().clone()]);
    options.seed = SEED;
    options.late_ms = u64::MAX;
    options.tls = usual().0.client();
    adjust(&mut options);
    let report = run(&scenario(lines), options, &mut Silent)?;
    assert_sound(&report);
    Ok(report)
}

/// A source of these tokens.
fn source(tokens: &[Token]) -> Option<TokenSource> {
    let tokens = tokens.to_vec();
    Some(TokenSource::new(move || Ok(tokens.clone())))
}

/// Users `agent-0` and so on, with their tokens.
fn users(count: usize) -> (TempDir, Tokens, Vec<Token>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let add = |index| Tokens::append(&path, &format!("agent-{index}"), None).unwrap();
    let tokens = (0..count).map(add).collect();
    let mut users = Users::new(Permissions::everything());
    for index in 0..count {
        let name = format!("agent-{index}");
        users.add(&name, None, IdentityLimits::default()).unwrap();
    }
    let file = Tokens::read(&path, Arc::new(users)).unwrap();
    (folder, file, tokens)
}

const CHAT: &str = "concurrency = 4\nduration_secs = 0.5\nthink_time_ms = [10, 30]\n";

const ECHO: &str = "pattern = \"echo\"\nconcurrency = 3\nduration_secs = 0.3\n";

/// Checks that every message of the only step arrived.
fn assert_whole(report: &Report) {
    let (step, _) = only(report);
    assert_eq!(step.problems, Vec::<String>::new());
    assert!(step.total_sent > 0);
    assert_eq!(
        (step.total_received, step.lost, step.total_login_failures),
        (step.expected_received, 0, 0)
    );
}

#[test]
fn each_agent_of_a_chat_has_the_name_of_its_own_token() {
    let (_folder, file, tokens) = users(4);
    let server = serve(Server::builder().authenticate(file), |_| Chat::new());
    let report = try_run(&server, CHAT, |options| options.tokens = source(&tokens)).unwrap();
    assert_whole(&report);
}

/// Regression: agents are connections that handlers make, and these had no WebSocket.
#[test]
fn steps_over_websocket_lose_nothing_with_and_without_tls() {
    let tls = || Server::builder().tls(usual().1.server());
    for server in [
        TestServer::over_websocket(Server::builder(), &tw1(), |_| Chat::new()),
        TestServer::over_secure_websocket(tls(), &tw1(), |_| Chat::new()),
    ] {
        assert_whole(&try_run(&server, CHAT, |_| {}).unwrap());
    }
    for server in [
        TestServer::over_websocket(Server::builder(), &tw1(), |_| echo),
        TestServer::over_secure_websocket(tls(), &tw1(), |_| echo),
    ] {
        assert_whole(&try_run(&server, ECHO, |_| {}).unwrap());
    }
}

#[test]
fn agents_that_share_a_name_are_told_that_each_needs_a_token() {
    let (_folder, file, tokens) = users(1);
    let server = serve(Server::builder().authenticate(file), |_| Chat::new());
    let report = try_run(&server, CHAT, |options| options.tokens = source(&tokens)).unwrap();
    let (step, _) = only(&report);
    assert_eq!(step.total_login_failures, 3);
    let told = |note: &String| note.contains("a token for each agent");
    assert!(step.notes.iter().any(told), "{:?}", step.notes);
}

#[test]
fn a_server_that_asks_for_no_tokens_takes_agents_that_have_some() {
    let tokens = [Token::new("unused").unwrap()];
    let server = serve(Server::builder(), |_| Chat::new());
    let report = try_run(&server, CHAT, |options| options.tokens = source(&tokens)).unwrap();
    assert_whole(&report);
}

/// Admits tokens that state their seconds of validity, and counts the long ones.
#[derive(Clone, Default)]
struct Expiring(Arc<AtomicU64>);

impl Authenticate for Expiring {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        let text = str::from_utf8(request.token()).unwrap();
        let seconds = text.parse().unwrap();
        self.0
            .fetch_add(u64::from(seconds == LASTING), Ordering::SeqCst);
        #[expect(
            clippy::disallowed_methods,
            reason = "credentials expire by the wall clock"
        )]
        let at = SystemTime::now() + Duration::from_secs(seconds);
        AuthOutcome::admit(Identity::new("agent", Permissions::everything()).expires_at(at))
    }
}

/// The seconds of a token that does not expire in a test.
const LASTING: u64 = 3_600;

#[test]
fn tokens_that_expire_are_renewed_while_messages_are_sent() {
    let renewed = Expiring::default();
    let server = serve(Server::builder().authenticate(renewed.clone()), |_| echo);
    let asked = AtomicU64::new(0);
    let tokens = TokenSource::new(move || {
        // The first attempt and the step begin with tokens that expire soon.
        let seconds = match asked.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => 6,
            _ => LASTING,
        };
        Ok(vec![Token::new(&seconds.to_string())?])
    });
    let lines =
        "pattern = \"echo\"\nconcurrency = 3\nduration_secs = 4.8\nthink_time_ms = [5, 15]\n";
    let report = try_run(&server, lines, |options| options.tokens = Some(tokens)).unwrap();
    assert_whole(&report);
    assert_eq!(renewed.0.load(Ordering::SeqCst), 3);
    assert_eq!(server.metrics().closed_by("credentials_expired"), 0);
}

/// The reason for which a run did not begin.
fn failure(outcome: Result<Report, PlanError>) -> ConnectError {
    match outcome {
        Err(PlanError::Target(_, failure)) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn settings_that_a_server_or_a_client_refuses_end_the_run_before_it_begins() {
    let (_folder, file, tokens) = users(1);
    let server = serve(Server::builder().authenticate(file), |_| echo);
    let wrong = [Token::new("guessed").unwrap()];
    let refused = failure(try_run(&server, ECHO, |options| {
        options.tokens = source(&wrong);
    }));
    let reason = CloseReason::GoAway(GoAwayCode::Unauthenticated);
    assert!(
        matches!(&refused, ConnectError::Refused { reason: it, .. } if *it == reason),
        "{refused:?}"
    );
    let faults = [
        (ClientTls::new(), TlsFault::UnknownIssuer),
        (
            usual().0.client().server_name("elsewhere"),
            TlsFault::WrongHost,
        ),
    ];
    for (tls, fault) in faults {
        let refused = failure(try_run(&server, ECHO, |options| {
            options.tokens = source(&tokens);
            options.tls = tls;
        }));
        let fault = CloseReason::Layer(LayerError::Tls(fault));
        assert!(
            matches!(&refused, ConnectError::Closed(reason) if *reason == fault),
            "{refused:?}"
        );
    }
    let none = try_run(&server, ECHO, |options| options.tokens = source(&[]));
    assert!(matches!(none, Err(PlanError::Tokens(_))), "{none:?}");
    let lines =
        "pattern = \"echo\"\ncodec = \"length-field\"\nconcurrency = 1\nduration_secs = 0.3\n";
    let no_place = try_run(&server, lines, |options| options.tokens = source(&tokens));
    assert!(
        matches!(no_place, Err(PlanError::NoPlaceForTokens(..))),
        "{no_place:?}"
    );
}
