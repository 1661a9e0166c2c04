//! Ends what stays silent: handshakes, half frames, idle sessions. Wakes paused listeners and blocked rooms.
//!
//! A session has one timer. It is not moved when bytes come; when it fires it looks how long the session has
//! been silent and sleeps again for the rest. So timeouts cost nothing per message.
//!
//! A frame has a time for the whole of it, which grows with what has come. Rejected: a limit on the silence within a frame,
//! under which a byte every few seconds keeps a place for days; and a time that does not grow, in which a long frame on a
//! slow network cannot come at all.

use tidewire_io::poller::{Interest, Token};
use tidewire_proto::body::GoAwayCode;
use tidewire_proto::codec::{Codec, Decoded};
use tidewire_proto::message::{Kind, Message};

use super::accept::Arrival;
use super::core::listener_token;
use super::mailbox::Post;
use super::{Core, Lane};
use crate::limits::nanoseconds;
use crate::service::Service;
use crate::session::{CloseReason, Session, SessionId, State};
use crate::transport::inproc::InprocConnectError;

/// What a timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimerKey {
    /// Look at how long this session has been silent.
    Session(SessionId),
    /// Accept again.
    Listener(usize),
    /// The slow subscribers of this room had their time.
    BlockedRoom(u16),
}

impl<S: Service> Lane<S> {
    pub(crate) fn handle_timers(&mut self) {
        let mut expired = std::mem::take(&mut self.core.expired);
        self.core.timers.advance(self.core.now_ns, &mut expired);
        for key in expired.drain(..) {
            match key {
                TimerKey::Session(id) => self.core.check_session(id),
                TimerKey::Listener(index) => self.core.resume_listener(index),
                TimerKey::BlockedRoom(alias) => self.core.end_block(alias),
            }
        }
        self.core.expired = expired;
    }

    /// Takes what other threads left.
    pub(crate) fn take_mail(&mut self) {
        while let Some(post) = self.core.handle.take() {
            match post {
                Post::Adopt(arrival) => self.core.adopt(arrival, &mut self.ready),
                Post::Arrive { stream } => {
                    let (peer, listener) = (None, None);
                    let arrival = Arrival {
                        stream,
                        peer,
                        listener,
                    };
                    self.core.place(arrival, &mut self.ready);
                }
                Post::Listen(listener) => self.core.take_over(*listener),
                Post::Placed { ticket } => self.finish_waiting(ticket),
                Post::Batch(batch) => self.core.deliver_batch(batch),
                Post::Drain { deadline_ns } => {
                    self.read_what_came();
                    self.core.drain(deadline_ns);
                }
                Post::Stop => {
                    self.core.server_ends = true;
                    self.core.stop = true;
                }
            }
        }
        self.core.take_letters();
        while let Some(slot) = self.ready.pop() {
            self.start_or_read(slot);
        }
    }

    /// Reads what has come for sessions that are about to end: it is not new, and still theirs.
    fn read_what_came(&mut self) {
        self.receive_at_ports();
        let is_open = |session: &Session| session.state == State::Open && session.announced;
        let sessions = self.core.sessions.iter();
        let open: Vec<usize> = sessions
            .filter(|(_, session)| is_open(session) && !session.paused && session.finish.is_none())
            .map(|(slot, _)| slot)
            .collect();
        for slot in open {
            // A handler may have ended others.
            if self.core.sessions.get(slot).is_some_and(is_open) {
                self.read_session(slot);
            }
        }
    }
}

