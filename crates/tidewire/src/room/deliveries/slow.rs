//! Slow subscribers, and the publishers that a blocking room pauses for them.
//!
//! A policy applies when a sweep finds a subscriber's socket full. So it never applies to a subscriber that keeps up. A
//! `block` subscriber marks the room as congested, for all lanes. Publishers check the mark when they send a message,
//! and a publisher that finds it set is not read until it is cleared. The lane of the subscriber clears the mark when
//! the subscriber has caught up or its time is over. Rejected: a message to each publisher's lane. It would arrive a
//! turn late, and publishers may leave meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tidewire_io::timer::TimerId;
use tidewire_proto::connection::{Inbound, PauseReason};
use tidewire_proto::room::Policy;

use super::{LaneDeliveries, OpenRooms, Room};
use crate::limits::nanoseconds;
use crate::room::SharedRoom;
use crate::session::{CloseReason, Session, SessionId, SlowSubscriber, TimerKey};

/// The rooms that block for slow subscribers, and the publishers that wait for them.
#[derive(Debug, Default)]
pub(super) struct SlowMembers {
    /// Publishers that are paused because a room blocks for a slow subscriber.
    held: Vec<(SessionId, Arc<SharedRoom>)>,
    /// Rooms in which a subscriber of this lane blocks the publishers, each with the timer that ends the block.
    blocked: HashMap<u16, TimerId>,
    /// Subscriptions in queue groups that had unsent messages at the last look.
    behind: VecDeque<u16>,
}

impl OpenRooms {
    /// Whether a room has paused publishers of this lane.
    pub(crate) fn holds_publishers(&self) -> bool {
        !self.slow.held.is_empty()
    }

    /// Whether rooms block here, publishers wait for rooms, or members of queue groups have unsent messages. Every turn
    /// asks.
    #[inline(always)]
    pub(in crate::room) fn has_slow(&self) -> bool {
        !self.slow.held.is_empty() || !self.slow.blocked.is_empty() || !self.slow.behind.is_empty()
    }
}

