//! Tidewire's own client side: sessions of an ordinary lane, which send message by message and check what comes back.
//!
//! The lane and the thread that plays the driver share a phase and a few counters. The lane looks at the phase once a
//! turn, so that sending costs what it costs any service.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tidewire::io::clock::now_ns;
use tidewire::io::doorbell::Doorbell;
use tidewire::{
    CloseReason, ConnectFailure, Context, Endpoint, HandlerResult, Kind, Message, Service,
    SessionId,
};

use super::times;
use crate::bench::contract::{Measured, Work};
use crate::bench::plan::RoleError;
use crate::bench::stage::{Stage, allocated_bytes};
use crate::format::describe;
use crate::probes::echo::DRAIN;
use crate::statistics::LatencyHistogram;

/// What the sessions of a lane do.
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
    payload: Vec<u8>,
    /// Messages that a session sends before it is another's turn.
    burst: u64,
    /// Messages of a turn, so that what comes meanwhile, such as the next phase, is seen.
    turn: u64,
    next_to_send: usize,
    counts: Counts,
    measure: Measure,
}

/// One session and what is on its way.
#[derive(Debug)]
struct Conversation {
    session: SessionId,
    next: u64,
    expected: u64,
    /// For what was sent in one turn: the number after its last message, and when.
    sent: VecDeque<(u64, u64)>,
}

/// Numbers of messages since the beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    received: u64,
    wrong: u64,
}

/// What is counted between start and end of the window.
#[derive(Debug)]
struct Measure {
    from_ns: u64,
    received_before: u64,
    allocated_before: Option<u64>,
    latency: LatencyHistogram,
    result: Measured,
}

