//! Authentication and permissions: identifies a peer, and decides its permissions.
//!
//! ```text
//!   hello, or a connection without one ──▶ Failures: has this address failed too often?
//!        │                                      │ no
//!        ▼                                      ▼
//!   AuthRequest ──▶ Authenticate ──▶ Admitted(Identity) ──▶ the session opens; its messages are checked by Permissions
//!                        │   └─────▶ Refused ──▶ the session ends, late if its address has failed before
//!                        └─ Later ──▶ LateAnswer, from any thread
//! ```
//!
//! An [`Authenticate`] runs on the thread of a lane, so it must not block. One that must ask a file server or a
//! database takes a [`LateAnswer`] and answers from another thread. The session waits, and handles no message.
//!
//! Permissions are those of NATS: allowed patterns and denied patterns, for each kind of action. A denied pattern wins.
//! They are checked once for each topic, room and method of a session, and not again for each message.

mod authenticators;
mod failures;
mod identity;
#[cfg(feature = "jwt")]
mod jwt;
mod permissions;
mod places;
mod rates;
mod table_bytes;
mod token;
mod token_file;
mod users;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tidewire_io::socket::PeerCredentials;
pub use tidewire_proto::connection::AuthFailure;
use tidewire_proto::layer::CertificateNames;

pub use authenticators::{Chain, KnownPeers, Network};
pub(crate) use failures::{Attempt, Failures, Turn};
pub(crate) use identity::{Admitted, Proof};
pub use identity::{Identity, IdentityLimits};
#[cfg(feature = "jwt")]
pub use jwt::{JwtIssuer, JwtKeys};
pub use permissions::{Access, Action, Permissions};
use places::IdentitySessions;
pub(crate) use places::{NoPlace, Place};
use rates::IdentityRates;
pub use table_bytes::TableBytes;
pub use token::{Credentials, Token, TokenError};
pub use token_file::Tokens;
pub use users::Users;

use crate::address::Endpoint;

/// Identifies peers. For [`ServerBuilder::authenticate`](crate::ServerBuilder::authenticate).
///
/// [`Tokens`] and [`KnownPeers`] are ready to use, and a [`Chain`] asks several in turn. One of your own may ask
/// another server:
///
/// ```
/// use std::sync::Arc;
/// use std::thread;
/// use tidewire::auth::{AuthFailure, AuthOutcome, AuthRequest, Authenticate, Identity, Permissions, Token};
/// use tidewire::{Client, Context, Message, Server};
///
/// struct Accounts;
///
/// impl Authenticate for Accounts {
///     fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
///         let token = request.token().to_vec();
///         let answer = request.later();
///         thread::spawn(move || answer.send(match &token[..] {
///             b"open-sesame" => AuthOutcome::admit(Identity::new("ali", Permissions::everything())),
///             _ => AuthOutcome::Refused(AuthFailure::Wrong),
///         }));
///         AuthOutcome::Later
///     }
/// }
///
/// let server = Server::builder()
///     .authenticate(Accounts)
///     .listen("tcp://127.0.0.1:0")?
///     .start_one(|cx: &mut Context<'_>, _: Message<'_>| {
///         let name = cx.session().identity().map_or("nobody".into(), |identity| identity.name().to_owned());
///         cx.reply(name.as_bytes())
///     })?;
/// let token = Token::new("open-sesame")?;
/// let client = Client::builder().credentials(token).connect(&server.to_string()).wait()?;
/// assert_eq!(client.request(b"who am i?").wait()?.payload(), b"ali");
/// assert!(Client::connect(&server.to_string()).wait().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Authenticate: Send + Sync + 'static {
    /// Decides about a session that begins, or that sends newer credentials. It runs on the thread of a lane and must
    /// not block. After a panic the peer is refused with [`AuthFailure::Unavailable`].
    fn authenticate(&self, request: &mut AuthRequest<'_>) -> AuthOutcome;

    /// Returns the present state of an identity that was admitted earlier, or `None` if it is not admitted any more. It
    /// is called for every session after [`Server::reauthenticate`](crate::Server::reauthenticate). The default changes
    /// nothing.
    fn current(&self, identity: &Arc<Identity>) -> Option<Arc<Identity>> {
        Some(Arc::clone(identity))
    }

    /// Whether this name belongs to an identity, so no other peer may have it in a chat. The server calls it when an
    /// anonymous peer chooses a name. The default is false.
    fn is_reserved(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Adds the memory of its own tables, such as the table of configured users. It counts in
    /// [`MemoryLimits::bytes_max`](crate::limits::MemoryLimits::bytes_max). It is called at the start and by
    /// [`Server::reauthenticate`](crate::Server::reauthenticate). The default adds nothing.
    fn measure(&self, tables: &mut TableBytes) {
        let _ = tables;
    }
}

/// The facts about a peer that [`Authenticate`] decides on.
pub struct AuthRequest<'a> {
    token: &'a [u8],
    peer: Option<&'a Endpoint>,
    unix: Option<PeerCredentials>,
    certificate_names: Option<&'a CertificateNames>,
    is_address_proven: bool,
    later: &'a mut dyn FnMut() -> LateAnswer,
}

