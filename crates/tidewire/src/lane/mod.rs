//! A lane: one thread, its poller and its sessions.
//!
//! ```text
//!   poller.wait ─▶ read each ready session until a short read ─▶ decode in place ─▶ service
//!        ▲                                                                            │ reply, say
//!        │                                                                            ▼
//!   waker, timers ◀── sweep due rooms ◀── flush dirty sessions ◀── on_turn ◀── session output, room logs
//! ```
//!
//! No step of that way allocates in the steady state, takes a lock, or makes a system call per message. The lane drives
//! the components of [`Core`], which own its state. `read`, `partial` and `datagrams` bring messages to the service.
//! `control` answers the handshake and heartbeats. `messages` takes the messages of other threads. `timers` handles the
//! timers that fired. `wait` decides whether to spin or to sleep. `ending` is the last exchange between lanes. `thread`
//! is the server's handle to the lane's thread.

mod authentication;
mod control;
mod datagrams;
mod ending;
mod errands;
mod messages;
mod metered;
mod partial;
mod predict;
mod read;
mod remote;
mod seat;
mod secure;
mod served;
#[cfg(test)]
mod service_timers;
#[cfg(test)]
mod testing;
mod thread;
mod timers;
mod translated;
mod turns;
mod visits;
mod wait;
mod waiting;

use std::os::fd::AsFd;
use std::sync::Arc;

use thiserror::Error;
use tidewire_io::allocation::{Allocations, thread_allocations};
use tidewire_io::buffer::ReceiveBuffer;
use tidewire_io::clock::Moment;
use tidewire_io::poller::{Event, Events, Interest, PollerError, Token};
use tidewire_proto::connection::Phase;

use datagrams::DatagramReader;
pub(crate) use seat::{Lead, Task, Tasks, unsent};
use served::ContainedService;
#[cfg(test)]
pub(crate) use testing::{lane, lane_of, lanes, received};
pub(crate) use thread::{Ended, LaneThread};
pub(crate) use wait::Spin;

use crate::engine::{Core, PROXIED_LAST, earlier, proxied_of};
use crate::observe::trace;
use crate::room::EARLY_SWEEP_BYTES;
use crate::service::{Service, forget_asker, handle_upstream_end, run_answers};
use crate::session::{CloseReason, TimerKey};
use crate::transport::Transport;
use seat::{Crew, Seat};
use visits::Visits;
use wait::SpinControl;

/// A lane with its service, ready to run on a thread.
#[derive(Debug)]
pub(crate) struct Lane<S> {
    pub(crate) core: Core,
    crew: Arc<Crew>,
    service: ContainedService<S>,
    receive: ReceiveBuffer,
    datagrams: DatagramReader,
    events: Events,
    /// Accepted, connected or resumed sessions to read in this turn.
    ready: Vec<usize>,
    spinning: SpinControl,
    /// Scratch list of timers that fired.
    expired: Vec<TimerKey>,
    /// When the next turn is due.
    wake_ns: Option<u64>,
    /// The last look at the sockets without a wait.
    polled_ns: u64,
    /// The turns of this lane that other lanes run.
    visits: Visits,
    /// The allocations of the thread that leads, at the last look.
    allocations: Option<Allocations>,
}

/// A lane could not go on. The text becomes one of [`Stopped::failures`](crate::Stopped::failures).
#[derive(Debug, Error)]
pub(crate) enum LaneError {
    /// A descriptor cannot be watched, or events cannot be waited for.
    #[error("a lane cannot go on: {0}")]
    Poller(#[from] PollerError),
    /// The service panicked and could not go on. The lane's sessions were closed. Other lanes go on.
    #[error("the service panicked: {0}")]
    ServicePanicked(String),
}

impl<S: Service> Lane<S> {
    /// Makes a lane that is ready to run. `tasks` has the number of tasks that wait for it.
    pub(crate) fn new(
        mut core: Core,
        service: S,
        spin: Spin,
        tasks: Option<Arc<Tasks>>,
    ) -> Result<Self, PollerError> {
        let waker = Arc::clone(&core.exchange.mailbox.waker);
        let poller = &mut core.sessions.poller;
        poller.add(waker.as_fd(), WAKER, Interest::READ)?;
        let visits = Visits::new(&**poller, tasks.is_some());
        Ok(Self {
            crew: Crew::new(&waker, tasks.unwrap_or_default()),
            core,
            service: ContainedService::new(service),
            receive: ReceiveBuffer::new(RECEIVE_BYTES),
            datagrams: DatagramReader::default(),
            events: Events::with_capacity(EVENTS_PER_WAIT),
            ready: Vec::new(),
            spinning: SpinControl::new(spin),
            expired: Vec::with_capacity(EXPIRED_USUAL),
            wake_ns: None,
            polled_ns: 0,
            visits,
            allocations: None,
        })
    }

