//! Takes the messages of other threads once a turn. It is the only reader of the lane's mailbox.
//!
//! Messages are handled in the order in which they came. So the answers, sends and closes of a thread happen in its
//! order, and messages that it sent before a drain are sent. A turn handles a bounded number, because senders that are
//! faster than the lane would otherwise keep it from its sockets. It handles more if a message of the server or of
//! another lane waits: that message comes after all earlier ones, and should not wait for many turns.

use super::Lane;
use crate::engine::Core;
use crate::mailbox::LaneMessage;
use crate::service::{
    Service, end_idle_upstreams, handle_node_answer, handle_upstream_found, run_answers,
};
use crate::session::{CloseReason, Session};
use crate::transport::Arrival;

impl<S: Service> Lane<S> {
    /// Takes the messages of other threads, and handles as many as a turn may.
    pub(crate) fn take_messages(&mut self) {
        // The lane also takes messages if some are left from the turn before, so that it sees an urgent one.
        self.core.exchange.take_mail();
        let mut budget = MessageBudget::default();
        while let Some(message) = budget.take(&mut self.core) {
            self.handle_message(message);
        }
        self.read_ready();
    }

    pub(super) fn handle_message(&mut self, message: LaneMessage) {
        match message {
            LaneMessage::Answer(answer) => self.core.sessions.deliver_answer(answer),
            LaneMessage::Send { session, frame } => self.core.deliver_send(&session, frame),
            LaneMessage::Close { id, farewell } => {
                if let Some(slot) = self.core.sessions.table.slot_of(id) {
                    self.core
                        .sessions
                        .finish(slot, CloseReason::Service, farewell);
                }
            }
            LaneMessage::Reading { id } => self.core.deliver_reading(id),
            LaneMessage::Broadcast(share) => share.deliver(&mut self.core.sessions),
            LaneMessage::Batch(batch) => self.core.deliver_batch(batch),
            LaneMessage::Adopt(arrival) => {
                self.core.exchange.mailbox.load.remove();
                self.core.adopt(*arrival, &mut self.ready);
            }
            LaneMessage::Arrive { stream } => {
                self.core.assign(Arrival::unlisted(stream), &mut self.ready);
            }
            LaneMessage::Listen(listener) => self.core.take_over(*listener),
            LaneMessage::Authenticated(answer) => self.handle_late_answer(*answer),
            LaneMessage::UpstreamFound(found) => {
                let (number, found) = *found;
                handle_upstream_found(&mut self.core, number, found);
                run_answers(&mut self.core);
            }
            LaneMessage::AttemptTurn(turn) => {
                let slot = turn.id.slot();
                if self.core.guard().take_turn(*turn) {
                    self.open(slot);
                }
            }
            LaneMessage::PlaceFree { id } => {
                if self.core.guard().take_place(id) {
                    self.open(id.slot());
                }
            }
            LaneMessage::GiveWay {
                id,
                replaces_oldest,
                asker,
            } => {
                let Core {
                    places,
                    sessions,
                    exchange,
                    ..
                } = &mut self.core;
                places.give_way(sessions, &exchange.lanes, id, replaces_oldest, asker);
            }
            LaneMessage::StillThere { id } => {
                if !self.core.guard().note_still_there(id) {
                    self.core.rooms().joins().end_wait_for_name(id);
                }
            }
            LaneMessage::RemoteCall(call) => self.serve_remote(*call),
            LaneMessage::NodeAnswer(answer) => {
                handle_node_answer(&mut self.core, *answer);
                run_answers(&mut self.core);
            }
            LaneMessage::Inspect(inspection) => self.core.inspect(*inspection),
            LaneMessage::Reauthenticate => self.core.guard().reauthenticate(),
            LaneMessage::Placed { ticket } => self.finish_waiting(ticket),
            LaneMessage::Drain { deadline_ns } => self.drain(deadline_ns),
            LaneMessage::Stop => {
                self.core.ending.note_server_ends();
                self.core.ending.stop();
            }
        }
    }

