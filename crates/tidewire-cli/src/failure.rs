//! The exit codes and remedies of the libraries' errors. [`tidewire_command::failure`] has the codes and the form of
//! the output.
//!
//! The libraries' errors are typed, so the type determines the code and the remedy at any position in the chain. A
//! subcommand wraps nothing and prints nothing itself. For an error that only the binary can detect, it makes a
//! [`Failure`].

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value, json};
use tidewire::address::AddressError;
use tidewire::auth::TokenError;
use tidewire::backplane::BackplaneError;
use tidewire::log::LogError;
use tidewire::tls::TlsFault;
use tidewire::{
    CloseReason, ConnectError, GoAwayCode, RequestError, RoomError, SendError, ServeError,
};
pub(crate) use tidewire_command::failure::Failure;
use tidewire_command::failure::{
    self as command, CONFIGURATION, OTHER, REFUSED, TIMED_OUT, UNREACHABLE,
};
use tidewire_command::output;
use tidewire_io::poller::PollerError;
use tidewire_io::socket::{AnySocketAddress, SocketError};
use tidewire_load::compare::{CompareError, NoiseError, RunSetError};
#[cfg(feature = "nats")]
use tidewire_nats::NatsError;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::error::EncodeError;
use tidewire_proto::handshake::{FirstBytes, HandshakeError};
use tidewire_proto::layer::LayerError;

use crate::config::ConfigError;
use crate::otlp::OtlpError;
use crate::payload::json_text;
use crate::users::UsersError;

/// Adds the error to an object for programs that a command prints: `"error":{"exit_code":…,"text":…,"remedy":…}`. Then
/// [`report`] prints no object of its own.
pub(crate) fn insert(object: &mut Map<String, Value>, error: &anyhow::Error) {
    IS_INSERTED.store(true, Ordering::Relaxed);
    object.insert("error".to_owned(), described(error));
}

/// Notes that the command has printed the error to programs by itself.
pub(crate) fn note_printed() {
    IS_INSERTED.store(true, Ordering::Relaxed);
}

fn described(error: &anyhow::Error) -> Value {
    let (exit_code, remedy) = classify(error);
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    let mut described = json!({"exit_code": exit_code, "text": text});
    if !remedy.is_empty() {
        described["remedy"] = remedy.into();
    }
    described
}

/// Whether the command printed the error to programs by itself.
static IS_INSERTED: AtomicBool = AtomicBool::new(false);

/// Prints the error to stderr, and for programs an object to stdout, and returns the exit code.
pub(crate) fn report(error: &anyhow::Error, is_json: bool) -> ExitCode {
    if is_json && !IS_INSERTED.load(Ordering::Relaxed) {
        let mut object = Map::new();
        insert(&mut object, error);
        output::print_line(json_text(&Value::from(object)));
    }
    command::report(error, classify(error))
}

/// The error with its causes and its remedy, for one line of the log.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let text = command::text(error, classify(error).1);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.join("; ").trim_start_matches("error: ").to_owned()
}

/// The connection ended. The remedy is that of the reason, or else this one.
pub(crate) fn ended(what: impl Into<String>, reason: CloseReason, remedy: &'static str) -> Failure {
    match classify_end(reason) {
        (UNREACHABLE, _) => Failure::unreachable(what, remedy),
        (code, remedy) => Failure::new(code, what, remedy),
    }
}

/// Returns the exit code, and the remedy if the error's own text does not contain it.
fn classify(error: &anyhow::Error) -> (u8, &str) {
    if let Some(known) = command::classify(error) {
        return known;
    }
    let found = error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<ServeError>() {
            return Some(classify_serve(error));
        }
        if let Some(error) = cause.downcast_ref::<ConnectError>() {
            return Some(classify_connect(error));
        }
        if let Some(error) = cause.downcast_ref::<RequestError>() {
            return Some(classify_request(error));
        }
        let encode = match cause.downcast_ref() {
            Some(RoomError::Send(SendError::Encode(error)) | RoomError::Encode(error)) => {
                Some(error)
            }
            _ => cause.downcast_ref::<EncodeError>(),
        };
        if let Some(EncodeError::PayloadTooLarge { .. }) = encode {
            return Some((CONFIGURATION, TOO_LARGE));
        }
        let of_users = match cause.downcast_ref() {
            Some(UsersError::Tokens(error)) => Some(error),
            _ => cause.downcast_ref::<TokenError>(),
        };
        if let Some(TokenError::Io { .. }) = of_users {
            return Some((CONFIGURATION, TOKEN_FILE));
        }
        if let Some(AddressError::Unresolved { .. }) = cause.downcast_ref() {
            return Some((CONFIGURATION, UNRESOLVED));
        }
        if cause.is::<AddressError>()
            || matches!(cause.downcast_ref(), Some(PollerError::Variable { .. }))
            || cause.is::<LogError>()
            || cause.is::<OtlpError>()
            || cause.is::<ConfigError>()
            || cause.is::<UsersError>()
            || cause.is::<TokenError>()
        {
            return Some((CONFIGURATION, ""));
        }
        if cause.is::<RunSetError>() || cause.is::<NoiseError>() || cause.is::<CompareError>() {
            return Some((CONFIGURATION, ""));
        }
        None
    });
    found.unwrap_or((OTHER, ""))
}

