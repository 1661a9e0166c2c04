//! Cluster: one publisher at the first of two nodes, 250 receivers at each of them, and nats-server between them.
//!
//! Rivals do the same work: two nodes of Centrifuge behind the same broker, and 500 receivers at nats-server itself.
//! Beside them stands one node of Tidewire without a broker, which has all 500 receivers: it shows what the second node
//! and the broker cost. All are read by the [subscriber](crate::subscriber) of the suite `fanout`, and all parts of a
//! contender share the server's core.

mod broker;

use std::sync::Arc;

use tidewire::backplane::NodeSettings;
use tidewire::{Server, ServerBuilder};
use tidewire_nats::Nats;

use self::broker::Broker;
use super::fanout::publisher::{Publisher, Tally};
use super::fanout::{self, SUBSCRIBERS};
use crate::contract::{Account, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "cluster",
    about: "one publisher and 500 receivers on two nodes with nats-server between them",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let rates: &[f64] = if quick { &[1.0] } else { &MILLIONS };
    let mut rows: Vec<RowPlan> = rates
        .iter()
        .map(|&millions| {
            let id = format!("{millions} M/s to {SUBSCRIBERS} on 2 nodes");
            let rate_per_sec = millions * 1e6 / SUBSCRIBERS as f64;
            RowPlan {
                rises: true,
                ..row(id, work(quick, rate_per_sec))
            }
        })
        .collect();
    let climb: &'static [f64] = if quick { &CLIMB[..4] } else { &CLIMB };
    let id = format!("highest rate without loss to {SUBSCRIBERS} on 2 nodes");
    rows.push(row(id, work(quick, climb[0])).climbing(climb));
    rows
}

/// A row beside one node without a broker.
fn row(id: String, work: Work) -> RowPlan {
    RowPlan::new(id, work.clone(), Metric::DELIVERIES).beside(work)
}

fn work(quick: bool, rate_per_sec: f64) -> Work {
    Work {
        suite: SUITE.name.to_owned(),
        ..fanout::work(quick, "tcp", rate_per_sec)
    }
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    if side == Side::Bare {
        return fanout::publisher::serve(work, stage);
    }
    let broker = Broker::start().or_failed("start nats-server")?;
    let prefix = format!("bench-{:08x}", fastrand::u32(..));
    let tally = Arc::new(Tally::new(work.subscribers));
    let mut servers = Vec::new();
    for node in 0..NODES {
        let publisher = || Publisher::of_node(work, &tally, node == 0);
        let server = node_of(super::builder(work)?, &broker, &prefix, node)?;
        let server = server.start_boxed(|_| Box::new(publisher()));
        servers.push(server.or_failed("start a node")?);
    }
    let addresses: Vec<String> = servers.iter().map(Server::to_string).collect();
    stage.serve(&addresses.join(","), || {
        let allocated = |server: &Server| super::lanes_allocated(&server.metrics());
        Account {
            messages: Some(tally.published()),
            allocated_bytes: servers.iter().map(allocated).sum(),
            dropped: None,
        }
    })
}

/// Reads one node as two nodes are read.
fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let is_own = work.codec == "tw1";
    let side = if is_own { Side::Tidewire } else { side };
    fanout::drive(side, address, work, stage)
}

/// A server that is this node of the cluster.
fn node_of(
    builder: ServerBuilder,
    broker: &Broker,
    prefix: &str,
    node: usize,
) -> Result<ServerBuilder, RoleError> {
    let nats = Nats::new(broker.address()).and_then(|nats| nats.prefix(prefix));
    let settings = NodeSettings::new(&format!("node-{node}")).or_failed("name a node")?;
    Ok(builder.backplane(nats.or_failed("use nats-server")?, settings))
}

const NODES: usize = 2;

/// Rates of the rows, in millions of deliveries a second: a million, and those of `scenarios/cluster-8m.toml` and
/// `cluster-16m.toml`.
const MILLIONS: [f64; 3] = [1.0, 8.0, 16.0];

/// Rates to climb, in messages a second: from a quarter of a million to 48 million deliveries.
static CLIMB: [f64; 18] = [
    500.0, 1_000.0, 1_500.0, 2_000.0, 3_000.0, 4_000.0, 6_000.0, 8_000.0, 12_000.0, 16_000.0,
    20_000.0, 24_000.0, 32_000.0, 40_000.0, 48_000.0, 64_000.0, 80_000.0, 96_000.0,
];

#[cfg(test)]
mod tests {
    use super::super::played::play;
    use super::*;

    #[test]
    fn one_node_and_two_deliver_everything_and_the_publisher_accounts_for_it() {
        if broker::program().is_none() {
            // The test kit says so where it needs the program.
            return;
        }
        let mut work = rows(true)[0].work.clone();
        (work.subscribers, work.warm_up_ms, work.measure_ms) = (6, 20, 200);
        work.rate_per_sec = 500.0;
        for side in Side::ALL {
            let played = play(&SUITE, side, &work);
            let measured = &played.measured;
            assert_eq!(measured.lost, 0, "{measured:?}");
            assert!(measured.messages > 0 && measured.verified, "{measured:?}");
            assert_eq!(measured.figures["closed_connections"], 0.0);
            let published = played.account.messages.unwrap();
            assert!(measured.messages <= published * 6, "{measured:?}");
        }
    }
}