/// What the lane and the driver's thread share.
#[derive(Debug)]
pub(super) struct Link {
    phase: AtomicU8,
    /// Messages that are due back, for the driver's thread to see.
    unanswered: AtomicU64,
    news: Mutex<News>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct News {
    is_connected: bool,
    failure: Option<String>,
    result: Option<Measured>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
#[repr(u8)]
enum Phase {
    Connecting,
    WarmUp,
    Measuring,
    Draining,
}

impl Link {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            phase: AtomicU8::new(Phase::Connecting as u8),
            unanswered: AtomicU64::new(0),
            news: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Plays the driver: lets the lane that `doorbell` wakes connect, warm up and work. Returns what it found. Where the
    /// receiver of what is sent one way is in this process, `taken` says how much that has.
    pub(super) fn drive(
        &self,
        work: &Work,
        doorbell: &Doorbell,
        stage: &mut Stage,
        taken: Option<&dyn Fn() -> u64>,
    ) -> Result<Measured, RoleError> {
        doorbell.ring();
        self.wait(CONNECT_MAX, "connect", |news| {
            news.is_connected.then_some(())
        })?;
        self.enter(Phase::WarmUp, doorbell);
        thread::sleep(Duration::from_millis(work.warm_up_ms));
        stage.started()?;
        self.enter(Phase::Measuring, doorbell);
        let (before, from) = (taken.map(|taken| taken()), Instant::now());
        thread::sleep(Duration::from_millis(work.measure_ms));
        let (after, seconds) = (taken.map(|taken| taken()), from.elapsed().as_secs_f64());
        self.enter(Phase::Draining, doorbell);
        let mut measured =
            self.wait(RESULT_MAX, "hear from the lane", |news| news.result.take())?;
        if let (Some(before), Some(after)) = (before, after) {
            measured.messages = after - before;
            measured.seconds = seconds;
        }
        let missing = || match (taken, measured.sent) {
            (Some(taken), Some(sent)) => sent.abs_diff(taken()),
            (None, Some(_)) => 0,
            (_, None) => self.unanswered.load(Ordering::Acquire),
        };
        let until = Instant::now() + DRAIN;
        while missing() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        measured.lost += missing();
        if taken.is_some() {
            measured.sent = None;
        }
        Ok(measured)
    }

    fn enter(&self, phase: Phase, doorbell: &Doorbell) {
        self.phase.store(phase as u8, Ordering::Release);
        doorbell.ring();
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Connecting,
            1 => Phase::WarmUp,
            2 => Phase::Measuring,
            _ => Phase::Draining,
        }
    }

    fn wait<T>(
        &self,
        patience: Duration,
        what: &str,
        mut found: impl FnMut(&mut News) -> Option<T>,
    ) -> Result<T, RoleError> {
        let until = Instant::now() + patience;
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(failure) = news.failure.take() {
                return Err(RoleError::failed(what)(failure));
            }
            if let Some(found) = found(&mut news) {
                return Ok(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("nothing came of it in {} s", patience.as_secs());
                return Err(RoleError::failed(what)(text));
            }
            news = self
                .changed
                .wait_timeout(news, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn tell(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl LaneClient {
    /// Sessions to `endpoint` with messages whose payload has this many bytes, at least 8.
    pub(super) fn new(
        endpoint: Endpoint,
        work: &Work,
        task: Task,
        payload_bytes: usize,
        link: Arc<Link>,
    ) -> Self {
        let sessions = (0..work.connections)
            .map(|_| Conversation {
                session: SessionId::NONE,
                next: 0,
                expected: 0,
                sent: VecDeque::new(),
            })
            .collect();
        let burst_bytes = BURST_BYTES_ALL / work.connections.max(1);
        let burst_bytes = burst_bytes.clamp(BURST_BYTES_MIN, BURST_BYTES_MAX);
        Self {
            endpoint,
            task,
            link,
            sessions,
            connecting: 0,
            open: 0,
            phase: Phase::Connecting,
            payload: vec![b'.'; payload_bytes.max(8)],
            burst: (burst_bytes / work.message_bytes.max(1)).max(1) as u64,
            turn: (TURN_BYTES / work.message_bytes.max(1)).max(1) as u64,
            next_to_send: 0,
            counts: Counts::default(),
            measure: Measure {
                from_ns: 0,
                received_before: 0,
                allocated_before: None,
                latency: LatencyHistogram::new(),
                result: Measured::default(),
            },
        }
    }

    fn fail(&self, failure: impl std::fmt::Display) {
        self.link
            .tell(|news| news.failure = Some(failure.to_string()));
    }

    fn connect_more(&mut self, cx: &mut Context<'_>) {
        while self.open + self.connecting < self.sessions.len() && self.connecting < CONNECTING_MAX
        {
            let index = self.open + self.connecting;
            let tag = index as u64 + 1;
            // A lane that connects to itself may run before its name is taken.
            let connected = match &self.endpoint {
                Endpoint::Inproc(_) => cx.connect_when_bound(&self.endpoint, tag),
                _ => cx.connect(&self.endpoint, tag),
            };
            if let Err(error) = connected {
                return self.fail(describe(&error));
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
        self.phase = phase;
        match phase {
            Phase::Connecting => {}
            Phase::WarmUp => {
                if let Task::Echo { in_flight } = self.task {
                    for index in 0..self.sessions.len() {
                        self.send(cx, index, in_flight);
                    }
                }
            }
            Phase::Measuring => {
                self.measure.from_ns = now_ns();
                self.measure.received_before = self.counts.received;
                self.measure.allocated_before = allocated_bytes();
            }
            Phase::Draining => self.hand_in(),
        }
    }

    fn hand_in(&mut self) {
        let allocated = allocated_bytes().zip(self.measure.allocated_before);
        let is_echo = matches!(self.task, Task::Echo { .. });
        let result = Measured {
            messages: self.counts.received - self.measure.received_before,
            seconds: (now_ns() - self.measure.from_ns) as f64 / 1e9,
            verified: self.counts.wrong == 0,
            lost: self.counts.wrong,
            sent: (!is_echo).then_some(self.counts.sent),
            allocated_bytes: allocated.map(|(after, before)| after - before),
            latency: is_echo.then(|| times(&self.measure.latency)),
            ..std::mem::take(&mut self.measure.result)
        };
        self.link.tell(|news| news.result = Some(result));
    }

    /// Sends this many messages to one session, or until it is full.
    fn send(&mut self, cx: &mut Context<'_>, index: usize, count: u64) {
        let session = self.sessions[index].session;
        let flushes_each = self.task == Task::Send { flushes_each: true };
        // Where nothing comes back nobody looks at numbers, and the bare sender's blocks are always the same, too.
        let is_echo = matches!(self.task, Task::Echo { .. });
        let before = self.counts.sent;
        for _ in 0..count {
            let conversation = &mut self.sessions[index];
            if is_echo {
                self.payload[..8].copy_from_slice(&conversation.next.to_le_bytes());
            }
            let message = Message::new(Kind::OneWay, 0, &self.payload);
            if cx.send_to(session, &message).is_err() {
                break;
            }
            conversation.next += 1;
            self.counts.sent += 1;
            if flushes_each {
                cx.flush(session);
            }
        }
        if self.counts.sent > before && is_echo {
            self.sessions[index].note_sent(cx.now_ns());
        }
    }

    /// Sends to whatever takes more, as much as a turn may send; the next turn goes on behind it. Returns whether anything
    /// went.
    fn send_on(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.counts.sent;
        for _ in 0..self.sessions.len() {
            let index = self.next_to_send;
            self.next_to_send = (index + 1) % self.sessions.len();
            if !cx.is_full(self.sessions[index].session) {
                self.send(cx, index, self.burst);
            }
            if self.counts.sent - before >= self.turn {
                break;
            }
        }
        self.counts.sent > before
    }
}

impl Service for LaneClient {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let Some(index) = own_index(cx) else {
            return;
        };
        self.sessions[index].session = cx.session();
        self.connecting -= 1;
        self.open += 1;
        if self.open == self.sessions.len() {
            self.link.tell(|news| news.is_connected = true);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        // A session that came to this lane is the other end of one of its own.
        let Some(index) = own_index(cx) else {
            return cx.reply(message.payload);
        };
        let conversation = &mut self.sessions[index];
        self.counts.received += 1;
        if message.payload.get(..8) != Some(&conversation.expected.to_le_bytes()) {
            self.counts.wrong += 1;
        }
        conversation.expected += 1;
        let now = cx.now_ns();
        while let Some(&(until, sent_ns)) = conversation.sent.front()
            && until <= conversation.expected
        {
            conversation.sent.pop_front();
            if self.phase == Phase::Measuring {
                self.measure.latency.record(now.saturating_sub(sent_ns));
            }
        }
        if self.phase < Phase::Draining {
            self.payload[..8].copy_from_slice(&conversation.next.to_le_bytes());
            cx.send(&Message::new(Kind::OneWay, 0, &self.payload))?;
            conversation.next += 1;
            conversation.note_sent(now);
            self.counts.sent += 1;
        }
        Ok(())
    }

    fn on_close(&mut self, _: &mut Context<'_>, reason: CloseReason) {
        if self.phase < Phase::Draining {
            self.fail(format!("a session ended: {reason}"));
        }
    }

    fn on_connect_failed(&mut self, _: &mut Context<'_>, error: ConnectFailure) {
        self.fail(describe(&error));
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        self.follow(cx);
        match self.phase {
            Phase::Connecting => {
                self.connect_more(cx);
                None
            }
            Phase::WarmUp | Phase::Measuring => {
                let is_sender = matches!(self.task, Task::Send { .. });
                (is_sender && self.send_on(cx)).then(now_ns)
            }
            Phase::Draining => {
                let unanswered = self.counts.sent - self.counts.received.min(self.counts.sent);
                self.link.unanswered.store(unanswered, Ordering::Release);
                None
            }
        }
    }

    fn has_work(&self) -> bool {
        self.link.phase() != self.phase
    }
}

impl Conversation {
    /// What was sent up to now went at this time; messages of one turn share an entry.
    fn note_sent(&mut self, now_ns: u64) {
        match self.sent.back_mut() {
            Some((until, sent_ns)) if *sent_ns == now_ns => *until = self.next,
            _ => self.sent.push_back((self.next, now_ns)),
        }
    }
}

/// The place of a session that this lane opened.
fn own_index(cx: &Context<'_>) -> Option<usize> {
    cx.tag().checked_sub(1).map(|index| index as usize)
}

/// Connections on their way at one time: fewer than a listener's backlog.
const CONNECTING_MAX: usize = 128;

/// Bytes that may wait in all sessions together when every one of them has been given a burst.
const BURST_BYTES_ALL: usize = 160 << 20;

/// Smallest burst of one session in bytes.
const BURST_BYTES_MIN: usize = 16 << 10;

/// Largest: what one write of a probe is.
const BURST_BYTES_MAX: usize = 64 << 10;

/// Bytes sent in a turn: a millisecond or so.
const TURN_BYTES: usize = 4 << 20;

/// Longest wait for all connections.
const CONNECT_MAX: Duration = Duration::from_secs(25);

/// Longest wait for the lane's figures after the end.
const RESULT_MAX: Duration = Duration::from_secs(10);
