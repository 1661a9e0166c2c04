//! The connection of one lane to one upstream, and its pending requests.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::thread;

use tidewire_io::timer::TimerId;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::correlate::Correlator;
use tidewire_proto::layer::Stack;
use tidewire_proto::message::{Kind, Message};

use super::{PAUSE_FIRST, Upstream, UpstreamError};
use crate::auth::{Credentials, Token};
use crate::engine::Core;
use crate::limits::nanoseconds;
use crate::mailbox::LaneMessage;
use crate::observe::QuietLog;
use crate::service::{Context, Deferred};
use crate::session::{CloseReason, SendError, SessionId, TimerKey};
use crate::tls::{Connector, protocol};
use crate::websocket::WebSocketConnector;

pub(super) type Callback = Box<dyn FnOnce(&mut Context<'_>, Result<&[u8], UpstreamError>) + Send>;

/// The action for an answer.
pub(super) enum Then {
    /// Answers a deferred request of the session that asked.
    Reply(Deferred),
    Call(Callback),
}

impl fmt::Debug for Then {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Reply(_) => "Reply(..)",
            Self::Call(_) => "Call(..)",
        })
    }
}

/// A request, sent or still waiting.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) asker: SessionId,
    pub(super) channel: u16,
    pub(super) deadline_ns: u64,
    pub(super) then: Then,
}

/// A request that waits to be sent.
#[derive(Debug)]
struct Waiting {
    asked: Asked,
    method: String,
    payload: Vec<u8>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.method.capacity() + self.payload.capacity()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    /// The provider of credentials is being asked.
    Asking,
    Connecting(SessionId),
    Open(SessionId),
}

/// The connection to one upstream; see the module.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) upstream: Upstream,
    /// Makes the layers of TLS, with the name of this lane's codec.
    tls: Option<Connector>,
    websocket: Option<WebSocketConnector>,
    /// The credentials of the next connection.
    token: Option<Token>,
    state: State,
    sent: Correlator<Asked>,
    /// Requests that wait to be sent, oldest first.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    timer: Option<TimerId>,
    /// Failed attempts to connect since the last success.
    attempts: u32,
    /// Earliest time of the next attempt.
    retry_ns: u64,
    /// Limits the log lines about an upstream that cannot be reached.
    log: QuietLog,
}

impl Link {
    pub(super) fn new(upstream: &Upstream, codec: &AnyCodec) -> Self {
        let address = upstream.0.address.as_ref();
        let websocket = address.and_then(|address| WebSocketConnector::new(address, codec));
        let tls = upstream.0.terms.tls.as_ref();
        Self {
            tls: tls.map(|tls| tls.with_protocol(protocol(websocket.is_some(), codec))),
            websocket,
            token: None,
            upstream: upstream.clone(),
            state: State::Idle,
            sent: Correlator::for_ids(codec.ids(), upstream.0.terms.in_flight_max),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            timer: None,
            attempts: 0,
            retry_ns: 0,
            log: QuietLog::default(),
        }
    }

    /// Makes the layers of a new connection, if its address asks for some.
    fn stack(&self) -> Option<Stack> {
        let tls = self.tls.as_ref().map(Connector::layer);
        let websocket = self.websocket.as_ref().map(WebSocketConnector::layer);
        Stack::new(tls.into_iter().chain(websocket).collect())
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        match self.state {
            State::Idle | State::Asking => None,
            State::Connecting(id) | State::Open(id) => Some(id),
        }
    }

    /// Whether a sent request has no answer yet. If the codec has no ids, any message may be that answer.
    pub(super) fn awaits_answer(&self) -> bool {
        self.sent.pending_replies() > 0
    }

