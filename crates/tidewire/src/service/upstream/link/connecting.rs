//! How the connection to an upstream is made, and made again.

use std::fmt;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use tidewire_proto::layer::Stack;

use super::{State, UpstreamLink};
use crate::address::Endpoint;
use crate::auth::Credentials;
use crate::dial::{LookupResult, Race, Step};
use crate::engine::Core;
use crate::limits::nanoseconds;
use crate::mailbox::LaneMessage;
use crate::service::upstream::{UpstreamError, UpstreamRequest};
use crate::session::{CloseReason, SessionId};
use crate::tls::Connector;
use crate::transport::ConnectError;
use crate::websocket::WebSocketConnector;

impl UpstreamLink {
    /// Starts a connection if an attempt is allowed now. Returns whether a connection is in progress.
    pub(super) fn connect(&mut self, core: &mut Core) -> bool {
        if core.sessions.timers.now_ns() < self.retry_ns {
            return false;
        }
        let credentials = self.upstream.0.terms.credentials.as_ref();
        let fixed = credentials.and_then(Credentials::fixed);
        self.token = fixed.cloned();
        let provider = credentials.filter(|_| fixed.is_none()).cloned();
        let tls = self.tls.as_ref().map(Connector::configs);
        let timeout = Duration::from_nanos(core.config.rules.handshake_timeout_ns);
        let Some(lookup) = self.target.lookup(timeout, provider, tls) else {
            return self.begin_race(core);
        };
        let number = self.upstream.0.number;
        let mailbox = Arc::clone(&core.exchange.mailbox);
        let started = lookup.start(move |found| {
            // If the lane has ended, so has the upstream.
            let _ = mailbox.post(LaneMessage::UpstreamFound(Box::new((number, found))));
        });
        if let Err(error) = started {
            return self.fail_round(core, &error);
        }
        self.state = State::LookingUp;
        true
    }

    /// Handles the results of a lookup. Returns the failed requests with their errors.
    pub(in crate::service::upstream) fn handle_found(
        &mut self,
        core: &mut Core,
        found: LookupResult,
    ) -> Vec<(UpstreamError, UpstreamRequest)> {
        if !matches!(self.state, State::LookingUp) {
            return Vec::new();
        }
        self.state = State::Idle;
        let is_connecting = match (found.endpoints.transpose(), found.token.transpose()) {
            (Err(error), _) => self.fail_round(core, &error),
            (_, Err(cause)) => self.fail_round(core, &cause),
            (Ok(endpoints), Ok(token)) => {
                if let Some(endpoints) = endpoints {
                    self.target.set_endpoints(endpoints);
                }
                self.token = token.or(self.token.take());
                !core.ending.is_of_server() && self.begin_race(core)
            }
        };
        self.fail_unless(core, is_connecting)
    }

    fn begin_race(&mut self, core: &mut Core) -> bool {
        let (now_ns, rules) = (core.sessions.timers.now_ns(), &core.config.rules);
        let race = Race::new(self.target.in_order(), now_ns, rules.handshake_timeout_ns);
        self.state = State::Connecting(race);
        self.run_race(core)
    }

    /// Begins the addresses that are due. Returns whether the upstream is connected or a connection is in progress.
    pub(super) fn run_race(&mut self, core: &mut Core) -> bool {
        let now_ns = core.sessions.timers.now_ns();
        while let State::Connecting(race) = &mut self.state {
            match race.step(now_ns) {
                Step::Wait => {
                    let wake_ns = race.wake_ns();
                    self.arm_timer(core, wake_ns);
                    return true;
                }
                Step::Connect(endpoint) => {
                    let connected = self.connect_to(core, &endpoint);
                    if let State::Connecting(race) = &mut self.state {
                        match connected {
                            Ok(id) => race.note_started(id, endpoint),
                            Err(failure) => race.note_failure(failure),
                        }
                    }
                }
                Step::Lost => {
                    if let State::Connecting(race) = replace(&mut self.state, State::Idle) {
                        close_all(core, race.sessions());
                        let failure = race.into_failure();
                        self.pace.note_failure(&failure);
                        self.fail_round(core, &failure);
                    }
                    return false;
                }
            }
        }
        matches!(self.state, State::Open(_))
    }

