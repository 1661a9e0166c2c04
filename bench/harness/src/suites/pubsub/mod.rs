//! Publish and subscribe through a server: one to five publishers, as many subscribers, each of whom hears everything.
//!
//! Publishers send as much as they may: each is at most [`WINDOW`] messages ahead of the slowest subscriber, so that
//! what is measured is speed and not the length of queues. The driver has both ends on one thread and checks every
//! message of every publisher at every subscriber. The limit is a loop that copies such frames from publishers to
//! subscribers, who check the same: the head with what says the topic, number, time and filling.

mod bare;
mod exchange;
mod flow;

use tidewire::{PubSub, Server};

use self::flow::Deliveries;
use super::course::{self, Part};
use crate::contract::{Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::stage::Stage;

pub(super) const SUITE: Suite = Suite {
    name: "pubsub",
    about: "publishers and subscribers of a topic, by transport",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let mut rows = Vec::new();
    for transport in ["udp", "ipc", "tcp", "inproc"] {
        for (publishers, subscribers) in [(1, 1), (3, 2), (5, 5)] {
            let work = Work {
                message_bytes: PAYLOAD_BYTES,
                publishers,
                subscribers,
                ..super::timed(quick, &SUITE, transport, "tw1")
            };
            let id = format!("{transport}, {publishers} to {subscribers}");
            for mode in ["", super::SPIN] {
                // Within a process lanes look by themselves.
                if mode == super::SPIN && transport == "inproc" {
                    continue;
                }
                let work = Work {
                    mode: mode.to_owned(),
                    ..work.clone()
                };
                let id = format!("{id}, {mode}");
                let row = RowPlan::new(id.trim_end_matches(", "), work, Metric::DELIVERIES);
                let limits = bare::loops(&row.work);
                let peers = mode.is_empty().then(|| row.work.clone());
                rows.push(row.with_limits(limits).with_peers(peers));
            }
        }
    }
    if quick {
        rows.retain(|row| row.work.publishers == 3);
    }
    rows
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    match side {
        Side::Bare => bare::serve(work, stage),
        Side::Tidewire => super::serve_ours(&start_server(work)?, stage),
    }
}

fn start_server(work: &Work) -> Result<Server, RoleError> {
    super::start_server(work, PubSub::new)
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let start = |part: &Part<Deliveries>| match side {
        Side::Tidewire => {
            let (server, address) = super::reach(work, address, start_server)?;
            let clients = exchange::start(&super::endpoint(&address)?, work, part)?;
            Ok(Some((server, clients)))
        }
        Side::Bare => {
            bare::start(address, work, part)?;
            Ok(None)
        }
    };
    course::drive(1, work, stage, start, |all| measured(&all[0], work))
}

fn measured(deliveries: &Deliveries, work: &Work) -> Measured {
    let seconds = work.measure_ms as f64 / 1e3;
    let lost = deliveries.lost + deliveries.wrong;
    Measured::verified(deliveries.messages, seconds, lost).with_times(&deliveries.latency)
}

const PAYLOAD_BYTES: usize = 32;

/// Messages that a publisher may be ahead of the slowest subscriber: a few writes, and less than what a UDP socket
/// holds.
const WINDOW: u64 = 512;

/// How often it is looked for the end, and for what does not come.
const LOOK_EVERY_NS: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use super::super::played::loses_nothing;
    use super::*;

    #[test]
    fn everybody_hears_everything() {
        loses_nothing(&SUITE, |work| {
            (work.warm_up_ms, work.measure_ms) = (5, 50);
        });
    }
}
