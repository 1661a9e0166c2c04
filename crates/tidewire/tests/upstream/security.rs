//! Upstreams over TLS that ask for credentials: a chain from a client over a gateway to a backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidewire::auth::{
    AuthFailure, AuthOutcome, AuthRequest, Authenticate, Credentials, Identity, Permissions, Token,
};
use tidewire::tls::{ClientTls, TlsError};
use tidewire::upstream::Upstream;
use tidewire::{Client, Context, Message, RequestError, Server};
use tidewire_testkit::certificates::{Authority, usual};
use tidewire_testkit::{TestServer, wait_until};

use crate::{assert_conserved, client, gateway, serve, tw1};

/// Answers with the names of the caller: of its credentials, and of its certificate.
fn tell_names(cx: &mut Context<'_>, _: Message<'_>) -> tidewire::HandlerResult {
    let identity = cx
        .session()
        .identity()
        .map_or("nobody", |it| it.name())
        .to_owned();
    let certificate = cx
        .session()
        .certificate()
        .and_then(|names| names.preferred());
    let text = format!("{identity} {}", certificate.unwrap_or("none"));
    cx.reply(text.as_bytes())
}

/// Admits peers with the token `secret`.
struct OneToken;

impl Authenticate for OneToken {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        match request.token() {
            b"secret" => {
                let identity = Identity::new("gateway", Permissions::everything());
                AuthOutcome::Admitted(Arc::new(identity))
            }
            _ => AuthOutcome::Refused(AuthFailure::Wrong),
        }
    }
}

/// A backend over TLS that requires a certificate and the token `secret`, and the settings of a gateway with that
/// certificate.
fn backend() -> (TestServer, ClientTls) {
    let (authority, identity) = usual();
    let clients = Authority::new("clients");
    let (chain, key) = clients.sign_client("gw").pair();
    let builder = Server::builder()
        .tls(identity.server().require_clients_of(clients.pem()))
        .authenticate(OneToken);
    let backend = TestServer::over_tls(builder, &tw1(), |_| tell_names);
    (backend, authority.client().identity(chain, key))
}

fn upstream(backend: &TestServer, tls: ClientTls) -> Upstream {
    Upstream::new(&backend.url()).unwrap().tls(tls).unwrap()
}

fn ask(client: &Client) -> Result<String, RequestError> {
    let reply = client.request(b"who am i?").wait()?;
    Ok(String::from_utf8(reply.payload().to_vec()).unwrap())
}

#[test]
fn a_gateway_asks_a_backend_over_tls_with_a_certificate_and_a_token() {
    let (backend, tls) = backend();
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let provider = Credentials::provider(move || {
        counter.fetch_add(1, Ordering::SeqCst);
        Ok(Token::new("secret")?)
    });
    for (credentials, provided) in [(Token::new("secret").unwrap().into(), 0), (provider, 1)] {
        let upstream = upstream(&backend, tls.clone()).credentials(credentials);
        let server = serve(&tw1(), |_| gateway(&upstream));
        let client = client(&tw1(), &server);
        for _ in 0..10 {
            assert_eq!(ask(&client).unwrap(), "gateway spiffe://example/gw");
        }
        assert_eq!(asked.load(Ordering::SeqCst), provided, "once a connection");
        drop(client);
        let metrics = server.stop();
        assert_eq!(metrics.upstream_answered, 10);
        assert_eq!(metrics.upstream_connections, 1);
        assert_conserved(&metrics);
    }
    backend.stop();
}

#[test]
fn a_provider_is_asked_again_for_the_next_connection() {
    let (backend, tls) = backend();
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let provider = Credentials::provider(move || match counter.fetch_add(1, Ordering::SeqCst) {
        0 => Err("the file is not there yet".into()),
        _ => Ok(Token::new("secret")?),
    });
    let upstream = upstream(&backend, tls).credentials(provider);
    let server = serve(&tw1(), |_| gateway(&upstream));
    let client = client(&tw1(), &server);
    let error = ask(&client).unwrap_err().to_string();
    assert!(error.contains("upstream is down"), "{error}");
    wait_until("the next attempt is due", || ask(&client).ok());
    for session in backend.server().sessions().list() {
        session.close().unwrap();
    }
    wait_until("another connection is made", || ask(&client).ok());
    assert!(asked.load(Ordering::SeqCst) >= 2);
    drop(client);
    assert_conserved(&server.stop());
    backend.stop();
}

#[test]
fn an_upstream_that_trusts_another_authority_or_has_a_wrong_token_is_down() {
    let (backend, tls) = backend();
    let stranger = Authority::new("stranger");
    let wrong = Token::new("guessed").unwrap();
    let requests = [
        upstream(&backend, stranger.client()),
        upstream(&backend, usual().0.client()),
        upstream(&backend, tls.clone()),
        upstream(&backend, tls).credentials(wrong),
        // Without settings it trusts the system only.
        Upstream::new(&backend.url()).unwrap(),
    ];
    for upstream in requests {
        let server = serve(&tw1(), |_| gateway(&upstream));
        let client = client(&tw1(), &server);
        let error = ask(&client).unwrap_err();
        assert!(
            matches!(error, RequestError::Refused { .. }),
            "{error} {upstream:?}"
        );
        drop(client);
        let metrics = server.stop();
        assert_eq!(metrics.upstream_answered, 0);
        assert_conserved(&metrics);
    }
    let metrics = backend.stop();
    assert_eq!(metrics.authenticated, 0);
    assert!(metrics.auth_refused >= 2 && metrics.closed_by("layer") >= 2);
}

#[test]
fn settings_that_cannot_be_used_are_refused_where_the_upstream_is_made() {
    let upstream = Upstream::new("tls://127.0.0.1:1").unwrap();
    let missing = ClientTls::new().only_ca("/nowhere/ca.pem");
    let error = upstream.tls(missing).unwrap_err();
    assert!(matches!(error, TlsError::Unreadable { .. }), "{error}");
    let plain = Upstream::new("tcp://127.0.0.1:1").unwrap();
    let missing = ClientTls::new().only_ca("/nowhere/ca.pem");
    assert!(plain.tls(missing).is_ok(), "there is no TLS at tcp://");
}

/// 0.0.0.0 leads to this machine, but is no loopback address, like addresses of other machines.
#[test]
fn an_upstream_on_another_machine_gets_no_token_in_plain_text() {
    let backend = serve(&tw1(), |_| tell_names);
    let remote = backend.url().replace("127.0.0.1", "0.0.0.0");
    let upstream = Upstream::new(&remote).unwrap();
    let upstream = upstream.credentials(Token::new("secret").unwrap());
    let allowing = Server::builder().allow_plaintext_credentials();
    for (builder, is_asked) in [(Server::builder(), false), (allowing, true)] {
        let server = TestServer::over_tcp(builder, &tw1(), |_| gateway(&upstream));
        let client = client(&tw1(), &server);
        assert_eq!(ask(&client).is_ok(), is_asked);
        drop(client);
        let metrics = server.stop();
        assert_eq!(metrics.upstream_answered, u64::from(is_asked));
        assert_conserved(&metrics);
    }
    assert_eq!(backend.stop().sessions_opened, 1);
}