    fn connect_to(&self, core: &mut Core, endpoint: &Endpoint) -> Result<SessionId, ConnectError> {
        if let Some(token) = &self.token {
            core.shared.outgoing.check_credentials(endpoint, token)?;
        }
        let id = core.connect(endpoint, false, self.stack())?;
        if let Some(session) = core.sessions.table.find_mut(id) {
            session.profile.attach().set_upstream(self.token.clone());
        }
        Ok(id)
    }

    /// Notes that an attempt has failed with all addresses, and plans the next one. Returns false: no connection is in
    /// progress.
    fn fail_round(&mut self, core: &Core, cause: &dyn fmt::Display) -> bool {
        self.target.forget_addresses();
        let now_ns = core.sessions.timers.now_ns();
        if let Some(unlogged) = self.log.may_log(now_ns) {
            tracing::warn!(
                upstream = %self.upstream.0,
                %cause,
                unlogged,
                "an upstream cannot be reached; further failures are not logged for 10 s"
            );
        }
        let pause_ns = nanoseconds(self.pace.next_pause());
        self.retry_ns = now_ns.saturating_add(pause_ns);
        false
    }

    /// Handles a session whose handshake has ended. Returns whether it is the connection: the session of another
    /// address may have been open before.
    pub(in crate::service::upstream) fn handle_open(
        &mut self,
        core: &mut Core,
        id: SessionId,
    ) -> bool {
        let State::Connecting(race) = &mut self.state else {
            return false;
        };
        let Some(endpoint) = race.take(id) else {
            return false;
        };
        close_all(core, race.sessions());
        self.target.note_good(endpoint);
        self.pace.note_open(core.sessions.timers.now_ns());
        self.state = State::Open(id);
        true
    }

    /// Handles the end of the connection, or of an address that was tried. Returns the failed requests with their
    /// errors.
    pub(in crate::service::upstream) fn handle_end(
        &mut self,
        core: &mut Core,
        id: SessionId,
        reason: CloseReason,
        failure: ConnectError,
    ) -> Vec<(UpstreamError, UpstreamRequest)> {
        tracing::debug!(upstream = ?self.upstream, %reason, "no connection");
        if let State::Connecting(race) = &mut self.state {
            if race.take(id).is_none() {
                return Vec::new();
            }
            race.note_failure(failure);
            let is_connecting = self.run_race(core);
            return self.fail_unless(core, is_connecting);
        }
        self.state = State::Idle;
        let sent = self.sent.drain();
        let mut failed: Vec<_> = sent
            .map(|asked| (UpstreamError::Closed(reason), asked))
            .collect();
        self.note_end(core, reason);
        let may_connect = !core.ending.is_of_server() && !core.ending.stops();
        let is_connecting = self.waiting.is_empty() || (may_connect && self.connect(core));
        failed.extend(self.fail_unless(core, is_connecting));
        failed
    }

    /// Plans the next attempt after the end of an open connection. It may begin at once after a connection that lasted,
    /// and after the first one that did not.
    fn note_end(&mut self, core: &Core, reason: CloseReason) {
        let now_ns = core.sessions.timers.now_ns();
        self.retry_ns = 0;
        if !self.pace.note_end(now_ns, reason) {
            let is_first = self.pace.is_fresh();
            let pause_ns = nanoseconds(self.pace.next_pause());
            if !is_first {
                self.retry_ns = now_ns.saturating_add(pause_ns);
            }
        }
    }

    /// Takes out the requests that wait to be sent if no connection is in progress.
    pub(super) fn fail_unless(
        &mut self,
        core: &mut Core,
        is_connecting: bool,
    ) -> Vec<(UpstreamError, UpstreamRequest)> {
        if is_connecting {
            return Vec::new();
        }
        let error = match core.ending.is_of_server() || core.ending.stops() {
            true => UpstreamError::ShuttingDown,
            false => UpstreamError::Down,
        };
        self.fail_waiting(core, &error)
    }

    /// Makes the layers of a new connection, if its address asks for some.
    fn stack(&self) -> Option<Stack> {
        let tls = self.tls.as_ref().map(Connector::layer);
        let websocket = self.websocket.as_ref().map(WebSocketConnector::layer);
        Stack::new(tls.into_iter().chain(websocket).collect())
    }
}

/// Closes sessions of addresses that have lost.
fn close_all(core: &mut Core, sessions: impl IntoIterator<Item = SessionId>) {
    for session in sessions {
        if let Some(slot) = core.sessions.table.slot_of(session) {
            core.sessions.table.close(slot, CloseReason::Service);
        }
    }
}
