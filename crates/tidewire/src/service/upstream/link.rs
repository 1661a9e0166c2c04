//! The connection of one lane to one upstream, and its pending requests.

mod connecting;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use tidewire_io::timer::TimerId;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::correlate::Correlator;
use tidewire_proto::message::{Kind, Message};

use super::{PAUSE_FIRST, Upstream, UpstreamError, UpstreamRequest};
use crate::auth::Token;
use crate::dial::{Backoff, Pace, Race, Target};
use crate::engine::Core;
use crate::observe::QuietLog;
use crate::service::{Context, Deferred};
use crate::session::{SendError, SessionId, TimerKey};
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

/// A request that waits to be sent.
#[derive(Debug)]
struct Waiting {
    asked: UpstreamRequest,
    method: String,
    payload: Vec<u8>,
}

impl Waiting {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.method.capacity() + self.payload.capacity()
    }
}

#[derive(Debug)]
enum State {
    Idle,
    /// The name of the host, credentials, or changed files of TLS are being looked up.
    LookingUp,
    Connecting(Race),
    Open(SessionId),
}

/// The connection to one upstream; see the module.
#[derive(Debug)]
pub(super) struct UpstreamLink {
    upstream: Upstream,
    target: Target,
    /// Makes the layers of TLS, with the name of this lane's codec.
    tls: Option<Connector>,
    websocket: Option<WebSocketConnector>,
    /// The credentials of the next connection.
    token: Option<Token>,
    state: State,
    sent: Correlator<UpstreamRequest>,
    /// Requests that wait to be sent, oldest first.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    timer: Option<(TimerId, u64)>,
    pace: Pace,
    /// Earliest time of the next attempt.
    retry_ns: u64,
    /// Limits the log lines about an upstream that cannot be reached.
    log: QuietLog,
}

impl UpstreamLink {
    /// Creates the link to an upstream that has an address.
    pub(super) fn new(upstream: &Upstream, target: &Target, codec: &AnyCodec) -> Self {
        let websocket = WebSocketConnector::new(target.address(), codec);
        let tls = upstream.0.terms.tls.as_ref();
        let backoff = Backoff {
            first: PAUSE_FIRST,
            max: upstream.0.terms.pause_max,
        };
        Self {
            target: target.clone(),
            tls: tls.map(|tls| tls.with_protocol(protocol(websocket.is_some(), codec))),
            websocket,
            token: None,
            upstream: upstream.clone(),
            state: State::Idle,
            sent: Correlator::for_ids(codec.format().ids, upstream.0.terms.in_flight_max),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            timer: None,
            pace: Pace::new(backoff),
            retry_ns: 0,
            log: QuietLog::default(),
        }
    }

    pub(super) fn is_of(&self, upstream: u64) -> bool {
        self.upstream.0.number == upstream
    }

    /// The sessions with the upstream: the open one, or those of the addresses that are being tried.
    pub(super) fn sessions(&self) -> Vec<SessionId> {
        match &self.state {
            State::Idle | State::LookingUp => Vec::new(),
            State::Connecting(race) => race.sessions().collect(),
            State::Open(id) => vec![*id],
        }
    }

