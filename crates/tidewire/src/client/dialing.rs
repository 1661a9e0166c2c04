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
//! A separate thread looks up the host name, gets the credentials, and reads changed files of TLS. This may take
//! seconds, and the lane has deadlines. The addresses are used until an attempt has failed with all of them. The
//! addresses of one attempt are a [`Race`].

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use tidewire_io::clock::now_ns;

use super::error::Disconnected;
use super::events::Event;
use super::link::Link;
use super::moving::{Mover, NewServer};
use super::renewal::Renewal;
use super::service::ClientService;
use crate::address::Endpoint;
use crate::auth::{Credentials, Token};
use crate::dial::{Backoff, Lookup, LookupResult, Pace, Race, Step, Target};
use crate::limits::nanoseconds;
use crate::service::Context;
use crate::session::{CloseReason, SessionId};
use crate::tls::ClientConfigs;
use crate::transport::ConnectError;

#[derive(Debug)]
pub(super) struct Dialing {
    /// The address that the program gave.
    pub(super) home: Target,
    /// The server that the client was sent to, and stays with until an attempt there fails.
    pub(super) moved: Option<NewServer>,
    /// Present if the client follows moves.
    pub(super) mover: Option<Mover>,
    /// The files of TLS that may change.
    tls: Option<Arc<ClientConfigs>>,
    wait_for_server: bool,
    reconnects: bool,
    pace: Pace,
    /// Connects at the first submission instead of at once.
    is_lazy: bool,
    state: State,
    credentials: Option<Credentials>,
    token: Option<Token>,
    pub(super) renewal: Renewal,
}

#[derive(Debug)]
enum State {
    Idle,
    /// The name of the host is being looked up.
    Resolving,
    Connecting(Race),
    Open,
    /// An attempt has failed. Submissions that waited for it must fail before the next attempt begins.
    Failed,
    /// Waits for the time of the next attempt.
    Waiting {
        until_ns: u64,
    },
    Refused,
}

impl Dialing {
    pub(super) fn new(
        target: Target,
        wait_for_server: bool,
        backoff: Option<Backoff>,
        is_lazy: bool,
        credentials: Option<Credentials>,
        (mover, tls): (Option<Mover>, Option<Arc<ClientConfigs>>),
    ) -> Self {
        Self {
            token: credentials.as_ref().and_then(Credentials::fixed).cloned(),
            credentials,
            renewal: Renewal::default(),
            home: target,
            moved: None,
            mover,
            tls,
            wait_for_server,
            reconnects: backoff.is_some(),
            pace: Pace::new(backoff.unwrap_or_default()),
            is_lazy,
            state: State::Idle,
        }
    }

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

    pub(super) fn reconnects(&self) -> bool {
        self.reconnects
    }

    /// When the next attempt or its next address is due.
    pub(super) fn wake_at_ns(&self) -> Option<u64> {
        match &self.state {
            State::Waiting { until_ns } => Some(*until_ns),
            State::Connecting(race) => Some(race.wake_ns()),
            _ => None,
        }
    }

    /// Whether submissions wait for the attempt that is under way.
    pub(super) fn holds_submissions(&self) -> bool {
        self.is_lazy && matches!(self.state, State::Resolving | State::Connecting(_))
    }

    /// Whether the next submission begins an attempt to connect.
    pub(super) fn is_lazily_idle(&self) -> bool {
        self.is_lazy && matches!(self.state, State::Idle)
    }

