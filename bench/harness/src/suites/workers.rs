//! Workers: a hundred thousand tasks of a hundred iterations, handed from one thread to some others.
//!
//! The limit is doing them without handing them over. A second row for each number of threads stands beside a queue
//! behind a mutex, which is what one would write first. Every task is checked for having been done once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tidewire::workers::{WhenPoolFull, WorkerPool};
use tidewire_io::clock::now_ns;
use tidewire_load::statistics::LatencyHistogram;

use crate::contract::{Measured, Work};
use crate::plan::{Metric, RoleError, RowPlan, Side, Suite};
use crate::stage::{OrFailed, Stage};

pub(super) const SUITE: Suite = Suite {
    name: "workers",
    about: "100,000 tasks of 100 iterations, handed to 1 to 4 threads",
    rows,
    serve: super::serves_nobody,
    drive,
};

/// A task: which one it is, and when it was handed over.
#[derive(Clone, Copy, Debug)]
struct Task {
    number: usize,
    enqueued_ns: u64,
}

/// How long each task waited, and by that whether it was done.
struct Tasks {
    waited_ns: Vec<AtomicU64>,
    done: AtomicU64,
    /// Tasks that were done before.
    doubled: AtomicU64,
}

struct MutexQueue {
    shared: Arc<Queue>,
    threads: Vec<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    tasks: Mutex<VecDeque<Task>>,
    news: Condvar,
    over: AtomicBool,
}

fn rows(quick: bool) -> Vec<RowPlan> {
    let mut rows = Vec::new();
    for threads in 1..=4 {
        for (batch, mode) in [(64, INLINE), (64, MUTEX), (1, MUTEX)] {
            let work = Work {
                threads,
                count: TASKS,
                in_flight: batch,
                ..super::timed(quick, &SUITE, "inproc", "")
            };
            let other = Work {
                mode: mode.to_owned(),
                ..work.clone()
            };
            let each = match batch {
                1 => "one by one".to_owned(),
                batch => format!("{batch} at once"),
            };
            let id = format!("{threads} threads, {each}, beside {mode}");
            let peers = (mode == INLINE).then(|| work.clone());
            let row = RowPlan::new(id, work, TASKS_PER_SEC);
            rows.push(row.beside(other).with_peers(peers));
        }
    }
    if quick {
        rows.retain(|row| row.work.threads == 2);
    }
    rows
}

fn drive(side: Side, _: &str, work: &Work, stage: &mut Stage) -> Result<(), RoleError> {
    let tasks = Arc::new(Tasks::new(work.count as usize));
    let done = Arc::clone(&tasks);
    let enqueue: Box<dyn Fn(Vec<Task>)> = match (side, work.mode.as_str()) {
        (Side::Tidewire, _) => {
            let work_one = move |task| done.work(task);
            let pool = WorkerPool::new(work.threads, QUEUE_MAX, WhenPoolFull::Wait, work_one);
            let pool = pool.or_failed("start the workers")?;
            Box::new(move |tasks| submit(&pool, tasks))
        }
        (Side::Bare, MUTEX) => {
            let queue = MutexQueue::new(work.threads, &tasks);
            Box::new(move |tasks| queue.enqueue(tasks))
        }
        (Side::Bare, _) => {
            Box::new(move |tasks| tasks.into_iter().for_each(|task| done.work(task)))
        }
    };
    let batch = work.in_flight.max(1);
    let mut waits = LatencyHistogram::new();
    let warm_until_ns = now_ns() + work.warm_up_ms * 1_000_000;
    let mut wrong = tasks.enqueue_all(&enqueue, batch) + tasks.reset(None);
    while now_ns() < warm_until_ns {
        wrong += tasks.enqueue_all(&enqueue, batch) + tasks.reset(None);
    }
    stage.started()?;
    let from_ns = now_ns();
    let (mut messages, mut busy_ns) = (0, 0);
    while messages == 0 || now_ns() - from_ns < work.measure_ms * 1_000_000 {
        let round_ns = now_ns();
        let missing = tasks.enqueue_all(&enqueue, batch);
        busy_ns += now_ns() - round_ns;
        wrong += missing + tasks.reset(Some(&mut waits));
        messages += work.count;
    }
    stage.stopped()?;
    stage.measured(Measured::verified(messages, busy_ns as f64 / 1e9, wrong).with_times(&waits))
}

impl Tasks {
    fn new(count: usize) -> Self {
        Self {
            waited_ns: (0..count).map(|_| AtomicU64::new(UNDONE)).collect(),
            done: AtomicU64::new(0),
            doubled: AtomicU64::new(0),
        }
    }

    fn work(&self, task: Task) {
        let waited_ns = now_ns().saturating_sub(task.enqueued_ns);
        super::iterate(task.number as u64);
        let before = self.waited_ns[task.number].swap(waited_ns, Ordering::Relaxed);
        if before != UNDONE {
            self.doubled.fetch_add(1, Ordering::Relaxed);
        }
        self.done.fetch_add(1, Ordering::Release);
    }