    pub(super) fn has(&self, id: SessionId) -> bool {
        match &self.state {
            State::Idle | State::LookingUp => false,
            State::Connecting(race) => race.has(id),
            State::Open(open) => *open == id,
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
        asked: UpstreamRequest,
    ) -> Result<(), (UpstreamError, Then)> {
        let queue_bytes_max = core.config.limits.connections.queue_bytes_max();
        let is_full = self.sent.len() + self.waiting.len() >= self.upstream.0.terms.in_flight_max;
        if is_full || self.waiting_bytes > queue_bytes_max {
            return Err((UpstreamError::TooMany, asked.then));
        }
        if core.ending.is_of_server() {
            return Err((UpstreamError::ShuttingDown, asked.then));
        }
        let limit = core.config.limits.connections.frame_bytes_max();
        let bytes = call.payload.len() + call.name.len();
        if bytes > limit {
            let (bytes, limit) = (bytes as u64, limit as u64);
            let error = tidewire_proto::error::EncodeError::PayloadTooLarge { bytes, limit };
            return Err((error.into(), asked.then));
        }
        if matches!(self.state, State::Idle) && !self.connect(core) {
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
        asked: UpstreamRequest,
    ) -> Result<(), (Option<UpstreamError>, UpstreamRequest)> {
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
        let sent = exchange.send_to(sessions, id, |codec, out| codec.encode(&message, out));
        let Err(error) = sent else { return Ok(()) };
        let error = match error {
            SendError::Encode(error) => Some(error.into()),
            _ => None,
        };
        match self.sent.take(number) {
            Some(asked) => Err((error, asked)),
            None => Ok(()),
        }
    }

    /// Sends the waiting requests for which there is room. Returns those that failed.
    pub(super) fn send_waiting(
        &mut self,
        core: &mut Core,
    ) -> Vec<(UpstreamError, UpstreamRequest)> {
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

    /// Takes out the requests that wait to be sent, with this error.
    fn fail_waiting(
        &mut self,
        core: &mut Core,
        error: &UpstreamError,
    ) -> Vec<(UpstreamError, UpstreamRequest)> {
        self.charge(core, self.waiting_bytes, false);
        let waiting = self.waiting.drain(..);
        waiting
            .map(|waiting| (error.clone(), waiting.asked))
            .collect()
    }

    pub(super) fn take_answered(&mut self, number: u32) -> Option<UpstreamRequest> {
        self.sent.answer(number)
    }

    /// Removes the requests for which `is_over` is true, sent or not. For a sent one the upstream gets a cancel.
    pub(super) fn give_up(
        &mut self,
        core: &mut Core,
        is_over: impl Fn(&UpstreamRequest) -> bool,
    ) -> Vec<UpstreamRequest> {
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
                let _ = exchange.send_to(sessions, id, |codec, out| codec.encode(&cancel, out));
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

    /// Arms the timer for this time, unless it is armed for an earlier one.
    fn arm_timer(&mut self, core: &mut Core, at_ns: u64) {
        if self.timer.is_some_and(|(_, armed_ns)| armed_ns <= at_ns) {
            return;
        }
        self.stop_timer(core);
        let key = TimerKey::Upstream(self.upstream.0.number);
        let timer = core.sessions.timers.set(at_ns, key);
        self.timer = Some((timer, at_ns));
    }

    /// Handles the timer: begins the addresses that are due, and arms the timer for the earliest deadline. Returns the
    /// failed requests with their errors.
    pub(super) fn handle_timer(
        &mut self,
        core: &mut Core,
    ) -> Vec<(UpstreamError, UpstreamRequest)> {
        self.timer = None;
        let failed = match self.state {
            State::Connecting(_) => {
                let is_connecting = self.run_race(core);
                self.fail_unless(core, is_connecting)
            }
            _ => Vec::new(),
        };
        let sent = self.sent.iter().map(|(_, asked)| asked);
        let waiting = self.waiting.iter().map(|waiting| &waiting.asked);
        let next = sent.chain(waiting).map(|asked| asked.deadline_ns).min();
        if let Some(next) = next {
            self.arm_timer(core, next);
        }
        failed
    }

    pub(super) fn stop_timer(&mut self, core: &mut Core) {
        if let Some((timer, _)) = self.timer.take() {
            core.sessions.timers.cancel(timer);
        }
    }

    /// Adds or subtracts waiting bytes, here and in the memory account of the server.
    fn charge(&mut self, core: &mut Core, bytes: usize, more: bool) {
        let before = self.waiting_bytes;
        self.waiting_bytes = match more {
            true => before + bytes,
            false => before - bytes,
        };
        core.sessions.relief.charge(before, self.waiting_bytes);
    }
}

/// Whether the peer accepts no new requests.
fn is_going(core: &Core, id: SessionId) -> bool {
    let session = core.sessions.table.find(id);
    session.is_some_and(|session| session.connection.output().is_peer_going())
}
