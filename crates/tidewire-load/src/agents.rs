//! The agents of one client lane: they log in, wait at the barrier, say things on time, and check everything
//! they hear.
//!
//! Agents are sessions of an ordinary lane, the same one a server uses, so a thousand of them cost one thread
//! and no system call per delivery. What a lane measures is its own until the step ends; the coordinator only
//! reads a few counters that the lane publishes once per turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use tidewire::Endpoint;
use tidewire::io::clock::now_ns;
use tidewire::proto::body::{ErrorBody, GapBody, JoinBody};
use tidewire::{
    CloseReason, ConnectFailure, Context, HandlerResult, Kind, Message, Service, SessionId,
};

use crate::exchange::StepLink;
use crate::ledger::{Fate, Ledger};
use crate::scenario::ThinkTime;
use crate::schedule::{Schedule, agent_seed};
use crate::stamp::Stamp;
use crate::statistics::LatencyHistogram;

/// What every agent of a step needs to know.
#[derive(Clone, Debug)]
pub(crate) struct StepPlan {
    pub(crate) address: Endpoint,
    pub(crate) run: u16,
    pub(crate) step: u8,
    pub(crate) seed: u64,
    pub(crate) members: u32,
    pub(crate) think: ThinkTime,
    pub(crate) late_ms: u64,
    pub(crate) room: String,
    /// Core to keep the lane on, if any.
    pub(crate) core: Option<usize>,
}

/// What a lane's agents found, handed over when the step ends.
#[derive(Debug, Default)]
pub(crate) struct LaneResult {
    /// Index, ledger and number of sent messages of each agent that was logged in.
    pub(crate) agents: Vec<(usize, Option<Ledger>, u64)>,
    pub(crate) latency_send: LatencyHistogram,
    pub(crate) send_lag: LatencyHistogram,
    pub(crate) steady_sent: u64,
    pub(crate) steady_received: u64,
    pub(crate) send_errors: u64,
    pub(crate) disconnects: Vec<CloseReason>,
    pub(crate) gaps: u64,
    pub(crate) failures: Vec<String>,
}

/// The service of a client lane.
#[derive(Debug)]
pub(crate) struct Agents {
    plan: StepPlan,
    link: Arc<StepLink>,
    agents: Vec<Agent>,
    /// The next agent to connect; connecting is paced so that the server's backlog is not the test.
    next_to_connect: usize,
    connecting: usize,
    due: BinaryHeap<Reverse<(u64, usize)>>,
    latency: LatencyHistogram,
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
    session: SessionId,
    room: u16,
    logged_in: bool,
    login_failed: bool,
    alive: bool,
    schedule: Option<Schedule>,
    sent: u64,
    ledger: Option<Ledger>,
}

impl Agents {
    /// The agents with the numbers that `plan.members` leaves to lane `lane` of `lanes`.
    pub(crate) fn new(plan: StepPlan, link: Arc<StepLink>, lane: usize, lanes: usize) -> Self {
        let agents = (lane as u32..plan.members)
            .step_by(lanes)
            .map(Agent::new)
            .collect();
        Self {
            plan,
            link,
            agents,
            next_to_connect: 0,
            connecting: 0,
            due: BinaryHeap::new(),
            latency: LatencyHistogram::new(),
            result: LaneResult::default(),
            sent: 0,
            received: 0,
            started: false,
            sending_ended: false,
            pinned: false,
            finished: false,
        }
    }

    fn connect_some(&mut self, cx: &mut Context<'_>) {
        while self.connecting < CONNECTING_MAX
            && self.next_to_connect < self.agents.len()
            && !self.link.is_login_closed()
        {
            let place = self.next_to_connect;
            self.next_to_connect += 1;
            self.connecting += 1;
            match cx.connect(&self.plan.address, place as u64) {
                Ok(session) => self.agents[place].session = session,
                Err(failure) => self.fail_login(place, &explain(&failure)),
            }
        }
    }

    /// An agent fails once, though the connection of a refused one may die later.
    fn fail_login(&mut self, place: usize, cause: &str) {
        if std::mem::replace(&mut self.agents[place].login_failed, true)
            || self.link.is_login_closed()
        {
            return;
        }
        self.connecting -= 1;
        self.link.add_login_failure();
        if self.result.failures.len() < CAUSES_MAX {
            self.result.failures.push(cause.to_owned());
        }
    }

    fn handle_login(&mut self, place: usize, message: &Message<'_>) {
        // Whoever had no answer by then has been counted as failed.
        let too_late = self.link.is_login_closed();
        let agent = &mut self.agents[place];
        if agent.logged_in || too_late {
            return;
        }
        if message.kind == Kind::Error {
            let body = ErrorBody::decode(message.payload);
            let cause = body.map_or_else(
                |_| "refused".to_owned(),
                |body| format!("refused: {}", body.text),
            );
            return self.fail_login(place, &cause);
        }
        agent.logged_in = true;
        agent.room = message.channel;
        let members = self.plan.members as usize;
        agent.ledger = Some(Ledger::for_member(
            agent.index as usize,
            members,
            self.plan.late_ms,
        ));
        self.connecting -= 1;
        self.link.add_login();
    }

