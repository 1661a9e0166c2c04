//! The connection of one lane to one upstream, and its pending requests.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use tidewire_io::timer::TimerId;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::correlate::Correlator;
use tidewire_proto::message::{Kind, Message};

use super::table::Answers;
use super::{PAUSE_FIRST, Upstream, UpstreamError, UpstreamRequest};
use crate::address::AddressError;
use crate::config::Config;
use crate::dial::{Backoff, Dialer, Lookup, LookupResult, Target};
use crate::engine::{Core, Owner};
use crate::mailbox::LaneMessage;
use crate::observe::QuietLog;
use crate::service::{Context, Deferred};
use crate::session::{CloseReason, SendError, SessionId, TimerKey};
use crate::tls::Connector;
use crate::transport::{ConnectError, Layers};

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

/// The connection to one upstream; see the module.
#[derive(Debug)]
pub(super) struct UpstreamLink {
    upstream: Upstream,
    dialer: Dialer,
    sent: Correlator<UpstreamRequest>,
    /// Requests that wait to be sent, oldest first.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    timer: Option<(TimerId, u64)>,
    /// Limits the log lines about an upstream that cannot be reached.
    log: QuietLog,
}

impl UpstreamLink {
    /// Creates the link to an upstream that has an address.
    pub(super) fn new(upstream: &Upstream, target: &Target, config: &Config) -> Self {
        let (terms, codec) = (&upstream.0.terms, config.codecs.main());
        let layers = Layers::to(target.address(), terms.tls.as_ref(), codec, None);
        let backoff = Backoff {
            first: PAUSE_FIRST,
            max: terms.pause_max,
        };
        let dialer = Dialer::new(
            target.clone().with_layers(layers),
            terms.credentials.clone(),
            terms.tls.as_ref().map(Connector::configs).cloned(),
            backoff,
            config.limits.connections.handshake_timeout(),
        );
        Self {
            dialer,
            upstream: upstream.clone(),
            sent: Correlator::for_ids(codec.format().ids, terms.in_flight_max),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            timer: None,
            log: QuietLog::default(),
        }
    }

