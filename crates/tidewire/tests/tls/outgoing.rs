//! Connections that handlers make over TLS, with credentials.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, SystemTime};

use tidewire::auth::{AuthOutcome, AuthRequest, Authenticate, Identity, Permissions, Token};
use tidewire::tls::{ClientTls, Encryption, TlsFault};
use tidewire::{
    CloseReason, ConnectError, Context, Endpoint, Moment, Server, ServerBuilder, Service, SessionId,
};
use tidewire_proto::layer::LayerError;
use tidewire_testkit::certificates::{Authority, usual};
use tidewire_testkit::fixtures::echo;
use tidewire_testkit::{DEADLINE, TestServer};

use super::serve_as;

/// Admits tokens that are the seconds until they expire.
struct Expiring;

impl Authenticate for Expiring {
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        let text = str::from_utf8(request.token()).unwrap();
        let seconds = text.parse().unwrap();
        #[expect(
            clippy::disallowed_methods,
            reason = "credentials expire by the wall clock"
        )]
        let at = SystemTime::now() + Duration::from_secs(seconds);
        let identity = Identity::new("ann", Permissions::everything());
        AuthOutcome::admit(identity.expires_at(at))
    }
}

/// The events of a connection that a handler makes.
#[derive(Debug)]
enum DialerEvent {
    /// The connection's encryption, the expiry of its credentials, and whether the server takes newer credentials.
    Open(Option<Encryption>, Option<Moment>, bool),
    Renewed(Duration),
    Failed(ConnectError),
}

/// Connects in its first turn, and renews its credentials once.
struct Dialer {
    to: Endpoint,
    session: Option<SessionId>,
    expires: Option<Moment>,
    seen: Sender<DialerEvent>,
}

impl Service for Dialer {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        let Some(session) = self.session else {
            let session = cx.connections().connect(&self.to).unwrap();
            let set = cx
                .connections()
                .set_credentials(session, Token::new("3600").unwrap());
            match set {
                Ok(renews) => assert!(!renews),
                Err(failure) => self.seen.send(DialerEvent::Failed(failure)).unwrap(),
            }
            self.session = Some(session);
            return None;
        };
        let expires = cx.connections().credentials_expire(session);
        if let (Some(before), Some(now)) = (self.expires, expires)
            && before != now
        {
            self.expires = None;
            self.seen.send(DialerEvent::Renewed(now - before)).unwrap();
        }
        None
    }

    fn on_open(&mut self, cx: &mut Context<'_>) {
        let id = cx.id();
        self.expires = cx.connections().credentials_expire(id);
        let token = Token::new("7200").unwrap();
        let renews = cx.connections().set_credentials(id, token).unwrap();
        assert_eq!(renews, cx.connections().takes_credentials(id));
        let seen = DialerEvent::Open(cx.session().encryption(), self.expires, renews);
        self.seen.send(seen).unwrap();
    }

    fn on_connect_failed(&mut self, _: &mut Context<'_>, failure: ConnectError) {
        self.seen.send(DialerEvent::Failed(failure)).unwrap();
    }
}

fn server() -> TestServer {
    serve_as(Server::builder().authenticate(Expiring), usual().1.server())
}

fn dial(server: &TestServer, tls: ClientTls) -> (Server, Receiver<DialerEvent>) {
    let builder = Server::builder().outgoing_tls(tls);
    dial_to(server.address(), builder)
}

fn dial_to(to: &Endpoint, builder: ServerBuilder) -> (Server, Receiver<DialerEvent>) {
    let (sender, seen) = channel();
    let dialer = builder.start(|_| Dialer {
        to: to.clone(),
        session: None,
        expires: None,
        seen: sender.clone(),
    });
    (dialer.unwrap(), seen)
}

#[test]
fn a_handler_connects_over_tls_and_renews_its_credentials() {
    let server = server();
    let (dialer, seen) = dial(&server, usual().0.client());
    let DialerEvent::Open(Some(encryption), Some(_), true) = seen.recv_timeout(DEADLINE).unwrap()
    else {
        panic!("it is open, encrypted, and expires");
    };
    assert_eq!(encryption.protocol, "TLSv1.3");
    assert!(
        encryption.cipher_suite.starts_with("TLS13_"),
        "{encryption:?}"
    );
    let DialerEvent::Renewed(longer) = seen.recv_timeout(DEADLINE).unwrap() else {
        panic!("newer credentials are confirmed");
    };
    assert!(longer > Duration::from_secs(1_800), "{longer:?}");
    assert_eq!(dialer.shutdown(DEADLINE).failures, [""; 0]);
}

