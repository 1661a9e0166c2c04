//! The requests in flight on one connection whose replies come in order.

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
    /// Creates the state of a connection without requests.
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

    /// The next request. Its send time is now.
    pub fn request(&mut self, now_ns: u64) -> &[u8] {
        self.exchange.write_request(self.next, &mut self.request);
        self.next += 1;
        self.sent_ns.push_back(now_ns);
        &self.request
    }

    /// Handles a reply that came now. An unexpected reply counts as lost, and so does the expected one.
    pub fn reply(&mut self, reply: &[u8], now_ns: u64, meter: &mut Meter) {
        let Some(sent_ns) = self.sent_ns.pop_front() else {
            // No request is open, so this reply came twice.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Window;

    /// Sends three requests and handles replies in this order. Returns the counted and the lost messages.
    fn fly(order: &[usize]) -> (u64, u64, usize) {
        let mut flight = Flight::new(Exchange::Echo { bytes: 16 });
        let mut meter = Meter::new(Window::between(100, 200));
        let sent: Vec<Vec<u8>> = (0..3).map(|_| flight.request(90).to_vec()).collect();
        for &number in order {
            flight.reply(&sent[number], 150, &mut meter);
        }
        let measured = meter.measured();
        (measured.messages, measured.lost, flight.outstanding())
    }

    #[test]
    fn every_request_is_answered_lost_or_in_flight() {
        assert_eq!(fly(&[0, 1, 2]), (3, 0, 0));
        assert_eq!(fly(&[0]), (1, 0, 2));
        assert_eq!(fly(&[0, 2, 1]), (1, 2, 0));
        // The reply that came twice counts as lost as well.
        assert_eq!(fly(&[0, 1, 2, 2]), (3, 1, 0));
    }

    #[test]
    fn what_comes_outside_the_window_is_right_but_not_counted() {
        let mut flight = Flight::new(Exchange::Add);
        let mut meter = Meter::new(Window::between(100, 200));
        for (number, now) in [(0_u64, 99), (1, 100), (2, 199), (3, 200)] {
            flight.request(now);
            let mut reply = vec![0; 8];
            Exchange::Add.write_request(number, &mut reply);
            Exchange::Add.answer(&mut reply);
            flight.reply(&reply, now, &mut meter);
        }
        let measured = meter.measured();
        assert_eq!((measured.messages, measured.lost), (2, 0));
        assert_eq!(measured.latency.unwrap().samples, 2);
    }
}
