//! One connection to a server, made when it is wanted and made again: the state machine of clients and upstreams.
//!
//! ```text
//!                 begin                                    note_open
//!   Idle, Pausing ────▶ Due ──▶ LookingUp ──▶ Connecting ────────────▶ Open
//!         ▲                         │             │                     │
//!         └──── pause, if any ◀─────┴── failed ───┴──────── ended ──────┘
//!                                                 └── refused for good ──▶ Refused
//! ```
//!
//! It has no clock and does no I/O: its owner takes [steps](DialStep), and tells what became of them. The owner also
//! decides when a connection is wanted, and whether a pause follows a failure.
//!
//! A lookup may take seconds, so another thread does it. The addresses that it finds are used until an attempt has
//! failed with all of them.

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use tidewire_proto::layer::Stack;

use super::race::{Race, is_final};
use super::{Backoff, Lookup, LookupResult, Pace, Target};
use crate::address::{Address, Endpoint};
use crate::auth::{Credentials, Token};
use crate::limits::nanoseconds;
use crate::session::{CloseReason, SessionId};
use crate::tls::ClientConfigs;
use crate::transport::ConnectError;

#[derive(Debug)]
pub(crate) struct Dialer {
    /// The server that the program named.
    home: Target,
    /// The server to go on with, until an attempt to connect there fails.
    moved: Option<Target>,
    /// The time for a lookup, and then for all addresses of an attempt.
    timeout: Duration,
    credentials: Option<Credentials>,
    /// The token of the next connection.
    token: Option<Token>,
    /// The files of TLS that may change.
    tls: Option<Arc<ClientConfigs>>,
    pace: Pace,
    state: State,
    /// The sessions of addresses that have lost. They are to be closed.
    losers: Vec<SessionId>,
}

#[derive(Debug)]
enum State {
    Idle,
    /// The next step begins an attempt.
    Due,
    LookingUp,
    Connecting(Race),
    Open(SessionId),
    /// No attempt begins before this time.
    Pausing {
        until_ns: u64,
    },
    /// The server refused this side for good.
    Refused,
}

/// The next thing to do for a [`Dialer`].
#[derive(Debug)]
pub(crate) enum DialStep {
    /// Nothing, until a lookup or a session ends or [`Dialer::wake_ns`] comes.
    Wait,
    /// Look up, and then call [`Dialer::handle_found`].
    LookUp(Lookup),
    /// Connect to this address, and then call [`Dialer::note_begun`].
    Connect(Endpoint),
    /// Close this session.
    Close(SessionId),
    /// The attempt has failed.
    Failed(ConnectError),
}

impl Dialer {
    /// Creates a dialer. Each attempt has this time for its lookup, and then for all its addresses.
    pub(crate) fn new(
        home: Target,
        credentials: Option<Credentials>,
        tls: Option<Arc<ClientConfigs>>,
        backoff: Backoff,
        timeout: Duration,
    ) -> Self {
        Self {
            home,
            moved: None,
            timeout,
            token: credentials.as_ref().and_then(Credentials::fixed).cloned(),
            credentials,
            tls,
            pace: Pace::new(backoff),
            state: State::Idle,
            losers: Vec::new(),
        }
    }

    /// The address that the program gave.
    pub(crate) fn home(&self) -> &Address {
        self.home.address()
    }

    /// Lets the next attempts be to this server, until one fails.
    pub(crate) fn move_to(&mut self, target: Target) {
        self.moved = Some(target);
    }

    fn target(&mut self) -> &mut Target {
        self.moved.as_mut().unwrap_or(&mut self.home)
    }

    /// The layers of the next connection, if its address has layers of its own.
    pub(crate) fn stack(&self) -> Option<Stack> {
        self.moved.as_ref().unwrap_or(&self.home).stack()
    }

    /// The token of the next connection.
    pub(crate) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    fn provider(&self) -> Option<Credentials> {
        let provider = self.credentials.as_ref();
        provider.filter(|it| it.fixed().is_none()).cloned()
    }

    /// The lookup of newer credentials. `None` if these credentials never change.
    pub(crate) fn renewal(&self) -> Option<Lookup> {
        let address = self.home.address().clone();
        Some(Lookup::of_credentials(address, self.provider()?))
    }

    #[inline]
    pub(crate) fn open_session(&self) -> Option<SessionId> {
        match self.state {
            State::Open(id) => Some(id),
            _ => None,
        }
    }

    /// Whether an attempt is under way.
    pub(crate) fn is_dialing(&self) -> bool {
        matches!(
            self.state,
            State::Due | State::LookingUp | State::Connecting(_)
        )
    }

    /// Whether an attempt awaits a lookup.
    pub(crate) fn is_looking_up(&self) -> bool {
        matches!(self.state, State::LookingUp)
    }

