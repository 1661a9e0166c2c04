//! rayon as a pool of workers. The tasks come from a thread outside the pool.
//!
//! Each task does 100 iterations of a small computation, the same as the benchmark's own workers. The work says how
//! many are submitted at once. The waiting time of a task ends when it begins. Every result is checked.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use peer_common::{
    Console, Description, Driver, Measured, Peer, Window, Work, locked_version, not_offered,
    now_ns, offer, times,
};
use rayon::{ThreadPool, ThreadPoolBuilder};
use tidewire_load::statistics::LatencyHistogram;

fn main() -> ExitCode {
    peer_common::run(&Rayon)
}

struct Rayon;

impl Peer for Rayon {
    fn describe(&self) -> Result<Description> {
        Ok(Description {
            name: "rayon".to_owned(),
            version: locked_version("rayon")?,
            offers: vec![offer("workers", &["inproc"], "", Driver::Own)],
        })
    }

    fn serve(&self, work: &Work, _console: &Console) -> Result<()> {
        Err(not_offered(work))
    }

    /// Does rounds of all tasks until the window ends. Only the rounds count as time, not the checks between them.
    fn drive(&self, _address: &str, work: &Work) -> Result<Measured> {
        ensure!(work.suite == "workers", not_offered(work));
        ensure!(work.count > 0, "no tasks are asked for");
        let pool = ThreadPoolBuilder::new()
            .num_threads(work.threads.max(1))
            .build()
            .context("the pool's threads")?;
        let slots: Vec<Slot> = (0..work.count).map(|_| Slot::default()).collect();
        let window = Window::begin(work);
        while now_ns() < window.from_ns() {
            run(&pool, &slots, work.in_flight.max(1));
        }
        let mut waits = LatencyHistogram::new();
        let mut measured = Measured::default();
        let mut elapsed = Duration::ZERO;
        while !window.is_over(now_ns()) || measured.messages == 0 {
            let begun_ns = now_ns();
            run(&pool, &slots, work.in_flight.max(1));
            elapsed += Duration::from_nanos(now_ns() - begun_ns);
            for (number, slot) in (0..).zip(&slots) {
                if slot.has_result(number) {
                    measured.messages += 1;
                    waits.record(slot.wait_ns.load(Ordering::Relaxed));
                } else {
                    measured.lost += 1;
                }
            }
        }
        Ok(Measured {
            seconds: elapsed.as_secs_f64(),
            verified: true,
            allocated_bytes: Some(window.allocated_bytes()),
            latency: times(&waits),
            ..measured
        })
    }
}

/// The result of one task.
#[derive(Default)]
struct Slot {
    wait_ns: AtomicU64,
    result: AtomicU64,
}

impl Slot {
    fn work(&self, number: u64, handed_over_ns: u64) {
        let wait_ns = now_ns().saturating_sub(handed_over_ns);
        self.wait_ns.store(wait_ns, Ordering::Relaxed);
        self.result.store(compute(number), Ordering::Relaxed);
    }

    /// Whether the task left its result. Clears it for the next round.
    fn has_result(&self, number: u64) -> bool {
        self.result.swap(0, Ordering::Relaxed) == compute(number)
    }
}

/// Submits a task for each slot, `batch` of them at once, and waits for all of them.
fn run(pool: &ThreadPool, slots: &[Slot], batch: usize) {
    pool.in_place_scope(|scope| {
        for (first, tasks) in (0..).step_by(batch).zip(slots.chunks(batch)) {
            let handed_over_ns = now_ns();
            scope.spawn(move |_| {
                for (number, task) in (first..).zip(tasks) {
                    task.work(number, handed_over_ns);
                }
            });
        }
    });
}

/// The computation of a task. It never returns 0.
fn compute(number: u64) -> u64 {
    let product = (0..ITERATIONS).fold(number, |value, _| {
        black_box(
            value
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1),
        )
    });
    product | 1
}

/// Iterations of one task.
const ITERATIONS: u64 = 100;