impl LaneDeliveries<'_> {
    /// Applies the policy to a subscriber whose socket is full.
    pub(super) fn enforce(&mut self, slot: usize, alias: u16) {
        match self.sessions.enforce_policy(slot, alias) {
            SlowSubscriber::Served => {}
            SlowSubscriber::Disconnect { behind } => {
                let session = &self.sessions[slot];
                let what = "slow subscriber disconnected";
                warn_of_slow(session, self.open, alias, Some(behind), what);
                self.sessions.table.close(slot, CloseReason::SlowSubscriber);
            }
            SlowSubscriber::Block => self.begin_block(alias),
        }
    }

    fn begin_block(&mut self, alias: u16) {
        let time_ns = nanoseconds(self.sessions.config.limits.rooms.block_deadline());
        let deadline_ns = self.sessions.timers.now_ns().saturating_add(time_ns);
        if let Some(room) = self.open.get(alias)
            && !self.open.slow.blocked.contains_key(&alias)
        {
            room.shared.set_congested(self.exchange.lane(), true);
            let timers = &mut self.sessions.timers;
            let timer = timers.set(deadline_ns, TimerKey::BlockedRoom(alias));
            self.open.slow.blocked.insert(alias, timer);
        }
    }

    /// Handles the deadline of a blocking room: members that are still over the limits are disconnected.
    pub(crate) fn end_block(&mut self, alias: u16) {
        let Some(room) = self.open.get(alias) else {
            return;
        };
        let over = |slot: &usize| self.is_blocking(room, *slot);
        let slots: Vec<usize> = room.members.iter().copied().filter(over).collect();
        for slot in slots {
            warn_of_slow(
                &self.sessions[slot],
                self.open,
                alias,
                None,
                "blocking subscriber disconnected",
            );
            self.sessions.table.close(slot, CloseReason::SlowSubscriber);
        }
        self.unblock(alias);
    }

    /// Whether this member's socket is full and its unsent part of the room's log exceeds the limits.
    fn is_blocking(&self, room: &Room, slot: usize) -> bool {
        let limits = self.sessions.config.limits.rooms.lag();
        let session = &self.sessions[slot];
        let alias = room.shared.alias();
        session.connection.output().state().is_blocked()
            && session.membership(alias).is_some_and(|index| {
                let membership = &session.memberships[index];
                let Some(log) = self.sessions.logs.get(membership.log()) else {
                    return false;
                };
                let subscriber = &membership.subscriber;
                let is_over = subscriber.bytes_behind(log) > limits.bytes_max
                    || subscriber.messages_behind(log) > limits.messages_max;
                is_over && subscriber.policy() == Policy::Block
            })
    }

    pub(super) fn unblock(&mut self, alias: u16) {
        if let Some(timer) = self.open.slow.blocked.remove(&alias) {
            // The old timer would end the next block of the room too early.
            self.sessions.timers.cancel(timer);
            if let Some(shared) = self.open.shared(alias) {
                shared.set_congested(self.exchange.lane(), false);
            }
        }
    }

    /// Ends the blocks of rooms whose subscribers have caught up. The publishers may be on other lanes, so this does
    /// not depend on a paused publisher here.
    fn unblock_cleared(&mut self) {
        let is_clear = |alias: &u16| {
            let room = self.open.get(*alias);
            room.is_none_or(|room| {
                let mut members = room.members.iter();
                !members.any(|slot| self.is_blocking(room, *slot))
            })
        };
        let blocked = self.open.slow.blocked.keys().copied();
        let clear: Vec<u16> = blocked.filter(is_clear).collect();
        clear.into_iter().for_each(|alias| self.unblock(alias));
    }

    /// Tells the publishers of all lanes how many unsent messages a subscription in a queue group has, now and after
    /// each turn until it has none.
    #[cold]
    pub(super) fn note_unsent(&mut self, alias: u16) {
        let Some(room) = self.open.get(alias) else {
            return;
        };
        let unsent_of = |slot: &usize| {
            let session = &self.sessions[*slot];
            let membership = &session.memberships[session.membership(alias)?];
            let log = self.sessions.logs.get(membership.log())?;
            Some(membership.subscriber.messages_behind(log))
        };
        let unsent = room.members.iter().filter_map(unsent_of).sum();
        room.shared.set_unsent(unsent);
        if unsent > 0
            && let Some(room) = self.open.get_mut(alias).filter(|room| !room.is_behind)
        {
            room.is_behind = true;
            self.open.slow.behind.push_back(alias);
        }
    }

    /// Pauses the reading of a publisher until the congested room is clear.
    #[cold]
    pub(in crate::room) fn hold(&mut self, slot: usize, room: &Arc<SharedRoom>) {
        let session = &mut self.sessions[slot];
        let connection = &mut session.connection;
        if connection.input().state() != Inbound::Ended
            && !connection.input().is_paused_by(PauseReason::Room)
        {
            connection.input_mut().pause(PauseReason::Room);
            self.open.slow.held.push((session.id, Arc::clone(room)));
            self.sessions.counters.publishers_held.add(1);
            self.sessions.update_interest(slot);
        }
    }

    /// Resumes paused publishers whose rooms are clear.
    #[cold]
    pub(in crate::room) fn release_held(&mut self) {
        self.unblock_cleared();
        for _ in 0..self.open.slow.behind.len().min(LOOKS_MAX) {
            if let Some(alias) = self.open.slow.behind.pop_front() {
                if let Some(room) = self.open.get_mut(alias) {
                    room.is_behind = false;
                }
                self.note_unsent(alias);
            }
        }
        let sessions = &mut *self.sessions;
        self.open.slow.held.retain(|(id, room)| {
            // The room itself may be on other lanes only, because a topic's publisher need not be its subscriber.
            if room.is_congested() {
                return true;
            }
            if let Some(slot) = sessions.table.slot_of(*id) {
                sessions.table.resume(slot, PauseReason::Room);
            }
            false
        });
    }
}

/// Logs a slow subscriber: its peer and user if they are known, the room or pattern, and how many messages and bytes of
/// the room wait for the subscriber.
fn warn_of_slow(
    session: &Session,
    open: &OpenRooms,
    alias: u16,
    behind: Option<(u64, u64)>,
    what: &str,
) {
    let peer = session.profile.peer.as_deref().map(tracing::field::display);
    let name = session
        .profile
        .member
        .as_deref()
        .map(|member| &**member.name());
    let user = session.profile.admitted.as_deref();
    let user = user.map(|admitted| admitted.identity().name());
    let shared = open.shared(alias);
    let pattern = shared.filter(|it| it.is_topic()).map(|it| &**it.name());
    let room = shared.filter(|it| !it.is_topic()).map(|it| &**it.name());
    let (messages_behind, bytes_behind) = behind.unzip();
    tracing::warn!(
        session = %session.id, peer, user, name, pattern, room, messages_behind, bytes_behind,
        "{what}"
    );
}