    /// Runs a turn without its reads: messages of other threads, timers, the service's own work, flushes and sweeps.
    /// Returns the time at which the next turn is due.
    pub(crate) fn turn(&mut self) -> Option<u64> {
        self.core.sessions.timers.read_clock();
        self.take_messages();
        self.handle_timers();
        if self.core.rooms.has_waiting() {
            self.join_again();
        }
        // Resumes the publishers of blocking rooms that are clear again.
        self.core.rooms().release_held(&mut self.ready);
        self.read_ready();
        let service_wake = self.run_service_turn();
        self.core.sessions.flush_dirty();
        self.core.rooms().deliveries().sweep_due();
        self.core.exchange.post_batches();
        self.core.ports.watch_waiters(&mut self.core.sessions);
        self.core.ports.count_planned_drops(&mut self.core.sessions);
        self.core.settle_memory();
        let service_called = self.remove_closed();
        self.check_drained();
        self.count_allocations();
        if service_called {
            // A handler ran after `on_turn` had returned its next time, so `on_turn` runs again at once.
            return Some(self.core.sessions.timers.now_ns());
        }
        earlier(service_wake, self.core.wake_ns())
    }

    /// Handles the events of a wait, and runs a turn.
    #[inline]
    fn go_on(&mut self) {
        self.core.sessions.timers.read_clock();
        self.core.handshakes.begin_turn();
        for index in 0..self.events.len() {
            let event = self.events[index];
            match event.token {
                WAKER => {}
                Token(number) if number > PROXIED_LAST => {
                    if let Some(index) = proxied_of(event.token) {
                        self.core.read_header(index, &mut self.ready);
                        continue;
                    }
                    if let Some(port) = self.core.ports.of_token(event.token) {
                        let core = &mut self.core;
                        if event.writable {
                            core.ports.flush_blocked(&mut core.sessions, port);
                        }
                        if event.readable {
                            self.datagrams.read_port(core, &mut self.service, port);
                        }
                        continue;
                    }
                    self.core.accept(usize::MAX - 1 - number, &mut self.ready);
                }
                Token(slot) => {
                    self.handle_session_event(slot, event);
                    if index + 1 < self.events.len() {
                        self.core.sessions.flush_early(slot);
                    }
                    self.core.sweep_early(EARLY_SWEEP_BYTES);
                }
            }
        }
        // These sessions were accepted in this turn, or paused with frames left over.
        self.read_ready();
        if self.core.handshakes.are_waiting() {
            self.do_costly_steps();
        }
        self.wake_ns = self.turn();
    }

    pub(crate) fn handle_session_event(&mut self, slot: usize, event: Event) {
        let Some(session) = self.core.sessions.table.get_mut(slot) else {
            return;
        };
        let was_awake = session.stream.is_awake();
        let event = session.stream.admit(event);
        let is_awake = session.stream.is_awake();
        let phase = session.connection.phase();
        if is_awake && !was_awake {
            self.core.sessions.table.note_awake(slot, &mut self.ready);
        }
        match phase {
            Phase::Closed(_) => {}
            Phase::Connecting => {
                if event.writable || event.readable {
                    self.finish_connect(slot);
                }
            }
            Phase::Securing => self.secure(slot),
            _ => {
                if event.writable {
                    let now_ns = self.core.sessions.timers.now_ns();
                    let session = &mut self.core.sessions[slot];
                    session.connection.handle_writable(now_ns);
                    self.core.sessions.flush(slot);
                    let sessions = &mut self.core.sessions;
                    sessions
                        .relief
                        .charge_logs_of(&sessions.table[slot], &mut sessions.logs);
                }
                if event.readable && !self.core.sessions[slot].connection.is_closed() {
                    self.read_session(slot);
                }
            }
        }
    }