    fn handle_delivery(&mut self, place: usize, now_ns: u64, payload: &[u8]) {
        let Some(ledger) = self.agents[place].ledger.as_mut() else {
            return;
        };
        let Ok(stamp) = Stamp::decode(payload) else {
            ledger.record_corrupt();
            return;
        };
        if stamp.run != self.plan.run || stamp.step != self.plan.step {
            ledger.record_foreign();
            return;
        }
        let delay_ns = now_ns.saturating_sub(stamp.intended_ns);
        let fate = ledger.record(stamp.sender, stamp.sequence, delay_ns);
        let is_own = stamp.sender == self.agents[place].index;
        if is_own || !matches!(fate, Fate::New | Fate::Reordered) {
            return;
        }
        self.latency.record(delay_ns);
        self.received += 1;
        // Rates are of what happened in the window, not of what was planned for it: a server or instrument that
        // falls behind must show.
        let (from_ns, to_ns) = self.link.steady_window();
        self.result.steady_received += u64::from(now_ns >= from_ns && now_ns < to_ns);
    }

    /// Plans every agent's first message once the barrier has opened.
    fn start(&mut self) {
        let Some(start_ns) = self.link.start_ns() else {
            return;
        };
        self.started = true;
        for (place, agent) in self
            .agents
            .iter_mut()
            .enumerate()
            .filter(|(_, agent)| agent.logged_in)
        {
            let seed = agent_seed(self.plan.seed, self.plan.step, agent.index);
            let mut schedule = Schedule::new(seed, start_ns, self.plan.think);
            self.due.push(Reverse((schedule.next_intended_ns(), place)));
            agent.schedule = Some(schedule);
        }
    }

    /// Sends what is due, up to a bound, so that a lane that is late still reads.
    fn send_due(&mut self, cx: &mut Context<'_>) {
        let stop_ns = self.link.stop_ns();
        for _ in 0..SENDS_PER_TURN {
            let next = self.due.peek().map(|Reverse(next)| *next);
            let Some((intended_ns, place)) = next.filter(|(intended_ns, _)| *intended_ns < stop_ns)
            else {
                self.due.clear();
                self.end_sending();
                return;
            };
            if intended_ns > now_ns() {
                return;
            }
            self.due.pop();
            self.send(cx, place, intended_ns);
            if let Some(schedule) = self.agents[place].schedule.as_mut() {
                self.due.push(Reverse((schedule.next_intended_ns(), place)));
            }
        }
    }

    /// Tells the coordinator, once, that everything this lane had to send is sent.
    fn end_sending(&mut self) {
        if self.started && !std::mem::replace(&mut self.sending_ended, true) {
            self.link.add_lane_done();
        }
    }

    fn send(&mut self, cx: &mut Context<'_>, place: usize, intended_ns: u64) {
        let agent = &mut self.agents[place];
        let stamp = Stamp {
            run: self.plan.run,
            step: self.plan.step,
            flags: 0,
            sender: agent.index,
            sequence: agent.sent + 1,
            intended_ns,
        };
        let mut payload = [0; Stamp::BYTES];
        stamp.encode(&mut payload);
        let before_ns = now_ns();
        let message = Message::new(Kind::Say, agent.room, &payload);
        if !agent.alive || cx.send_to(agent.session, &message).is_err() {
            self.result.send_errors += 1;
            self.link.add_send_error();
            return;
        }
        cx.flush(agent.session);
        let after_ns = now_ns();
        agent.sent += 1;
        self.sent += 1;
        self.result.send_lag.record(before_ns - intended_ns);
        self.result.latency_send.record(after_ns - before_ns);
        let (from_ns, to_ns) = self.link.steady_window();
        self.result.steady_sent += u64::from(before_ns >= from_ns && before_ns < to_ns);
    }

    /// Gives the results away. The coordinator then drains the lane.
    fn finish(&mut self) {
        self.finished = true;
        let mut result = std::mem::take(&mut self.result);
        result.agents = self
            .agents
            .iter_mut()
            .map(|agent| (agent.index as usize, agent.ledger.take(), agent.sent))
            .collect();
        self.link.hand_in(result, &self.latency);
    }
}

impl Agent {
    fn new(index: u32) -> Self {
        Self {
            index,
            session: SessionId::NONE,
            room: 0,
            logged_in: false,
            login_failed: false,
            alive: false,
            schedule: None,
            sent: 0,
            ledger: None,
        }
    }
}