fn classify_request(error: &RequestError) -> (u8, &'static str) {
    match error {
        RequestError::Refused {
            code: ErrorCode::MethodNotFound,
            ..
        } => (
            REFUSED,
            "check the method's name; a server of `tidewire serve --app rpc` lists its own with `tidewire call ADDR methods`",
        ),
        RequestError::Refused {
            code: ErrorCode::Unsupported | ErrorCode::MalformedBody,
            ..
        } => (
            REFUSED,
            "check that the server is of the right kind, see `tidewire serve --help`, and takes such a payload",
        ),
        RequestError::Refused {
            code: ErrorCode::Forbidden,
            ..
        } => (REFUSED, FORBIDDEN),
        RequestError::Refused { .. } => (REFUSED, ""),
        RequestError::TimedOut => (
            TIMED_OUT,
            "wait longer with --timeout, or check that the server speaks this --codec and is not overloaded; over \
             udp:// with a codec other than tw1, longer answers need its --trust-datagram-peers",
        ),
        RequestError::Closed(end) => classify_end(end.reason),
        RequestError::MayBeLost { .. }
        | RequestError::NotConnected
        | RequestError::CannotConnect { .. }
        | RequestError::Shutdown => (UNREACHABLE, IS_IT_RUNNING),
        RequestError::Encode(EncodeError::PayloadTooLarge { .. }) => (CONFIGURATION, TOO_LARGE),
        RequestError::Encode(_) | RequestError::Pattern(_) => (CONFIGURATION, ""),
        _ => (OTHER, ""),
    }
}

/// Classifies the end of a connection on which a request was waiting.
fn classify_end(reason: CloseReason) -> (u8, &'static str) {
    match reason {
        CloseReason::GoAway(GoAwayCode::Unauthenticated) => (REFUSED, CREDENTIALS),
        CloseReason::HandshakeTimeout => (TIMED_OUT, ""),
        CloseReason::GoAway(GoAwayCode::ProtocolError) | CloseReason::Decode(_) => {
            (UNREACHABLE, "start both sides with the same --codec")
        }
        // Its text has the remedy.
        CloseReason::Handshake(HandshakeError::OtherProtocol { .. }) => (UNREACHABLE, ""),
        reason if reason.is_final() => (REFUSED, "ask the operator of the server"),
        _ => (UNREACHABLE, IS_IT_RUNNING),
    }
}

fn classify_serve(error: &ServeError) -> (u8, &'static str) {
    match error {
        ServeError::Socket(SocketError::InUse {
            address: AnySocketAddress::Unix(_),
            ..
        }) => (
            CONFIGURATION,
            "listen elsewhere with --bind, for example on another path: --bind ipc:///tmp/another.sock",
        ),
        ServeError::Socket(SocketError::InUse { .. }) => (
            CONFIGURATION,
            "listen elsewhere with --bind, for example on any free port, which is port 0",
        ),
        ServeError::Address(_)
        | ServeError::TooManyCodecs(_)
        | ServeError::Framing { .. }
        | ServeError::Socket(_)
        | ServeError::PassedSocket { .. }
        | ServeError::Twice { .. }
        | ServeError::PassedPort(_)
        | ServeError::NameInUse { .. }
        | ServeError::Tls(_)
        | ServeError::LaneCount(_) => (CONFIGURATION, ""),
        ServeError::Setting(_) => (
            CONFIGURATION,
            "change the flag or key of this limit, for example --rooms-max or --topics-max",
        ),
        ServeError::NoCertificate { .. } => (
            CONFIGURATION,
            "give --tls-cert FILE --tls-key FILE; `tidewire cert dev` makes a pair for tests",
        ),
        ServeError::Poller(PollerError::Unavailable { .. }) => (
            CONFIGURATION,
            "leave --poller and TIDEWIRE_POLLER out, and the best poller that works is taken",
        ),
        ServeError::Backplane(error) => (classify_backplane(error), ""),
        _ => (OTHER, ""),
    }
}

