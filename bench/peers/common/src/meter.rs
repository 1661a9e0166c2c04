//! The counts of a driver within its window.

use tidewire_load::statistics::LatencyHistogram;

use crate::{Measured, Times, Window};

/// Counts messages within a window, and their latencies.
#[derive(Debug)]
pub struct Meter {
    window: Window,
    messages: u64,
    lost: u64,
    latency: LatencyHistogram,
}

impl Meter {
    /// Creates a meter with no counts.
    #[must_use]
    pub fn new(window: Window) -> Self {
        Self {
            window,
            messages: 0,
            lost: 0,
            latency: LatencyHistogram::new(),
        }
    }

    /// The window.
    #[must_use]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Counts a correct message that came now and was requested at `sent_ns`.
    pub fn count(&mut self, sent_ns: u64, now_ns: u64) {
        if self.window.contains(now_ns) {
            self.messages += 1;
            self.latency.record(now_ns.saturating_sub(sent_ns));
        }
    }

    /// Counts correct messages that came now and whose send time is unknown.
    pub fn count_untimed(&mut self, messages: u64, now_ns: u64) {
        if self.window.contains(now_ns) {
            self.messages += messages;
        }
    }

    /// Counts messages that never came or were wrong. They count at any time, because a loss during the warm-up is a
    /// loss.
    pub fn count_lost(&mut self, messages: u64) {
        self.lost += messages;
    }

    /// The figures. Every counted message was checked.
    #[must_use]
    pub fn measured(&self) -> Measured {
        Measured {
            messages: self.messages,
            seconds: self.window.seconds(),
            verified: true,
            lost: self.lost,
            allocated_bytes: Some(self.window.allocated_bytes()),
            latency: times(&self.latency),
            ..Measured::default()
        }
    }
}

/// The figures of a histogram in the form of the contract. `None` if it is empty.
#[must_use]
pub fn times(latency: &LatencyHistogram) -> Option<Times> {
    let quantile_us = |quantile| latency.quantile_ns(quantile) as f64 / 1e3;
    let summary = latency.summary().unwrap_or_default();
    (latency.count() > 0).then(|| Times {
        samples: latency.count(),
        mean_us: summary.mean_ms * 1e3,
        p50_us: quantile_us(0.5),
        p95_us: quantile_us(0.95),
        p99_us: quantile_us(0.99),
        p999_us: quantile_us(0.999),
        max_us: summary.max_ms * 1e3,
    })
}
