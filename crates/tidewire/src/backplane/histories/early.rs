//! Packets of a history that came before those that are read now.

use std::collections::VecDeque;

/// Packets with offsets that follow each other. They wait until those before them were read.
#[derive(Debug, Default)]
pub(super) struct EarlyPackets {
    packets: VecDeque<(u64, Box<[u8]>)>,
    bytes: usize,
}

impl EarlyPackets {
    /// Keeps a packet. If too many wait, the earlier ones are read later, too.
    pub(super) fn keep(&mut self, offset: u64, packet: &[u8]) {
        let is_full = self.bytes + packet.len() > BYTES_MAX;
        let follows = |(last, _): &(u64, Box<[u8]>)| last.checked_add(1) == Some(offset);
        if is_full || !self.packets.back().is_none_or(follows) {
            self.forget();
        }
        self.bytes += packet.len();
        self.packets.push_back((offset, packet.into()));
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.packets.front().map(|(offset, _)| *offset)
    }

    pub(super) fn take_first(&mut self) -> Option<Box<[u8]>> {
        let (_, packet) = self.packets.pop_front()?;
        self.bytes -= packet.len();
        Some(packet)
    }

    pub(super) fn forget(&mut self) {
        self.packets.clear();
        self.bytes = 0;
    }
}

/// Bytes of packets of a history that wait until those before them were read.
const BYTES_MAX: usize = 1 << 20;