/// The outcome of [`Authenticate::authenticate`]. [`Authenticate`] has an example.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AuthOutcome {
    /// The peer is this identity.
    Admitted(Arc<Identity>),
    /// The peer is refused.
    Refused(AuthFailure),
    /// These facts are not for this authenticator. The next of a [`Chain`] decides. The last refuses.
    Unknown,
    /// The [`LateAnswer`] that was taken by [`AuthRequest::later`] decides.
    Later,
}

/// The answer to an [`AuthRequest`] from another thread. If it is dropped without an answer, the peer is refused with
/// [`AuthFailure::Unavailable`]. [`Authenticate`] has an example.
pub struct LateAnswer(Option<Box<dyn FnOnce(AuthOutcome) + Send>>);

impl<'a> AuthRequest<'a> {
    /// A request with a token alone. `later` makes the late answer.
    pub(crate) fn new(token: &'a [u8], later: &'a mut dyn FnMut() -> LateAnswer) -> Self {
        Self {
            token,
            peer: None,
            unix: None,
            certificate_names: None,
            is_address_proven: true,
            later,
        }
    }

    /// Adds the address of the peer, and whether the peer has shown that it receives there.
    pub(crate) fn at(mut self, peer: Option<&'a Endpoint>, is_proven: bool) -> Self {
        (self.peer, self.is_address_proven) = (peer, is_proven);
        self
    }

    /// Adds the proofs that the connection has brought.
    pub(crate) fn with_proofs(
        mut self,
        unix: Option<PeerCredentials>,
        certificate_names: Option<&'a CertificateNames>,
    ) -> Self {
        (self.unix, self.certificate_names) = (unix, certificate_names);
        self
    }

    /// The credentials of the peer's hello; empty without credentials or without a hello.
    #[must_use]
    pub fn token(&self) -> &'a [u8] {
        self.token
    }

    /// The address of the peer. Clients of a Unix socket and of the same process have none.
    #[must_use]
    pub fn peer(&self) -> Option<&'a Endpoint> {
        self.peer
    }

    /// The process, user and group of a peer that connected through a Unix socket, as the kernel knows them.
    #[must_use]
    pub fn unix(&self) -> Option<PeerCredentials> {
        self.unix
    }

    /// The names in the certificate of the peer, if its connection has one that was verified.
    #[must_use]
    pub fn certificate_names(&self) -> Option<&'a CertificateNames> {
        self.certificate_names
    }

    /// Whether the peer has shown that it receives at its address. Any program can send a datagram in the name of any
    /// address, and only some codecs ask for a proof over UDP. All other transports have it.
    #[must_use]
    pub fn is_address_proven(&self) -> bool {
        self.is_address_proven
    }

    /// Takes the token for an answer from another thread. Return [`AuthOutcome::Later`] then. The deadline of the
    /// handshake stays.
    pub fn later(&mut self) -> LateAnswer {
        (self.later)()
    }
}

impl fmt::Debug for AuthRequest<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AuthRequest")
            .field("token_bytes", &self.token.len())
            .field("peer", &self.peer)
            .field("unix", &self.unix)
            .field("certificate_names", &self.certificate_names)
            .finish_non_exhaustive()
    }
}

