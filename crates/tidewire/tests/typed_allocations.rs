//! Allocations of a typed call on its lane: only for the values themselves.

#![cfg(feature = "typed")]
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewire::typed::DeferredReply;
use tidewire::{AnyCodec, Context, HandlerResult, Kind, Limits, Message, Router, Server, Service};
use tidewire_io::allocation::{CountingAllocator, mark_this_thread, marked_allocations};
use tidewire_proto::codec::Codec;
use tidewire_testkit::TestServer;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[tidewire::service]
trait Frugal {
    fn add(&self, a: u64, b: u64) -> Result<u64, ()>;
    fn add_later(&self, a: u64, b: u64, reply: DeferredReply<Result<u64, ()>>);
    fn repeat(&self, text: String) -> String;
}

struct Sums;

impl Frugal for Sums {
    fn add(&self, a: u64, b: u64) -> Result<u64, ()> {
        a.checked_add(b).ok_or(())
    }

    fn add_later(&self, a: u64, b: u64, reply: DeferredReply<Result<u64, ()>>) {
        reply.reply(a.checked_add(b).ok_or(())).unwrap();
    }

    fn repeat(&self, text: String) -> String {
        text
    }
}

/// Counts the allocations of the lane that runs the router.
struct Counted(Router);

impl Service for Counted {
    fn on_open(&mut self, _: &mut Context<'_>) {
        mark_this_thread();
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        self.0.on_message(cx, message)
    }
}

/// Serialises the tests, because the counters belong to the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls a method in rounds of `BATCH`. Returns the number of allocations after the warm-up, for [`CALLS`] calls.
fn allocations(codec: &str, method: usize, arguments: &[u8], answer: &[u8]) -> u64 {
    let codec = AnyCodec::by_name(codec).unwrap();
    // On a very busy machine a test may take longer than a heartbeat, and a ping would be counted.
    let mut limits = Limits::default();
    limits.connections.set_heartbeat(Duration::ZERO);
    limits.connections.set_idle_timeout(Duration::MAX);
    let server = TestServer::over_tcp(Server::builder().limits(limits), &codec, |_| {
        Counted(Router::new().mount(FrugalServer::new(Sums)))
    });
    let mut peer = server.peer();
    let mut frames = Vec::new();
    for id in 1..=BATCH {
        let request = Message::with_id(Kind::Request, 0, id, arguments);
        let request = request.with_name(FrugalClient::METHODS[method]);
        codec.encode(&request, &mut frames).unwrap();
    }
    let mut round = || {
        peer.write(&frames);
        for id in 1..=BATCH {
            let reply = peer.answer();
            assert_eq!((reply.id, &reply.payload[..]), (id, answer));
        }
    };
    (0..5).for_each(|_| round());
    let before = marked_allocations();
    (0..ROUNDS).for_each(|_| round());
    let allocations = marked_allocations() - before;
    drop(peer);
    let metrics = server.stop();
    assert_eq!(metrics.refused, 0);
    allocations
}

#[test]
fn a_call_of_plain_values_allocates_nothing() {
    let _alone = alone();
    for codec in ["tw1", "srmp-rpc", "uvrpc"] {
        let allocations = allocations(codec, 0, b"\x02\x03", b"\0\x05");
        // A buffer may still grow once, when the reader is later than ever before.
        assert!(allocations <= CALLS / 1000, "{codec}: {allocations}");
    }
}

/// The remaining allocations are the queue's blocks, one for 31 answers.
#[test]
fn a_deferred_answer_of_plain_values_allocates_a_block_for_dozens() {
    let _alone = alone();
    let allocations = allocations("tw1", 1, b"\x02\x03", b"\0\x05");
    assert!(allocations <= CALLS / 30, "{allocations}");
}

/// The counter sees the allocation for the text, once, and none for its answer.
#[test]
fn a_text_is_allocated_once() {
    let _alone = alone();
    let allocations = allocations("tw1", 2, b"\x02hi", b"\x02hi");
    let more = allocations.checked_sub(CALLS);
    assert!(
        more.is_some_and(|more| more <= CALLS / 1000),
        "{allocations}"
    );
}

/// Calls of one round. Ids of 8 bits are enough for them.
const BATCH: u32 = 50;
const ROUNDS: u64 = 200;
const CALLS: u64 = BATCH as u64 * ROUNDS;
