//! Fan-out: one publisher, 500 receivers, at rates that rise until somebody no longer keeps up.
//!
//! All publishers are read by the same raw [subscriber](crate::subscriber), so that a row compares them and not
//! their clients. Beside these rows stand the two steps of the chat test that the project started from, driven by the
//! agents of the load test.

pub(super) mod bare;
mod chat;
pub(super) mod publisher;

use crate::contract::Work;
use crate::hold::OFFERED;
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::stage::{OrFailed, Stage};
use crate::subscriber;

pub(super) const SUITE: Suite = Suite {
    name: "fanout",
    about: "one publisher and 500 receivers at rising rates; the chat test that the project started from",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let mut rows: Vec<RowPlan> = chat::STEPS.map(|step| chat::row(step, quick)).into();
    let rates: &[f64] = if quick { &[2.0, 16.0] } else { &MILLIONS };
    rows.extend(rates.iter().map(|&millions| RowPlan {
        rises: true,
        ..row(quick, "tcp", millions)
    }));
    rows.push(highest(quick, "tcp"));
    rows
}

/// So many millions of deliveries a second, beside the bare loop that does the same.
pub(super) fn row(quick: bool, transport: &str, millions: f64) -> RowPlan {
    let work = work(quick, transport, millions * 1e6 / SUBSCRIBERS as f64);
    let limit = bare::LOOPS[0].work(&work);
    let id = format!("{millions} M/s to {SUBSCRIBERS}");
    RowPlan::new(id, work, Metric::DELIVERIES).with_limit(Some(limit))
}

/// The highest rate of the fan-out.
pub(super) fn highest(quick: bool, transport: &str) -> RowPlan {
    let climb: &'static [f64] = if quick { &CLIMB[..4] } else { &CLIMB };
    let work = work(quick, transport, climb[0]);
    let limits = bare::LOOPS.map(|one| (one.name(), one.work(&work)));
    let id = format!("highest rate without loss to {SUBSCRIBERS}");
    let row = RowPlan::new(id, work, Metric::DELIVERIES);
    row.with_limits(limits).climbing(climb)
}

pub(super) fn work(quick: bool, transport: &str, rate_per_sec: f64) -> Work {
    let (warm_up_ms, measure_ms) = if quick { (200, 500) } else { (500, 2_000) };
    Work {
        message_bytes: PAYLOAD_BYTES,
        publishers: 1,
        subscribers: SUBSCRIBERS,
        rate_per_sec,
        warm_up_ms,
        measure_ms,
        ..super::work(&SUITE, transport, "tw1")
    }
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    match (side, work.mode.as_str()) {
        (Side::Tidewire, chat::MODE) => chat::serve(work, stage),
        (Side::Tidewire, _) => publisher::serve(work, stage),
        (Side::Bare, _) => bare::serve(work, stage),
    }
}

pub(super) fn drive(
    side: Side,
    address: &str,
    work: &Work,
    stage: &mut Stage,
) -> Result<(), RoleError> {
    if work.mode == chat::MODE {
        let address = super::full_address(work, address);
        return chat::drive(super::endpoint(&address)?, work, stage);
    }
    // The nodes of a cluster have an address each.
    let addresses = address
        .split(',')
        .map(|address| super::full_address(work, address));
    let addresses = addresses.map(|address| super::socket_address(&address));
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    let listen = match side {
        Side::Tidewire => Some(subscriber::tw1()),
        Side::Bare => subscriber::dialect(&work.codec),
    };
    let unknown = || format!("the raw subscriber does not speak {}", work.codec);
    let listen = listen.ok_or_else(|| RoleError::Unsupported(unknown()))?;
    let heard = listen(&addresses, work, stage).or_failed("hear the publisher")?;
    let measured = heard
        .measured
        .with_figure(OFFERED, work.rate_per_sec * work.subscribers as f64)
        .with_figure("closed_connections", heard.closed as f64);
    stage.measured(measured)
}

/// Rates of the rows, in millions of deliveries a second. Below 4 only rivals reach their limits, which climbing finds.
const MILLIONS: [f64; 5] = [4.0, 8.0, 16.0, 24.0, 28.0];

/// Rates to climb, in messages a second: from 1 to 128 million deliveries. From 16 to 48 million, where most rows end,
/// a step is at most a sixth, so that rows of nearly the same cost do not look a quarter apart.
pub(super) static CLIMB: [f64; 25] = [
    2_000.0, 4_000.0, 6_000.0, 8_000.0, 12_000.0, 16_000.0, 20_000.0, 24_000.0, 32_000.0, 36_000.0,
    40_000.0, 44_000.0, 48_000.0, 56_000.0, 64_000.0, 72_000.0, 80_000.0, 88_000.0, 96_000.0,
    112_000.0, 128_000.0, 160_000.0, 192_000.0, 224_000.0, 256_000.0,
];

pub(super) const SUBSCRIBERS: usize = 500;

const PAYLOAD_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::played::{loses_nothing, play};
    use super::*;

    #[test]
    fn every_row_delivers_everything_to_everybody() {
        loses_nothing(&SUITE, |work| {
            work.subscribers = work.subscribers.min(20);
            work.warm_up_ms = 20;
            // Every agent says something within a second.
            work.measure_ms = if work.mode == chat::MODE { 1_200 } else { 50 };
        });
    }

    #[test]
    fn the_server_accounts_for_what_it_published() {
        for side in [Side::Bare, Side::Tidewire] {
            let row = rows(true).pop().unwrap();
            let mut work = match side {
                Side::Bare => row.limits[0].work.clone(),
                Side::Tidewire => row.work,
            };
            (work.subscribers, work.measure_ms) = (3, 50);
            let played = play(&SUITE, side, &work);
            let published = played.account.messages.unwrap();
            assert!(played.measured.messages <= published * 3, "{side:?}");
            assert!(played.measured.latency.unwrap().samples == played.measured.messages);
        }
    }
}