impl Core {
    /// Looks at a session again when the first of its limits can be reached.
    pub(crate) fn arm_timer(&mut self, slot: usize) {
        let session = &self.sessions[slot];
        let limits = &self.shared.limits;
        let delay_ns = match session.state {
            State::AwaitWelcome if session.stream.datagram().is_some() => self.next_hello_ns(slot),
            State::Connecting | State::AwaitHello | State::AwaitWelcome => {
                nanoseconds(limits.handshake_timeout)
            }
            State::Draining if session.stream.datagram().is_some() => {
                nanoseconds(limits.handshake_timeout)
            }
            _ => {
                let silent_ns = self.now_ns.saturating_sub(session.last_input_ns);
                let heartbeat_ns = match self.heartbeat_ns() {
                    at if silent_ns < at => at - silent_ns,
                    again => again,
                };
                // A frame that begins meanwhile is late only after the whole time for one.
                let frame_ns = match session.frame_deadline_ns(limits) {
                    Some(deadline_ns) => deadline_ns.saturating_sub(self.now_ns),
                    None => nanoseconds(limits.frame_timeout),
                };
                let idle_ns = match self.idle_ns(session) {
                    // The silence is our own doing.
                    limit if session.paused_by_service => limit,
                    limit => limit.saturating_sub(silent_ns),
                };
                let login_ns = session
                    .login_deadline_ns
                    .map_or(u64::MAX, |at| at.saturating_sub(self.now_ns));
                heartbeat_ns.min(frame_ns).min(idle_ns).min(login_ns)
            }
        };
        let deadline_ns = self.now_ns.saturating_add(delay_ns);
        let timer = self
            .timers
            .insert(deadline_ns, TimerKey::Session(session.id));
        if let Some(former) = self.sessions[slot].timer.replace(timer) {
            self.timers.cancel(former);
        }
    }

    /// How long a client over UDP waits before it says hello again, or gives up.
    fn next_hello_ns(&self, slot: usize) -> u64 {
        self.sessions[slot].stream.datagram().map_or(0, |peer| {
            let left_ns = peer.hello_deadline_ns.saturating_sub(self.now_ns);
            peer.hello_pause_ns.min(left_ns)
        })
    }

    /// The silence that ends an established session.
    fn long_idle_ns(&self) -> u64 {
        let limits = &self.shared.limits;
        nanoseconds(if self.shared.codec.has_handshake() {
            limits.idle_timeout
        } else {
            limits.idle_timeout_without_heartbeat
        })
    }

    /// The silence that ends this session.
    fn idle_ns(&self, session: &Session) -> u64 {
        let idle_ns = self.long_idle_ns();
        if session.is_unvalidated() && session.unanswered_count() == 0 {
            idle_ns.min(nanoseconds(self.shared.limits.unvalidated_timeout))
        } else {
            idle_ns
        }
    }

    /// The silence after which a ping is sent; for ever where there are none.
    fn heartbeat_ns(&self) -> u64 {
        match nanoseconds(self.shared.limits.heartbeat) {
            0 => u64::MAX,
            _ if !self.shared.codec.has_handshake() => u64::MAX,
            heartbeat_ns => heartbeat_ns,
        }
    }

    fn check_session(&mut self, id: SessionId) {
        let Some(slot) = self.slot_of(id) else { return };
        let idle_ns = self.idle_ns(&self.sessions[slot]);
        let (long_idle_ns, heartbeat_ns) = (self.long_idle_ns(), self.heartbeat_ns());
        let now_ns = self.now_ns;
        let session = &mut self.sessions[slot];
        session.timer = None;
        let is_past = |deadline_ns: Option<u64>| deadline_ns.is_some_and(|at| at <= now_ns);
        let is_frame_late = is_past(session.frame_deadline_ns(&self.shared.limits));
        let silent_ns = self.now_ns.saturating_sub(session.last_input_ns);
        match session.state {
            State::AwaitWelcome
                if session
                    .stream
                    .datagram()
                    .is_some_and(|peer| peer.hello_deadline_ns > self.now_ns) =>
            {
                if let Some(peer) = session.stream.datagram_mut() {
                    peer.lengthen_hello_pause();
                }
                self.counters.hellos_repeated.add(1);
                self.repeat_hello(slot);
                return self.arm_timer(slot);
            }
            State::Draining
                if session.stream.datagram().is_some()
                    && silent_ns >= nanoseconds(self.shared.limits.handshake_timeout) =>
            {
                return self.close(slot, self.end_reason(slot));
            }
            State::Connecting | State::AwaitHello | State::AwaitWelcome => {
                if let Some(name) = session.stream.awaited() {
                    let name = name.clone();
                    let failure = InprocConnectError::WaitedInVain { name };
                    self.connect_failures.push((id, failure.into()));
                }
                return self.close(slot, CloseReason::HandshakeTimeout);
            }
            _ if silent_ns >= long_idle_ns && !session.paused_by_service => {
                return self.close(slot, CloseReason::IdleTimeout);
            }
            _ if silent_ns >= idle_ns && !session.paused_by_service => {
                return self.close(slot, CloseReason::Unvalidated);
            }
            _ if is_frame_late => return self.close(slot, CloseReason::FrameTimeout),
            _ if is_past(session.login_deadline_ns) => {
                return self.close(slot, CloseReason::HandshakeTimeout);
            }
            _ => {}
        }
        if silent_ns >= heartbeat_ns && session.state == State::Open && !session.blocked {
            let ping = Message::new(Kind::Ping, 0, &[]);
            if let Err(error) = self.send_to(id, |codec, out| codec.encode(&ping, out)) {
                tracing::debug!(session = %id, %error, "cannot send a ping");
            }
        }
        self.arm_timer(slot);
    }

