//! Tidewire's own client side: sessions of an ordinary lane, which send message by message and check what comes back.
//!
//! The lane and the thread that plays the driver share a phase and a few counters ([`Link`]). The lane looks at the
//! phase once a turn, so that sending costs what it costs any service.

mod backlog;
mod conversation;
mod link;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::numbers::Place;
use tidewire::{
    CloseReason, ConnectError, Context, Endpoint, HandlerResult, Kind, Limits, Message, Moment,
    Server, Service,
};
use tidewire_io::clock::now_ns;
use tidewire_load::format::describe;
use tidewire_load::statistics::LatencyHistogram;

use self::backlog::Backlog;
use self::conversation::Conversation;
pub(super) use self::link::Link;
use self::link::Phase;
use super::codec;
use super::course::News;
use crate::contract::{Measured, Work};
use crate::plan::RoleError;
use crate::probes::BLOCK_BYTES;
use crate::stage::{OrFailed, Stage, allocated_bytes};

/// The task of a lane's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Keep so many messages in flight, each of which comes back.
    Echo {
        /// Messages not yet answered, for each session.
        in_flight: u64,
    },
    /// Send one way, as much as the sessions take.
    Send {
        /// Whether every message is written by itself.
        flushes_each: bool,
        /// Messages of a session that may be on their way, of which the receiver tells now and then; nothing where a
        /// session that is full waits.
        window: Option<u64>,
    },
}

/// The service of the lane: connects, waits for the word, works.
#[derive(Debug)]
pub(super) struct LaneClient {
    endpoint: Endpoint,
    task: Task,
    link: Arc<Link>,
    sessions: Vec<Conversation>,
    connecting: usize,
    open: usize,
    phase: Phase,
    /// The payload of every message. Its first bytes are replaced by the number of the message.
    payload: Vec<u8>,
    /// Messages that a session sends before it is another's turn.
    burst: u64,
    backlog: Backlog,
    /// Messages of a turn, so that what comes meanwhile, such as the next phase, is seen.
    turn: u64,
    next_to_send: usize,
    counts: Counts,
    /// One-way messages that arrived at the other end, where this lane has both ends of its one session.
    taken: u64,
    measure: Measure,
}

/// Numbers of messages since the beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    /// Messages that came back in order and unchanged.
    received: u64,
    /// Messages that are missing although a later one came back. They count as lost, because datagrams of one path keep
    /// their order.
    lost: u64,
    /// Messages that came twice, came after a later one, or were never sent.
    wrong: u64,
}

/// The counts between start and end of the window.
#[derive(Debug, Default)]
struct Measure {
    from_ns: u64,
    received_before: u64,
    allocated_before: Option<u64>,
    latency: LatencyHistogram,
}

/// Plays the driver by a lane of its own, with these limits, and says what it measured, to which `complete` may add.
/// The lane goes on until the benchmark has heard enough: what it was given to send may still wait for its sockets.
pub(super) fn run(
    endpoint: &Endpoint,
    work: &Work,
    task: Task,
    limits: Limits,
    stage: &mut Stage,
    complete: impl FnOnce(&mut Measured),
) -> Result<(), RoleError> {
    let (link, news) = Link::new();
    let service = service(endpoint.clone(), work, task, &link)?;
    let builder = Server::builder().codec(codec(work)?).limits(limits);
    let server = builder
        .start(|_| service())
        .or_failed("start the client's lane")?;
    let mut measured = link.drive(&news, work, &server.waker(0), stage, None)?;
    complete(&mut measured);
    stage.measured(measured)
}

/// Makes services for sessions to `endpoint`, whose messages have the size of the work.
pub(super) fn service<'a>(
    endpoint: Endpoint,
    work: &'a Work,
    task: Task,
    link: &'a Arc<Link>,
) -> Result<impl Fn() -> LaneClient + 'a, RoleError> {
    let payload_bytes = super::payload_bytes(work)?;
    Ok(move || {
        LaneClient::new(
            endpoint.clone(),
            work,
            task,
            payload_bytes,
            Arc::clone(link),
        )
    })
}

