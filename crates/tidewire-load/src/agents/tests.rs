//! The counting of agents, with given times.

use tidewire::Endpoint;
use tidewire_proto::body::{PositionBody, Recovery, RecoveryBody};
use tidewire_proto::message::FLAG_POSITION;

use super::flight::ReplyMatch;
use super::*;
use crate::credentials::StepTokens;
use crate::scenario::{Arrival, Stage, ThinkTime};
use crate::stamp::Stamp;

/// Two agents; the steady window is from 100 to 200.
fn agents(is_windowed: bool) -> Agents {
    let think_time_ms = ThinkTime {
        min_ms: 1.0,
        max_ms: 1.0,
    };
    let step = Step::chat("two", 2, 1.0, think_time_ms);
    let plan = StepPlan {
        run: 7,
        is_windowed,
        ..StepPlan::for_tests(&step)
    };
    let link = Arc::new(StepLink::new(1, 1, StepTokens::default()));
    link.open(50, 100, 200);
    let mut agents = Agents::new(plan, link, Share::Lane { lane: 0, lanes: 1 }, None);
    agents.agents[0].ledger = Some(Ledger::for_member(0, 2, 1_000));
    agents
}

#[test]
fn agents_are_spread_evenly_and_what_crosses_is_timed_apart() {
    let plan = agents(false).plan;
    for (concurrency, nodes) in [(2, 2), (500, 2), (7, 3), (3, 5), (1, 1)] {
        let targets: Vec<Endpoint> = vec![plan.targets[0].clone(); nodes];
        let plan = StepPlan {
            step: Arc::new(Step::chat("even", concurrency, 1.0, ThinkTime::NONE)),
            targets: targets.into(),
            ..plan.clone()
        };
        let mut counted = 0;
        for node in 0..nodes {
            let agents = plan.agents_of(node);
            assert!(agents.clone().all(|agent| plan.node_of(agent) == node));
            assert!(agents.len() <= (concurrency as usize).div_ceil(nodes));
            counted += agents.len();
        }
        assert_eq!(counted, concurrency as usize);
    }
    let mut agents = agents(false);
    agents.agents[0].neighbours = 0..1;
    deliver(&mut agents, 1, 1, 160);
    let mut times = Times::default();
    times.collect(&agents.times);
    assert_eq!((times.scheduled.count(), times.across.count()), (1, 1));
}

#[test]
fn what_a_room_itself_says_is_no_broken_message() {
    let mut agents = agents(false);
    for author in [0, 9, 0] {
        let message = Message::with_id(Kind::Deliver, 0, author, b"we are cut off");
        agents.handle_delivery(0, 160, &message);
    }
    assert_eq!(agents.result.counts.announced, 2);
    let ledger = agents.agents[0].ledger.take().unwrap();
    let totals = ledger.finish(&crate::ledger::SentTotals::new(vec![0, 0], false), 0);
    assert_eq!((totals.corrupt, totals.arrived), (1, 1));
}

fn deliver(agents: &mut Agents, sender: u32, sequence: u64, now_ns: u64) {
    let stamp = Stamp {
        run: 7,
        step: 0,
        flags: 0,
        sender,
        sequence,
        intended_ns: 60,
    };
    let mut payload = [0; Stamp::BYTES];
    stamp.encode(&mut payload);
    let message = Message::with_id(Kind::Deliver, 0, 9, &payload);
    agents.handle_delivery(0, now_ns, &message);
}

/// Lets a delivery with an offset reach the first agent.
fn deliver_at(agents: &mut Agents, offset: u64, sender: u32, sequence: u64) {
    let stamp = Stamp {
        run: 7,
        step: 0,
        flags: 0,
        sender,
        sequence,
        intended_ns: 60,
    };
    let mut payload = offset.to_le_bytes().to_vec();
    payload.resize(8 + Stamp::BYTES, 0);
    stamp.encode((&mut payload[8..]).try_into().unwrap());
    let message = Message {
        flags: FLAG_POSITION,
        ..Message::with_id(Kind::Deliver, 0, 9, &payload)
    };
    agents.handle_delivery(0, 160, &message);
}

fn joined(agents: &mut Agents, position: Position, recovery: Recovery) {
    let mut body = Vec::new();
    RecoveryBody { position, recovery }.encode(&mut body);
    let reply = Message {
        flags: FLAG_POSITION,
        ..Message::with_id(Kind::Reply, 3, JOIN_ID, &body)
    };
    agents.handle_recovery(0, &reply);
}

#[test]
fn an_agent_knows_its_position_and_what_its_server_says_is_missing() {
    let mut agents = agents(false);
    let at = |offset| Position { epoch: 5, offset };
    let state = |agents: &Agents| {
        let agent = &agents.agents[0];
        (agent.position, agent.told, agent.told_unknown)
    };
    joined(&mut agents, at(30), Recovery::NotAsked);
    deliver_at(&mut agents, 31, 1, 1);
    deliver_at(&mut agents, 32, 1, 2);
    assert_eq!(state(&agents), (Some(at(32)), 0, 0));
    joined(&mut agents, at(36), Recovery::Missing(Some(4)));
    joined(&mut agents, at(36), Recovery::Recovered);
    assert_eq!(state(&agents), (Some(at(36)), 4, 0));
    joined(&mut agents, at(36), Recovery::Missing(None));
    let mut body = Vec::new();
    for epoch in [5, 6] {
        let position = Position { epoch, offset: 9 };
        body.clear();
        PositionBody { position }.encode(&mut body);
        agents.handle_position(0, &Message::new(Kind::Position, 3, &body));
    }
    let new = Position {
        epoch: 6,
        offset: 9,
    };
    assert_eq!(state(&agents), (Some(new), 4, 2));
    // A server that does not say what is missing may have lost anything.
    agents.handle_recovery(0, &Message::with_id(Kind::Reply, 3, JOIN_ID, &[]));
    assert_eq!(state(&agents), (None, 4, 3));
    let broken = Message {
        flags: FLAG_POSITION,
        ..Message::with_id(Kind::Deliver, 0, 9, &[1, 2, 3])
    };
    agents.handle_delivery(0, 160, &broken);
    let ledger = agents.agents[0].ledger.take().unwrap();
    let totals = ledger.finish(&crate::ledger::SentTotals::new(vec![0, 2], false), 0);
    assert_eq!((totals.delivered, totals.corrupt), (2, 1));
}