    pub(super) fn is_of(&self, upstream: u64) -> bool {
        self.upstream.0.number == upstream
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
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
        if self.dialer.open_session().is_none() && !self.connect(core) {
            return Err((UpstreamError::Down, asked.then));
        }
        let deadline_ns = asked.deadline_ns;
        let asked = match self.dialer.open_session() {
            Some(id) if self.waiting.is_empty() && !core.sessions.table.is_peer_going(id) => {
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
            self.charge(core, self.waiting_bytes + waiting.bytes());
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
        let encode = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode(&message, out);
        let Err(error) = core.exchange.send_to(&mut core.sessions, id, encode) else {
            return Ok(());
        };
        let error = match error {
            SendError::Encode(error) => Some(error.into()),
            _ => None,
        };
        match self.sent.take(number) {
            Some(asked) => Err((error, asked)),
            None => Ok(()),
        }
    }

    /// Sends the waiting requests for which there is room.
    pub(super) fn send_waiting(&mut self, core: &mut Core, answers: &mut Answers) {
        let Some(id) = self.dialer.open_session() else {
            return;
        };
        while !core.sessions.table.is_peer_going(id)
            && let Some(mut waiting) = self.waiting.pop_front()
        {
            let (bytes, channel) = (waiting.bytes(), waiting.asked.channel);
            let call = Message::new(Kind::Request, channel, &waiting.payload);
            match self.send(core, id, &call.with_name(&waiting.method), waiting.asked) {
                Ok(()) => {}
                Err((Some(error), asked)) => answers.fail(core, error, asked),
                Err((None, asked)) => {
                    waiting.asked = asked;
                    return self.waiting.push_front(waiting);
                }
            }
            self.charge(core, self.waiting_bytes - bytes);
        }
    }

    /// Begins to connect if an attempt is allowed now. Returns whether a connection is in progress.
    fn connect(&mut self, core: &mut Core) -> bool {
        self.dialer.begin(core.sessions.timers.now_ns()) && self.dial(core)
    }

    /// Takes the steps of the dialer that are due. Returns false if the attempt has failed.
    fn dial(&mut self, core: &mut Core) -> bool {
        let upstream = &self.upstream.0;
        let look_up = |core: &Core, lookup: Lookup| {
            let (number, mailbox) = (upstream.number, Arc::clone(&core.exchange.mailbox));
            let started = lookup.start(move |found| {
                // If the lane has ended, so has the upstream.
                let _ = mailbox.post(LaneMessage::UpstreamFound(Box::new((number, found))));
            });
            let error = AddressError::Unresolved {
                host: upstream.to_string(),
                detail: format!("no thread can look it up: {}", started.err()?),
            };
            Some(LookupResult {
                endpoints: Some(Err(error)),
                token: None,
            })
        };
        let failed = core.dial(&mut self.dialer, Owner::Upstream, look_up);
        let Some(cause) = failed else {
            if let Some(wake_ns) = self.dialer.wake_ns() {
                self.arm_timer(core, wake_ns);
            }
            return true;
        };
        let now_ns = core.sessions.timers.now_ns();
        if let Some(unlogged) = self.log.may_log(now_ns) {
            tracing::warn!(
                upstream = %self.upstream.0,
                %cause,
                unlogged,
                "an upstream cannot be reached; further failures are not logged for 10 s"
            );
        }
        self.dialer.pause(now_ns);
        false
    }

    /// Goes on with an attempt that is under way.
    fn go_on(&mut self, core: &mut Core, answers: &mut Answers) {
        if !self.dial(core) {
            self.fail_waiting(core, answers);
        }
    }

    /// Handles the results of a lookup.
    pub(super) fn handle_found(
        &mut self,
        core: &mut Core,
        answers: &mut Answers,
        found: LookupResult,
    ) {
        let now_ns = core.sessions.timers.now_ns();
        if !self.dialer.handle_found(found, now_ns) {
            return;
        }
        if core.ending.is_of_server() {
            self.dialer.cancel();
            return self.fail_waiting(core, answers);
        }
        self.go_on(core, answers);
    }

    /// Handles a session whose handshake has ended. Returns whether it is the connection: the session of another
    /// address may have been open before.
    pub(super) fn handle_open(&mut self, core: &mut Core, id: SessionId) -> bool {
        let now_ns = core.sessions.timers.now_ns();
        // The other addresses are closed.
        self.dialer.note_open(id, now_ns).is_some() && self.dial(core)
    }

    /// Handles the end of the connection, or of an address that was tried.
    pub(super) fn handle_end(
        &mut self,
        core: &mut Core,
        answers: &mut Answers,
        id: SessionId,
        reason: CloseReason,
        failure: ConnectError,
    ) {
        tracing::debug!(upstream = ?self.upstream, %reason, "no connection");
        if self.dialer.note_failure(id, failure) {
            return self.go_on(core, answers);
        }
        for asked in self.sent.drain() {
            answers.fail(core, UpstreamError::Closed(reason), asked);
        }
        // The next attempt may begin at once after a connection that lasted, and after the first one that did not.
        let now_ns = core.sessions.timers.now_ns();
        if !self.dialer.note_end(now_ns, reason) {
            self.dialer.pause_but_first(now_ns);
        }
        let may_connect = !core.ending.is_of_server() && !core.ending.stops();
        let is_connecting = self.waiting.is_empty() || (may_connect && self.connect(core));
        if !is_connecting {
            self.fail_waiting(core, answers);
        }
    }

    /// Lets the requests fail that wait for a connection.
    fn fail_waiting(&mut self, core: &mut Core, answers: &mut Answers) {
        let error = match core.ending.is_of_server() || core.ending.stops() {
            true => UpstreamError::ShuttingDown,
            false => UpstreamError::Down,
        };
        self.charge(core, 0);
        for waiting in self.waiting.drain(..) {
            answers.fail(core, error.clone(), waiting.asked);
        }
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
            if let Some(id) = self.dialer.open_session() {
                let cancel = Message::with_id(Kind::Cancel, asked.channel, number, &[]);
                let encode = |codec: &AnyCodec, out: &mut Vec<u8>| codec.encode(&cancel, out);
                // A failure is ignored: the codec may have no cancel, or the upstream's queue may be full.
                let _ = core.exchange.send_to(&mut core.sessions, id, encode);
            }
            over.push(asked);
        }
        let mut index = 0;
        while let Some(waiting) = self.waiting.get(index) {
            if !is_over(&waiting.asked) {
                index += 1;
            } else if let Some(waiting) = self.waiting.remove(index) {
                self.charge(core, self.waiting_bytes - waiting.bytes());
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

    /// Handles the timer: begins the addresses that are due, and arms the timer for the earliest deadline.
    pub(super) fn handle_timer(&mut self, core: &mut Core, answers: &mut Answers) {
        self.timer = None;
        if self.dialer.is_dialing() {
            self.go_on(core, answers);
        }
        let sent = self.sent.iter().map(|(_, asked)| asked);
        let waiting = self.waiting.iter().map(|waiting| &waiting.asked);
        let next = sent.chain(waiting).map(|asked| asked.deadline_ns).min();
        if let Some(next) = next {
            self.arm_timer(core, next);
        }
    }

    pub(super) fn stop_timer(&mut self, core: &mut Core) {
        if let Some((timer, _)) = self.timer.take() {
            core.sessions.timers.cancel(timer);
        }
    }

    /// Notes how many bytes wait, here and in the memory account of the server.
    fn charge(&mut self, core: &mut Core, bytes: usize) {
        core.sessions.relief.charge(self.waiting_bytes, bytes);
        self.waiting_bytes = bytes;
    }
}
