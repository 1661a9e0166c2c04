//! Connects to a server, and reconnects: which address is tried, when, and how a failure is handled.
//!
//! ```text
//!            lazy ┌──────── a first submission ───────┐
//!   start ──▶ Idle                                    ▼
//!     └─────── at once ──────────────▶ Resolving ──▶ Connecting ──▶ Open
//!                                          │            │             │
//!      Idle (lazy), Waiting (backoff) ◀────┴── failed ──┴── closed ───┘
//!                                                       └── refused for good ──▶ Refused, the end
//! ```
//!
//! A separate thread looks up the host name and gets the credentials, because that may take seconds and the lane has
//! deadlines to keep. The addresses are used until an attempt has failed with all of them.

use std::mem::take;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_proto::body::GoAwayCode;

use super::error::{ConnectError, Disconnected};
use super::events::Event;
use super::link::{Found, Link};
use super::moving::{Moved, Mover};
use super::renewal::Renewal;
use super::service::ClientService;
use crate::address::{Address, AddressError, Endpoint};
use crate::auth::{Credentials, Token};
use crate::limits::nanoseconds;
use crate::service::Context;
use crate::session::CloseReason;
use crate::transport::ConnectFailure;

/// The pauses between attempts to reconnect, for [`ClientBuilder::reconnect`](crate::ClientBuilder::reconnect). Each pause is
/// twice as long as the one before. A random part spreads the clients of a server that comes back.
///
/// While a server refuses the credentials of a client, the pauses are longer: 1 s, and then four times as long each time, up to
/// 60 s. So few clients behind one address do not use up the failures that a server allows it.
///
/// [`ClientBuilder`](crate::ClientBuilder) has an example.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause. Default 200 ms.
    pub first: Duration,
    /// The longest pause. Default 5 s.
    pub max: Duration,
}

/// A server's address and the endpoints that it resolves to.
#[derive(Debug)]
pub(super) struct Target {
    address: Address,
    /// Resolves the host name. `None` if the address has no name.
    resolver: Option<Resolver>,
    /// Endpoints in the order in which they are tried. Empty while the host name is not resolved.
    endpoints: Vec<Endpoint>,
}

/// Resolves an address to all endpoints of its host. It may take seconds.
pub(super) type Resolver = fn(&Address) -> Result<Vec<Endpoint>, AddressError>;

/// The state of a client's attempts to connect.
#[derive(Debug)]
pub(super) struct Dialing {
    /// The address that the program gave.
    pub(super) home: Target,
    /// The server that the client was sent to, and stays with until an attempt there fails.
    pub(super) moved: Option<Moved>,
    /// Present if the client follows moves.
    pub(super) mover: Option<Mover>,
    /// Index of the endpoint that is being tried.
    endpoint: usize,
    wait_for_server: bool,
    backoff: Option<Backoff>,
    /// Connects at the first submission instead of at once.
    is_lazy: bool,
    state: State,
    attempts: u32,
    /// How often the server has refused the credentials since the last connection.
    refusals: u32,
    credentials: Option<Credentials>,
    /// The token of the present or next connection.
    token: Option<Token>,
    pub(super) renewal: Renewal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The name of the host is being looked up.
    Resolving,
    Connecting,
    Open,
    /// An attempt has failed. Submissions that waited for it must fail before the next attempt begins.
    Failed,
    /// Waits for the time of the next attempt.
    Waiting {
        until_ns: u64,
    },
    /// The server refused the client for good.
    Refused,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            max: Duration::from_secs(5),
        }
    }
}

impl Backoff {
    /// Returns the pause before attempt number `attempt`, counted from 0. `jitter` is a random number from 0 to 1: the pause
    /// is half as long at 0 and full at 1.
    #[must_use]
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let doubled = self
            .first
            .saturating_mul(1 << attempt.min(20))
            .min(self.max);
        doubled.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }
}

