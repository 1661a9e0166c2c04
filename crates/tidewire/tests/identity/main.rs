//! Authentication and permissions.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod admission;
mod expiry;
#[cfg(feature = "jwt")]
mod jwt;
mod late;
mod long;
mod permissions;
mod places;
mod rates;
mod reload;
mod shares;
mod storm;

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;

use tempfile::TempDir;
use tidewire::auth::{
    Authenticate, Chain, Identity, IdentityLimits, KnownPeers, Permissions, Token, Users,
};
use tidewire::{
    AnyCodec, Client, CloseReason, ConnectError, Context, ErrorCode, GoAwayCode, HandlerResult,
    Message, RequestError, Server, Service,
};
use tidewire_proto::handshake::{Hello, PROTOCOL_VERSION};
use tidewire_testkit::identities::{TokenFolder, tell_name, users};

/// A server on loopback with this authenticator and service.
fn serve_with<S: Service>(
    authenticator: impl Authenticate,
    make: impl FnMut(usize) -> S,
) -> Server {
    let builder = Server::builder().authenticate(authenticator);
    let builder = builder.listen("tcp://127.0.0.1:0").unwrap();
    builder.start(make).unwrap()
}

/// Admits every peer without credentials, with these permissions.
fn anonymous(permissions: Permissions) -> KnownPeers {
    KnownPeers::new(Arc::new(users(&[(Identity::ANONYMOUS, permissions)]))).admit_anonymous()
}

/// The first frame of a native client with these credentials.
fn hello(credentials: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let hello = Hello {
        version: PROTOCOL_VERSION,
        features: 0,
        frame_bytes_max: 1 << 20,
        credentials,
        agent: "test",
    };
    hello.encode_frame(&mut frame).unwrap();
    frame
}

/// Connects by TCP and says hello, and does not wait for the answer.
fn greet(server: &Server, credentials: &[u8]) -> TcpStream {
    let address = server.addresses()[0].to_string().replace("tcp://", "");
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&hello(credentials)).unwrap();
    stream
}

fn connect(server: &Server, token: Option<&Token>) -> Result<Client, ConnectError> {
    connect_to(&server.addresses()[0].to_string(), token)
}

fn connect_to(address: &str, token: Option<&Token>) -> Result<Client, ConnectError> {
    let builder = Client::builder();
    match token {
        Some(token) => builder.credentials(token.clone()),
        None => builder,
    }
    .connect(address)
    .wait()
}

fn name_of(client: &Client) -> String {
    let reply = client.request(b"").wait().unwrap();
    String::from_utf8(reply.payload().to_vec()).unwrap()
}

/// Returns the text of a refusal by the server. Panics if the client was let in, or could not ask.
fn refusal(outcome: Result<Client, ConnectError>) -> String {
    refusal_with(outcome, GoAwayCode::Unauthenticated)
}

/// Returns the text of a refusal that is not about the credentials, so that the client makes normal pauses.
fn full(outcome: Result<Client, ConnectError>) -> String {
    refusal_with(outcome, GoAwayCode::LimitReached)
}

fn refusal_with(outcome: Result<Client, ConnectError>, code: GoAwayCode) -> String {
    match outcome {
        Err(ConnectError::Refused { reason, text }) => {
            assert_eq!(reason, CloseReason::GoAway(code));
            text
        }
        other => panic!("not a refusal: {other:?}"),
    }
}

fn code<T: std::fmt::Debug>(outcome: Result<T, RequestError>) -> ErrorCode {
    match outcome {
        Err(RequestError::Refused { code, .. }) => code,
        other => panic!("not refused: {other:?}"),
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    tidewire_testkit::wait_until(what, || is_so().then_some(()));
}

fn raw() -> AnyCodec {
    AnyCodec::by_name("length-field").unwrap()
}

fn everything(name: &str) -> Identity {
    Identity::new(name, Permissions::everything())
}
