//! The rate of what a session sends: measured, and reading paused until more may come.

use tidewire_io::timer::TimerId as WheelTimer;
use tidewire_proto::connection::PauseReason;

use super::reactor::TimerKey;
use super::{LaneSessions, SessionId};
use crate::limits::{Bucket, Rate, WhenExceeded};

/// What a session has used of the server's rate limit.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    bucket: Bucket,
    /// Reading goes on when it fires.
    timer: Option<WheelTimer>,
}

impl LaneSessions {
    /// Whether a message of so many bytes is within the rate of its session. One that may only wait always is: it comes when
    /// reading goes on, and not before.
    pub(crate) fn meter(&mut self, slot: usize, rate: &Rate, bytes: usize) -> bool {
        let now_ns = self.reactor.now_ns;
        let meter = &mut self.slab[slot].profile.attach().meter;
        if rate.when_exceeded != WhenExceeded::Pause && rate.free_ns(meter.bucket) > now_ns {
            return false;
        }
        rate.take(&mut meter.bucket, bytes, now_ns);
        true
    }

    /// Reads no more from a session that has used up its rate. Returns whether it has.
    pub(crate) fn pause_for_rate(&mut self, slot: usize, rate: &Rate) -> bool {
        let session = &mut self.slab[slot];
        let meter = &mut session.profile.attach().meter;
        let free_ns = rate.free_ns(meter.bucket);
        if free_ns <= self.reactor.now_ns {
            return false;
        }
        let key = TimerKey::Rate(session.id);
        let timer = self.reactor.timers.insert(free_ns, key);
        if let Some(former) = meter.timer.replace(timer) {
            self.reactor.timers.cancel(former);
        }
        self.counters.rate_paused.add(1);
        self.pause_reading(slot, PauseReason::Rate);
        true
    }

    /// A session may send again.
    pub(crate) fn resume_for_rate(&mut self, id: SessionId) {
        let Some(slot) = self.slot_of(id) else { return };
        if let Some(attached) = &mut self.slab[slot].profile.attached {
            attached.meter.timer = None;
        }
        self.resume_reading(slot, PauseReason::Rate);
    }

    /// Stops the timer of a session that is taken apart.
    pub(crate) fn end_meter(&mut self, slot: usize) {
        let attached = self.slab[slot].profile.attached.as_mut();
        if let Some(timer) = attached.and_then(|attached| attached.meter.timer.take()) {
            self.reactor.timers.cancel(timer);
        }
    }
}
