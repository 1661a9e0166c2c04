//! The heartbeats of a node, and the time until others answer them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidewire_proto::backplane::{ALIVE_ECHO, encode_alive};

use super::to_engine::ToEngine;
use super::{Subject, Wire};

/// The heartbeats of a node.
#[derive(Debug)]
pub(super) struct Heartbeats {
    interval: Duration,
    number: u64,
    /// When the next heartbeat is due; `None` before the first turn.
    due_at: Option<Instant>,
    /// Heartbeats to single nodes in the next turn.
    replies: Vec<Reply>,
    /// The latest heartbeats at which a node was asked for an answer, each with its time, by their numbers.
    pings: [Option<(u64, Instant)>; PINGS_MAX],
}

#[derive(Debug)]
struct Reply {
    to: Arc<str>,
    flags: u8,
    number: u64,
}

impl Heartbeats {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            number: 0,
            due_at: None,
            replies: Vec::new(),
            pings: [None; PINGS_MAX],
        }
    }

    /// Whether the first heartbeat was planned.
    pub(super) fn has_begun(&self) -> bool {
        self.due_at.is_some()
    }

    /// Makes the next heartbeat due.
    pub(super) fn hasten(&mut self, now: Instant) {
        self.due_at = Some(now);
    }

    pub(super) fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// Begins the next heartbeat if it is due. Returns how late it is.
    pub(super) fn begin(&mut self, now: Instant) -> Option<Duration> {
        let at = self.due_at.filter(|at| *at <= now)?;
        self.due_at = Some(now + self.interval);
        self.number += 1;
        Some(now.saturating_duration_since(at))
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Sends the last heartbeat with these flags. Returns whether it went out.
    pub(super) fn send(
        &self,
        flags: u8,
        to: Subject<'_>,
        engine: &ToEngine,
        wire: &mut dyn Wire,
    ) -> bool {
        let mut packet = Vec::new();
        encode_alive(engine.me(), flags, self.number, &mut packet);
        engine.publish(to, &packet, wire)
    }

    /// Asks a node in the next turn to answer this heartbeat.
    pub(super) fn ping(&mut self, node: Arc<str>, now: Instant) {
        let number = self.number;
        self.pings[number as usize % PINGS_MAX] = Some((number, now));
        self.reply_later(node, ALIVE_ECHO, number);
    }

    /// Returns the time since a node was asked to answer the heartbeat with this number.
    pub(super) fn time_since_ping(&self, number: u64, now: Instant) -> Option<Duration> {
        let (asked, at) = self.pings[number as usize % PINGS_MAX]?;
        (asked == number).then(|| now.saturating_duration_since(at))
    }

    /// Sends a node a heartbeat with this number in the next turn.
    pub(super) fn reply_later(&mut self, to: Arc<str>, flags: u8, number: u64) {
        self.replies.push(Reply { to, flags, number });
    }

    /// Sends the heartbeats to single nodes. A node that still claims its id sends only those to a namesake.
    pub(super) fn send_replies(
        &mut self,
        is_claiming: bool,
        engine: &ToEngine,
        wire: &mut dyn Wire,
    ) {
        for Reply { to, flags, number } in std::mem::take(&mut self.replies) {
            let mut packet = Vec::new();
            encode_alive(engine.me(), flags, number, &mut packet);
            if !is_claiming || *to == *engine.me().node {
                // A lost answer is followed by the next one.
                let _ = engine.publish(Subject::Node(&to), &packet, wire);
            }
        }
    }
}

/// Heartbeats whose answers are timed. An answer that takes more heartbeats is ignored.
const PINGS_MAX: usize = 8;
