//! When an agent sends, and what goes on the wire.
//!
//! Everything that is due stands in one heap, whatever decides about it: a think time, a reply, a schedule laid down in
//! advance. What cannot go, because the agent's window or its socket is full, is queued and goes when there is
//! room; its intended time stays what it was. Messages of an open or fast step that go in the same turn are written
//! together, one write a session; those of a think-time loop one by one, as users would.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use tidewire::{Context, Kind, Message};

use super::{Agent, Agents, Pace, can_wait, last_send_ns};
use crate::body;
use crate::scenario::{Load, OnLate, Pattern};
use crate::schedule::{Arrivals, Schedule, agent_seed};
use crate::stamp::Stamp;

impl Agents {
    /// Plans every agent's first message once the barrier has opened.
    pub(super) fn start(&mut self) {
        let Some(start_ns) = self.link.start_ns() else {
            return;
        };
        self.started = true;
        if self.is_slow {
            return;
        }
        let senders = self.plan.step.senders();
        for slot in 0..self.agents.len() {
            let agent = &mut self.agents[slot];
            if !agent.logged_in {
                continue;
            }
            let seed = agent_seed(self.plan.seed, self.plan.number, agent.index);
            let first_ns = match &self.plan.step.load {
                Load::Closed { think_time_ms } => {
                    let mut schedule = Schedule::new(seed, start_ns, *think_time_ms);
                    let first_ns = schedule.next_intended_ns();
                    agent.pace = if self.plan.step.pattern.has_replies() {
                        Pace::Replies(schedule)
                    } else {
                        Pace::Think(schedule)
                    };
                    Some(first_ns)
                }
                Load::Open {
                    stages, arrival, ..
                } => {
                    let share = (agent.index, senders);
                    let mut arrivals = Arrivals::new(stages, *arrival, seed, start_ns, share);
                    let first_ns = arrivals.next_intended_ns();
                    agent.pace = Pace::Open(arrivals);
                    first_ns
                }
                Load::Max => {
                    agent.pace = Pace::Max;
                    Some(start_ns)
                }
            };
            if let Some(first_ns) = first_ns {
                self.due.push(Reverse((first_ns, slot)));
            }
        }
    }

    /// Sends what is due, up to a bound, so that a lane that is late still reads.
    pub(super) fn send_due(&mut self, cx: &mut Context<'_>) {
        if !self.started || self.sending_ended {
            return;
        }
        let stop_ns = self.link.stop_ns();
        if self.plan.clock.now_ns() >= last_send_ns(stop_ns, &self.plan.step) {
            // The rest is due and never sent. It is counted when the step ends.
            return self.tell_sending_ended();
        }
        self.unblock(cx);
        self.send_resumed(cx, stop_ns);
        let sends_max = if can_wait(&self.plan.step) {
            BATCH_MAX
        } else {
            SENDS_PER_TURN
        };
        for _ in 0..sends_max {
            let next = self.due.peek().map(|Reverse(next)| *next);
            let Some((intended_ns, slot)) = next.filter(|(intended_ns, _)| *intended_ns < stop_ns)
            else {
                self.due.clear();
                self.end_sending(stop_ns);
                break;
            };
            if intended_ns > self.plan.clock.now_ns() {
                break;
            }
            self.due.pop();
            self.handle_due(cx, slot, intended_ns);
        }
        self.flush_touched(cx);
    }

    fn handle_due(&mut self, cx: &mut Context<'_>, slot: usize, intended_ns: u64) {
        match &mut self.agents[slot].pace {
            Pace::Idle => {}
            Pace::Think(schedule) => {
                let next_ns = schedule.next_intended_ns();
                self.send(cx, slot, intended_ns, self.plan.clock.now_ns());
                self.flush(cx, slot);
                self.due.push(Reverse((next_ns, slot)));
            }
            // The reply brings the next one.
            Pace::Replies(_) => self.send(cx, slot, intended_ns, self.plan.clock.now_ns()),
            Pace::Open(arrivals) => {
                let next_ns = arrivals.next_intended_ns();
                if skips_late(&self.plan.step.load) {
                    self.send_or_skip(cx, slot, intended_ns, next_ns);
                } else {
                    self.send_or_queue(cx, slot, intended_ns, next_ns);
                }
            }
            Pace::Max => self.resume(slot),
        }
    }