impl AuthOutcome {
    /// Admits the peer as this identity.
    #[must_use]
    pub fn admit(identity: Identity) -> Self {
        Self::Admitted(Arc::new(identity))
    }
}

impl LateAnswer {
    pub(crate) fn new(send: impl FnOnce(AuthOutcome) + Send + 'static) -> Self {
        Self(Some(Box::new(send)))
    }

    /// Answers, unless the session has ended.
    pub fn send(mut self, outcome: AuthOutcome) {
        if let Some(send) = self.0.take() {
            send(outcome);
        }
    }
}

impl Drop for LateAnswer {
    fn drop(&mut self) {
        if let Some(send) = self.0.take() {
            send(AuthOutcome::Refused(AuthFailure::Unavailable));
        }
    }
}

opaque!(LateAnswer);

/// The authenticator of a server, which can be replaced while the server runs.
#[derive(Clone)]
pub(crate) struct SharedAuthenticator(Arc<RwLock<Arc<dyn Authenticate>>>);

impl SharedAuthenticator {
    pub(crate) fn new(first: impl Authenticate) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(first))))
    }

    /// Uses this authenticator from now on.
    fn replace(&self, next: impl Authenticate) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }

    /// Returns the authenticator in use. The lock is free while it is asked.
    fn get(&self) -> Arc<dyn Authenticate> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

opaque!(SharedAuthenticator);

/// The authentication of a server: its authenticator, and its tables of addresses and identities.
pub(crate) struct Guard {
    authenticator: SharedAuthenticator,
    failures: Arc<Failures>,
    sessions: IdentitySessions,
    rates: IdentityRates,
    /// The number of the next late answer. 0 means none.
    questions: AtomicU64,
}

impl Guard {
    pub(crate) fn table_bytes(&self) -> usize {
        let mut tables = TableBytes::default();
        self.authenticator.get().measure(&mut tables);
        tables.bytes()
    }

    pub(crate) fn new(authenticator: SharedAuthenticator) -> Self {
        Self {
            authenticator,
            failures: Arc::default(),
            sessions: IdentitySessions::default(),
            rates: IdentityRates::default(),
            questions: AtomicU64::new(1),
        }
    }

    pub(crate) fn failures(&self) -> &Arc<Failures> {
        &self.failures
    }

    pub(crate) fn sessions(&self) -> &IdentitySessions {
        &self.sessions
    }

    pub(crate) fn rates(&self) -> &IdentityRates {
        &self.rates
    }

    /// Returns the number of another late answer.
    pub(crate) fn next_question(&self) -> u64 {
        self.questions.fetch_add(1, Ordering::Relaxed)
    }

    /// Asks this authenticator from now on.
    pub(crate) fn replace(&self, next: impl Authenticate) {
        self.authenticator.replace(next);
    }

    /// Asks the authenticator, which may panic.
    pub(crate) fn ask(&self, request: &mut AuthRequest<'_>) -> AuthOutcome {
        self.authenticator.get().authenticate(request)
    }

    /// The present state of an identity, or `None` if it is not admitted any more. After a panic it is not, because its
    /// proof may be gone.
    pub(crate) fn current(&self, identity: &Arc<Identity>) -> Option<Arc<Identity>> {
        let current = catch_unwind(AssertUnwindSafe(|| {
            self.authenticator.get().current(identity)
        }));
        current.unwrap_or_else(|_| {
            tracing::error!("the authenticator panicked; the session of an identity ends");
            None
        })
    }

    /// Whether a name belongs to an identity. After a panic of the authenticator all names do.
    pub(crate) fn is_reserved(&self, name: &str) -> bool {
        let asked = catch_unwind(AssertUnwindSafe(|| {
            self.authenticator.get().is_reserved(name)
        }));
        asked.unwrap_or_else(|_| {
            tracing::error!("the authenticator panicked; a name is refused");
            true
        })
    }
}

opaque!(Guard);

/// Asks an authenticator about a peer of which only the token is known.
#[cfg(test)]
fn ask_about(authenticator: &impl Authenticate, token: &[u8]) -> AuthOutcome {
    authenticator.authenticate(&mut AuthRequest::new(token, &mut || {
        LateAnswer::new(|_| {})
    }))
}
