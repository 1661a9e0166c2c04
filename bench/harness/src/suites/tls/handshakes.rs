//! Handshakes a second: connections that come, say one message, hear it back, and go.

use std::io;
use std::net::SocketAddr;

use rustls::client::Resumption;
use rustls::{ClientConfig, HandshakeKind};
use tidewire_io::clock::now_ns;
use tidewire_load::statistics::LatencyHistogram;

use super::super::visitors::Visitors;
use super::{FULL, MUTUAL, RESUMED};
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RowPlan};
use crate::probes::TlsLink;
use crate::probes::echo::DRAIN;
use crate::stage::Stage;

pub(super) fn row(quick: bool, mode: &str) -> RowPlan {
    let id = match mode {
        FULL => "full handshakes",
        RESUMED => "resumed handshakes",
        MUTUAL => "handshakes with client certificates",
        other => other,
    };
    let row = RowPlan::new(id, super::work(quick, mode, AT_ONCE), HANDSHAKES);
    row.with_peers(None)
}

/// The counts of the driver.
struct Count {
    visitors: Visitors<TlsLink>,
    /// Since the beginning, and within the window.
    all: u64,
    handshakes: u64,
    lost: u64,
    open: usize,
    latency: LatencyHistogram,
    expected: HandshakeKind,
}

pub(super) fn drive(
    server: SocketAddr,
    config: &ClientConfig,
    work: &Work,
    stage: &mut Stage,
) -> io::Result<Measured> {
    // A client keeps few tickets, so each slot is a client of its own.
    let own = |_| {
        let mut config = config.clone();
        if work.mode == RESUMED {
            config.resumption = Resumption::in_memory_sessions(TICKETS);
        }
        config
    };
    let configs = (0..work.connections).map(own).collect();
    let mut count = Count {
        visitors: super::visitors(server, configs, work)?,
        all: 0,
        handshakes: 0,
        lost: 0,
        open: work.connections,
        latency: LatencyHistogram::new(),
        expected: match work.mode.as_str() {
            RESUMED => HandshakeKind::Resumed,
            _ => HandshakeKind::Full,
        },
    };
    for slot in 0..work.connections {
        count.visitors.begin(slot)?;
    }
    count.run_for(work.warm_up_ms, false)?;
    let window = stage.begin()?;
    let from_ns = now_ns();
    count.run_for(work.measure_ms, true)?;
    let seconds = (now_ns() - from_ns) as f64 / 1e9;
    let allocated_bytes = window.end()?;
    count.drain()?;
    let lost = count.lost + count.open as u64;
    Ok(Measured {
        allocated_bytes,
        ..Measured::verified(count.handshakes, seconds, lost).with_times(&count.latency)
    })
}

impl Count {
    fn run_for(&mut self, duration_ms: u64, is_counted: bool) -> io::Result<()> {
        let until_ns = now_ns() + duration_ms * 1_000_000;
        // The first ones have no tickets.
        let enough = 2 * self.open as u64;
        while now_ns() < until_ns || self.all < enough && self.lost == 0 {
            self.turn(is_counted, true)?;
        }
        Ok(())
    }

    /// Waits for the last ones.
    fn drain(&mut self) -> io::Result<()> {
        let until_ns = now_ns() + DRAIN.as_nanos() as u64;
        while self.open > 0 && now_ns() < until_ns {
            self.turn(false, false)?;
        }
        Ok(())
    }

    fn turn(&mut self, is_counted: bool, goes_on: bool) -> io::Result<()> {
        for (slot, answered_ns) in self.visitors.turn()? {
            match answered_ns {
                Some(ns) => {
                    let link = self.visitors.end(slot);
                    let kind = link.and_then(|link| link.tls.handshake_kind());
                    self.all += 1;
                    if is_counted {
                        self.handshakes += 1;
                        self.latency.record(ns);
                        self.lost += u64::from(kind != Some(self.expected));
                    }
                }
                None => self.lost += 1,
            }
            match goes_on {
                true => self.visitors.begin(slot)?,
                false => self.open -= 1,
            }
        }
        Ok(())
    }
}

const HANDSHAKES: Metric = Metric::rate("handshakes_per_sec", "handshakes/s");

/// Connections that are being made at the same time.
const AT_ONCE: usize = 16;

/// Servers whose tickets a client keeps.
const TICKETS: usize = 1;
