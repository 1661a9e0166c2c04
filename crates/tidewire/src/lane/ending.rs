//! The end of a lane: what lanes have for each other reaches the sessions before these are closed.
//!
//! A message that its publisher knows to be passed on may still be in a batch or in the queue of another lane when a drain
//! reaches its deadline. Lanes reach it one after another, and what came to one that had ended was lost. So a lane that
//! ends reads no more, posts what it has, says that it is silent, and takes what the others post until all of them are
//! silent. Only then it writes what it has and closes its sessions, so that every message is delivered or counted.
//!
//! A lane whose handler does not return would hold the others up for ever, so they wait for it for a bounded time. What a
//! lane that has ended is still sent is counted as `mail_undelivered`.

use std::thread;
use std::time::Duration;

use tidewire_io::clock::now_ns;

use super::Lane;
use crate::mailbox::LaneMessage;
use crate::service::Service;

impl<S: Service> Lane<S> {
    /// Ends the lane in order. Nothing is read any more.
    pub(super) fn end(&mut self) {
        let mut others = Vec::new();
        let until_ns = now_ns().saturating_add(EXCHANGE_NS_MAX);
        while !self.exchange(&mut others) && now_ns() < until_ns {
            thread::sleep(EXCHANGE_PAUSE);
        }
        // From now on whoever posts counts it, so the next look is the last one.
        self.core.exchange.mailbox.retire();
        while let Some(message) = self.core.take_message() {
            self.handle_last_message(message, &mut others);
        }
        self.core.sessions.flush_dirty();
        self.core.rooms().sweep_all();
        if self.core.ending.drain_deadline_ns.is_some() {
            let owed = self.core.sessions.count_owed();
            self.core.counters.sessions_cut_off.add(owed);
        }
        self.close_all();
        self.core.exchange.post_batches();
        self.core.pass_on_all(others);
    }

    /// Takes and posts what there is. Returns whether that was the last of it.
    fn exchange(&mut self, others: &mut Vec<LaneMessage>) -> bool {
        self.core.sessions.reactor.read_clock();
        let mut work = 0;
        while let Some(message) = self.next_message(&mut work) {
            self.handle_last_message(message, others);
        }
        self.core.sessions.flush_dirty();
        self.core.rooms().sweep_due();
        self.core.exchange.post_batches();
        self.remove_closed();
        let core = &self.core;
        if core.exchange.has_batches() {
            return false;
        }
        core.exchange.lanes.silent.note(core.exchange.lane);
        let lanes = core.exchange.lanes.get().map_or(0, Vec::len);
        // A lane without sessions has nobody whom the others could have something for.
        !core.ending.server_ends
            || core.sessions.is_empty()
            || core.exchange.lanes.silent.are_all(lanes)
    }

    /// Handles a message for sessions of this lane. What is not one is put aside for other lanes.
    fn handle_last_message(&mut self, message: LaneMessage, others: &mut Vec<LaneMessage>) {
        match message {
            LaneMessage::Drain { .. } | LaneMessage::Stop => self.core.ending.server_ends = true,
            LaneMessage::Adopt(_)
            | LaneMessage::Arrive { .. }
            | LaneMessage::Listen(_)
            | LaneMessage::Placed { .. } => others.push(message),
            message => self.handle_message(message),
        }
    }
}

/// How long a lane waits at its end for what others have for it, in nanoseconds. Longer than any turn but that of a handler
/// that does not return.
const EXCHANGE_NS_MAX: u64 = 2_000_000_000;

/// How long a lane sleeps between two looks for the last messages. Most of the time the second look finds it.
const EXCHANGE_PAUSE: Duration = Duration::from_micros(100);