#[test]
fn a_handler_refuses_a_server_with_another_name() {
    let server = server();
    let (_dialer, seen) = dial(&server, usual().0.client().server_name("elsewhere"));
    let failed = seen.recv_timeout(DEADLINE).unwrap();
    let fault = CloseReason::Layer(LayerError::Tls(TlsFault::WrongHost));
    assert!(
        matches!(&failed, DialerEvent::Failed(ConnectError::Closed(reason)) if *reason == fault),
        "{failed:?}"
    );
}

#[test]
fn settings_of_tls_leave_plain_connections_alone() {
    let plain = TestServer::over_tcp(
        Server::builder(),
        &tidewire_testkit::fixtures::tw1(),
        |_| echo,
    );
    let (_dialer, seen) = dial(&plain, usual().0.client());
    // The server has no authenticator, so it takes no newer credentials.
    let opened = seen.recv_timeout(DEADLINE).unwrap();
    assert!(
        matches!(opened, DialerEvent::Open(None, None, false)),
        "{opened:?}"
    );
}

/// Regression: a token went in plain text to any host. 0.0.0.0 leads to this machine, but is no loopback address, like
/// addresses of other machines.
#[test]
fn a_handler_sends_no_credentials_to_another_machine_in_plain_text() {
    let server = TestServer::over_tcp(
        Server::builder(),
        &tidewire_testkit::fixtures::tw1(),
        |_| echo,
    );
    let Endpoint::Tcp(local) = server.address() else {
        panic!("it listens on TCP");
    };
    let remote = Endpoint::from(std::net::SocketAddr::from(([0, 0, 0, 0], local.port())));
    let (_dialer, seen) = dial_to(&remote, Server::builder());
    let failed = seen.recv_timeout(DEADLINE).unwrap();
    assert!(
        matches!(&failed, DialerEvent::Failed(ConnectError::PlaintextCredentials { endpoint }) if *endpoint == remote),
        "{failed:?}"
    );
    let ended = seen.recv_timeout(DEADLINE).unwrap();
    assert!(
        matches!(
            ended,
            DialerEvent::Failed(ConnectError::Closed(CloseReason::Service))
        ),
        "{ended:?}"
    );
    let allowed = Server::builder().allow_plaintext_credentials();
    let (_dialer, seen) = dial_to(&remote, allowed);
    let opened = seen.recv_timeout(DEADLINE).unwrap();
    assert!(
        matches!(opened, DialerEvent::Open(None, None, false)),
        "{opened:?}"
    );
}

/// Connects until it succeeds.
struct Stubborn {
    to: Endpoint,
    has_begun: bool,
    seen: Sender<Result<(), ConnectError>>,
}

impl Service for Stubborn {
    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        if !std::mem::replace(&mut self.has_begun, true) {
            cx.connections().connect(&self.to).unwrap();
        }
        None
    }

    fn on_open(&mut self, _: &mut Context<'_>) {
        self.seen.send(Ok(())).unwrap();
    }

    fn on_connect_failed(&mut self, cx: &mut Context<'_>, failure: ConnectError) {
        self.seen.send(Err(failure)).unwrap();
        cx.connections().connect(&self.to).unwrap();
    }
}

/// Regression: the files were read at the start only.
#[test]
fn handlers_connect_with_the_authorities_that_the_file_has_now() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, Authority::new("stranger").text()).unwrap();
    let server = TestServer::over_tls(
        Server::builder().tls(usual().1.server()),
        &tidewire_testkit::fixtures::tw1(),
        |_| echo,
    );
    let (sender, seen) = channel();
    let builder = Server::builder().outgoing_tls(ClientTls::new().only_ca(ca.as_path()));
    let dialer = builder.start(|_| Stubborn {
        to: server.address().clone(),
        has_begun: false,
        seen: sender.clone(),
    });
    let failed = seen.recv_timeout(DEADLINE).unwrap();
    assert!(failed.is_err(), "the authority is unknown");
    let next = ca.with_extension("next");
    std::fs::write(&next, usual().0.text()).unwrap();
    std::fs::rename(next, &ca).unwrap();
    while seen.recv_timeout(DEADLINE).unwrap().is_err() {}
    drop(dialer);
    server.stop();
}
