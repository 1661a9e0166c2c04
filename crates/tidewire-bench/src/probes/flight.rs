//! When frames were sent that come back in order.

use std::collections::VecDeque;

use tidewire_load::statistics::LatencyHistogram;

/// The frames under way, with one entry for what was sent together: the number after its last frame, and when it was sent.
#[derive(Debug, Default)]
pub(super) struct Flight(VecDeque<(u64, u64)>);

/// The replies of a window, every one of them with the number it should have.
#[derive(Default)]
pub(super) struct Replies {
    pub(super) count: u64,
    /// Time from sending a frame to its reply, in nanoseconds.
    pub(super) latency: LatencyHistogram,
}

impl Flight {
    /// Notes that all frames below a number that had not gone before were sent at this time.
    pub(super) fn sent(&mut self, until: u64, now_ns: u64) {
        self.0.push_back((until, now_ns));
    }

    /// Counts and times `replies`, by which all frames up to `expected` are answered: the last frame of what was sent
    /// together stands for all of it.
    pub(super) fn answered(
        &mut self,
        expected: u64,
        now_ns: u64,
        replies: u64,
        mut counted: Option<&mut Replies>,
    ) {
        while let Some((_, sent_ns)) = self.0.pop_front_if(|(until, _)| *until <= expected) {
            if let Some(counted) = counted.as_deref_mut() {
                counted.latency.record(now_ns - sent_ns);
            }
        }
        if let Some(counted) = counted {
            counted.count += replies;
        }
    }
}
