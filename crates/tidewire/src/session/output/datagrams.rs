//! Sending an output as datagrams, run by run.

use std::io::{Error, ErrorKind};

use super::Output;
use crate::observe::{DatagramDrop, LaneCounters};
use crate::transport::datagram::DatagramPeer;

/// The result of sending.
pub(in crate::session) enum SendOutcome {
    All,
    Blocked,
    Failed(Error),
}

impl Output {
    /// Sends the output to its peer, run by run.
    pub(in crate::session) fn send_to(
        &mut self,
        peer: &mut DatagramPeer,
        counters: &LaneCounters,
    ) -> SendOutcome {
        let Some(packing) = &mut self.packing else {
            return SendOutcome::All;
        };
        while let Some(run) = packing.run(self.sent) {
            let mut bytes = &self.bytes[self.sent..run.end()];
            // The budget may cover only a part of the run. A smaller datagram at its end then is a run of its own.
            bytes = &bytes[..peer.allowed(run.segment_bytes(), bytes.len())];
            if bytes.is_empty() {
                counters.drop_datagram(DatagramDrop::OverBudget);
                self.sent = packing.consume(self.sent, 1);
                continue;
            }
            counters.system_calls.add(1);
            match peer.send(run.segment_bytes(), bytes) {
                Ok(datagrams) => {
                    let before = self.sent;
                    self.sent = packing.consume(before, datagrams);
                    let sent_bytes = (self.sent - before) as u64;
                    peer.note_sent(sent_bytes);
                    counters.writes.add(1);
                    counters.datagrams_out.add(datagrams as u64);
                    counters.bytes_out.add(sent_bytes);
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => {
                        if self.sent > self.bytes.len() / 2 {
                            packing.shift(self.sent);
                            self.bytes.drain(..self.sent);
                            self.sent = 0;
                        }
                        return SendOutcome::Blocked;
                    }
                    _ => return SendOutcome::Failed(error),
                },
            }
        }
        packing.clear();
        self.bytes.clear();
        self.sent = 0;
        SendOutcome::All
    }
}
