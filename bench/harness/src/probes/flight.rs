//! The frames of a connection that come back in order, and when they were sent.

use std::collections::VecDeque;

use tidewire_load::statistics::LatencyHistogram;

/// The frames of one connection by their numbers.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// The number of the next frame.
    pub(super) next: u64,
    /// The number that the next reply should have.
    pub(super) expected: u64,
    /// Frames that are known never to come.
    pub(super) lost: u64,
    /// One entry for what was sent together: the number after its last frame, and when it was sent.
    sent: VecDeque<(u64, u64)>,
}

/// The replies of a window, every one of them with the number it should have.
#[derive(Default)]
pub(super) struct Replies {
    pub(super) count: u64,
    /// Time from sending a frame to its reply, in nanoseconds.
    pub(super) latency: LatencyHistogram,
}

impl Flight {
    /// Notes that so many frames are sent at this time.
    pub(super) fn send(&mut self, count: u64, now_ns: u64) {
        self.next += count;
        self.sent.push_back((self.next, now_ns));
    }

    /// Frames on their way.
    pub(super) fn under_way(&self) -> u64 {
        self.next - self.expected
    }

    /// Counts and times `replies`, by which all frames up to the expected one are answered: the last frame of what was
    /// sent together stands for all of it.
    pub(super) fn answered(&mut self, now_ns: u64, replies: u64, counted: Option<&mut Replies>) {
        let mut latency = None;
        if let Some(counted) = counted {
            counted.count += replies;
            latency = Some(&mut counted.latency);
        }
        let expected = self.expected;
        while let Some((_, sent_ns)) = self.sent.pop_front_if(|(until, _)| *until <= expected) {
            if let Some(latency) = &mut latency {
                latency.record(now_ns - sent_ns);
            }
        }
    }
}