    /// Late messages are sent late: nothing else of the agent goes before.
    fn send_or_queue(
        &mut self,
        cx: &mut Context<'_>,
        slot: usize,
        intended_ns: u64,
        next_ns: Option<u64>,
    ) {
        if !self.has_room(cx, slot) {
            self.agents[slot].upcoming = next_ns;
            return self.queue(slot, intended_ns);
        }
        self.send(cx, slot, intended_ns, self.plan.clock.now_ns());
        if let Some(next_ns) = next_ns {
            self.due.push(Reverse((next_ns, slot)));
        }
    }

    /// A message that is not gone when the next one of its agent is due is left out.
    fn send_or_skip(
        &mut self,
        cx: &mut Context<'_>,
        slot: usize,
        intended_ns: u64,
        next_ns: Option<u64>,
    ) {
        if let Some(queued_ns) = self.agents[slot].queued.take() {
            self.queued -= 1;
            self.result.counts.steady_held += u64::from(self.is_steady(queued_ns));
            self.skip(queued_ns);
        }
        let now_ns = self.plan.clock.now_ns();
        if next_ns.is_some_and(|next_ns| next_ns <= now_ns) {
            self.result.counts.steady_overdue += u64::from(self.is_steady(intended_ns));
            self.skip(intended_ns);
        } else if self.has_room(cx, slot) {
            self.send(cx, slot, intended_ns, now_ns);
        } else {
            self.queue(slot, intended_ns);
        }
        if let Some(next_ns) = next_ns {
            self.due.push(Reverse((next_ns, slot)));
        }
    }

    fn skip(&mut self, intended_ns: u64) {
        self.offer(intended_ns);
        self.result.counts.work.skipped += 1;
    }

    fn queue(&mut self, slot: usize, intended_ns: u64) {
        self.agents[slot].queued = Some(intended_ns);
        self.queued += 1;
        // If there are replies, one of them makes room; else the socket has to be asked.
        if !self.pattern().has_replies() {
            self.blocked.push(slot);
        }
    }

    fn unblock(&mut self, cx: &mut Context<'_>) {
        if self.blocked.is_empty() {
            return;
        }
        let mut blocked = std::mem::take(&mut self.blocked);
        blocked.retain(|slot| {
            let is_full = !self.has_room(cx, *slot);
            if !is_full {
                self.agents[*slot].ready_ns = self.plan.clock.noted_ns(cx.now().as_ns());
                self.resume(*slot);
            }
            is_full
        });
        self.blocked = blocked;
    }

    /// Whether another message of the agent may go. One without connection may: it will fail, and count.
    fn has_room(&self, cx: &Context<'_>, slot: usize) -> bool {
        let agent = &self.agents[slot];
        if !agent.alive {
            return true;
        }
        if self.plan.step.pattern.has_replies() {
            let pending = agent
                .correlator
                .as_ref()
                .map_or(0, |correlator| correlator.pending_replies());
            return agent.flight.unanswered() < self.plan.window()
                && pending < self.plan.ids_max() as usize;
        }
        !cx.is_full(agent.session)
    }

    /// Goes on with agents that have room again.
    fn send_resumed(&mut self, cx: &mut Context<'_>, stop_ns: u64) {
        let mut resumed = std::mem::take(&mut self.resumed);
        for slot in resumed.drain(..) {
            self.agents[slot].is_listed = false;
            if matches!(self.agents[slot].pace, Pace::Max) {
                self.fill(cx, slot, stop_ns);
                continue;
            }
            let Some(intended_ns) = self.agents[slot].queued.take() else {
                continue;
            };
            self.queued -= 1;
            if !self.has_room(cx, slot) {
                self.queue(slot, intended_ns);
                continue;
            }
            self.send(cx, slot, intended_ns, self.plan.clock.now_ns());
            if let Some(next_ns) = self.agents[slot].upcoming.take() {
                self.due.push(Reverse((next_ns, slot)));
            }
        }
        // Filling may have listed some anew.
        resumed.append(&mut self.resumed);
        self.resumed = resumed;
    }