impl Service for Agents {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let place = cx.tag() as usize;
        self.link
            .set_server_agent(cx.peer_agent().unwrap_or_default());
        let agent = &mut self.agents[place];
        agent.alive = true;
        let name = format!(
            "load-{:04x}-{}-{}",
            self.plan.run, self.plan.step, agent.index
        );
        let mut body = Vec::new();
        let sent = JoinBody {
            room: &self.plan.room,
            name: &name,
        }
        .encode(&mut body)
        .map_err(|error| error.to_string())
        .and_then(|()| {
            let join = Message::with_id(Kind::Join, 0, JOIN_ID, &body);
            cx.send(&join).map_err(|error| error.to_string())
        });
        if let Err(error) = sent {
            self.fail_login(place, &error);
        }
    }

    #[inline]
    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let place = self.place(cx);
        match message.kind {
            Kind::Deliver => self.handle_delivery(place, cx.now_ns(), message.payload),
            Kind::Reply | Kind::Error if message.id == JOIN_ID => {
                self.handle_login(place, &message);
            }
            Kind::Error => {
                // The server refused a message it had accepted: it is lost, and the ledger will show it.
                let body = ErrorBody::decode(message.payload);
                if self.result.failures.len() < CAUSES_MAX {
                    let text = body.map_or("no reason given", |body| body.text);
                    self.result
                        .failures
                        .push(format!("a message was refused: {text}"));
                }
            }
            Kind::Gap => {
                self.result.gaps += GapBody::decode(message.payload).map_or(0, |gap| gap.lost);
            }
            _ => {}
        }
        Ok(())
    }

    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        if self.finished {
            return;
        }
        let place = cx.tag() as usize;
        self.agents[place].alive = false;
        if self.agents[place].logged_in {
            self.result.disconnects.push(reason);
            self.link.add_disconnect();
        } else {
            self.fail_login(place, &reason.to_string());
        }
    }

    fn on_connect_failed(&mut self, cx: &mut Context<'_>, failure: ConnectFailure) {
        let place = self.place(cx);
        self.fail_login(place, &explain(&failure));
    }

    fn has_work(&self) -> bool {
        (!self.started && self.link.start_ns().is_some())
            || (!self.finished && self.link.is_finished())
    }

    fn on_turn(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        if !self.pinned {
            self.pinned = true;
            if let Some(core) = self.plan.core
                && let Err(error) = tidewire::io::affinity::pin_to_core(core)
            {
                tracing::warn!(core, %error, "the client lane could not be pinned");
            }
        }
        self.connect_some(cx);
        if !self.started {
            self.start();
        }
        self.send_due(cx);
        self.link
            .publish(cx.lane(), self.sent, self.received, &mut self.latency);
        if self.link.is_finished() && !self.finished {
            self.finish();
        }
        self.due
            .peek()
            .map(|Reverse((intended_ns, _))| *intended_ns)
    }
}

impl Agents {
    #[inline]
    fn place(&self, cx: &Context<'_>) -> usize {
        (cx.tag() as usize).min(self.agents.len() - 1)
    }
}

fn explain(failure: &ConnectFailure) -> String {
    std::error::Error::source(failure).map_or_else(|| failure.to_string(), ToString::to_string)
}

/// The id of an agent's only request.
const JOIN_ID: u32 = 1;

/// Connections being made at the same time, per lane.
const CONNECTING_MAX: usize = 64;

/// Messages sent in one turn of a lane that is late.
const SENDS_PER_TURN: usize = 64;

/// Causes kept for the report; the numbers are complete without them.
const CAUSES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// Two agents; the steady window is from 100 to 200.
    fn agents() -> Agents {
        let plan = StepPlan {
            address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into(),
            run: 7,
            step: 0,
            seed: 1,
            members: 2,
            think: ThinkTime {
                min_ms: 1.0,
                max_ms: 1.0,
            },
            late_ms: 1_000,
            room: String::new(),
            core: None,
        };
        let link = Arc::new(StepLink::new(1));
        link.open(50, 100, 200);
        let mut agents = Agents::new(plan, link, 0, 1);
        agents.agents[0].ledger = Some(Ledger::for_member(0, 2, 1_000));
        agents
    }

    fn deliver(agents: &mut Agents, sender: u32, sequence: u64, now_ns: u64) {
        let stamp = Stamp {
            run: 7,
            step: 0,
            flags: 0,
            sender,
            sequence,
            intended_ns: 60,
        };
        let mut payload = [0; Stamp::BYTES];
        stamp.encode(&mut payload);
        agents.handle_delivery(0, now_ns, &payload);
    }

    #[test]
    fn steady_counts_what_arrives_in_the_window_whenever_it_was_due() {
        let mut agents = agents();
        for (sequence, now_ns) in [99, 100, 199, 200].into_iter().enumerate() {
            deliver(&mut agents, 1, sequence as u64 + 1, now_ns);
        }
        assert_eq!((agents.received, agents.result.steady_received), (4, 2));
    }

    #[test]
    fn copies_and_own_messages_belong_to_no_rate() {
        let mut agents = agents();
        deliver(&mut agents, 1, 1, 150);
        deliver(&mut agents, 1, 1, 150);
        deliver(&mut agents, 0, 1, 150);
        assert_eq!((agents.received, agents.result.steady_received), (1, 1));
    }
}