impl Target {
    /// Creates a target. It resolves IP addresses at once, and leaves host names to a lookup thread.
    pub(super) fn of(address: Address) -> Result<Self, AddressError> {
        let is_name = |host: &str| host != "*" && host.parse::<IpAddr>().is_err();
        let (resolver, endpoints): (Option<Resolver>, _) = match address.host().is_some_and(is_name)
        {
            true => (Some(Address::resolve_all), Vec::new()),
            false => (None, address.resolve_all()?),
        };
        Ok(Self {
            address,
            resolver,
            endpoints,
        })
    }

    /// Drops the resolved endpoints after an attempt has failed with all of them. The server may have moved, so its name is
    /// looked up again.
    fn forget_addresses(&mut self) {
        if self.resolver.is_some() {
            self.endpoints.clear();
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }
}

impl Dialing {
    pub(super) fn new(
        target: Target,
        wait_for_server: bool,
        backoff: Option<Backoff>,
        is_lazy: bool,
        credentials: Option<Credentials>,
        mover: Option<Mover>,
    ) -> Self {
        Self {
            token: credentials.as_ref().and_then(Credentials::fixed).cloned(),
            credentials,
            renewal: Renewal::default(),
            home: target,
            moved: None,
            mover,
            endpoint: 0,
            wait_for_server,
            backoff,
            is_lazy,
            state: State::Idle,
            attempts: 0,
            refusals: 0,
        }
    }

    /// Whether the client goes where a draining server sends it.
    pub(super) fn follows_moves(&self) -> bool {
        self.mover.is_some()
    }

    /// The server that is connected to next.
    fn target(&mut self) -> &mut Target {
        match &mut self.moved {
            Some(moved) => &mut moved.target,
            None => &mut self.home,
        }
    }

    /// Whether the client reconnects by itself when a connection ends.
    pub(super) fn reconnects(&self) -> bool {
        self.backoff.is_some()
    }

    /// The time of the next attempt, if one is planned.
    pub(super) fn retry_at_ns(&self) -> Option<u64> {
        match self.state {
            State::Waiting { until_ns } => Some(until_ns),
            _ => None,
        }
    }

    /// Whether submissions wait for the attempt that is under way.
    pub(super) fn holds_submissions(&self) -> bool {
        self.is_lazy && matches!(self.state, State::Resolving | State::Connecting)
    }

    /// Whether the next submission begins an attempt to connect.
    pub(super) fn is_lazily_idle(&self) -> bool {
        self.is_lazy && self.state == State::Idle
    }

    /// Whether the results of a lookup are the next step.
    pub(super) fn awaits_lookup(&self) -> bool {
        self.state == State::Resolving || self.renewal.is_asked()
    }

    /// Whether the server refused this client for good.
    pub(super) fn is_refused(&self) -> bool {
        self.state == State::Refused
    }

    /// Ends the state `Failed` after the submissions that waited for the attempt have failed. The next submission begins
    /// another attempt.
    pub(super) fn note_told(&mut self) {
        if self.state == State::Failed {
            self.state = State::Idle;
        }
    }

    /// The provider of credentials, if there is one.
    pub(super) fn provider(&self) -> Option<Credentials> {
        let provider = self.credentials.as_ref();
        provider.filter(|it| it.fixed().is_none()).cloned()
    }

    pub(super) fn note_open(&mut self) {
        self.state = State::Open;
        self.attempts = 0;
        self.refusals = 0;
    }

    /// The pause before the next attempt, if one may follow.
    fn next_pause(&mut self) -> Option<Duration> {
        let backoff = self.backoff.as_ref()?;
        let jitter = fastrand::f64();
        let mut pause = backoff.delay(self.attempts, jitter);
        if let Some(earlier) = self.refusals.checked_sub(1) {
            let doublings = earlier.saturating_mul(2);
            pause = pause.max(WHILE_REFUSED.delay(doublings, jitter));
        }
        self.attempts = self.attempts.saturating_add(1);
        Some(pause)
    }
}

impl ClientService {
    /// Begins an attempt to connect if one is due.
    pub(super) fn dial_if_due(&mut self, cx: &mut Context<'_>, now_ns: u64) {
        match self.dialing.state {
            State::Idle if !self.dialing.is_lazy || self.link.table.wants_connection() => {
                self.dial(cx);
            }
            State::Waiting { until_ns } if until_ns <= now_ns => self.dial(cx),
            State::Resolving => {
                if let Some(found) = self.link.take_found() {
                    self.handle_found(cx, found);
                }
            }
            _ => {}
        }
    }

