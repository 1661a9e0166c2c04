//! The costs of a lane in its metrics: system calls and allocations.

use std::time::Duration;

use tidewire::metrics::Metrics;
use tidewire::{Context, HandlerResult, Message};
use tidewire_io::allocation::CountingAllocator;
use tidewire_proto::codec::AnyCodec;
use tidewire_testkit::fixtures::limited;
use tidewire_testkit::{Peer, TestServer};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// An echo that allocates 1,000 bytes for every message.
fn wasteful_echo(cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
    let mut copy = Vec::with_capacity(1_000);
    copy.extend_from_slice(message.payload);
    cx.reply(&copy)
}

fn ask(peer: &mut Peer, rounds: u64) {
    for round in 0..rounds {
        peer.ask(&round.to_le_bytes());
        assert_eq!(peer.answer().payload, round.to_le_bytes());
    }
}

#[test]
fn a_lane_counts_its_system_calls_and_allocations() {
    const ROUNDS: u64 = 1_000;
    let builder = limited(|limits| {
        limits.connections.set_heartbeat(Duration::ZERO);
    });
    let server = TestServer::over_tcp(builder, &AnyCodec::default(), |_| wasteful_echo);
    let mut peer = server.peer();
    // The first requests allocate all that the session needs.
    ask(&mut peer, 10);
    let before = server.metrics();
    ask(&mut peer, ROUNDS);
    let after = server.metrics();
    let grown = |count: fn(&Metrics) -> u64| count(&after) - count(&before);
    // A turn is counted at its end, possibly after its answer arrived.
    let answered = ROUNDS - 1..=ROUNDS + 1;
    let allocations = grown(|metrics| metrics.allocations);
    assert!(answered.contains(&allocations), "{allocations}");
    let bytes = grown(|metrics| metrics.allocated_bytes);
    assert!(
        answered.contains(&(bytes / 1_000)) && bytes % 1_000 == 0,
        "{bytes}"
    );
    // Each request costs a wait, a read and a write. If the peer is stopped in between, there may be one more wait.
    let calls = grown(|metrics| metrics.system_calls);
    assert!(
        (3 * answered.start()..=5 * ROUNDS).contains(&calls),
        "{calls}"
    );
    drop(peer);
    let stopped = server.stop();
    assert_eq!(stopped.frames_in - 1, ROUNDS + 10, "all but the hello");
}
