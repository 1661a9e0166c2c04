//! WebSocket: echo and fan-out over `ws` and `wss`, and the memory of a session.
//!
//! Rows of echo and fan-out are those of the suites of these names. Their limit is the same bare loop that masks and
//! frames by hand ([`WebSocketLink`]). Tidewire's messages are a stream of bytes within WebSocket messages, so that a
//! write is one message. Most libraries send each message as a WebSocket message of its own. So an echo has two rows:
//! in one of them the client, the same for all, sends a write as a message; in the other, which rivals take part in,
//! each message has a header and a mask of its own. In a fan-out rivals send messages of their own, and one raw
//! subscriber reads all publishers.

use tidewire_io::socket::Stream;

use super::idle::{self, IDLE};
use super::visitors::{self, Visitors};
use super::{codec, echo, fanout};
use crate::contract::{Account, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::probes::{EACH, Link, WebSocketLink};
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "websocket",
    about: "echo and fan-out over WebSocket, with and without TLS, and the memory of a session",
    rows,
    serve,
    drive,
};

fn rows(quick: bool) -> Vec<RowPlan> {
    let mut rows = vec![echo_row(quick, 16, 128, ""), echo_row(quick, 1, 1, "")];
    rows.push(echo_row(quick, 16, 128, EACH));
    if quick {
        rows.extend([WS, WSS].map(|transport| fanout_row(quick, transport, 2.0)));
    } else {
        rows.push(echo_row(quick, 1, 1, EACH));
        rows.extend([WS, WSS].map(|transport| fanout_row(quick, transport, 16.0)));
        rows.extend([WS, WSS].map(|transport| highest(quick, transport)));
    }
    rows.extend(idle::rows(quick, |mode, connections| Work {
        mode: mode.to_owned(),
        connections,
        message_bytes: visitors::MESSAGE_BYTES,
        ..super::timed(quick, &SUITE, WS, "length-field")
    }));
    rows
}

/// Rivals take part where each message is a WebSocket message.
fn echo_row(quick: bool, connections: usize, in_flight: usize, mode: &str) -> RowPlan {
    let mut row = echo::row(quick, WS, "tw1", mode, connections, in_flight);
    row.id = format!("echo, {connections} × {in_flight} in flight");
    if mode == EACH {
        row.id += ", a WebSocket message each";
        return row;
    }
    row.with_peers(None)
}

fn fanout_row(quick: bool, transport: &str, millions: f64) -> RowPlan {
    let subscribers = fanout::SUBSCRIBERS;
    let work = fanout::work(quick, transport, millions * 1e6 / subscribers as f64);
    let limit = fanout::bare::LOOPS[0].work(&work);
    let id = format!("fan-out over {transport}, {millions} M/s to {subscribers}");
    let mut row = RowPlan::new(id, work, Metric::DELIVERIES).with_limit(Some(limit));
    row.rises = true;
    row
}

/// The highest rate of the fan-out. Tidewire's own frames are the limit's.
fn highest(quick: bool, transport: &str) -> RowPlan {
    let work = fanout::work(quick, transport, fanout::CLIMB[0]);
    let limit = fanout::bare::LOOPS[0].work(&work);
    let subscribers = fanout::SUBSCRIBERS;
    let id = format!("fan-out over {transport}, highest rate without loss to {subscribers}");
    let row = RowPlan::new(id, work, Metric::DELIVERIES);
    row.with_limit(Some(limit)).climbing(&fanout::CLIMB)
}

fn serve(side: Side, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    if let Some(suite) = super::other_suite(&SUITE, work) {
        return (suite.serve)(side, work, stage);
    }
    super::need_descriptors(work)?;
    match side {
        Side::Bare => {
            let (listener, address) = super::listen(work)?;
            idle::serve_bare(listener, IdleLink::accept);
            stage.serve(&address, Account::default)
        }
        Side::Tidewire => {
            let builder = super::builder(work)?.codec(codec(work)?);
            let server = builder.start(|_| idle::answer);
            super::serve_ours(&server.or_failed("start the server")?, stage)
        }
    }
}

fn drive(side: Side, address: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    if let Some(suite) = super::other_suite(&SUITE, work) {
        return (suite.drive)(side, address, work, stage);
    }
    super::need_descriptors(work)?;
    if work.mode != IDLE {
        let mode = &work.mode;
        return Err(RoleError::Unsupported(format!("there is no mode `{mode}`")));
    }
    let server = super::socket_address(&super::full_address(work, address))?;
    let dial = |_, stream| IdleLink::dial(stream);
    let visitors = Visitors::new(server, work.connections, dial).or_failed("make clients")?;
    let measured = idle::drive(visitors, work, stage);
    stage.measured(measured.or_failed("hold the sessions")?)
}

/// The connections whose memory is measured.
type IdleLink = WebSocketLink<Stream, 0>;

/// The transports.
const WS: &str = "ws";
const WSS: &str = "wss";

#[cfg(test)]
mod tests {
    use super::super::played::{play, play_few_clients, play_long_rows_with_few_clients};
    use super::*;

    #[test]
    fn every_row_loses_nothing() {
        play_few_clients(&SUITE);
    }

    #[test]
    fn the_long_rows_are_those_of_the_quick_ones_with_other_numbers() {
        play_long_rows_with_few_clients(&SUITE);
    }

    #[test]
    fn idle_sessions_cost_memory_on_both_sides() {
        let rows = rows(true);
        let row = rows.iter().find(|row| row.work.mode == IDLE).unwrap();
        for side in Side::ALL {
            let work = Work {
                warm_up_ms: 1,
                connections: 20,
                ..row.work.clone()
            };
            let measured = play(&SUITE, side, &work).measured;
            assert_eq!((measured.messages, measured.lost), (20, 0));
            assert!(measured.figures.contains_key(idle::USER_BYTES));
        }
    }
}
