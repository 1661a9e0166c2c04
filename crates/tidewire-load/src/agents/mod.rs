//! The agents of one client lane: they log in, wait at the barrier, send on time, and check everything they get.
//!
//! Agents are sessions of an ordinary lane, the same one a server uses, so a thousand of them cost one thread
//! and no system call per delivery. What a lane measures is its own until the step ends; the coordinator only
//! reads a few counters that the lane publishes once per turn.
//!
//! One kind of agent serves all patterns and models, because nearly all of it is the same: connecting, the barrier,
//! the order of what is due, counting, the end. What differs is in a few places: what `login` asks for, what `send`
//! puts on the wire and when, and whether what comes is a delivery (`deliver`) or a reply (`reply`).

mod absence;
mod deliver;
mod flight;
mod login;
mod position;
mod reply;
mod send;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidewire::{
    CloseReason, ConnectError, Context, HandlerResult, Kind, Message, Moment, Position, Service,
    SessionId,
};
use tidewire_proto::body::{ErrorBody, GapBody};
use tidewire_proto::correlate::Correlator;

use self::flight::Flight;
use crate::credentials::LaneTokens;
use crate::exchange::{AgentResult, Confirmation, LaneResult, StepLink, Times};
use crate::ledger::{Absence, Ledger};
use crate::plan::{PENDING_MAX, StepPlan};
use crate::scenario::{Load, Pattern, Step};
use crate::schedule::{Arrivals, Schedule};

/// The agents of a step that a lane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// The senders of lane `lane`, if they are shared out among `lanes` lanes.
    Lane { lane: usize, lanes: usize },
    /// The slow receivers, all on one lane, whose number for the coordinator is `lane`.
    Slow { lane: usize },
}

/// The service of a client lane.
#[derive(Debug)]
pub(crate) struct Agents {
    plan: StepPlan,
    /// The core to keep the lane on, if any.
    core: Option<usize>,
    link: Arc<StepLink>,
    tokens: LaneTokens,
    /// Number of the lane for the coordinator.
    lane: usize,
    is_slow: bool,
    agents: Vec<Agent>,
    /// The next agent to connect; connecting is paced so that the server's backlog is not the test.
    next_to_connect: usize,
    connecting: usize,
    /// Agents that have lost their connection, and when they try to get another one.
    returning: VecDeque<(u64, usize)>,
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// Agents with a message that waits for room, and how many of them.
    queued: u64,
    /// Agents whose queued message may go, or whose window has room again.
    resumed: Vec<usize>,
    /// Agents whose socket does not take more.
    blocked: Vec<usize>,
    /// Agents with messages that were not flushed yet.
    touched: Vec<usize>,
    /// Agents that still have to ask the server for its count.
    to_confirm: Vec<usize>,
    /// A payload, which every message fills with its own bytes.
    payload: Vec<u8>,
    in_flight: u64,
    next_expiry_ns: u64,
    /// When the messages that are being given up were sent; kept to be used again.
    expired: Vec<u64>,
    times: Box<Times>,
    result: LaneResult,
    sent: u64,
    received: u64,
    started: bool,
    sending_ended: bool,
    pinned: bool,
    finished: bool,
}

#[derive(Debug)]
struct Agent {
    index: u32,
    /// The sender whose messages must not come to this agent: itself in a room, nobody elsewhere.
    own: u32,
    /// The node that it is connected to, and the agents of this node.
    node: usize,
    neighbours: Range<u32>,
    session: SessionId,
    room: u16,
    logged_in: bool,
    login_failed: bool,
    alive: bool,
    pace: Pace,
    sent: u64,
    ledger: Option<Ledger>,
    flight: Flight,
    correlator: Option<Correlator<u64>>,
    /// When the message was due that waits for room.
    queued: Option<u64>,
    /// When the one after it is due, if it was looked up already.
    upcoming: Option<u64>,
    /// When its window last got room after it was full.
    ready_ns: u64,
    /// Messages not flushed yet, and when the first of them was sent.
    unflushed: (u64, u64),
    is_listed: bool,
    confirmed: Option<Confirmation>,
    absences: Vec<Absence>,
    /// Messages that the server says it dropped on the way to this agent, or has no more for it.
    told: u64,
    /// How often the server said that messages may be missing, and not how many.
    told_unknown: u64,
    /// The position of its last message, in a room that keeps a history.
    position: Option<Position>,
}

/// When an agent's messages are due.
#[derive(Debug)]
enum Pace {
    /// Never: before the barrier opens, and for receivers that only listen.
    Idle,
    /// After think times, whatever comes back.
    Think(Schedule),
    /// After the last reply and a think time.
    Replies(Schedule),
    /// At times laid down in advance.
    Open(Arrivals),
    /// As soon as another message may be in flight.
    Max,
}