    /// Stops accepting for a moment. Without this a listener that cannot be served would be reported ready
    /// for ever and use up the lane.
    pub(crate) fn pause_listener(&mut self, index: usize) {
        self.watch_listener(index, Interest::NONE);
        self.timers
            .insert(self.now_ns + ACCEPT_PAUSE_NS, TimerKey::Listener(index));
    }

    fn resume_listener(&mut self, index: usize) {
        self.watch_listener(index, Interest::READ);
    }

    fn watch_listener(&mut self, index: usize, interest: Interest) {
        let Some(listener) = self.listeners.get(index) else {
            return;
        };
        let token: Token = listener_token(index);
        if let Err(error) =
            self.poller
                .modify(std::os::fd::AsFd::as_fd(&listener.socket), token, interest)
        {
            tracing::error!(%error, "cannot change how a listener is watched");
        }
    }

    /// Begins to end: no new connections, every peer is told, and whoever is done is let go.
    fn drain(&mut self, deadline_ns: u64) {
        if self.drain_deadline_ns.is_some() {
            return;
        }
        self.drain_deadline_ns = Some(deadline_ns);
        self.server_ends = true;
        for listener in std::mem::take(&mut self.listeners) {
            if let Err(error) = self
                .poller
                .remove(std::os::fd::AsFd::as_fd(&listener.socket))
            {
                tracing::error!(%error, "cannot stop watching a listener");
            }
        }
        let handshake = self.shared.codec.has_handshake();
        let slots: Vec<usize> = self.sessions.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            match self.sessions[slot].state {
                // A peer that we connected to needs no word from us: our end of stream says it all.
                State::Open if handshake && !self.sessions[slot].outgoing => {
                    self.tell_going(slot, GoAwayCode::Shutdown, "the server is shutting down");
                    self.sessions[slot].refuse_new_work();
                    self.mark_dirty(slot);
                }
                State::Open if self.sessions[slot].stream.datagram().is_some() && !handshake => {
                    // Its peer need not know that it should answer our end with its own; ours says it all.
                    self.sessions[slot].going_told = true;
                    self.finish(slot, CloseReason::Shutdown);
                }
                State::Open => {
                    // What has arrived is read and answered before our side ends.
                    self.sessions[slot].half_close = true;
                    if !self.sessions[slot].paused {
                        self.resumed.push(slot);
                    }
                    self.mark_dirty(slot);
                }
                _ => self.close(slot, CloseReason::Shutdown),
            }
        }
    }

    /// How many sessions wait for something: output, answers, messages of rooms, or to be heard. It looks at all there is
    /// to know of each, which is for the end of a drain.
    pub(super) fn count_owed(&self) -> u64 {
        let mut owed = 0;
        for (_, session) in &self.sessions {
            let is_owed = session.blocked
                || !session.output.is_empty()
                || session.unanswered_count() > 0
                || self.is_behind(session)
                || self.holds_frames(session);
            owed += u64::from(is_owed);
        }
        owed
    }

    /// Whether one of its rooms or subscriptions has messages for it that no sweep has written. Once our side has ended,
    /// what comes is dropped, and counted as that.
    fn is_behind(&self, session: &Session) -> bool {
        takes_part(session)
            && session.memberships.iter().any(|membership| {
                let room = self.rooms.get(usize::from(membership.room));
                let room = room.and_then(Option::as_ref);
                room.is_some_and(|room| membership.subscriber.messages_behind(&room.log) > 0)
            })
    }

    /// Whether it said something whole that was read, but not handled, because reading it paused.
    fn holds_frames(&self, session: &Session) -> bool {
        takes_part(session) && session.backlog && {
            let codec = self.input_codec(session.id.slot());
            let first = codec.decode(&session.tail, self.shared.limits.frame_bytes_max);
            matches!(first, Ok(Decoded::Frame { .. }))
        }
    }
}

