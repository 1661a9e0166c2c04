//! A lane's turns, as its seat drives them.

use std::time::Duration;

use tidewire_io::allocation::thread_allocations;

use super::errands::Errand;
use super::seat::{Offer, Turns, contain};
use super::{Lane, LaneError};
use crate::engine::earlier;
use crate::service::Service;

impl<S: Service> Turns for Lane<S> {
    fn take_over(&mut self) {
        self.allocations = thread_allocations();
        self.wake_ns = self.turn();
    }

    #[inline]
    fn step(&mut self, until_ns: Option<u64>) -> Result<(), LaneError> {
        let wake_ns = earlier(self.wake_ns, until_ns);
        if !self.finds_work(wake_ns)? {
            self.sleep(wake_ns)?;
        }
        self.go_on();
        Ok(())
    }

    #[inline]
    fn may_offer(&self) -> bool {
        self.core.sessions.table.has_rings() && self.visits.are_allowed()
    }

    fn step_or_offer(&mut self) -> Result<Option<Offer>, LaneError> {
        if !self.finds_work(self.wake_ns)? {
            if self.visits.is_alone() {
                self.sleep(self.wake_ns)?;
            } else {
                self.core.exchange.mailbox.waker.before_sleep();
                if !self.has_work() {
                    self.core.counters.system_calls.add(1);
                    return Ok(self.visits.begin(self.wake_ns));
                }
                self.end_offer()?;
                return Ok(None);
            }
        }
        self.go_on();
        Ok(None)
    }

    fn end_offer(&mut self) -> Result<(), LaneError> {
        self.core.exchange.mailbox.waker.after_sleep();
        self.allocations = thread_allocations();
        self.poll(Some(Duration::ZERO))?;
        self.go_on();
        Ok(())
    }

    fn attend(&mut self, errands: &mut dyn Iterator<Item = Errand>) -> bool {
        self.allocations = thread_allocations();
        self.core.sessions.timers.read_clock();
        let Self { core, ready, .. } = self;
        for errand in errands {
            errand.answer(&mut core.sessions.table, ready);
        }
        self.look_at_awake(false);
        self.read_ready();
        self.wake_ns = self.turn();
        let has_more = self.look_at_awake(true);
        self.visits.note_turn(self.core.counters.frames_in.read());
        has_more
            || self.visits.end_too_late(self.wake_ns)
            || self.visits.is_alone()
            || !self.ready.is_empty()
            || !self.core.is_idle()
            || self.has_work()
            || self.stops()
    }

    #[inline]
    fn stops(&self) -> bool {
        self.core.ending.stops()
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.core.exchange.has_messages() || self.service.get().has_work()
    }

    fn end(mut self, outcome: Result<(), LaneError>) -> Result<(), LaneError> {
        let outcome = outcome.and_then(|()| {
            contain(|| {
                self.end_in_order();
                Ok(())
            })
        });
        self.core.exchange.mailbox.retire();
        // A panic may have left the lane's own state half changed. The lane still tries to close its sessions in order,
        // so that peers, rooms and counters learn of the end. If that fails, peers learn of it when the sockets are
        // closed.
        let taken_apart = contain(|| {
            // Listeners go first, so that peers that lose their sessions here can connect again at once.
            self.core.hand_over();
            self.core.ports.count_drops(&mut self.core.sessions);
            if let Err(error) = &outcome {
                tracing::error!(%error, lane = self.core.exchange.lane, "a lane failed");
                self.core.abandon();
            }
            self.core.discard_messages();
            Ok(())
        });
        // A lane that failed is silent, too: no other lane must wait for it.
        self.core
            .exchange
            .lanes
            .note_silent(self.core.exchange.lane);
        if taken_apart.is_err() {
            tracing::error!(
                lane = self.core.exchange.lane,
                "a failed lane could not close its sessions"
            );
        }
        outcome
    }
}