impl Agents {
    pub(crate) fn new(
        plan: StepPlan,
        link: Arc<StepLink>,
        share: Share,
        core: Option<usize>,
    ) -> Self {
        let senders = plan.step.senders();
        let (lane, is_slow) = match share {
            Share::Lane { lane, .. } => (lane, false),
            Share::Slow { lane } => (lane, true),
        };
        let agents = match share {
            Share::Lane { lane, lanes } => {
                let own = plan.segment.agents(senders).skip(lane).step_by(lanes);
                own.map(|index| Agent::new(index, &plan)).collect()
            }
            Share::Slow { .. } => {
                let slow = senders..plan.step.concurrency;
                slow.map(|index| Agent::new(index, &plan)).collect()
            }
        };
        let payload = vec![0; plan.step.payload_bytes as usize];
        Self {
            plan,
            core,
            tokens: LaneTokens::of(&link.tokens),
            link,
            lane,
            is_slow,
            agents,
            next_to_connect: 0,
            connecting: 0,
            returning: VecDeque::new(),
            due: BinaryHeap::new(),
            queued: 0,
            resumed: Vec::new(),
            blocked: Vec::new(),
            touched: Vec::new(),
            to_confirm: Vec::new(),
            payload,
            in_flight: 0,
            next_expiry_ns: 0,
            expired: Vec::new(),
            times: Box::default(),
            result: LaneResult::default(),
            sent: 0,
            received: 0,
            started: false,
            sending_ended: false,
            pinned: false,
            finished: false,
        }
    }

    fn pattern(&self) -> Pattern {
        self.plan.step.pattern
    }

    /// Notes a cause for the report; the numbers are complete without it.
    fn note_failure(&mut self, cause: impl FnOnce() -> String) {
        if self.result.failures.len() < CAUSES_MAX {
            self.result.failures.push(cause());
        }
    }

    /// Gives the results away. The coordinator then drains the lane.
    fn finish(&mut self, cx: &Context<'_>) {
        self.finished = true;
        self.count_unsent();
        self.give_up_all();
        let is_slow = self.is_slow;
        let mut result = std::mem::take(&mut self.result);
        result.agents = self
            .agents
            .iter_mut()
            .map(|agent| AgentResult {
                index: agent.index,
                node: agent.node,
                is_slow,
                sent: agent.sent,
                ledger: agent.ledger.take(),
                confirmed: agent.confirmed,
                absences: std::mem::take(&mut agent.absences),
                told: agent.told,
                told_unknown: agent.told_unknown,
                is_backed_up: agent.alive && cx.queued_bytes(agent.session) > 0,
            })
            .collect();
        self.link.hand_in(result, std::mem::take(&mut *self.times));
    }

    #[inline]
    fn slot(&self, cx: &Context<'_>) -> usize {
        let slot = cx.state::<AgentSlot>().map_or(0, |slot| slot.0);
        slot.min(self.agents.len() - 1)
    }

    fn pin(&mut self) {
        if std::mem::replace(&mut self.pinned, true) {
            return;
        }
        if let Some(core) = self.core
            && let Err(error) = tidewire_io::affinity::pin_to_core(core)
        {
            tracing::warn!(core, %error, "the client lane could not be pinned");
        }
    }

    /// When the lane has to run again if nothing comes.
    fn wake_ns(&self) -> Option<u64> {
        let expiry = (self.in_flight > 0).then_some(self.next_expiry_ns);
        let returning = self.returning.front().map(|(at_ns, _)| *at_ns);
        if self.sending_ended {
            return [expiry, returning].into_iter().flatten().min();
        }
        let now_ns = self.plan.clock.now_ns();
        if !self.resumed.is_empty() {
            return Some(now_ns);
        }
        let due = self
            .due
            .peek()
            .map(|Reverse((intended_ns, _))| *intended_ns);
        // A lane whose agents all wait for replies must also notice the end of sending. After that, queued messages may
        // still be sent until the end of catching up, so the lane wakes up at that time.
        let is_waiting = self.started && can_wait(&self.plan.step);
        let stop = is_waiting.then(|| match self.link.stop_ns() {
            stop_ns if self.queued == 0 || stop_ns > now_ns => stop_ns,
            stop_ns => last_send_ns(stop_ns, &self.plan.step),
        });
        let stop = stop.filter(|stop_ns| *stop_ns != u64::MAX);
        [due, expiry, returning, stop].into_iter().flatten().min()
    }
}

impl Agent {
    fn new(index: u32, plan: &StepPlan) -> Self {
        let step = &plan.step;
        let is_chat = step.pattern == Pattern::Chat;
        let has_ids = step.pattern == Pattern::Request;
        let has_replies = step.pattern.has_replies();
        let node = plan.node_of(index);
        Self {
            index,
            own: if is_chat { index } else { u32::MAX },
            node,
            neighbours: plan.agents_of(node),
            session: SessionId::NONE,
            room: 0,
            logged_in: false,
            login_failed: false,
            alive: false,
            pace: Pace::Idle,
            sent: 0,
            ledger: None,
            flight: Flight::with_window(if has_replies { plan.window() } else { 0 }),
            correlator: has_ids.then(|| Correlator::for_ids(plan.ids, PENDING_MAX as usize)),
            queued: None,
            upcoming: None,
            ready_ns: 0,
            unflushed: (0, 0),
            is_listed: false,
            confirmed: None,
            absences: Vec::new(),
            told: 0,
            told_unknown: 0,
            position: None,
        }
    }
}