/// Classifies a cluster that a server cannot join. The texts have the remedies.
fn classify_backplane(error: &BackplaneError) -> u8 {
    match error {
        #[cfg(feature = "nats")]
        BackplaneError::Engine(cause) => match cause.downcast_ref() {
            Some(NatsError::Unreachable { .. }) => UNREACHABLE,
            Some(NatsError::Denied { .. }) => REFUSED,
            _ => CONFIGURATION,
        },
        BackplaneError::Refused { .. } => REFUSED,
        BackplaneError::Thread => OTHER,
        _ => CONFIGURATION,
    }
}

const UNRESOLVED: &str = "check the host's name, or write its IP address";

const TOKEN_FILE: &str =
    "check the path of the file; `tidewire token new` makes tokens and their files";

/// The cause names the fault, such as a mode for which `chmod` is the remedy.
const TOKEN_SOURCE: &str =
    "correct the file of --token-file or the variable TIDEWIRE_TOKEN as the error says";

const CREDENTIALS: &str = "give a valid token with --token-file FILE or in TIDEWIRE_TOKEN; the operator of the server makes them";

/// The remedy for what the identity of this client may not do.
pub(crate) const FORBIDDEN: &str =
    "ask the operator of the server for the permission; `tidewire check` shows what a user may do";

fn classify_connect(error: &ConnectError) -> (u8, &'static str) {
    match error {
        ConnectError::Address(AddressError::Unresolved { .. }) => (UNREACHABLE, UNRESOLVED),
        ConnectError::Address(_) => (CONFIGURATION, ""),
        ConnectError::Credentials { .. } => (CONFIGURATION, TOKEN_SOURCE),
        ConnectError::LongCredentials { .. } => (
            CONFIGURATION,
            "connect to tls://HOST:PORT or wss://HOST:PORT, or ask the issuer for a shorter token",
        ),
        ConnectError::PlaintextCredentials { .. } => (
            CONFIGURATION,
            "connect to tls://HOST:PORT; without a token leave --token-file and TIDEWIRE_TOKEN out; in a closed network say \
             --insecure",
        ),
        ConnectError::Refused {
            reason: CloseReason::GoAway(GoAwayCode::Unauthenticated),
            ..
        } => (REFUSED, CREDENTIALS),
        ConnectError::Start(error) => error.downcast_ref().map_or((OTHER, ""), classify_serve),
        ConnectError::Socket(SocketError::Refused { .. }) => (
            UNREACHABLE,
            "start a server with `tidewire serve`, or check the address",
        ),
        ConnectError::Closed(CloseReason::Handshake(HandshakeError::OtherProtocol {
            looks_like,
        })) => (UNREACHABLE, protocol_remedy(*looks_like)),
        ConnectError::Closed(CloseReason::Layer(LayerError::Tls(fault))) => {
            (UNREACHABLE, tls_remedy(*fault))
        }
        ConnectError::Refused { .. } => (
            REFUSED,
            "the reason is the server's own; its log may say more",
        ),
        ConnectError::Socket(SocketError::TimedOut { .. }) => (TIMED_OUT, ""),
        ConnectError::Closed(CloseReason::HandshakeTimeout) => (
            TIMED_OUT,
            "wait longer with --timeout, or give both sides the same --codec; if they have it, something else than a \
             tidewire server is there",
        ),
        ConnectError::Socket(SocketError::NotFound { .. }) => (
            UNREACHABLE,
            "start a server there with `tidewire serve --bind ipc://PATH`, or check the path",
        ),
        ConnectError::NotListening { .. } | ConnectError::WaitedInVain { .. } => (
            UNREACHABLE,
            "use ipc://PATH or tcp://HOST:PORT for a server in another process",
        ),
        ConnectError::Closed(
            CloseReason::Handshake(_)
            | CloseReason::PeerClosed
            | CloseReason::PeerReset
            | CloseReason::Decode(_),
        ) => (UNREACHABLE, ANOTHER_SERVER),
        ConnectError::Ended | ConnectError::OnLane => (OTHER, ""),
        // The other errors contain their remedy.
        _ => (UNREACHABLE, ""),
    }
}

/// The remedy for a server of another protocol, if its text has none.
fn protocol_remedy(looks_like: FirstBytes) -> &'static str {
    match looks_like {
        FirstBytes::Text => {
            "talk to a server of lines with `nc HOST PORT`, or restart it with --codec tw1"
        }
        FirstBytes::Unknown => ANOTHER_SERVER,
        _ => "",
    }
}