/// Subscriptions in queue groups that are looked at in a turn, because they had unsent messages.
const LOOKS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidewire_proto::room::Policy;

    use super::*;
    use crate::address::Endpoint;
    use crate::lane::{Lane, lane};
    use crate::limits::Limits;
    use crate::observe::logged;
    use crate::server::Server;
    use crate::service::Service;
    use tidewire_proto::connection::Phase;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Fills the subscriber's socket and sends its room more than the limits allow.
    fn stall<S: Service>(lane: &mut Lane<S>, stalled: usize, publisher: usize, alias: u16) {
        let core = &mut lane.core;
        core.sessions[stalled]
            .connection
            .output_mut()
            .handle_blocked();
        let id = core.sessions[publisher].id;
        for _ in 0..3 {
            core.rooms().say(id, alias, b"news").unwrap();
        }
        core.sessions.pass_time(SECOND_NS / 10);
        core.rooms().deliveries().sweep_due();
        assert!(is_held(lane, alias));
    }

    fn catch_up<S: Service>(lane: &mut Lane<S>, stalled: usize, alias: u16) {
        let now_ns = lane.core.sessions.timers.now_ns();
        lane.core.sessions[stalled]
            .connection
            .handle_writable(now_ns);
        lane.core.sessions.flush(stalled);
        lane.core.rooms().release_held(&mut Vec::new());
        assert!(!is_held(lane, alias));
    }

    fn is_held<S>(lane: &Lane<S>, alias: u16) -> bool {
        let open = lane.core.rooms.open();
        let is_congested = open.shared(alias).is_some_and(|it| it.is_congested());
        is_congested && open.slow.blocked.contains_key(&alias)
    }

    #[test]
    fn the_log_names_a_slow_subscriber_that_is_disconnected() {
        let mut lane = lane(&Server::builder());
        let (ada, _end) = lane.open_session();
        let id = lane.core.sessions[ada].id;
        let session = &mut lane.core.sessions[ada];
        let peer = Endpoint::Udp("192.0.2.7:4711".parse().unwrap());
        session.profile.peer = Some(Arc::new(peer));
        lane.core.rooms().join(id, "lobby", "ada", None).unwrap();
        let alias = lane.core.sessions[ada].memberships[0].room();
        let (session, table) = (&lane.core.sessions[ada], lane.core.rooms.open());
        let text = logged(|| warn_of_slow(session, table, alias, Some((3, 70)), "slow"));
        for part in [
            " WARN ",
            "192.0.2.7:4711",
            "name=\"ada\"",
            "messages_behind=3",
            "bytes_behind=70",
            "room=\"lobby\"",
        ] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
    }

    #[test]
    fn the_timer_of_a_block_that_ended_does_not_cut_the_next_one_short() {
        let mut limits = Limits::default();
        limits.rooms.set_lag_messages_max(1);
        limits.rooms.set_block_deadline(Duration::from_secs(10));
        limits.rooms.set_presence_members_max(0);
        let mut lane = lane(&Server::builder().limits(limits));
        let ((ada, _ada_end), (bob, _bob_end)) = (lane.open_session(), lane.open_session());
        let mut alias = 0;
        for (slot, name) in [(ada, "ada"), (bob, "bob")] {
            let id = lane.core.sessions[slot].id;
            let joined = lane
                .core
                .rooms()
                .join(id, "lobby", name, Some(Policy::Block));
            alias = joined.unwrap().room.0;
        }
        let started_ns = lane.core.sessions.timers.now_ns();
        stall(&mut lane, ada, bob, alias);
        catch_up(&mut lane, ada, alias);
        lane.core
            .sessions
            .timers
            .set_time(started_ns + 5 * SECOND_NS);
        stall(&mut lane, ada, bob, alias);

        lane.core
            .sessions
            .timers
            .set_time(started_ns + 12 * SECOND_NS);
        lane.handle_timers();
        assert!(is_held(&lane, alias), "the first block's deadline");
        assert_eq!(lane.core.sessions[ada].connection.phase(), Phase::Open);

        lane.core
            .sessions
            .timers
            .set_time(started_ns + 16 * SECOND_NS);
        lane.handle_timers();
        assert!(!is_held(&lane, alias), "the second block's deadline");
        let ended = Phase::Closed(CloseReason::SlowSubscriber);
        assert_eq!(lane.core.sessions[ada].connection.phase(), ended);
    }
}