impl LaneClient {
    /// Messages have a payload of so many bytes, at least 8.
    fn new(
        endpoint: Endpoint,
        work: &Work,
        task: Task,
        payload_bytes: usize,
        link: Arc<Link>,
    ) -> Self {
        let sessions = (0..work.connections).map(|_| Conversation::new());
        Self {
            endpoint,
            task,
            link,
            sessions: sessions.collect(),
            connecting: 0,
            open: 0,
            phase: Phase::Connecting,
            payload: vec![b'.'; payload_bytes.max(NUMBER_BYTES)],
            // Not less than a block, which is written as soon as it is given.
            burst: BLOCK_BYTES.div_ceil(work.message_bytes.max(1)) as u64,
            backlog: Backlog::default(),
            turn: (TURN_BYTES / work.message_bytes.max(1)).max(1) as u64,
            next_to_send: 0,
            counts: Counts::default(),
            taken: 0,
            measure: Measure::default(),
        }
    }

    fn fail(&self, failure: impl std::fmt::Display) {
        self.link.tell(News::Failed(failure.to_string()));
    }

    fn connect_more(&mut self, cx: &mut Context<'_>) {
        while self.open + self.connecting < self.sessions.len() && self.connecting < CONNECTING_MAX
        {
            let index = self.open + self.connecting;
            // A lane that connects to itself may run before its name is taken.
            let connected = match &self.endpoint {
                Endpoint::Inproc(_) => cx.connections().connect_when_bound(&self.endpoint),
                _ => cx.connections().connect(&self.endpoint),
            };
            match connected {
                Ok(session) => drop(cx.connections().set_state(session, Place(index))),
                Err(error) => return self.fail(describe(&error)),
            }
            self.connecting += 1;
        }
    }

    /// Follows the phase that the driver's thread set.
    fn follow(&mut self, cx: &mut Context<'_>) {
        let phase = self.link.phase();
        if phase == self.phase {
            return;
        }
        let before = std::mem::replace(&mut self.phase, phase);
        // A lane that gets no core for long never sees the warm-up, and begins all the same.
        if before == Phase::Connecting
            && let Task::Echo { in_flight } = self.task
        {
            for index in 0..self.sessions.len() {
                self.send(cx, index, in_flight);
            }
        }
        match phase {
            Phase::Connecting | Phase::WarmUp => {}
            Phase::Measuring => {
                self.measure.from_ns = now_ns();
                self.measure.received_before = self.counts.received;
                self.measure.allocated_before = allocated_bytes();
            }
            Phase::Draining => self.hand_in(),
        }
    }

    /// Shows the driver's thread what is still to come, and what never will as it should.
    fn account(&self) {
        let Counts {
            sent,
            received,
            lost,
            wrong,
        } = self.counts;
        self.link.faulty.store(lost + wrong, Ordering::Release);
        let unanswered = sent.saturating_sub(received + lost);
        self.link.unanswered.store(unanswered, Ordering::Release);
    }

    fn hand_in(&mut self) {
        self.account();
        let allocated = allocated_bytes().zip(self.measure.allocated_before);
        let is_echo = matches!(self.task, Task::Echo { .. });
        let messages = self.counts.received - self.measure.received_before;
        let seconds = (now_ns() - self.measure.from_ns) as f64 / 1e9;
        let mut result = Measured {
            sent: (!is_echo).then_some(self.counts.sent),
            allocated_bytes: allocated.map(|(after, before)| after - before),
            ..Measured::verified(messages, seconds, 0)
        };
        if is_echo {
            result = result.with_times(&self.measure.latency);
        }
        self.link.tell(News::Done(result));
    }

    /// Sends this many messages to one session, or until it is full.
    fn send(&mut self, cx: &mut Context<'_>, index: usize, count: u64) {
        let conversation = &mut self.sessions[index];
        let first = conversation.next;
        let (flushes_each, count) = match self.task {
            Task::Send {
                flushes_each,
                window,
            } => {
                let on_its_way = first - conversation.expected;
                let free = window.map_or(count, |window| window.saturating_sub(on_its_way));
                (flushes_each, count.min(free))
            }
            Task::Echo { .. } => (false, count),
        };
        if flushes_each {
            conversation.next = send_and_flush(cx, conversation, &mut self.payload, count);
        } else {
            // Without a session nothing is sent.
            let _ = cx.with_sender(conversation.session, |sender| {
                for number in first..first + count {
                    let message = numbered(&mut self.payload, number);
                    if sender.send(&message).is_err() {
                        break;
                    }
                    conversation.next = number + 1;
                }
            });
        }
        let sent = conversation.next - first;
        self.counts.sent += sent;
        if sent > 0 && matches!(self.task, Task::Echo { .. }) {
            conversation.note_sent(cx.now().as_ns());
        }
    }

