//! Memory of sessions at rest: the growth of the server's resident memory, as in the suite `memory`. The bare server shows what
//! rustls costs; the difference is ours.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use rustls::ClientConfig;
use tidewire_io::clock::now_ns;

use super::IDLE;
use super::visitors::Visitors;
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RowPlan};
use crate::stage::Stage;

pub(super) fn rows(quick: bool) -> Vec<RowPlan> {
    let counts: &[usize] = if quick { &[1_000] } else { &[1_000, 10_000] };
    let row = |&connections: &usize| {
        let work = super::work(quick, IDLE, connections);
        let metric = Metric::least(USER_BYTES, "bytes");
        let id = format!("memory, {connections} idle sessions");
        RowPlan::new(id, work, metric).with_peers(None)
    };
    counts.iter().map(row).collect()
}

pub(super) fn drive(
    server: SocketAddr,
    config: ClientConfig,
    work: &Work,
    stage: &mut Stage,
) -> io::Result<Measured> {
    let mut visitors = Visitors::new(server, vec![config], work.connections)?;
    stage.started()?;
    let from_ns = now_ns();
    let first = FIRST.min(work.connections / 2);
    connect(&mut visitors, 0..first)?;
    let before = visitors.ask_memory(0)?;
    connect(&mut visitors, first..work.connections)?;
    // The work of a server behind a handshake is over.
    thread::sleep(Duration::from_millis(work.warm_up_ms));
    let after = visitors.ask_memory(0)?;
    stage.stopped()?;
    let seconds = (now_ns() - from_ns) as f64 / 1e9;
    let each = after.saturating_sub(before) as f64 / (work.connections - first) as f64;
    let measured = Measured::verified(work.connections as u64, seconds, 0);
    Ok(measured.with_figure(USER_BYTES, each))
}

/// Connects these slots, some at a time, each with an echo.
fn connect(visitors: &mut Visitors, slots: Range<usize>) -> io::Result<()> {
    let (mut next, mut connecting) = (slots.start, 0);
    let until_ns = now_ns() + TIMEOUT_NS;
    while next < slots.end || connecting > 0 {
        while next < slots.end && connecting < CONNECTING_MAX {
            visitors.begin(next)?;
            (next, connecting) = (next + 1, connecting + 1);
        }
        let events = visitors.turn()?;
        if events.iter().any(|(_, ns)| ns.is_none()) || now_ns() > until_ns {
            return Err(io::Error::other("the server does not answer everybody"));
        }
        connecting -= events.len();
    }
    Ok(())
}

pub(super) const USER_BYTES: &str = "user_bytes_per_session";

/// Sessions that are there before it is counted.
const FIRST: usize = 100;

/// Connections on their way at one time: fewer than a listener's backlog.
const CONNECTING_MAX: usize = 64;

const TIMEOUT_NS: u64 = 20_000_000_000;