    /// Begins the drain. Reads the bytes that came before, because the sessions still handle these requests.
    fn drain(&mut self, deadline_ns: u64) {
        if let Some(link) = self.core.exchange.lanes.link() {
            link.withdraw();
        }
        self.datagrams.read_ports(&mut self.core, &mut self.service);
        let is_open = |session: &Session| {
            session.connection.is_open() && session.has_begun() && session.connection.may_read()
        };
        let sessions = self.core.sessions.table.into_iter();
        let open: Vec<usize> = sessions
            .filter(|(_, session)| is_open(session))
            .map(|(slot, _)| slot)
            .collect();
        for slot in open {
            // A handler may have ended other sessions.
            if self.core.sessions.table.get(slot).is_some_and(is_open) {
                self.read_session(slot);
            }
        }
        self.core.drain(deadline_ns);
        end_idle_upstreams(&mut self.core);
    }
}

/// The work of a turn for messages of other threads.
#[derive(Debug, Default)]
pub(super) struct MessageBudget {
    used: usize,
}

impl MessageBudget {
    /// Takes the next message. `None` if there is none, or if this turn has done enough work.
    #[inline]
    pub(super) fn take(&mut self, core: &mut Core) -> Option<LaneMessage> {
        let has_urgent = core.exchange.has_urgent();
        if self.used >= WORK_PER_TURN && (self.used >= WORK_PER_TURN_MAX || !has_urgent) {
            return None;
        }
        let message = core.exchange.next_message()?;
        self.used += match &message {
            // A broadcast checks every session. A check costs a fraction of a send.
            LaneMessage::Broadcast(_) => 1 + core.sessions.table.len() / SESSIONS_PER_WORK,
            LaneMessage::Inspect(_) => INSPECTION_WORK,
            LaneMessage::Batch(batch) => 1 + batch.len() / BATCH_BYTES_PER_WORK,
            _ => 1,
        };
        Some(message)
    }
}

/// Messages handled in one turn. The number is large enough that the rest of the turn costs little in comparison, and
/// small enough that sockets wait for less than a millisecond.
const WORK_PER_TURN: usize = 4096;

/// Messages handled in one turn while a message of the server or of another lane waits. Sockets wait for a few
/// milliseconds.
const WORK_PER_TURN_MAX: usize = 8 * WORK_PER_TURN;

/// Sessions that a broadcast checks in the time of a send.
const SESSIONS_PER_WORK: usize = 8;

/// Sends that take as long as an answer about the lane.
const INSPECTION_WORK: usize = 512;