    pub(super) fn dial(&mut self, cx: &mut Context<'_>) {
        self.dialing.endpoint = 0;
        let Target {
            address,
            resolver,
            endpoints,
        } = self.dialing.target();
        let lookup = Lookup {
            resolver: resolver.filter(|_| endpoints.is_empty()),
            address: address.clone(),
            credentials: self.dialing.provider(),
        };
        if lookup.resolver.is_none() && lookup.credentials.is_none() {
            return self.connect_to_endpoint(cx);
        }
        self.dialing.state = State::Resolving;
        // An earlier lookup may have ended too late for its connection.
        drop(self.link.take_found());
        if let Err(error) = lookup.clone().start(&self.link) {
            tracing::debug!(%error, "cannot start a thread for a lookup; the lane does it");
            self.handle_found(cx, lookup.run());
        }
    }

    fn handle_found(&mut self, cx: &mut Context<'_>, found: Found) {
        // Newer credentials for an earlier connection came late. The addresses are still being looked up.
        if found.endpoints.is_none() && self.dialing.target().endpoints.is_empty() {
            return;
        }
        match (found.endpoints.transpose(), found.token.transpose()) {
            (Err(error), _) => self.handle_unreachable(cx, ConnectError::Address(error)),
            (_, Err(cause)) => self.handle_unreachable(cx, ConnectError::Credentials { cause }),
            (Ok(endpoints), Ok(token)) => {
                let dialing = &mut self.dialing;
                let target = dialing.target();
                target.endpoints = endpoints.unwrap_or(take(&mut target.endpoints));
                dialing.token = token.or(dialing.token.take());
                self.connect_to_endpoint(cx);
            }
        }
    }

    fn connect_to_endpoint(&mut self, cx: &mut Context<'_>) {
        let dialing = &mut self.dialing;
        dialing.state = State::Connecting;
        let index = dialing.endpoint;
        let endpoint = dialing.target().endpoints[index].clone();
        // No connection begins that could not have the credentials.
        if dialing.token.is_some()
            && let Err(failure) = cx.check_credentials(&endpoint)
        {
            return self.handle_failure(cx, failure);
        }
        let session = match &dialing.moved {
            Some(moved) => cx.connect_over(&endpoint, moved.stack()),
            None if dialing.wait_for_server => cx.connect_when_bound(&endpoint, 0),
            None => cx.connect(&endpoint, 0),
        };
        match session {
            Ok(session) => {
                self.session = Some(session);
                if let Some(token) = &self.dialing.token {
                    // The address was checked above.
                    let _ = cx.set_credentials(session, token.clone());
                }
            }
            Err(failure) => self.handle_failure(cx, failure),
        }
    }

    pub(super) fn handle_failure(&mut self, cx: &mut Context<'_>, failure: ConnectFailure) {
        self.session = None;
        if let Some(end) = final_end(&failure) {
            return self.handle_refusal(cx, end, failure);
        }
        if refuses_credentials(&failure) {
            self.dialing.refusals = self.dialing.refusals.saturating_add(1);
        }
        // Try the next address only if no server answered: a server that refuses is the right one.
        let is_nobody_there = matches!(
            failure,
            ConnectFailure::Stream(_)
                | ConnectFailure::Datagram(_)
                | ConnectFailure::Closed(CloseReason::HandshakeTimeout)
        );
        let dialing = &mut self.dialing;
        let index = dialing.endpoint;
        let endpoints = &dialing.target().endpoints;
        if is_nobody_there && !self.closing && index + 1 < endpoints.len() {
            tracing::debug!(endpoint = %endpoints[index], %failure, "trying the next address");
            dialing.endpoint += 1;
            return self.connect_to_endpoint(cx);
        }
        self.handle_unreachable(cx, ConnectError::Failed(failure));
    }

