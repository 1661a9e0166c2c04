//! What a driver counts within its window.

use tidewire_load::statistics::LatencyHistogram;

use crate::{Measured, Times, Window};

/// Counts the replies of one thread; several are merged at the end.
#[derive(Debug)]
pub struct Meter {
    window: Window,
    messages: u64,
    lost: u64,
    latency: LatencyHistogram,
}

impl Meter {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self {
            window,
            messages: 0,
            lost: 0,
            latency: LatencyHistogram::new(),
        }
    }

    /// The window it counts in.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Counts a right message that came now and was asked for at `sent_ns`.
    pub fn count(&mut self, sent_ns: u64, now_ns: u64) {
        self.count_many(1, sent_ns, now_ns);
    }

    /// Counts several that were asked for together.
    pub fn count_many(&mut self, messages: u64, sent_ns: u64, now_ns: u64) {
        if self.window.contains(now_ns) {
            self.messages += messages;
            self.latency
                .record_many(now_ns.saturating_sub(sent_ns), messages);
        }
    }

    /// Counts messages that never came, or were not the expected ones. These count whenever they are missed, because
    /// a loss during the warm-up is a loss.
    pub fn count_lost(&mut self, messages: u64) {
        self.lost += messages;
    }

    /// Adds what another thread counted.
    pub fn merge(&mut self, other: &Self) {
        self.messages += other.messages;
        self.lost += other.lost;
        self.latency.merge(&other.latency);
    }

    /// The figures, all of them of messages that were checked.
    #[must_use]
    pub fn measured(&self) -> Measured {
        Measured {
            messages: self.messages,
            seconds: self.window.seconds(),
            verified: true,
            lost: self.lost,
            allocated_bytes: Some(self.window.allocated_bytes()),
            latency: (self.latency.count() > 0).then(|| self.times()),
            ..Measured::default()
        }
    }

    fn times(&self) -> Times {
        let summary = self.latency.summary();
        let quantile_us = |quantile| self.latency.quantile_ns(quantile) as f64 / 1e3;
        Times {
            samples: self.latency.count(),
            mean_us: summary.mean_ms * 1e3,
            p50_us: quantile_us(0.5),
            p95_us: quantile_us(0.95),
            p99_us: quantile_us(0.99),
            p999_us: quantile_us(0.999),
            max_us: summary.max_ms * 1e3,
        }
    }
}
