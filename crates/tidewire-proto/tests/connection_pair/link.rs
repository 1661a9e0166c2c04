//! The link between two connections: latency, loss, silence and the end of each direction.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use fastrand::Rng;
use tidewire_proto::connection::Delivery;

/// One direction of the link: the bytes on their way, with the time of their arrival.
#[derive(Default)]
pub(crate) struct Pipe {
    pub(crate) on_the_way: VecDeque<(u64, Vec<u8>)>,
    /// Bytes that arrived and were not read.
    pub(crate) arrived: VecDeque<u8>,
    /// Datagrams that arrived, if frames keep their boundaries.
    pub(crate) datagrams: VecDeque<Vec<u8>>,
    /// Whether the writer has ended. It counts once all earlier bytes have arrived.
    pub(crate) is_ended: bool,
    is_silent: bool,
}

/// The properties of the link.
pub(crate) struct Link {
    pub(crate) delivery: Delivery,
    pub(crate) latency_ns: RangeInclusive<u64>,
    pub(crate) lost_percent: u32,
}

impl Link {
    /// Returns how many of `bytes` bytes it takes now.
    pub(crate) fn room(&self, bytes: usize, random: &mut Rng) -> usize {
        match self.delivery {
            Delivery::Reliable if bytes > 0 && random.u32(0..4) == 0 => random.usize(0..bytes),
            _ => bytes,
        }
    }

    /// Ends one direction.
    pub(crate) fn end(&self, pipe: &mut Pipe, now_ns: u64, random: &mut Rng) {
        match self.delivery {
            Delivery::Lossy => pipe.send(Vec::new(), self, now_ns, random),
            Delivery::Reliable => pipe.is_ended = true,
        }
    }
}

impl Pipe {
    pub(crate) fn send(&mut self, bytes: Vec<u8>, link: &Link, now_ns: u64, random: &mut Rng) {
        if bytes.is_empty() && link.delivery == Delivery::Reliable {
            return;
        }
        if self.is_silent || random.u32(0..100) < link.lost_percent {
            return;
        }
        let mut at_ns = now_ns + random.u64(link.latency_ns.clone());
        if link.delivery == Delivery::Reliable {
            // Bytes keep their order.
            at_ns = at_ns.max(self.on_the_way.back().map_or(0, |(at, _)| *at));
        }
        self.on_the_way.push_back((at_ns, bytes));
    }

    pub(crate) fn advance(&mut self, now_ns: u64, delivery: Delivery) {
        let mut rest = VecDeque::new();
        for (at_ns, bytes) in self.on_the_way.drain(..) {
            if at_ns > now_ns {
                rest.push_back((at_ns, bytes));
            } else if delivery == Delivery::Lossy {
                self.datagrams.push_back(bytes);
            } else {
                self.arrived.extend(bytes);
            }
        }
        self.on_the_way = rest;
    }

    pub(crate) fn cut(&mut self) {
        self.silence();
        self.is_ended = true;
    }

    pub(crate) fn silence(&mut self) {
        self.is_silent = true;
        self.on_the_way.clear();
    }
}
