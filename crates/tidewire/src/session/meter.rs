//! The rate limit of a session: it measures what the session sends, and pauses reading until more is allowed. The rate of an
//! identity is measured for all its sessions together.

use tidewire_io::timer::TimerId as WheelTimer;
use tidewire_proto::connection::PauseReason;

use super::TimerKey;
use super::{LaneSessions, SessionId};
use crate::limits::{Bucket, Rate, SharedBucket, WhenExceeded};

/// The rate that a session has used up.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    bucket: Bucket,
    /// Fires when reading may resume.
    timer: Option<WheelTimer>,
}

impl LaneSessions {
    /// Counts a message of this size. Returns false if the session has exceeded its rate and the message must be dropped or
    /// refused. With the policy `Pause` it always returns true, because reading stops instead.
    pub(crate) fn meter(&mut self, slot: usize, rate: &Rate, bytes: usize) -> bool {
        let now_ns = self.timers.now_ns();
        let profile = &mut self.slab[slot].profile;
        if let Some(shared) = profile.admitted.as_ref().and_then(|it| it.bucket()) {
            let may_exceed = rate.when_exceeded == WhenExceeded::Pause;
            return shared.take(rate, bytes, now_ns, may_exceed);
        }
        let meter = &mut profile.attach().meter;
        if rate.when_exceeded != WhenExceeded::Pause && rate.free_ns(meter.bucket) > now_ns {
            return false;
        }
        rate.take(&mut meter.bucket, bytes, now_ns);
        true
    }

    /// Pauses reading from a session that has used up its rate. Returns whether it has.
    pub(crate) fn pause_for_rate(&mut self, slot: usize, rate: &Rate) -> bool {
        let session = &mut self.slab[slot];
        let shared = session.profile.admitted.as_ref();
        let shared = shared.and_then(|it| it.bucket()).map(SharedBucket::load);
        let meter = &mut session.profile.attach().meter;
        let free_ns = rate.free_ns(shared.unwrap_or(meter.bucket));
        if free_ns <= self.timers.now_ns() {
            return false;
        }
        let key = TimerKey::Rate(session.id);
        let timer = self.timers.set(free_ns, key);
        if let Some(former) = meter.timer.replace(timer) {
            self.timers.cancel(former);
        }
        self.counters.rate_paused.add(1);
        self.pause_reading(slot, PauseReason::Rate);
        true
    }

    /// Resumes reading from a session whose rate allows it again.
    pub(crate) fn resume_for_rate(&mut self, id: SessionId) {
        let Some(slot) = self.slot_of(id) else { return };
        if let Some(attached) = &mut self.slab[slot].profile.attached {
            attached.meter.timer = None;
        }
        self.resume_reading(slot, PauseReason::Rate);
    }

    /// Stops the rate timer of a session that is being removed.
    pub(crate) fn end_meter(&mut self, slot: usize) {
        let attached = self.slab[slot].profile.attached.as_mut();
        if let Some(timer) = attached.and_then(|attached| attached.meter.timer.take()) {
            self.timers.cancel(timer);
        }
    }
}
