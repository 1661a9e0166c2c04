//! Quiet logs give their memory back.
//!
//! Problem: a log keeps its buffers when all members have read them, because the next message needs them. The buffer of
//! a topic with one long message would stay as long as the topic has subscribers, and thousands of such buffers would
//! fill the memory account. Approach: a sweep that leaves a log with much memory lists the log. A slow timer looks at
//! the listed logs. A log is freed if it got no message since the last look and all subscribers have read it. So a busy
//! log keeps its buffers and allocates nothing, and a message costs nothing more.
//!
//! Rejected: freeing a log after each sweep that drains it, because each message of a fan-out would allocate. Rejected:
//! one pool of segments for all logs of a lane, because a segment would be cold in the cache where it is used next.

use std::collections::VecDeque;

use super::LaneDeliveries;
use crate::session::{LaneSessions, TimerKey};

/// The logs of a lane that hold much memory.
#[derive(Debug, Default)]
pub(super) struct QuietLogs {
    /// Their aliases. A room that has closed since stays in the list until the next look.
    aliases: VecDeque<u16>,
    /// Logs of the present round that were not looked at yet.
    round_left: usize,
}

impl LaneDeliveries<'_> {
    /// Lists a log, which ends at `end`.
    #[cold]
    #[inline(never)]
    pub(super) fn watch_log(&mut self, alias: u16, end: u64) {
        let Some(room) = self.open.get_mut(alias) else {
            return;
        };
        room.watched = Some(end);
        let quiet = &mut self.open.quiet;
        quiet.aliases.push_back(alias);
        if quiet.aliases.len() == 1 {
            self.plan_look(QUIET_NS);
        }
    }

    fn plan_look(&mut self, pause_ns: u64) {
        self.sessions
            .timers
            .set_after(pause_ns, TimerKey::QuietLogs);
    }

    /// Looks at the listed logs, and frees those that are quiet and drained. A long round is spread over several turns.
    pub(crate) fn release_quiet(&mut self) {
        if self.open.quiet.round_left == 0 {
            self.open.quiet.round_left = self.open.quiet.aliases.len();
        }
        let mut work = 0;
        while work < LOOKS_PER_TURN
            && self.open.quiet.round_left > 0
            && let Some(alias) = self.open.quiet.aliases.pop_front()
        {
            self.open.quiet.round_left -= 1;
            work += 1;
            if self.must_stay_watched(alias, &mut work) {
                self.open.quiet.aliases.push_back(alias);
            } else if let Some(room) = self.open.get_mut(alias) {
                room.watched = None;
            }
        }
        match self.open.quiet.round_left {
            0 if self.open.quiet.aliases.is_empty() => {}
            0 => self.plan_look(QUIET_NS),
            _ => self.plan_look(0),
        }
    }

    /// Looks at a log. Returns whether it must be looked at again. Adds the number of visited subscribers to `work`.
    fn must_stay_watched(&mut self, alias: u16, work: &mut usize) -> bool {
        let Some(room) = self.open.get_mut(alias) else {
            return false;
        };
        let (_, end, _) = self.sessions.logs.totals(alias);
        if room.watched.replace(end) != Some(end) {
            return true;
        }
        let LaneSessions {
            table,
            logs,
            relief,
            ..
        } = &mut *self.sessions;
        let (is_drained, looked_at) = logs.release_if_drained(alias, &room.members, table, relief);
        *work += looked_at;
        !is_drained
    }
}

/// The time without a message after which a drained log is freed, and between two looks.
const QUIET_NS: u64 = 1_000_000_000;

/// Logs and subscribers that one turn looks at: some 100 µs.
const LOOKS_PER_TURN: usize = 2_048;

