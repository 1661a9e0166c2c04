//! Allocations of a lane: none per message in the steady state, few per idle session.
//!
//! Only the lanes' own threads are counted. Only one test runs at a time, because the counters belong to the process.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod client;
mod echo;
mod fan_out;
mod sessions;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidewire::{CloseReason, Context, HandlerResult, Limits, Message, Service};
use tidewire_io::allocation::{CountingAllocator, mark_this_thread};
use tidewire_testkit::fixtures::{echo, tw1};
use tidewire_testkit::{Peer, wait_until};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Counts the allocations of the lane that runs the inner service.
#[derive(Clone)]
struct Counted<S>(S);

impl<S: Service> Service for Counted<S> {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        mark_this_thread();
        self.0.on_open(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if message.payload == HOLD {
            IS_HELD.store(true, Ordering::SeqCst);
            drop(GATE.lock().unwrap_or_else(PoisonError::into_inner));
            IS_HELD.store(false, Ordering::SeqCst);
        }
        self.0.on_message(cx, message)
    }

    fn on_close(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        self.0.on_close(cx, reason);
    }
}

/// Turns pings off: on a very busy machine a test may take longer than a heartbeat, and a ping would be counted.
fn without_pings() -> Limits {
    let mut limits = Limits::default();
    limits.connections.set_heartbeat(Duration::ZERO);
    limits.connections.set_idle_timeout(Duration::MAX);
    limits
}

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that blocks its lane while the test holds [`GATE`].
const HOLD: &[u8] = b"hold";
static GATE: Mutex<()> = Mutex::new(());
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// Blocks the lane while `work` runs, so that the lane finds all input of `work` at once.
fn while_held(holder: &mut Peer, work: impl FnOnce()) {
    let gate = GATE.lock().unwrap_or_else(PoisonError::into_inner);
    holder.ask(HOLD);
    wait_until("the lane is held", || {
        IS_HELD.load(Ordering::SeqCst).then_some(())
    });
    work();
    drop(gate);
    assert_eq!(holder.answer().payload, HOLD);
}