/// Bytes of a batch that are delivered in the time of a send. A mailbox full of batches is then about a turn's work.
const BATCH_BYTES_PER_WORK: usize = 512;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::lane::lane;
    use crate::mailbox::BatchEntry;
    use crate::server::Server;

    /// Regression: batches overtook messages that were sent before them, because they came by another queue.
    #[test]
    fn messages_of_all_kinds_keep_the_order_of_their_sender() {
        let mut lane = lane(&Server::builder());
        let (slot, mut far) = lane.open_session();
        let session = lane.core.sessions[slot].profile.shared.clone().unwrap();
        let id = session.id;
        let send = |frame: &[u8]| {
            let (session, frame) = (Arc::clone(&session), frame.to_vec());
            assert!(session.reserve(frame.len() + LaneMessage::OVERHEAD_BYTES, usize::MAX));
            LaneMessage::Send { session, frame }
        };
        let mut batch = Vec::new();
        let frame = b"second ";
        BatchEntry::Session { id, frame }.encode(&mut batch);
        for message in [
            send(b"first "),
            LaneMessage::Batch(batch),
            send(b"third"),
            LaneMessage::Close { id, farewell: None },
        ] {
            assert!(lane.core.exchange.mailbox.post(message).is_ok());
        }
        lane.turn();
        let mut received = [0; 100];
        let count = far.read(&mut received).unwrap();
        assert!(received[..count].starts_with(b"first second third"));
        assert_eq!(far.read(&mut received).unwrap(), 0, "and then the end");
    }

    /// Sends a message without a body. Its session counts it as taken.
    fn send(lane: &Lane<impl Service>, slot: usize) {
        let session = lane.core.sessions[slot].profile.shared.clone().unwrap();
        assert!(session.reserve(LaneMessage::OVERHEAD_BYTES, usize::MAX));
        let frame = Vec::new();
        let message = LaneMessage::Send { session, frame };
        assert!(lane.core.exchange.mailbox.post(message).is_ok());
    }

    #[test]
    fn a_turn_takes_a_bounded_number_of_messages() {
        let mut lane = lane(&Server::builder());
        let (slot, _far) = lane.open_session();
        for _ in 0..2 * WORK_PER_TURN + 1 {
            send(&lane, slot);
        }
        for taken in [WORK_PER_TURN, 2 * WORK_PER_TURN, 2 * WORK_PER_TURN + 1] {
            assert!(lane.core.exchange.has_messages());
            lane.take_messages();
            assert_eq!(lane.core.counters.sends_taken.read(), taken as u64);
        }
        assert!(!lane.core.exchange.has_messages());
    }

    /// Batches after a flood must stay in the mailbox. Taken early, they would pile up here without a bound.
    #[test]
    fn batches_after_a_flood_fill_the_mailbox() {
        let mut lane = lane(&Server::builder());
        let (slot, _far) = lane.open_session();
        for _ in 0..4 * WORK_PER_TURN_MAX {
            send(&lane, slot);
        }
        let post = |lane: &Lane<_>| {
            let batch = LaneMessage::Batch(vec![0; 1 << 20]);
            lane.core.exchange.mailbox.post(batch).is_ok()
        };
        let mut posted = 0;
        for _ in 0..3 {
            while post(&lane) {
                posted += 1;
            }
            lane.take_messages();
        }
        assert_eq!(posted, 4, "two taken, and two in the mailbox");
        while lane.core.exchange.has_messages() {
            lane.take_messages();
        }
        assert!(post(&lane));
    }

    #[test]
    fn a_drain_after_a_flood_is_not_delayed_by_many_turns() {
        let mut lane = lane(&Server::builder());
        let (slot, _far) = lane.open_session();
        let flood = 2 * WORK_PER_TURN_MAX;
        for _ in 0..flood {
            send(&lane, slot);
        }
        let mailbox = Arc::clone(&lane.core.exchange.mailbox);
        let deadline_ns = u64::MAX;
        mailbox.post(LaneMessage::Drain { deadline_ns }).unwrap();
        for _ in 0..WORK_PER_TURN {
            send(&lane, slot);
        }
        for _ in 0..2 {
            assert!(!lane.core.ending.is_draining());
            lane.take_messages();
        }
        assert_eq!(lane.core.counters.sends_taken.read(), flood as u64);
        lane.take_messages();
        assert_eq!(lane.core.ending.drain_deadline_ns(), Some(deadline_ns));
        lane.take_messages();
        let taken = lane.core.counters.sends_taken.read();
        let lost = lane.core.counters.sends_undelivered.read();
        assert_eq!(taken + lost, (flood + WORK_PER_TURN) as u64);
        assert!(!lane.core.exchange.has_messages());
    }

    /// Regression: at its end a lane took only a bounded number of messages, and counted the rest as undelivered.
    #[test]
    fn a_lane_that_ends_takes_all_that_was_posted_before() {
        let mut lane = lane(&Server::builder());
        let (slot, _far) = lane.open_session();
        let posted = 3 * WORK_PER_TURN;
        for _ in 0..posted {
            send(&lane, slot);
        }
        lane.core.ending.note_server_ends();
        lane.core.ending.stop();
        lane.end_in_order();
        assert_eq!(lane.core.counters.sends_taken.read(), posted as u64);
        assert_eq!(lane.core.counters.sends_undelivered.read(), 0);
    }
}