/// The place of an agent in its lane's list, as the state of its session.
struct AgentSlot(usize);

impl Service for Agents {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let slot = self.slot(cx);
        let link = &self.link;
        let agent = || cx.session().peer_agent().unwrap_or_default().to_owned();
        link.server_agent.get_or_init(agent);
        link.encryption.get_or_init(|| cx.session().encryption());
        let id = cx.id();
        if let Some(expire) = cx.connections().credentials_expire(id) {
            self.link.tokens.note_expiry(expire.as_ns());
        }
        // One that comes back may send when it is in the room again.
        self.agents[slot].alive = !self.agents[slot].logged_in;
        self.log_in(cx, slot);
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let (slot, now_ns) = (self.slot(cx), self.plan.clock.noted_ns(cx.now().as_ns()));
        match message.kind {
            Kind::Deliver => self.handle_delivery(slot, now_ns, &message),
            Kind::Reply | Kind::Error | Kind::OneWay if self.pattern().has_replies() => {
                self.handle_reply(slot, now_ns, &message);
            }
            Kind::Reply | Kind::Error if self.pattern() == Pattern::Ingest => {
                self.handle_confirmation(slot, &message);
            }
            Kind::Error if message.id == JOIN_ID && self.is_returning(slot) => cx.close(),
            Kind::Reply | Kind::Error if message.id == JOIN_ID => {
                self.handle_login(slot, &message);
            }
            Kind::Error => {
                // The server refused a message it had accepted: it is lost, and the ledger will show it.
                self.result.counts.work.refused += 1;
                self.note_failure(|| {
                    let body = ErrorBody::decode(message.payload);
                    let text = body.map_or("no reason given", |body| body.text);
                    format!("a message was refused: {text}")
                });
            }
            Kind::Gap => {
                self.agents[slot].told +=
                    GapBody::decode(message.payload).map_or(0, |gap| gap.lost);
            }
            Kind::Position => self.handle_position(slot, &message),
            _ => {}
        }
        Ok(())
    }

    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        if self.finished {
            return;
        }
        let slot = self.slot(cx);
        if self.agents[slot].logged_in && self.comes_back() {
            return self.leave(slot, reason);
        }
        self.agents[slot].alive = false;
        if self.agents[slot].logged_in {
            if self.is_slow {
                self.link.slow_disconnects.add(1);
            } else {
                self.link.disconnects.add(1);
                self.link.connected[self.agents[slot].node].fetch_sub(1, Ordering::Relaxed);
                self.result.disconnects.push(reason);
            }
            self.give_up_flight(slot);
        } else {
            self.fail_login(slot, &reason.to_string());
        }
    }

    fn on_connect_failed(&mut self, cx: &mut Context<'_>, failure: ConnectError) {
        let slot = self.slot(cx);
        self.fail_login(slot, &login::explain(&failure));
    }

    fn has_work(&self) -> bool {
        (!self.started && self.link.start_ns().is_some())
            || (!self.finished && self.link.is_finished())
            || self.tokens.has_task(&self.link.tokens)
    }

    /// Ends the lane, and so the run: figures of agents that panicked cannot be believed.
    fn on_panic(&mut self, _: &mut Context<'_>) {
        panic!("agents do not go on after a panic");
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<Moment> {
        self.pin();
        self.connect_some(cx);
        self.connect_returning(cx);
        if self.tokens.has_task(&self.link.tokens) {
            self.renew_credentials(cx);
        }
        if !self.started {
            self.start();
        }
        self.send_due(cx);
        if self.in_flight > 0 {
            self.expire_replies(self.plan.clock.noted_ns(cx.now().as_ns()));
        }
        if !self.to_confirm.is_empty() {
            self.ask_for_counts(cx);
        }
        self.link
            .publish(self.lane, self.sent, self.received, &mut self.times);
        if self.link.is_finished() && !self.finished {
            self.finish(cx);
        }
        if self.is_slow && self.started && !self.finished {
            // Blocking its lane is what makes a receiver slow; there is nobody else on this one.
            std::thread::sleep(std::time::Duration::from_millis(
                self.plan.step.slow_pause_ms,
            ));
        }
        self.wake_ns().map(Moment::from_ns)
    }
}

/// Whether messages wait for replies, room or sockets, so that nothing being due is not yet the end.
fn can_wait(step: &Step) -> bool {
    step.pattern.has_replies() || !matches!(step.load, Load::Closed { .. })
}

/// When catching up ends. What was due before `stop_ns` and could not be sent is sent late, but not for longer than
/// arrivals are waited for: an overdriven step would else go on for a multiple of its length.
fn last_send_ns(stop_ns: u64, step: &Step) -> u64 {
    stop_ns.saturating_add(step.drain_ms.saturating_mul(1_000_000))
}

/// The id of an agent's login, and of its question for the server's count.
const JOIN_ID: u32 = 1;

/// Causes kept for the report; the numbers are complete without them.
const CAUSES_MAX: usize = 3;

#[cfg(test)]
mod tests;