    /// Sends as many messages as there is room for. They are due now, all at the same time.
    fn fill(&mut self, cx: &mut Context<'_>, slot: usize, stop_ns: u64) {
        let now_ns = self.plan.clock.now_ns();
        if now_ns >= stop_ns || !self.agents[slot].alive {
            return;
        }
        let mut left = BATCH_MAX;
        while left > 0 && self.has_room(cx, slot) {
            self.send(cx, slot, now_ns, now_ns);
            left -= 1;
        }
        if self.plan.step.pattern.has_replies() {
            if left == 0 {
                self.resume(slot);
            }
            return;
        }
        self.flush(cx, slot);
        if self.has_room(cx, slot) {
            self.resume(slot);
        } else {
            self.blocked.push(slot);
        }
    }

    /// Tells the coordinator, once, that everything this lane had to send is sent.
    fn end_sending(&mut self, stop_ns: u64) {
        let waits =
            can_wait(&self.plan.step) && (self.plan.clock.now_ns() < stop_ns || self.queued > 0);
        if !waits && !self.sending_ended {
            self.tell_sending_ended();
        }
    }

    fn tell_sending_ended(&mut self) {
        self.sending_ended = true;
        self.link.lanes_done.add(1);
        if self.pattern() == Pattern::Ingest {
            let sent = |slot: &usize| self.agents[*slot].sent > 0;
            self.to_confirm = (0..self.agents.len()).filter(sent).collect();
        }
    }

    fn offer(&mut self, intended_ns: u64) {
        self.result.counts.work.offered += 1;
        self.result.counts.work.steady_offered += u64::from(self.is_steady(intended_ns));
    }

    /// Notes messages that were due and are not sent: how many before the steady window, and how many in it.
    fn miss(&mut self, (before, within): (u64, u64), is_overdue: bool) {
        match is_overdue {
            true => self.result.counts.steady_overdue += within,
            false => self.result.counts.steady_held += within,
        }
        let counts = &mut self.result.counts.work;
        counts.offered += before + within;
        counts.steady_offered += within;
        let missed = if skips_late(&self.plan.step.load) {
            &mut counts.skipped
        } else {
            &mut counts.unsent
        };
        *missed += before + within;
    }

    fn send(&mut self, cx: &mut Context<'_>, slot: usize, intended_ns: u64, sent_ns: u64) {
        self.offer(intended_ns);
        let agent = &mut self.agents[slot];
        let sequence = agent.sent + 1;
        let stamp = Stamp {
            run: self.plan.run,
            step: self.plan.number,
            flags: 0,
            sender: agent.index,
            sequence,
            intended_ns,
        };
        if let Some((front, rest)) = self.payload.split_first_chunk_mut() {
            stamp.encode(front);
            // A one-way message never comes back to its sender.
            if self.plan.step.pattern != Pattern::Ingest {
                body::fill(&stamp, rest);
            }
        }
        let has_replies = self.plan.step.pattern.has_replies();
        let id = agent
            .correlator
            .as_mut()
            .and_then(|correlator| correlator.insert(sequence).ok())
            .unwrap_or(0);
        if let Some(sent_times) = &self.link.sent_times {
            sent_times.store(agent.index, sequence, sent_ns);
        }
        let (pattern, room) = (self.plan.step.pattern, &self.plan.room);
        let message = message(pattern, agent, room, &self.payload, id);
        if !agent.alive || cx.send_to(agent.session, &message).is_err() {
            if let Some(correlator) = &mut agent.correlator {
                correlator.take(id);
            }
            self.result.counts.send_errors += 1;
            self.link.send_errors.add(1);
            return;
        }
        agent.sent = sequence;
        self.sent += 1;
        if let Some(count) = self.link.sent_counts.get(agent.index as usize) {
            count.store(sequence, Ordering::Relaxed);
        }
        if agent.unflushed.1 == 0 {
            agent.unflushed.0 = sent_ns;
            self.touched.push(slot);
        }
        agent.unflushed.1 += 1;
        if has_replies {
            agent.flight.send(id, sent_ns);
            self.in_flight += 1;
            let in_flight_max = &mut self.result.counts.work.in_flight_max;
            *in_flight_max = self.in_flight.max(*in_flight_max);
        }
        let ready_ns = agent.ready_ns.max(intended_ns);
        let lag_ns = sent_ns.saturating_sub(intended_ns);
        if !self.plan.is_windowed {
            self.times.send_lag.record(lag_ns);
        } else if self.is_steady(intended_ns) {
            self.times.send_lag.record(lag_ns);
            self.times
                .client_lag
                .record(sent_ns.saturating_sub(ready_ns));
        }
        self.result.counts.work.steady_sent += u64::from(self.is_steady(sent_ns));
        if self.is_steady(intended_ns) {
            let counts = &mut self.result.counts;
            let is_on_time = sent_ns < self.link.stop_ns();
            counts.steady_on_time += u64::from(is_on_time);
            counts.steady_held += u64::from(!is_on_time && ready_ns > intended_ns);
        }
    }