    /// Handles an attempt that failed: ends the client if it was the first one, else plans the next.
    fn handle_unreachable(&mut self, cx: &mut Context<'_>, error: ConnectError) {
        if !self.dialing.is_lazy && !self.ever_open {
            self.link.complete_first(Err(error));
            cx.stop_lane();
            return;
        }
        if self.dialing.moved.take().is_none() {
            self.dialing.home.forget_addresses();
        }
        let cause = error.to_string();
        self.pending.unreachable = Some(cause.as_str().into());
        self.retry(cx, cause);
        if self.dialing.state == State::Idle {
            self.dialing.state = State::Failed;
        }
    }

    /// Handles a server that refused this client for good. Pending requests fail with that error when the lane ends.
    fn handle_refusal(&mut self, cx: &mut Context<'_>, end: Disconnected, failure: ConnectFailure) {
        self.stay_away_if_told(end.reason);
        self.dialing.state = State::Refused;
        let error = ConnectError::Failed(failure);
        self.pending.unreachable = Some(error.to_string().into());
        let Disconnected { reason, text } = end;
        self.link.events.push(Event::Closed { reason, text });
        if !self.ever_open {
            self.link.complete_first(Err(error));
        }
        cx.stop_lane();
    }

    /// Disables all further attempts, lazy ones included, if the close reason is final.
    pub(super) fn stay_away_if_told(&mut self, reason: CloseReason) {
        if reason.is_final() {
            self.dialing.backoff = None;
            self.dialing.is_lazy = false;
            self.pending.reconnects = false;
        }
    }

    /// Plans the next attempt, or ends the client if no attempt may follow.
    pub(super) fn retry(&mut self, cx: &mut Context<'_>, cause: String) {
        let dialing = &mut self.dialing;
        dialing.state = State::Idle;
        let pause = if self.closing {
            None
        } else {
            dialing.next_pause()
        };
        match pause {
            Some(delay) => {
                let until_ns = now_ns().saturating_add(nanoseconds(delay));
                dialing.state = State::Waiting { until_ns };
                self.link.events.push(Event::Reconnecting { delay, cause });
            }
            None if dialing.is_lazy && !self.closing => {}
            _ => cx.stop_lane(),
        }
    }
}

/// Returns the end of an attempt if the server refused the client for good.
fn final_end(failure: &ConnectFailure) -> Option<Disconnected> {
    let end = match failure {
        ConnectFailure::Refused { reason, text } => Disconnected {
            reason: *reason,
            text: text.as_str().into(),
        },
        ConnectFailure::Closed(reason) => Disconnected::from(*reason),
        _ => return None,
    };
    end.reason.is_final().then_some(end)
}

/// Whether a server is there that does not take the credentials of this client.
fn refuses_credentials(failure: &ConnectFailure) -> bool {
    let unauthenticated = CloseReason::GoAway(GoAwayCode::Unauthenticated);
    matches!(failure, ConnectFailure::Refused { reason, .. } if *reason == unauthenticated)
}

/// The least pauses while a server refuses the credentials. Each is four times as long as the one before, because the number of
/// refusals counts twice. A server allows an address 30 failures in a minute; so a client has five at most in its first minute, and
/// two in each later one.
const WHILE_REFUSED: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// The lookups that may take seconds: of the host name and of the credentials.
#[derive(Clone)]
pub(super) struct Lookup {
    pub(super) address: Address,
    /// Resolves the host name, if it is asked for.
    pub(super) resolver: Option<Resolver>,
    /// Gets the credentials, if they are asked for.
    pub(super) credentials: Option<Credentials>,
}

impl Lookup {
    fn run(&self) -> Found {
        Found {
            endpoints: self.resolver.map(|resolver| resolver(&self.address)),
            token: self.credentials.as_ref().map(Credentials::get),
        }
    }

    /// Looks up on a new thread, which stores the results in the link.
    pub(super) fn start(self, link: &Arc<Link>) -> std::io::Result<()> {
        let link = Arc::downgrade(link);
        let look = move || {
            let found = self.run();
            // The client may have been dropped meanwhile.
            if let Some(link) = link.upgrade() {
                link.set_found(found);
            }
        };
        let thread = thread::Builder::new().name("tidewire-resolve".to_owned());
        thread.spawn(look).map(drop)
    }
}

#[cfg(test)]
mod tests;