/// Whether what is said to a session can still arrive.
fn takes_part(session: &Session) -> bool {
    session.state == State::Open && !session.write_failed
}

/// How long accepting rests after a failure such as exhausted descriptors.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewire_io::poller::Event;

    use super::*;
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::metrics::DropReason;
    use crate::server::Server;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn a_slow_subscriber_is_not_idle_while_it_takes_bytes() {
        let limits = Limits {
            idle_timeout: Duration::from_secs(60),
            heartbeat: Duration::ZERO,
            ..Limits::default()
        };
        let mut lane = lane(&Server::builder().limits(limits));
        let (slot, mut far) = lane.open_session();
        let started_ns = lane.core.now_ns;
        lane.core.sessions[slot].output.bytes = vec![0; 8 << 20];
        lane.core.mark_dirty(slot);
        lane.core.flush_dirty();
        assert!(
            lane.core.sessions[slot].blocked,
            "more than the socket takes"
        );

        let mut at_ns = started_ns;
        let mut buffer = vec![0; 1 << 20];
        for _ in 0..3 {
            // It never says anything, but within every timeout it takes some of what it is sent.
            at_ns += 50 * SECOND_NS;
            lane.core.now_ns = at_ns;
            assert!(far.read(&mut buffer).unwrap() > 0);
            let event = Event {
                token: Token(slot),
                readable: false,
                writable: true,
            };
            lane.handle_session_event(slot, event);
            lane.core.now_ns = at_ns + 30 * SECOND_NS;
            lane.handle_timers();
            assert_eq!(lane.core.sessions[slot].state, State::Open);
        }
        lane.core.now_ns = at_ns + 61 * SECOND_NS;
        lane.handle_timers();
        let ended = State::Closed(CloseReason::IdleTimeout);
        assert_eq!(lane.core.sessions[slot].state, ended, "it took no more");
    }

    #[test]
    fn a_drain_cuts_off_who_was_not_swept_to_and_who_was_not_heard() {
        let limits = Limits {
            queue_bytes_max: 0,
            presence_members_max: 0,
            ..Limits::default()
        };
        let mut lane = lane(&Server::builder().limits(limits));
        let ((ada, mut ada_end), (bob, mut bob_end)) = (lane.open_session(), lane.open_session());
        let mut alias = 0;
        for (slot, name) in [(ada, "ada"), (bob, "bob")] {
            let id = lane.core.sessions[slot].id;
            alias = lane.core.join(id, "lobby", name, None).unwrap().room;
        }
        assert_eq!(lane.core.count_owed(), 0);
        lane.core
            .say(lane.core.sessions[ada].id, alias, b"news")
            .unwrap();
        assert_eq!(lane.core.count_owed(), 1, "bob, and not who said it");
        lane.core.now_ns += SECOND_NS;
        lane.core.sweep_due();
        assert_eq!(lane.core.count_owed(), 0);
        assert!(bob_end.read(&mut [0; 100]).unwrap() > 0);

        // Two questions and a half: after each answer reading pauses until the answer is gone.
        let mut questions = Vec::new();
        for id in 1..=3 {
            let question = Message::with_id(Kind::Request, 0, id, b"question");
            let codec = &lane.core.shared.codec;
            codec.encode(&question, &mut questions).unwrap();
        }
        questions.truncate(questions.len() - 4);
        assert_eq!(ada_end.write(&questions).unwrap(), questions.len());
        for owed in [1, 0] {
            lane.read_session(ada);
            lane.core.flush(ada);
            assert!(lane.core.sessions[ada].output.is_empty());
            assert!(lane.core.sessions[ada].backlog);
            assert_eq!(lane.core.count_owed(), owed);
        }

        lane.core
            .say(lane.core.sessions[ada].id, alias, b"more")
            .unwrap();
        // His socket is full, or the last sweep would write it.
        lane.core.sessions[bob].blocked = true;
        lane.core.drain_deadline_ns = Some(lane.core.now_ns);
        lane.core.server_ends = true;
        lane.check_drained();
        assert!(lane.core.stop);
        lane.end();
        assert_eq!(lane.core.counters.sessions_cut_off.read(), 1);
        let counters = &lane.core.counters;
        let lost = counters.room_dropped[DropReason::Closed as usize].read();
        assert_eq!((counters.room_delivered.read(), lost), (1, 1));
        assert_eq!(counters.room_offered.read(), 2);
    }
}
