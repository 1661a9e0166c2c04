//! The end of a lane. Messages between lanes reach their sessions before these are closed.
//!
//! Problem: a message may still be in a batch or in the queue of another lane when a drain reaches its deadline. Lanes
//! reach it one after another, so messages to a lane that has ended would be lost. Approach: a lane that ends stops
//! reading, posts its batches, notes that it is silent, and takes the messages of the others until all lanes are
//! silent. Only then it writes its outputs and closes its sessions. So every message is delivered or counted.
//!
//! A lane whose handler does not return would delay the others for ever, so they wait for a bounded time. Messages to a
//! lane that has ended are counted as `mail_undelivered`.

use std::thread;
use std::time::Duration;

use tidewire_io::clock::now_ns;

use super::Lane;
use super::errands;
use super::messages::MessageBudget;
use crate::mailbox::LaneMessage;
use crate::service::Service;

impl<S: Service> Lane<S> {
    /// Ends the lane in order. It reads no more from its sessions.
    pub(super) fn end_in_order(&mut self) {
        let mut others = Vec::new();
        let until_ns = now_ns().saturating_add(EXCHANGE_NS_MAX);
        while !self.exchange(&mut others) && now_ns() < until_ns {
            thread::sleep(EXCHANGE_PAUSE);
        }
        // From now on the mailbox refuses messages, so this takes the last ones.
        self.core.exchange.mailbox.retire();
        while let Some(message) = self.core.exchange.next_message() {
            self.handle_last_message(message, &mut others);
        }
        self.core.sessions.flush_dirty();
        self.core.rooms().deliveries().sweep_all();
        if self.core.ending.is_draining() {
            let unfinished = self.core.sessions.count_unfinished();
            self.core.counters.sessions_cut_off.add(unfinished);
        }
        self.close_all();
        errands::send();
        self.core.exchange.post_batches();
        self.core.pass_on_all(others);
    }

    /// Takes and posts the messages of this moment. Returns whether they were the last ones.
    fn exchange(&mut self, others: &mut Vec<LaneMessage>) -> bool {
        self.core.sessions.timers.read_clock();
        let mut budget = MessageBudget::default();
        while let Some(message) = budget.take(&mut self.core) {
            self.handle_last_message(message, others);
        }
        self.core.sessions.flush_dirty();
        self.core.rooms().deliveries().sweep_due();
        self.core.exchange.post_batches();
        self.remove_closed();
        errands::send();
        let core = &self.core;
        if core.exchange.has_batches() {
            return false;
        }
        core.exchange.lanes.note_silent(core.exchange.lane);
        // Other lanes have no messages for a lane without sessions.
        !core.ending.is_of_server()
            || core.sessions.table.is_empty()
            || core.exchange.lanes.are_silent()
    }

    /// Handles a message for sessions of this lane. Connections and listeners go to `others`, for other lanes.
    fn handle_last_message(&mut self, message: LaneMessage, others: &mut Vec<LaneMessage>) {
        match message {
            LaneMessage::Drain { .. } | LaneMessage::Stop => self.core.ending.note_server_ends(),
            LaneMessage::Adopt(_)
            | LaneMessage::Arrive { .. }
            | LaneMessage::Listen(_)
            | LaneMessage::Placed { .. } => others.push(message),
            message => self.handle_message(message),
        }
    }
}

/// The longest time for which a lane waits at its end for messages of the others, in nanoseconds. It is longer than any
/// turn whose handlers return.
const EXCHANGE_NS_MAX: u64 = 2_000_000_000;

/// The pause between two checks for the last messages. Most of the time the second check finds them.
const EXCHANGE_PAUSE: Duration = Duration::from_micros(100);