    /// Whether an attempt may begin at any time.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.state, State::Refused)
    }

    /// The open session, or those of the addresses that are being tried.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        match &self.state {
            State::Connecting(race) => race.sessions().collect(),
            _ => self.open_session().into_iter().collect(),
        }
    }

    /// Whether this session is one of [`Self::sessions`].
    pub(crate) fn has(&self, id: SessionId) -> bool {
        match &self.state {
            State::Connecting(race) => race.has(id),
            _ => self.open_session() == Some(id),
        }
    }

    /// When a pause ends, or the next address is due.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        match &self.state {
            State::Pausing { until_ns } => Some(*until_ns),
            State::Connecting(race) => Some(race.wake_ns()),
            _ => None,
        }
    }

    /// Begins an attempt, unless there is one or a connection already. Returns false during a pause and after a
    /// refusal.
    pub(crate) fn begin(&mut self, now_ns: u64) -> bool {
        match self.state {
            State::Refused => return false,
            State::Pausing { until_ns } if until_ns > now_ns => return false,
            State::Idle | State::Pausing { .. } => self.state = State::Due,
            _ => {}
        }
        true
    }

    /// Returns the next step. Call it until there is nothing to do.
    pub(crate) fn step(&mut self, now_ns: u64) -> DialStep {
        if let Some(loser) = self.losers.pop() {
            return DialStep::Close(loser);
        }
        if matches!(self.state, State::Due) {
            let (timeout, provider, tls) = (self.timeout, self.provider(), self.tls.clone());
            if let Some(lookup) = self.target().lookup(timeout, provider, tls) {
                self.state = State::LookingUp;
                return DialStep::LookUp(lookup);
            }
            self.begin_race(now_ns);
        }
        let State::Connecting(race) = &mut self.state else {
            return DialStep::Wait;
        };
        let step = race.step(now_ns);
        if let DialStep::Failed(failure) = &step {
            self.cancel();
            self.pace.note_failure(failure);
            if self.moved.take().is_none() {
                self.home.forget_addresses();
            }
            if is_final(failure) {
                self.state = State::Refused;
            }
        }
        step
    }

    fn begin_race(&mut self, now_ns: u64) {
        let endpoints = self.target().in_order();
        let race = Race::new(endpoints, now_ns, nanoseconds(self.timeout));
        self.state = State::Connecting(race);
    }

    /// Goes on with the results of a lookup. Returns whether an attempt waited for them.
    pub(crate) fn handle_found(&mut self, found: LookupResult, now_ns: u64) -> bool {
        // Newer credentials for an earlier connection came late. The addresses are still being looked up.
        let is_late = found.endpoints.is_none() && self.target().is_unresolved();
        if !self.is_looking_up() || is_late {
            return false;
        }
        let failure = match (found.endpoints.transpose(), found.token.transpose()) {
            (Err(error), _) => Some(ConnectError::Address(error)),
            (_, Err(cause)) => Some(ConnectError::Credentials { cause }),
            (Ok(endpoints), Ok(token)) => {
                if let Some(endpoints) = endpoints {
                    self.target().set_endpoints(endpoints);
                }
                self.token = token.or(self.token.take());
                None
            }
        };
        self.begin_race(now_ns);
        if let (Some(failure), State::Connecting(race)) = (failure, &mut self.state) {
            race.end(failure);
        }
        true
    }

    /// Notes the session with which the connection to an address has begun, or why it has not.
    pub(crate) fn note_begun(
        &mut self,
        endpoint: Endpoint,
        begun: Result<SessionId, ConnectError>,
    ) {
        if let State::Connecting(race) = &mut self.state {
            match begun {
                Ok(id) => race.note_started(id, endpoint),
                Err(failure) => race.note_failure(failure),
            }
        }
    }

    /// Notes that a session ended without being open. Returns whether it belongs to the attempt.
    pub(crate) fn note_failure(&mut self, id: SessionId, failure: ConnectError) -> bool {
        let State::Connecting(race) = &mut self.state else {
            return false;
        };
        let is_known = race.take(id).is_some();
        if is_known {
            race.note_failure(failure);
        }
        is_known
    }

    /// Notes that a session is open. Returns its address, or `None` if another address was open before.
    pub(crate) fn note_open(&mut self, id: SessionId, now_ns: u64) -> Option<Endpoint> {
        let State::Connecting(race) = &mut self.state else {
            return None;
        };
        let endpoint = race.take(id)?;
        self.cancel();
        self.target().note_good(endpoint.clone());
        self.pace.note_open(now_ns);
        self.state = State::Open(id);
        Some(endpoint)
    }

    /// Notes that the open session ended. Returns whether it lasted longer than the longest pause.
    pub(crate) fn note_end(&mut self, now_ns: u64, reason: CloseReason) -> bool {
        self.state = State::Idle;
        self.pace.note_end(now_ns, reason)
    }

    /// Ends the attempt that is under way. The next steps close its sessions.
    pub(crate) fn cancel(&mut self) {
        if self.is_dialing()
            && let State::Connecting(race) = replace(&mut self.state, State::Idle)
        {
            self.losers.extend(race.sessions());
        }
    }

    /// Lets no attempt begin for some time, which this method returns.
    pub(crate) fn pause(&mut self, now_ns: u64) -> Duration {
        let pause = self.pace.next_pause();
        let until_ns = now_ns.saturating_add(nanoseconds(pause));
        self.state = State::Pausing { until_ns };
        pause
    }

    /// Counts a pause, and begins it unless it is the first since a connection that lasted.
    pub(crate) fn pause_but_first(&mut self, now_ns: u64) {
        let is_first = self.pace.is_fresh();
        self.pause(now_ns);
        if is_first {
            self.state = State::Idle;
        }
    }
}

#[cfg(test)]
mod tests;