    /// Begins or reads the sessions that are ready without an event. Most turns have none.
    #[inline(always)]
    fn read_ready(&mut self) {
        while let Some(slot) = self.ready.pop() {
            self.start_or_read(slot);
        }
    }

    fn start_or_read(&mut self, slot: usize) {
        let Some(session) = self.core.sessions.table.get(slot) else {
            return;
        };
        if session.connection.is_closed() {
            return;
        }
        match session.connection.phase() {
            Phase::Securing => self.secure(slot),
            Phase::Open if !session.has_begun() => self.service.announce(&mut self.core, slot),
            Phase::Authenticating => self.authenticate(slot),
            _ => self.read_session(slot),
        }
    }

    fn run_service_turn(&mut self) -> Option<u64> {
        let wake = self.service.call_turn(&mut self.core, |core, service| {
            service.on_turn(&mut core.context_without_session())
        });
        // A fresh service has its turn at once.
        match wake {
            Some(wake) => wake.map(Moment::as_ns),
            None => Some(self.core.sessions.timers.now_ns()),
        }
    }

    /// Updates the counters of allocations. It runs once a turn, so that it costs nothing per message.
    fn count_allocations(&mut self) {
        if let Some(now) = thread_allocations() {
            let before = self.allocations.replace(now).unwrap_or(now);
            let counters = &self.core.counters;
            counters.allocations.add(now.count - before.count);
            counters.allocated_bytes.add(now.bytes - before.bytes);
        }
    }

    /// Removes the closed sessions. Returns whether there was one.
    fn remove_closed(&mut self) -> bool {
        let any = self.core.sessions.table.has_closed();
        // `on_close` may close other sessions, so the list may grow meanwhile.
        while let Some(slot) = self.core.sessions.table.take_closed() {
            self.remove_session(slot);
        }
        any
    }

    fn remove_session(&mut self, slot: usize) {
        let Some(session) = self.core.sessions.table.get(slot) else {
            return;
        };
        let Some(reason) = session.connection.phase().close_reason() else {
            return;
        };
        let (announced, id) = (session.has_begun(), session.id);
        let outgoing = session.connection.handshake().is_outgoing();
        let is_upstream = session.profile.is_upstream();
        let codec = || self.core.config.codecs.get(session.codec_number()).name();
        let closing = trace::SpanGuard::close(session, codec, reason);
        if is_upstream {
            let failure = self.core.sessions.connect_failures.take(id, reason);
            handle_upstream_end(&mut self.core, id, reason, failure);
        } else if announced {
            self.service.call(&mut self.core, id, |core, service| {
                service.on_close(&mut core.context(id), reason);
            });
        } else if outgoing {
            let failure = self.core.sessions.connect_failures.take(id, reason);
            self.service.call(&mut self.core, id, |core, service| {
                service.on_connect_failed(&mut core.context(id), failure);
            });
        }
        self.core.dismantle(slot, reason);
        closing.end();
        forget_asker(&mut self.core, id);
        self.core.exchange.tell_ended(id);
        run_answers(&mut self.core);
    }

    pub(crate) fn close_all(&mut self) {
        for slot in self.core.sessions.table.slots() {
            self.core.sessions.table.close(slot, CloseReason::Shutdown);
        }
        self.remove_closed();
    }

    /// Stops a draining lane when its last session has ended or the deadline has passed.
    fn check_drained(&mut self) {
        let Some(deadline) = self.core.ending.drain_deadline_ns() else {
            return;
        };
        if self.core.sessions.timers.now_ns() >= deadline || self.core.sessions.table.is_empty() {
            self.core.ending.stop();
        }
    }
}

/// Bytes of a lane's receive buffer. 256 KiB was as fast as any larger size, and fits the second-level cache.
const RECEIVE_BYTES: usize = 256 * 1024;

/// Events taken from the kernel at once. The number is large enough that the call costs little beside the reads, and
/// small enough that due work (a sweep, a timer) does not wait for milliseconds.
const EVENTS_PER_WAIT: usize = 128;

/// Timers that fire in a turn without an allocation.
const EXPIRED_USUAL: usize = 64;

const WAKER: Token = Token(usize::MAX);
