//! What is in flight on one connection whose replies come in order.

use std::collections::VecDeque;

use crate::{Exchange, Meter};

/// Requests sent and not yet answered, on one connection.
#[derive(Debug)]
pub struct Flight {
    exchange: Exchange,
    request: Vec<u8>,
    next: u64,
    expected: u64,
    sent_ns: VecDeque<u64>,
}

impl Flight {
    /// A connection on which nothing was sent yet.
    #[must_use]
    pub fn new(exchange: Exchange) -> Self {
        Self {
            exchange,
            request: vec![0x5a; exchange.request_bytes()],
            next: 0,
            expected: 0,
            sent_ns: VecDeque::new(),
        }
    }

    /// The next request, which is taken to be sent now.
    pub fn request(&mut self, now_ns: u64) -> &[u8] {
        self.exchange.write_request(self.next, &mut self.request);
        self.next += 1;
        self.sent_ns.push_back(now_ns);
        &self.request
    }

    /// Takes a reply that came now. One that is not the next expected is lost, and so is the one expected.
    pub fn reply(&mut self, reply: &[u8], now_ns: u64, meter: &mut Meter) {
        let Some(sent_ns) = self.sent_ns.pop_front() else {
            // Nothing was asked, so this came twice.
            return meter.count_lost(1);
        };
        if self.exchange.is_reply(self.expected, reply) {
            meter.count(sent_ns, now_ns);
        } else {
            meter.count_lost(1);
        }
        self.expected += 1;
    }

    /// Requests without a reply.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.sent_ns.len()
    }
}