    /// Whether no request is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.waiting.is_empty()
    }

    /// Whether this is the last reference to the upstream and no request is pending.
    pub(super) fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.upstream.0) == 1 && self.is_idle()
    }

    /// Sends a request, or queues it until the connection is open.
    pub(super) fn submit(
        &mut self,
        core: &mut Core,
        call: &Message<'_>,
        asked: Asked,
    ) -> Result<(), (UpstreamError, Then)> {
        let queue_bytes_max = core.config.limits.queue_bytes_max;
        let is_full = self.sent.len() + self.waiting.len() >= self.upstream.0.terms.in_flight_max;
        if is_full || self.waiting_bytes > queue_bytes_max {
            return Err((UpstreamError::TooMany, asked.then));
        }
        if core.ending.server_ends {
            return Err((UpstreamError::ShuttingDown, asked.then));
        }
        let limit = core.config.limits.frame_bytes_max;
        let bytes = call.payload.len() + call.name.len();
        if bytes > limit {
            let (bytes, limit) = (bytes as u64, limit as u64);
            let error = tidewire_proto::error::EncodeError::PayloadTooLarge { bytes, limit };
            return Err((error.into(), asked.then));
        }
        if self.state == State::Idle && !self.connect(core) {
            return Err((UpstreamError::Down, asked.then));
        }
        let deadline_ns = asked.deadline_ns;
        let asked = match self.state {
            State::Open(id) if self.waiting.is_empty() && !is_going(core, id) => {
                match self.send(core, id, call, asked) {
                    Ok(()) => None,
                    Err((None, asked)) => Some(asked),
                    Err((Some(error), asked)) => return Err((error, asked.then)),
                }
            }
            _ => Some(asked),
        };
        if let Some(asked) = asked {
            let waiting = Waiting {
                asked,
                method: call.name.to_owned(),
                payload: call.payload.to_vec(),
            };
            self.charge(core, waiting.bytes(), true);
            self.waiting.push_back(waiting);
        }
        self.arm_timer(core, deadline_ns);
        Ok(())
    }

    /// Sends a request now. If it fails without an error, there is no room at the moment.
    fn send(
        &mut self,
        core: &mut Core,
        id: SessionId,
        call: &Message<'_>,
        asked: Asked,
    ) -> Result<(), (Option<UpstreamError>, Asked)> {
        let number = self
            .sent
            .insert(asked)
            .map_err(|(_, asked)| (None, asked))?;
        let message = Message {
            id: number,
            ..*call
        };
        let Core {
            sessions, exchange, ..
        } = core;
        let sent = sessions.with_output_in_place(id.slot(), |sessions| {
            exchange.send_to(sessions, id, |codec, out| codec.encode(&message, out))
        });
        let Err(error) = sent else { return Ok(()) };
        let error = match error {
            SendError::Encode(error) => Some(error.into()),
            SendError::QueueFull | SendError::NotOpen => None,
        };
        match self.sent.take(number) {
            Some(asked) => Err((error, asked)),
            None => Ok(()),
        }
    }

    /// Sends the waiting requests for which there is room. Returns those that failed.
    pub(super) fn send_waiting(&mut self, core: &mut Core) -> Vec<(UpstreamError, Asked)> {
        let mut failed = Vec::new();
        let State::Open(id) = self.state else {
            return failed;
        };
        while !is_going(core, id)
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.charge(core, waiting.bytes(), false);
            let Waiting {
                asked,
                method,
                payload,
            } = waiting;
            let call = Message::new(Kind::Request, asked.channel, &payload).with_name(&method);
            match self.send(core, id, &call, asked) {
                Ok(()) => {}
                Err((Some(error), asked)) => failed.push((error, asked)),
                Err((None, asked)) => {
                    let waiting = Waiting {
                        asked,
                        method,
                        payload,
                    };
                    self.charge(core, waiting.bytes(), true);
                    self.waiting.push_front(waiting);
                    break;
                }
            }
        }
        failed
    }

    /// Starts a connection if an attempt is allowed now. Returns whether a connection is in progress.
    fn connect(&mut self, core: &mut Core) -> bool {
        if core.sessions.reactor.now_ns < self.retry_ns {
            return false;
        }
        let credentials = &self.upstream.0.terms.credentials;
        match credentials.as_ref().map(|it| (it, it.fixed())) {
            Some((_, Some(token))) => self.token = Some(token.clone()),
            Some((provider, None)) if self.token.is_none() => {
                return self.ask_provider(core, provider.clone());
            }
            _ => {}
        }
        loop {
            // Each address of the host is tried once before the first pause.
            let endpoints = &self.upstream.0.endpoints;
            let endpoint = &endpoints[self.attempts as usize % endpoints.len()];
            let stack = self.stack();
            let may_send = match self.token {
                Some(_) => core.shared.outgoing.check_credentials(endpoint),
                None => Ok(()),
            };
            let connected = may_send.and_then(|()| core.connect_over(endpoint, 0, false, stack));
            match connected {
                Ok(id) => {
                    if let Some(session) = core.sessions.find_mut(id) {
                        let attached = session.profile.attach();
                        attached.is_upstream = true;
                        attached.credentials = self.token.take();
                    }
                    self.state = State::Connecting(id);
                    return true;
                }
                Err(error) => {
                    if !self.note_failure(core, &error) {
                        return false;
                    }
                }
            }
        }
    }

    /// Asks for credentials on a thread of its own. Returns whether an answer will come.
    fn ask_provider(&mut self, core: &Core, provider: Credentials) -> bool {
        let number = self.upstream.0.number;
        let mailbox = Arc::clone(&core.exchange.mailbox);
        let thread = thread::Builder::new().name("tidewire-credentials".to_owned());
        let ask = move || {
            let found = Box::new((number, provider.get()));
            // If the lane has ended, so has the upstream.
            let _ = mailbox.post(LaneMessage::UpstreamToken(found));
        };
        match thread.spawn(ask) {
            Ok(_) => {
                self.state = State::Asking;
                true
            }
            Err(error) => {
                while self.note_failure(core, &error) {}
                false
            }
        }
    }

    /// Handles the answer of the provider. Returns the failed requests with their errors.
    pub(super) fn handle_token(
        &mut self,
        core: &mut Core,
        token: Result<Token, String>,
    ) -> Vec<(UpstreamError, Asked)> {
        if self.state != State::Asking {
            return Vec::new();
        }
        self.state = State::Idle;
        let is_connecting = match token {
            Ok(token) => {
                self.token = Some(token);
                self.waiting.is_empty() || self.connect(core)
            }
            Err(cause) => {
                // No other address would help.
                while self.note_failure(core, &cause) {}
                false
            }
        };
        match is_connecting {
            true => Vec::new(),
            false => self.fail_waiting(core, &UpstreamError::Down),
        }
    }

    /// Notes a failed attempt. Returns whether another address may be tried at once.
    fn note_failure(&mut self, core: &Core, cause: &dyn fmt::Display) -> bool {
        self.attempts = self.attempts.saturating_add(1);
        let endpoints = self.upstream.0.endpoints.len() as u32;
        if !self.attempts.is_multiple_of(endpoints) {
            tracing::debug!(upstream = %self.upstream.0, %cause, "cannot connect");
            return true;
        }
        if let Some(unlogged) = self.log.may_log(core.sessions.reactor.now_ns) {
            tracing::warn!(
                upstream = %self.upstream.0,
                %cause,
                unlogged,
                "an upstream cannot be reached; further failures are not logged for 10 s"
            );
        }
        let rounds = (self.attempts / endpoints - 1).min(20);
        let max = self.upstream.0.terms.pause_max;
        let pause = nanoseconds(PAUSE_FIRST.saturating_mul(1 << rounds).min(max));
        let pause = pause / 2 + fastrand::u64(..=pause / 2);
        self.retry_ns = core.sessions.reactor.now_ns.saturating_add(pause);
        false
    }

    pub(super) fn handle_open(&mut self, id: SessionId) {
        self.state = State::Open(id);
        self.attempts = 0;
        self.retry_ns = 0;
    }

    /// Handles the end of the connection, or a failed attempt. Returns the failed requests with their errors.
    pub(super) fn handle_end(
        &mut self,
        core: &mut Core,
        reason: CloseReason,
    ) -> Vec<(UpstreamError, Asked)> {
        let was_open = matches!(self.state, State::Open(_));
        self.state = State::Idle;
        let sent = self.sent.drain();
        let mut failed: Vec<_> = sent
            .map(|asked| (UpstreamError::Closed(reason), asked))
            .collect();
        let may_go_on = was_open || self.note_failure(core, &reason);
        let error = match core.ending.server_ends || core.ending.stop {
            true => UpstreamError::ShuttingDown,
            false if self.waiting.is_empty() || (may_go_on && self.connect(core)) => return failed,
            false => UpstreamError::Down,
        };
        failed.extend(self.fail_waiting(core, &error));
        failed
    }

    /// Takes out the requests that wait to be sent, with this error.
    fn fail_waiting(
        &mut self,
        core: &mut Core,
        error: &UpstreamError,
    ) -> Vec<(UpstreamError, Asked)> {
        self.charge(core, self.waiting_bytes, false);
        let waiting = self.waiting.drain(..);
        waiting
            .map(|waiting| (error.clone(), waiting.asked))
            .collect()
    }

    pub(super) fn take_answered(&mut self, number: u32) -> Option<Asked> {
        self.sent.answer(number)
    }

    /// Removes the requests for which `is_over` is true, sent or not. For a sent one the upstream gets a cancel.
    pub(super) fn give_up(
        &mut self,
        core: &mut Core,
        is_over: impl Fn(&Asked) -> bool,
    ) -> Vec<Asked> {
        let sent = self.sent.iter().filter(|(_, asked)| is_over(asked));
        let numbers: Vec<u32> = sent.map(|(number, _)| number).collect();
        let mut over = Vec::new();
        for number in numbers {
            let Some(asked) = self.sent.give_up(number) else {
                continue;
            };
            if let State::Open(id) = self.state {
                let cancel = Message::with_id(Kind::Cancel, asked.channel, number, &[]);
                let Core {
                    sessions, exchange, ..
                } = &mut *core;
                // A failure is ignored: the codec may have no cancel, or the upstream's queue may be full.
                let _ = sessions.with_output_in_place(id.slot(), |sessions| {
                    exchange.send_to(sessions, id, |codec, out| codec.encode(&cancel, out))
                });
            }
            over.push(asked);
        }
        let mut index = 0;
        while let Some(waiting) = self.waiting.get(index) {
            if !is_over(&waiting.asked) {
                index += 1;
            } else if let Some(waiting) = self.waiting.remove(index) {
                self.charge(core, waiting.bytes(), false);
                over.push(waiting.asked);
            }
        }
        over
    }

    /// Arms the timer for a deadline, unless it is already armed.
    fn arm_timer(&mut self, core: &mut Core, deadline_ns: u64) {
        if self.timer.is_none() {
            let key = TimerKey::Upstream(self.upstream.0.number);
            self.timer = Some(core.sessions.reactor.timers.insert(deadline_ns, key));
        }
    }

    /// Handles the timer and arms it for the earliest deadline. All requests have the same timeout, so no new request
    /// has an earlier one.
    pub(super) fn handle_timer(&mut self, core: &mut Core) {
        self.timer = None;
        let sent = self.sent.iter().map(|(_, asked)| asked);
        let waiting = self.waiting.iter().map(|waiting| &waiting.asked);
        let next = sent.chain(waiting).map(|asked| asked.deadline_ns).min();
        if let Some(next) = next {
            self.arm_timer(core, next);
        }
    }

    pub(super) fn stop_timer(&mut self, core: &mut Core) {
        if let Some(timer) = self.timer.take() {
            core.sessions.reactor.timers.cancel(timer);
        }
    }

    /// Adds or subtracts waiting bytes, here and in the memory account of the server.
    fn charge(&mut self, core: &mut Core, bytes: usize, more: bool) {
        let before = self.waiting_bytes;
        self.waiting_bytes = match more {
            true => before + bytes,
            false => before - bytes,
        };
        let memory = &mut core.sessions.relief.memory;
        memory.resize(before, self.waiting_bytes);
    }
}

/// Whether the peer accepts no new requests.
fn is_going(core: &Core, id: SessionId) -> bool {
    let session = core.sessions.find(id);
    session.is_some_and(|session| session.connection.is_peer_going())
}