    /// Sends to the sessions that take more, as much as a turn may send. The next turn continues after the last of these
    /// sessions. Returns whether any bytes were sent.
    fn send_on(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.counts.sent;
        for _ in 0..self.sessions.len() {
            let index = self.next_to_send;
            self.next_to_send = (index + 1) % self.sessions.len();
            self.look_at(cx, index);
            if self.backlog.has_room() && !cx.is_full(self.sessions[index].session) {
                self.send(cx, index, self.burst);
                self.look_at(cx, index);
            }
            if self.counts.sent - before >= self.turn {
                break;
            }
        }
        self.counts.sent > before
    }

    /// Notes whether something waits for a session.
    fn look_at(&mut self, cx: &Context<'_>, index: usize) {
        let conversation = &mut self.sessions[index];
        let waits = cx.queued_bytes(conversation.session) > 0;
        self.backlog.note(&mut conversation.waits, waits);
    }
}

impl Service for LaneClient {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let Some(index) = Place::of(cx) else {
            return;
        };
        self.sessions[index].session = cx.id();
        self.connecting -= 1;
        self.open += 1;
        if self.open == self.sessions.len() {
            self.link.tell(News::Connected);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        // A session that came to this lane is the other end of one of its own.
        let Some(index) = Place::of(cx) else {
            if matches!(self.task, Task::Echo { .. }) {
                return cx.reply(message.payload);
            }
            let number = message.payload.first_chunk().copied();
            self.taken += u64::from(number.map(u64::from_le_bytes) == Some(self.taken));
            return Ok(());
        };
        let conversation = &mut self.sessions[index];
        if matches!(self.task, Task::Send { .. }) {
            if !conversation.is_told(message.payload) {
                self.counts.wrong += 1;
            }
            return Ok(());
        }
        let is_whole = message.payload.get(NUMBER_BYTES..) == Some(&self.payload[NUMBER_BYTES..]);
        let taken = conversation.take(message.payload);
        let Some(overtaken) = taken.filter(|_| is_whole) else {
            self.counts.wrong += 1;
            return Ok(());
        };
        self.counts.received += 1;
        self.counts.lost += overtaken;
        let now = cx.now().as_ns();
        while let Some(&(until, sent_ns)) = conversation.sent.front()
            && until <= conversation.expected
        {
            conversation.sent.pop_front();
            if self.phase == Phase::Measuring {
                self.measure.latency.record(now.saturating_sub(sent_ns));
            }
        }
        if self.phase < Phase::Draining {
            // A lost message frees its slot too, or the window would close for good.
            for _ in 0..=overtaken {
                cx.send(numbered(&mut self.payload, conversation.next))?;
                conversation.next += 1;
                self.counts.sent += 1;
            }
            conversation.note_sent(now);
        }
        Ok(())
    }

    fn on_close(&mut self, _: &mut Context<'_>, reason: CloseReason) {
        if self.phase < Phase::Draining {
            self.fail(format!("a session ended: {reason}"));
        }
    }

    fn on_connect_failed(&mut self, _: &mut Context<'_>, error: ConnectError) {
        self.fail(describe(&error));
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        self.link.taken.store(self.taken, Ordering::Release);
        self.follow(cx);
        match self.phase {
            Phase::Connecting => {
                self.connect_more(cx);
                None
            }
            Phase::WarmUp | Phase::Measuring => {
                let is_sender = matches!(self.task, Task::Send { .. });
                (is_sender && self.send_on(cx)).then(Moment::now)
            }
            Phase::Draining => {
                self.account();
                None
            }
        }
    }

    fn has_work(&self) -> bool {
        self.link.phase() != self.phase
    }
}

/// Sends messages that are a write each. Returns the number of the one that is next.
fn send_and_flush(
    cx: &mut Context<'_>,
    conversation: &Conversation,
    payload: &mut [u8],
    count: u64,
) -> u64 {
    let first = conversation.next;
    for number in first..first + count {
        let message = numbered(payload, number);
        if cx.send_to(conversation.session, &message).is_err() {
            return number;
        }
        cx.flush(conversation.session);
    }
    first + count
}

/// The message with this number.
#[inline(always)]
fn numbered(payload: &mut [u8], number: u64) -> Message<'_> {
    payload[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
    Message::new(Kind::OneWay, 0, payload)
}

/// Bytes of a payload that hold the message's number.
const NUMBER_BYTES: usize = 8;

/// Connections on their way at one time: fewer than a listener's backlog.
const CONNECTING_MAX: usize = 128;

/// Bytes sent in a turn: a millisecond or so.
const TURN_BYTES: usize = 4 << 20;
