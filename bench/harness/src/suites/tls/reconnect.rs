//! All clients come back at the same time, as after a failure of the network, while a few others go on with their work.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustls::ClientConfig;
use tidewire_io::clock::now_ns;
use tidewire_load::statistics::LatencyHistogram;

use super::super::visitors::Visitors;
use super::RECONNECT;
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RowPlan};
use crate::probes::TlsLink;
use crate::stage::Stage;

pub(super) fn row(quick: bool) -> RowPlan {
    let clients = if quick { 500 } else { 10_000 };
    let work = Work {
        measure_ms: 0,
        ..super::work(quick, RECONNECT, clients + OTHERS)
    };
    let id = format!("{clients} clients reconnect at once, {OTHERS} others echo");
    RowPlan::new(id, work, RECONNECTS).with_peers(None)
}

/// The clients, in slots behind those of the others.
struct Crowd {
    visitors: Visitors<TlsLink>,
    clients: usize,
    /// The next client that begins.
    next: usize,
    /// Clients that are connected and had a reply.
    back: usize,
    /// Clients that are being connected.
    connecting: usize,
    /// Connections that failed. The client tries again.
    refused: u64,
    /// Others whose connection ended.
    harmed: u64,
    /// Echoes of the others.
    latency: LatencyHistogram,
}

pub(super) fn drive(
    server: SocketAddr,
    config: ClientConfig,
    work: &Work,
    stage: &mut Stage,
) -> io::Result<Measured> {
    let others = OTHERS.min(work.connections / 2);
    let clients = work.connections - others;
    let mut crowd = Crowd {
        visitors: super::visitors(server, vec![config], work)?,
        clients,
        next: 0,
        back: 0,
        connecting: 0,
        refused: 0,
        harmed: 0,
        latency: LatencyHistogram::new(),
    };
    for slot in clients..work.connections {
        crowd.visitors.begin(slot)?;
    }
    crowd.connect(CALM)?;
    let calm_ns = now_ns() + work.warm_up_ms * 1_000_000;
    while now_ns() < calm_ns {
        crowd.turn()?;
    }
    crowd.latency.clear();
    stage.started()?;
    let from_ns = now_ns();
    for slot in 0..clients {
        crowd.visitors.end(slot);
    }
    (crowd.next, crowd.back, crowd.refused) = (0, 0, 0);
    crowd.connect(clients)?;
    let seconds = (now_ns() - from_ns) as f64 / 1e9;
    stage.stopped()?;
    let missing = (clients - crowd.back) as u64;
    let measured = Measured::verified(crowd.back as u64, seconds, missing + crowd.harmed);
    let measured = measured.with_times(&crowd.latency);
    Ok(measured.with_figure("refused_connections", crowd.refused as f64))
}

impl Crowd {
    /// Lets all clients connect, so many at once, until all are there or the time is over.
    fn connect(&mut self, at_once: usize) -> io::Result<()> {
        let until_ns = now_ns() + CONNECT_MAX.as_nanos() as u64;
        while self.back < self.clients && now_ns() < until_ns {
            // The others have their turns in between.
            let most = BEGINNINGS.min(at_once.saturating_sub(self.connecting));
            for _ in 0..most {
                if self.next < self.clients {
                    self.visitors.begin(self.next)?;
                    self.next += 1;
                    self.connecting += 1;
                }
            }
            self.turn()?;
        }
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        for (slot, answered_ns) in self.visitors.turn()? {
            match (slot < self.clients, answered_ns) {
                (true, Some(_)) => {
                    self.back += 1;
                    self.connecting -= 1;
                }
                (true, None) => {
                    self.refused += 1;
                    self.visitors.begin(slot)?;
                }
                (false, Some(ns)) => {
                    self.latency.record(ns);
                    self.visitors.say(slot)?;
                }
                (false, None) => self.harmed += 1,
            }
        }
        Ok(())
    }
}

const RECONNECTS: Metric = Metric::rate("reconnects_per_sec", "clients back/s");

/// Connections with an echo in flight all the time.
const OTHERS: usize = 16;

/// Clients that connect at once before the failure.
const CALM: usize = 64;

/// Clients that begin in one turn.
const BEGINNINGS: usize = 64;

/// The longest time in which they are back.
const CONNECT_MAX: Duration = Duration::from_secs(20);