    fn flush_touched(&mut self, cx: &mut Context<'_>) {
        let mut touched = std::mem::take(&mut self.touched);
        for slot in touched.drain(..) {
            self.flush(cx, slot);
        }
        self.touched = touched;
    }

    /// Writes an agent's messages and notes what the writing cost them.
    fn flush(&mut self, cx: &mut Context<'_>, slot: usize) {
        let agent = &mut self.agents[slot];
        let (first_ns, count) = std::mem::take(&mut agent.unflushed);
        if count == 0 {
            return;
        }
        cx.flush(agent.session);
        self.times
            .write
            .record_many(self.plan.clock.now_ns().saturating_sub(first_ns), count);
    }

    /// Counts what the schedules had due before the end of sending and was not sent. What is offered is what was due,
    /// however little of it the lane came to.
    pub(super) fn count_unsent(&mut self) {
        let stop_ns = self.link.stop_ns();
        for Reverse((intended_ns, slot)) in std::mem::take(&mut self.due).into_vec() {
            let agent = &self.agents[slot];
            let is_overdue = agent.queued.is_none();
            if intended_ns < stop_ns && !matches!(agent.pace, Pace::Max) {
                self.miss(self.split(intended_ns), is_overdue);
                let rest = self.count_rest(slot, stop_ns);
                self.miss(rest, is_overdue);
            }
        }
        for slot in 0..self.agents.len() {
            let agent = &mut self.agents[slot];
            let Some(queued_ns) = agent.queued.take() else {
                continue;
            };
            let upcoming = agent.upcoming.take();
            self.miss(self.split(queued_ns), false);
            // Where late messages are left out, the next one is among those that are due, and counted with them.
            if let Some(upcoming_ns) = upcoming.filter(|upcoming_ns| *upcoming_ns < stop_ns) {
                self.miss(self.split(upcoming_ns), false);
                let rest = self.count_rest(slot, stop_ns);
                self.miss(rest, false);
            }
        }
    }

    /// One message: whether it was due before the steady window or in it.
    fn split(&self, intended_ns: u64) -> (u64, u64) {
        let within = u64::from(self.is_steady(intended_ns));
        (1 - within, within)
    }

    /// The messages that an agent's schedule still has due before the end of sending: before the steady window, and in
    /// it.
    fn count_rest(&self, slot: usize, stop_ns: u64) -> (u64, u64) {
        let (steady_ns, _) = self.link.steady_window();
        match &self.agents[slot].pace {
            Pace::Think(schedule) => schedule.clone().count_rest(steady_ns, stop_ns),
            Pace::Open(arrivals) => arrivals.clone().count_rest(steady_ns, stop_ns),
            Pace::Idle | Pace::Replies(_) | Pace::Max => (0, 0),
        }
    }
}

fn skips_late(load: &Load) -> bool {
    let late = OnLate::Skip;
    matches!(load, Load::Open { on_late, .. } if *on_late == late)
}

fn message<'a>(
    pattern: Pattern,
    agent: &Agent,
    room: &'a str,
    payload: &'a [u8],
    id: u32,
) -> Message<'a> {
    match pattern {
        Pattern::Chat => Message::new(Kind::Say, agent.room, payload),
        Pattern::PubSub => Message::new(Kind::Publish, 0, payload).with_name(room),
        Pattern::Ingest | Pattern::Echo => Message::new(Kind::OneWay, 0, payload),
        Pattern::Request => Message::with_id(Kind::Request, 0, id, payload),
    }
}

/// Messages sent in one turn of a lane that is late.
const SENDS_PER_TURN: usize = 64;

/// Messages sent in one turn, of a lane or of one agent, where they are written together.
const BATCH_MAX: usize = 1_024;
