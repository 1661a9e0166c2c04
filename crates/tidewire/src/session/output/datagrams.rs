//! Sending an output as datagrams, run by run.

use std::io::{Error, ErrorKind};

use super::Output;
use crate::observe::{DatagramDrop, LaneCounters};
use crate::transport::datagram::DatagramPeer;

/// The result of sending.
pub(in crate::session) enum DatagramsSent {
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
    ) -> DatagramsSent {
        let Some(packing) = &mut self.packing else {
            return DatagramsSent::All;
        };
        while let Some(run) = packing.run(self.sent) {
            let mut bytes = &self.bytes[self.sent..run.end];
            if let Some(budget) = peer.budget {
                // The budget may cover only a part of the run. A smaller datagram at its end then is a run of its own.
                let affordable = budget - budget % run.segment_bytes as u64;
                if affordable == 0 {
                    counters.datagrams_dropped[DatagramDrop::OverBudget as usize].add(1);
                    self.sent = packing.consume(self.sent, 1);
                    continue;
                }
                if affordable < bytes.len() as u64 {
                    bytes = &bytes[..affordable as usize];
                }
            }
            counters.system_calls.add(1);
            match peer.send(run.segment_bytes, bytes) {
                Ok(datagrams) => {
                    let before = self.sent;
                    self.sent = packing.consume(before, datagrams);
                    let sent_bytes = (self.sent - before) as u64;
                    if let Some(budget) = &mut peer.budget {
                        *budget -= sent_bytes;
                        peer.loop_watch.is_answered = true;
                    }
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
                        return DatagramsSent::Blocked;
                    }
                    _ => return DatagramsSent::Failed(error),
                },
            }
        }
        packing.clear();
        self.bytes.clear();
        self.sent = 0;
        DatagramsSent::All
    }
}
