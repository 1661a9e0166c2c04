//! A slow timer removes messages that are older than the age of their history.
//!
//! A message, a join and a subscription remove expired messages of their own history. A silent history would keep its
//! messages for ever. So a slow timer visits all histories, in small parts.
//!
//! Rejected: a timer for each history, because most histories get messages all the time, and a server has many.

use super::LaneHistories;
use crate::history::History;
use crate::session::TimerKey;

impl LaneHistories<'_> {
    /// Lets the histories with these limits expire. The first lane that asks does it for the whole server.
    pub(super) fn plan_expiry(&mut self, limits: &History) {
        if limits.age_max.is_some() && self.open.directory().histories().begin_expiry() {
            self.plan_next_expiry(PAUSE_NS);
        }
    }

    fn plan_next_expiry(&mut self, pause_ns: u64) {
        self.sessions
            .timers
            .set_after(pause_ns, TimerKey::Histories);
    }

    /// Removes what has expired in the next part of the histories.
    pub(crate) fn expire(&mut self) {
        let now_ns = self.sessions.timers.now_ns();
        let histories = self.open.directory().histories();
        let count = histories.expire_next(HISTORIES_PER_TURN, now_ns);
        let turns = (count / HISTORIES_PER_TURN + 1) as u64;
        self.plan_next_expiry((ROUND_NS / turns).min(PAUSE_NS));
    }
}

/// The longest pause between two parts.
const PAUSE_NS: u64 = 1_000_000_000;

/// The time in which all histories are visited.
const ROUND_NS: u64 = 8_000_000_000;

/// Histories that one turn visits: some 50 µs.
const HISTORIES_PER_TURN: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::history::HistoryPattern;
    use crate::lane::lane;
    use crate::server::Server;
    use crate::session::SessionId;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Regression: messages of silent topics stayed in memory for ever, whatever their age.
    #[test]
    fn what_expires_in_a_silent_history_is_freed_and_the_rest_stays() {
        const TOPICS: usize = 1_000;
        let limits = History {
            age_max: Some(Duration::from_secs(20)),
            ..History::default()
        };
        let mut lane = lane(&Server::builder());
        let rules = vec![HistoryPattern::new(">", limits)];
        lane.core.rooms().histories().keep_topics(rules);
        let start_ns = lane.core.sessions.timers.now_ns();
        let held = |lane: &crate::lane::Lane<_>| -> usize {
            lane.core
                .rooms
                .open()
                .directory()
                .histories()
                .held_by_topics()
        };
        let go_to = |lane: &mut crate::lane::Lane<_>, seconds: u64| {
            while lane.core.sessions.timers.now_ns() < start_ns + seconds * SECOND_NS {
                let next_ns = lane.core.sessions.timers.now_ns() + SECOND_NS / 2;
                lane.core.sessions.timers.set_time(next_ns);
                lane.turn();
            }
        };
        let publish = |lane: &mut crate::lane::Lane<_>, numbers: std::ops::Range<usize>| {
            for number in numbers {
                let topic = format!("t.{number}");
                let mut rooms = lane.core.rooms();
                rooms
                    .topics()
                    .publish(SessionId::NONE, &topic, &[7; 200])
                    .unwrap();
            }
        };
        publish(&mut lane, 0..TOPICS);
        let full = held(&lane);
        assert!(full >= TOPICS * 200);
        go_to(&mut lane, 15);
        assert_eq!(held(&lane), full);
        publish(&mut lane, 0..10);
        go_to(&mut lane, 31);
        let left = held(&lane);
        assert!((10 * 200..full / 20).contains(&left), "{left}");
        go_to(&mut lane, 45);
        assert_eq!(held(&lane), 0);
        assert_eq!(lane.core.counters.published.read(), TOPICS as u64 + 10);
    }
}