#[test]
fn own_messages_come_back_once_and_only_those_from_before_the_end_of_the_connection() {
    let mut agents = agents(false);
    joined(
        &mut agents,
        Position {
            epoch: 5,
            offset: 0,
        },
        Recovery::NotAsked,
    );
    deliver_at(&mut agents, 1, 0, 1);
    agents.agents[0].absences.push(Absence {
        own_sent: 4,
        own_kept: 0,
        at_end: [4, 0].into(),
        at_return: None,
    });
    for (offset, sequence) in (2..).zip([2, 3, 3, 5]) {
        deliver_at(&mut agents, offset, 0, sequence);
    }
    assert_eq!(agents.agents[0].absences[0].own_kept, 3);
    let ledger = agents.agents[0].ledger.take().unwrap();
    let totals = ledger.finish(&crate::ledger::SentTotals::new(vec![5, 0], false), 0);
    // The first was live, the second 3 came twice, and 5 was sent by nobody who was away.
    assert_eq!((totals.foreign, totals.arrived), (3, 3));
    assert!(totals.is_conserved(), "{totals:?}");
}

#[test]
fn steady_counts_what_arrives_in_the_window_whenever_it_was_due() {
    let mut agents = agents(false);
    for (sequence, now_ns) in [99, 100, 199, 200].into_iter().enumerate() {
        deliver(&mut agents, 1, sequence as u64 + 1, now_ns);
    }
    assert_eq!(
        (agents.received, agents.result.counts.work.steady_received),
        (4, 2)
    );
}

#[test]
fn copies_and_own_messages_belong_to_no_rate() {
    let mut agents = agents(false);
    deliver(&mut agents, 1, 1, 150);
    deliver(&mut agents, 1, 1, 150);
    deliver(&mut agents, 0, 1, 150);
    assert_eq!(
        (agents.received, agents.result.counts.work.steady_received),
        (1, 1)
    );
}

#[test]
fn in_version_2_latencies_are_of_messages_due_in_the_window() {
    let mut agents = agents(true);
    let link = Arc::clone(&agents.link);
    // Due at 60, before the window, and so outside of it, whenever it arrives.
    deliver(&mut agents, 1, 1, 150);
    assert_eq!(agents.times.scheduled.count(), 0);
    assert_eq!(agents.times.outside.count(), 1);
    link.open(50, 60, 200);
    deliver(&mut agents, 1, 2, 5_000);
    assert_eq!(agents.times.scheduled.count(), 1);
    assert_eq!(
        (agents.received, agents.result.counts.work.steady_received),
        (2, 1)
    );
}

/// A clock that only moves as the test moves it: a serial connection, and a server that stands still for a second.
#[test]
fn a_stalled_second_in_ten_is_felt_by_a_tenth_of_all_and_seen_by_one() {
    const MS: u64 = 1_000_000;
    let stages = [Stage {
        from: 1_000.0,
        to: 1_000.0,
        secs: 10.0,
    }];
    let mut arrivals = Arrivals::new(&stages, Arrival::Constant, 1, 0, (0, 1));
    let (stall_from, stall_to, work_ns) = (4_500 * MS, 5_500 * MS, 1_000);
    let mut flight = Flight::with_window(1);
    let (mut times, mut free_ns, mut sequence) = (Times::default(), 0, 0);
    while let Some(intended_ns) = arrivals.next_intended_ns() {
        let sent_ns = intended_ns.max(free_ns);
        let stalls = (stall_from..stall_to).contains(&sent_ns);
        let received_ns = if stalls { stall_to } else { sent_ns } + work_ns;
        sequence += 1;
        flight.send(0, sent_ns);
        assert_eq!(flight.unanswered(), 1);
        assert_eq!(flight.answer(sequence), ReplyMatch::InTime { sent_ns });
        free_ns = received_ns;
        times.scheduled.record(received_ns - intended_ns);
        times.service.record(received_ns - sent_ns);
        times.send_lag.record(sent_ns - intended_ns);
        // For every message.
        let parts = (received_ns - sent_ns) + (sent_ns - intended_ns);
        assert_eq!(received_ns - intended_ns, parts);
    }
    assert_eq!(times.scheduled.count(), 10_000);
    for (quantile, expected_ms) in [(0.95, 500.0), (0.99, 900.0), (0.999, 990.0)] {
        let felt_ms = times.scheduled.quantile_ns(quantile) as f64 / 1e6;
        assert!((felt_ms - expected_ms).abs() < 3.0, "{quantile}: {felt_ms}");
        assert!(times.service.quantile_ns(quantile) < 2 * work_ns);
    }
    assert!(times.service.quantile_ns(1.0) > 990 * MS);
}
