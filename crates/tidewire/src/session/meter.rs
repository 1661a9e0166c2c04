//! The rate limit of a session: it measures what the session sends, and pauses reading until more is allowed. The rate
//! of an identity is measured for all its sessions together.

use tidewire_io::timer::TimerId as WheelTimer;
use tidewire_proto::connection::PauseReason;

use super::{LaneSessions, Session, TimerKey};
use crate::limits::{Bucket, Rate, SharedBucket};

/// The rate that a session has used up.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    bucket: Bucket,
    /// Fires when reading may resume.
    timer: Option<WheelTimer>,
}

impl Session {
    /// Counts a message of this size. Returns false if the session has exceeded its rate and the message must be
    /// dropped or refused. With the policy `Pause` it always returns true, because reading stops instead.
    pub(crate) fn meter(&mut self, rate: &Rate, bytes: usize, now_ns: u64) -> bool {
        let profile = &mut self.profile;
        if let Some(shared) = profile.admitted.as_ref().and_then(|it| it.bucket()) {
            let may_exceed = rate.pauses();
            return shared.take(rate, bytes, now_ns, may_exceed);
        }
        let meter = profile.attach().meter();
        if !rate.pauses() && rate.free_ns(meter.bucket) > now_ns {
            return false;
        }
        rate.take(&mut meter.bucket, bytes, now_ns);
        true
    }

    /// Takes the timer at which reading resumes.
    pub(super) fn take_rate_timer(&mut self) -> Option<WheelTimer> {
        self.profile.attached.as_mut()?.meter().timer.take()
    }
}

impl LaneSessions {
    /// Pauses reading from a session that has used up its rate. Returns whether it has.
    pub(crate) fn pause_for_rate(&mut self, slot: usize, rate: &Rate) -> bool {
        let session = &mut self.table[slot];
        let shared = session.profile.admitted.as_ref();
        let shared = shared.and_then(|it| it.bucket()).map(SharedBucket::load);
        let meter = session.profile.attach().meter();
        let free_ns = rate.free_ns(shared.unwrap_or(meter.bucket));
        if free_ns <= self.timers.now_ns() {
            return false;
        }
        let timer = self.timers.set(free_ns, TimerKey::Rate(session.id));
        if let Some(former) = meter.timer.replace(timer) {
            self.timers.cancel(former);
        }
        self.counters.rate_paused.add(1);
        self.pause_reading(slot, PauseReason::Rate);
        true
    }
}