    /// Whether the results of a lookup are the next step.
    pub(super) fn awaits_lookup(&self) -> bool {
        matches!(self.state, State::Resolving) || self.renewal.is_asked()
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self.state, State::Refused)
    }

    /// Ends the state `Failed` after the submissions that waited for the attempt have failed. The next submission
    /// begins another attempt.
    pub(super) fn note_told(&mut self) {
        if matches!(self.state, State::Failed) {
            self.state = State::Idle;
        }
    }

    pub(super) fn provider(&self) -> Option<Credentials> {
        let provider = self.credentials.as_ref();
        provider.filter(|it| it.fixed().is_none()).cloned()
    }

    /// Notes that a session is open. Returns the sessions of the other addresses, or `None` if another address has won
    /// already.
    fn note_open(&mut self, id: SessionId, link: &Link) -> Option<Vec<SessionId>> {
        let State::Connecting(race) = &mut self.state else {
            return None;
        };
        let endpoint = race.take(id)?;
        let losers = race.sessions().collect();
        link.set_endpoint(endpoint.clone());
        self.target().note_good(endpoint);
        self.pace.note_open(now_ns());
        self.state = State::Open;
        Some(losers)
    }

    /// Ends the present attempt. Returns its race, if any.
    fn take_race(&mut self) -> Option<Race> {
        if !matches!(self.state, State::Connecting(_)) {
            return None;
        }
        match replace(&mut self.state, State::Idle) {
            State::Connecting(race) => Some(race),
            _ => None,
        }
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
            State::Connecting(_) => self.run_race(cx),
            _ => {}
        }
    }

    pub(super) fn dial(&mut self, cx: &mut Context<'_>) {
        let dialing = &mut self.dialing;
        let (provider, tls) = (dialing.provider(), dialing.tls.clone());
        let timeout = Duration::from_nanos(cx.core.config.rules.handshake_timeout_ns);
        let Some(lookup) = dialing.target().lookup(timeout, provider, tls.as_ref()) else {
            return self.begin_race(cx);
        };
        dialing.state = State::Resolving;
        // An earlier lookup may have ended too late for its connection.
        drop(self.link.take_found());
        if let Err(error) = look_up(lookup.clone(), &self.link) {
            tracing::debug!(%error, "cannot start a thread for a lookup; the lane does it");
            self.handle_found(cx, lookup.run());
        }
    }

    fn handle_found(&mut self, cx: &mut Context<'_>, found: LookupResult) {
        // Newer credentials for an earlier connection came late. The addresses are still being looked up.
        if found.endpoints.is_none() && self.dialing.target().is_unresolved() {
            return;
        }
        match (found.endpoints.transpose(), found.token.transpose()) {
            (Err(error), _) => self.handle_unreachable(cx, ConnectError::Address(error)),
            (_, Err(cause)) => self.handle_unreachable(cx, ConnectError::Credentials { cause }),
            (Ok(endpoints), Ok(token)) => {
                let dialing = &mut self.dialing;
                if let Some(endpoints) = endpoints {
                    dialing.target().set_endpoints(endpoints);
                }
                dialing.token = token.or(dialing.token.take());
                self.begin_race(cx);
            }
        }
    }

    fn begin_race(&mut self, cx: &mut Context<'_>) {
        let endpoints = self.dialing.target().in_order();
        let timeout_ns = cx.core.config.rules.handshake_timeout_ns;
        let race = Race::new(endpoints, now_ns(), timeout_ns);
        self.dialing.state = State::Connecting(race);
        self.run_race(cx);
    }

    /// Begins the addresses that are due, and ends the attempt if none is left.
    fn run_race(&mut self, cx: &mut Context<'_>) {
        while let State::Connecting(race) = &mut self.dialing.state {
            match race.step(now_ns()) {
                Step::Wait => return,
                Step::Connect(endpoint) => match self.connect_to(cx, &endpoint) {
                    Ok(session) => {
                        if let State::Connecting(race) = &mut self.dialing.state {
                            race.note_started(session, endpoint);
                        }
                    }
                    Err(failure) => self.note_failure(cx, failure),
                },
                Step::Lost => {
                    if let Some(failure) = self.end_race(cx) {
                        self.dialing.pace.note_failure(&failure);
                        self.handle_unreachable(cx, failure);
                    }
                }
            }
        }
    }

    fn connect_to(
        &self,
        cx: &mut Context<'_>,
        endpoint: &Endpoint,
    ) -> Result<SessionId, ConnectError> {
        let dialing = &self.dialing;
        // No connection begins that could not have the credentials.
        if let Some(token) = &dialing.token {
            cx.connections().check_credentials(endpoint, token)?;
        }
        let session = match &dialing.moved {
            Some(moved) => cx.connections().connect_over(endpoint, moved.stack()),
            None if dialing.wait_for_server => cx.connections().connect_when_bound(endpoint),
            None => cx.connections().connect(endpoint),
        }?;
        if let Some(token) = &dialing.token {
            // The address was checked above.
            let _ = cx.connections().set_credentials(session, token.clone());
        }
        Ok(session)
    }

    /// Makes the open session the client's session. Returns whether it is: the session of another address may have been
    /// open before.
    pub(super) fn take_open(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(losers) = self.dialing.note_open(cx.id(), &self.link) else {
            cx.close();
            return false;
        };
        self.session = Some(cx.id());
        close_all(cx, losers);
        true
    }

    pub(super) fn end_race(&mut self, cx: &mut Context<'_>) -> Option<ConnectError> {
        let race = self.dialing.take_race()?;
        close_all(cx, race.sessions());
        Some(race.into_failure())
    }

    /// Handles a session that ended without being open.
    pub(super) fn handle_failure(&mut self, cx: &mut Context<'_>, failure: ConnectError) {
        // The session of an address that lost the race is not the client's session.
        if let State::Connecting(race) = &mut self.dialing.state
            && race.take(cx.id()).is_some()
        {
            self.note_failure(cx, failure);
            self.run_race(cx);
        }
    }

    fn note_failure(&mut self, cx: &mut Context<'_>, failure: ConnectError) {
        if let Some(end) = final_end(&failure) {
            self.end_race(cx);
            return self.handle_refusal(cx, end, failure);
        }
        tracing::debug!(%failure, "an address cannot be connected to");
        if let State::Connecting(race) = &mut self.dialing.state {
            race.note_failure(failure);
        }
    }

    /// Handles a failed attempt: ends the client after the first attempt, else plans the next.
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
        if matches!(self.dialing.state, State::Idle) {
            self.dialing.state = State::Failed;
        }
    }

    /// Handles a server that refused this client for good. Pending requests fail with that error when the lane ends.
    fn handle_refusal(&mut self, cx: &mut Context<'_>, end: Disconnected, failure: ConnectError) {
        self.stay_away_if_told(end.reason);
        self.dialing.state = State::Refused;
        let error = failure;
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
            self.dialing.reconnects = false;
            self.dialing.is_lazy = false;
            self.pending.reconnects = false;
        }
    }

    pub(super) fn note_end(&mut self, reason: CloseReason) {
        self.dialing.pace.note_end(now_ns(), reason);
    }

    /// Plans the next attempt, or ends the client if no attempt may follow.
    pub(super) fn retry(&mut self, cx: &mut Context<'_>, cause: String) {
        let dialing = &mut self.dialing;
        dialing.state = State::Idle;
        let may_retry = dialing.reconnects && !self.closing;
        match may_retry.then(|| dialing.pace.next_pause()) {
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
fn final_end(failure: &ConnectError) -> Option<Disconnected> {
    let end = match failure {
        ConnectError::Refused { reason, text } => Disconnected {
            reason: *reason,
            text: text.as_str().into(),
        },
        ConnectError::Closed(reason) => Disconnected::from(*reason),
        _ => return None,
    };
    end.reason.is_final().then_some(end)
}

/// Closes sessions of addresses that have lost.
fn close_all(cx: &mut Context<'_>, sessions: impl IntoIterator<Item = SessionId>) {
    for session in sessions {
        if let Some(slot) = cx.core.sessions.table.slot_of(session) {
            cx.core.sessions.table.close(slot, CloseReason::Service);
        }
    }
}

/// Looks up on a new thread, which stores the results in the link.
pub(super) fn look_up(lookup: Lookup, link: &Arc<Link>) -> std::io::Result<()> {
    let link = Arc::downgrade(link);
    lookup.start(move |found| {
        // The client may have been dropped.
        if let Some(link) = link.upgrade() {
            link.set_found(found);
        }
    })
}

#[cfg(test)]
mod tests;