    /// Enqueues all tasks, and waits until as many are done. Returns how many are missing.
    fn enqueue_all(&self, enqueue: &dyn Fn(Vec<Task>), batch: usize) -> u64 {
        let count = self.waited_ns.len();
        let before = self.done.load(Ordering::Acquire);
        for from in (0..count).step_by(batch) {
            let enqueued_ns = now_ns();
            let task = |number| Task {
                number,
                enqueued_ns,
            };
            let numbers = from..(from + batch).min(count);
            enqueue(numbers.map(task).collect());
        }
        let until_ns = now_ns() + TIMEOUT_NS;
        loop {
            let done = self.done.load(Ordering::Acquire) - before;
            if done >= count as u64 || now_ns() > until_ns {
                return (count as u64).saturating_sub(done);
            }
            thread::yield_now();
        }
    }

    /// Records how long they waited, and makes them undone again. Returns how many were done more than once.
    fn reset(&self, mut waits: Option<&mut LatencyHistogram>) -> u64 {
        for waited_ns in &self.waited_ns {
            let waited_ns = waited_ns.swap(UNDONE, Ordering::Relaxed);
            if let Some(waits) = waits.as_deref_mut()
                && waited_ns != UNDONE
            {
                waits.record(waited_ns);
            }
        }
        self.doubled.swap(0, Ordering::Relaxed)
    }
}

fn submit(pool: &WorkerPool<Task>, mut tasks: Vec<Task>) {
    // It waits for a place, so neither is refused; if it were, the tasks would be missed.
    match tasks.pop() {
        Some(task) if tasks.is_empty() => drop(pool.submit(task)),
        Some(task) => {
            tasks.push(task);
            drop(pool.submit_batch(tasks));
        }
        None => {}
    }
}

impl MutexQueue {
    fn new(threads: usize, tasks: &Arc<Tasks>) -> Self {
        let shared = Arc::new(Queue::default());
        let work = || {
            let (shared, tasks) = (Arc::clone(&shared), Arc::clone(tasks));
            thread::spawn(move || {
                while let Some(task) = shared.next() {
                    tasks.work(task);
                }
            })
        };
        let threads = (0..threads).map(|_| work()).collect();
        Self { shared, threads }
    }

    fn enqueue(&self, tasks: Vec<Task>) {
        let is_one = tasks.len() == 1;
        self.shared.lock().extend(tasks);
        if is_one {
            self.shared.news.notify_one();
        } else {
            self.shared.news.notify_all();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Task>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task, or nothing when it is over.
    fn next(&self) -> Option<Task> {
        let is_idle =
            |tasks: &mut VecDeque<Task>| tasks.is_empty() && !self.over.load(Ordering::Relaxed);
        let waited = self.news.wait_while(self.lock(), is_idle);
        waited.unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

impl Drop for MutexQueue {
    fn drop(&mut self) {
        // With the lock, so that nobody looks just before and sleeps just after.
        let queue = self.shared.lock();
        self.shared.over.store(true, Ordering::Relaxed);
        drop(queue);
        self.shared.news.notify_all();
        for thread in self.threads.drain(..) {
            // It cannot have panicked: a task does nothing that could.
            let _ = thread.join();
        }
    }
}

const TASKS_PER_SEC: Metric = Metric::rate("tasks_per_sec", "tasks/s");

const INLINE: &str = "inline";
const MUTEX: &str = "mutex queue";

const TASKS: u64 = 100_000;

const QUEUE_MAX: usize = 1_024;

const UNDONE: u64 = u64::MAX;

/// Tasks that are not done this long after the last progress are lost.
const TIMEOUT_NS: u64 = 20_000_000_000;

#[cfg(test)]
mod tests {
    use super::super::played::loses_nothing;
    use super::*;

    #[test]
    fn every_task_is_done_once() {
        loses_nothing(&SUITE, |work| {
            work.count = 1_000;
            (work.warm_up_ms, work.measure_ms) = (1, 10);
        });
    }

    #[test]
    fn a_task_that_is_done_twice_or_not_at_all_is_wrong() {
        let tasks = Tasks::new(10);
        let round =
            |crew: &dyn Fn(Vec<Task>), batch| tasks.enqueue_all(crew, batch) + tasks.reset(None);
        let careless = |given: Vec<Task>| {
            // The second one in place of the first.
            for task in [given[1], given[1]].iter().chain(&given[2..]) {
                tasks.work(*task);
            }
        };
        let inline = |given: Vec<Task>| given.into_iter().for_each(|task| tasks.work(task));
        assert_eq!(round(&careless, 10), 1);
        assert_eq!(round(&inline, 3), 0);
    }
}