#[cfg(test)]
mod tests {
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::memory::Pressure;
    use crate::server::Server;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Regression: 400 topics with one message of 31 kB each, which was read at once, brought a server with 16 MiB near
    /// its limit for as long as the subscribers stayed, and every newcomer was refused.
    #[test]
    fn messages_of_mixed_sizes_over_thousands_of_topics_that_are_read_leave_no_memory_behind() {
        const TOPICS: usize = 4_000;
        let mut limits = Limits::default();
        limits.memory.set_bytes_max(16 << 20);
        limits.topics.set_per_session_max(TOPICS);
        // The peer answers no ping.
        limits.connections.set_heartbeat(std::time::Duration::ZERO);
        let mut lane = lane(&Server::builder().limits(limits));
        let (slot, mut far) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let topics: Vec<String> = (0..TOPICS).map(|number| format!("t.{number}")).collect();
        for topic in &topics {
            lane.core
                .rooms()
                .topics()
                .subscribe(id, topic, None)
                .unwrap();
        }
        let mut bytes = vec![0; 1 << 20];
        let mut random = fastrand::Rng::with_seed(33);
        for round in 0..2 {
            for topic in &topics {
                let size = [64, 1_000, 8_000, 31_000, 60_000][random.usize(..5)];
                let nobody = crate::session::SessionId::NONE;
                let published = lane
                    .core
                    .rooms()
                    .topics()
                    .publish(nobody, topic, &vec![7; size]);
                assert_eq!(published, Ok(false), "nothing is refused");
                let mut left = size;
                lane.turn();
                while left > 0 {
                    left = left.saturating_sub(far.read(&mut bytes).unwrap());
                    lane.core.sessions[slot].connection.handle_writable(0);
                    lane.core.sessions.flush(slot);
                }
            }
            assert_eq!(lane.core.sessions.relief.refreshed(), Pressure::Normal);
            // A round of looks takes several turns.
            for step in 0..16 {
                let pause_ns = if step % 8 == 0 {
                    SECOND_NS
                } else {
                    SECOND_NS / 50
                };
                let now_ns = lane.core.sessions.timers.now_ns();
                lane.core.sessions.timers.set_time(now_ns + pause_ns);
                lane.turn();
            }
            assert!(!lane.core.sessions[slot].connection.is_closed());
            let kept = log_bytes(&lane.core.sessions);
            assert!(kept < TOPICS * 4_500 / 3, "{kept} in round {round}");
        }
        let counters = &lane.core.counters;
        assert_eq!(counters.room_offered.read(), 2 * TOPICS as u64);
        assert_eq!(counters.room_delivered.read(), 2 * TOPICS as u64);
        assert_eq!(counters.memory_refused_messages.read(), 0);
        assert!(!lane.core.sessions[slot].connection.is_closed());
    }

    fn log_bytes(sessions: &crate::session::LaneSessions) -> usize {
        (0..u16::MAX)
            .map(|alias| sessions.logs.totals(alias).2)
            .sum()
    }

    /// The author of the last message in a room stands before its own message until somebody else says something.
    #[test]
    fn a_room_whose_last_message_is_a_members_own_is_freed_and_a_busy_one_is_not() {
        let mut lane = lane(&Server::builder());
        let (writer, _near) = lane.open_session();
        let (reader, mut far) = lane.open_session();
        let core = &mut lane.core;
        let [writer, reader] = [writer, reader].map(|slot| core.sessions[slot].id);
        let room = core
            .context(writer)
            .rooms()
            .join("room", "writer")
            .unwrap()
            .room
            .0;
        core.context(reader).rooms().join("room", "reader").unwrap();
        let mut bytes = vec![0; 1 << 20];
        let mut look = |lane: &mut crate::lane::Lane<_>, says: bool| {
            if says {
                lane.core.rooms().say(writer, room, &[7; 100_000]).unwrap();
            }
            let now_ns = lane.core.sessions.timers.now_ns();
            lane.core
                .sessions
                .timers
                .set_time(now_ns + SECOND_NS + SECOND_NS / 50);
            for _ in 0..10 {
                lane.turn();
                while far.read(&mut bytes).is_ok() {}
                lane.core.sessions[reader.slot()]
                    .connection
                    .handle_writable(0);
                lane.core.sessions.flush(reader.slot());
            }
            lane.core.sessions.logs.totals(room).2
        };
        for _ in 0..5 {
            assert!(
                look(&mut lane, true) >= 100_000,
                "it had news in this second"
            );
        }
        look(&mut lane, false);
        assert_eq!(look(&mut lane, false), 0);
        assert!(look(&mut lane, true) >= 100_000);
        let counters = &lane.core.counters;
        assert_eq!(counters.room_delivered.read(), counters.room_offered.read());
    }
}
