//! The counting of agents, with given times.

use super::*;
use crate::scenario::ThinkTime;
use crate::stamp::Stamp;

/// Two agents; the steady window is from 100 to 200.
fn agents(is_windowed: bool) -> Agents {
    let think_time_ms = ThinkTime {
        min_ms: 1.0,
        max_ms: 1.0,
    };
    let plan = StepPlan {
        address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)).into(),
        run: 7,
        number: 0,
        seed: 1,
        step: Arc::new(Step::chat("two", 2, 1.0, think_time_ms)),
        is_windowed,
        segment: Segment::WHOLE,
        late_ms: 1_000,
        room: String::new(),
        ids: RequestIds::Bits32,
        sent_times: None,
        core: None,
    };
    let link = Arc::new(StepLink::new(1));
    link.open(50, 100, 200);
    let mut agents = Agents::new(plan, link, Share::Lane { lane: 0, lanes: 1 });
    agents.agents[0].ledger = Some(Ledger::for_member(0, 2, 1_000));
    agents
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
    agents.handle_delivery(0, now_ns, &payload);
}

#[test]
fn steady_counts_what_arrives_in_the_window_whenever_it_was_due() {
    let mut agents = agents(false);
    for (sequence, now_ns) in [99, 100, 199, 200].into_iter().enumerate() {
        deliver(&mut agents, 1, sequence as u64 + 1, now_ns);
    }
    assert_eq!(
        (agents.received, agents.result.counts.steady_received),
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
        (agents.received, agents.result.counts.steady_received),
        (1, 1)
    );
}