/// The flags against a failure of TLS, if there are some; its text has the rest.
fn tls_remedy(fault: TlsFault) -> &'static str {
    match fault {
        TlsFault::UnknownIssuer => {
            "give the certificate of the server's authority with --ca FILE; `tidewire cert dev` writes it to ca.pem"
        }
        TlsFault::WrongHost => "name what is in the certificate with --server-name NAME",
        TlsFault::Alert(CERTIFICATE_REQUIRED) => {
            "show a certificate with --cert FILE --key FILE; the operator of the server signs them"
        }
        _ => "",
    }
}

/// The remedy for a connection that ended before the two sides understood each other.
const ANOTHER_SERVER: &str = "give both sides the same --codec; if they have it, something else than a tidewire server is there, or the server and \
     a proxy in between do not agree about the PROXY header: the log of the server says why";

/// The alert of a server that requires a certificate.
const CERTIFICATE_REQUIRED: u8 = 116;

/// The remedy for a connection that ended, or does not exist.
const IS_IT_RUNNING: &str =
    "check that the server still runs and speaks this --codec; its log has the reason";

/// The remedy for a request that a limit of the server refused; the refusal names the limit.
pub(crate) const LIMIT_REMEDY: &str =
    "follow the server's reason, or ask its operator for a higher limit";

/// The remedy for a message that does not fit a frame.
const TOO_LARGE: &str = "send less at once; a message must fit a frame, which is 1 MiB, or 65,507 bytes over \
                         udp://, unless the server's limit is lower";

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(error: &anyhow::Error) -> String {
        command::text(error, classify(error).1)
    }

    /// The bug: after credentials were withdrawn, the remedy was to look whether the server still runs.
    #[test]
    fn an_end_for_want_of_valid_credentials_asks_for_a_token() {
        let reason = CloseReason::GoAway(GoAwayCode::Unauthenticated);
        let error = RequestError::Closed(reason.into()).into();
        assert_eq!(classify(&error), (REFUSED, CREDENTIALS));
        let error = ended("it ended", reason, "look").into();
        assert_eq!(classify(&error), (REFUSED, CREDENTIALS));
        let error = ended("it ended", CloseReason::PeerClosed, "look").into();
        assert_eq!(classify(&error), (UNREACHABLE, "look"));
    }

    #[test]
    fn causes_follow_in_order_and_are_not_repeated() {
        let address: std::net::SocketAddr = "127.0.0.1:9".parse().unwrap();
        let refused = SocketError::Refused {
            address: AnySocketAddress::Tcp(address),
        };
        let error = anyhow::Error::from(ConnectError::from(refused));
        assert_eq!(
            printed(&error),
            "error: cannot connect to tcp://127.0.0.1:9: connection refused; is the server running?\n  \
             remedy: start a server with `tidewire serve`, or check the address\n"
        );
        assert_eq!(classify(&error).0, UNREACHABLE);
    }

    #[test]
    fn the_remedy_for_an_address_in_use_fits_its_transport() {
        let remedy = |address: AnySocketAddress| {
            let source = std::io::ErrorKind::AddrInUse.into();
            let error = ServeError::from(SocketError::InUse {
                operation: "listen on",
                address,
                source,
            });
            classify(&error.into()).1.to_owned()
        };
        let path = std::path::PathBuf::from("/run/chat.sock");
        assert!(remedy(AnySocketAddress::Unix(path)).contains("--bind ipc://"));
        let address: std::net::SocketAddr = "127.0.0.1:80".parse().unwrap();
        // The port may be that of tcp://, tls://, ws:// or wss://.
        let remedy = remedy(AnySocketAddress::Tcp(address));
        assert!(
            remedy.contains("port 0") && !remedy.contains("://"),
            "{remedy}"
        );
    }

    #[test]
    fn a_server_of_lines_is_recognised() {
        let looks_like = FirstBytes::Text;
        let reason = CloseReason::Handshake(HandshakeError::OtherProtocol { looks_like });
        let error = anyhow::Error::from(ConnectError::Closed(reason));
        assert_eq!(classify(&error).0, UNREACHABLE);
        assert!(printed(&error).contains("remedy: talk to a server of lines with `nc"));
    }

    #[test]
    fn wrong_addresses_and_pollers_are_configuration() {
        let address = "http://x:1"
            .parse::<tidewire::address::Address>()
            .unwrap_err();
        let error = anyhow::Error::from(ServeError::from(address.clone()));
        assert_eq!(classify(&error).0, CONFIGURATION);
        assert_eq!(
            classify(&ConnectError::from(address).into()).0,
            CONFIGURATION
        );
        assert_eq!(classify(&ServeError::LaneCount(0).into()).0, CONFIGURATION);
        assert_eq!(classify(&anyhow::anyhow!("what")).0, OTHER);
    }
}
