//! A bounded pool of threads for handlers that may block.
//!
//! A lane must never wait. So a slow handler calls [`Context::defer`](crate::Context::defer) and gives the token and
//! its task to a pool. The queue is bounded, because an unbounded queue moves the overload into memory.
//! [`WhenPoolFull`] is the policy of a full queue. Tasks are of one type and the pool has one handler, so enqueuing
//! allocates nothing. A pool of closures is `WorkerPool<Box<dyn FnOnce() + Send>>`.
//!
//! To stop in order, shut the server down first: that waits for the pending replies. Then shut the pool down.
//!
//! Rejected: a mutex around a queue (0.75-1.8 M tasks a second against 3 M and more), and work stealing, which helps
//! only when tasks spawn tasks.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

/// Threads that run one handler over tasks. The crate's [first page](crate) has an example with deferred replies.
///
/// ```
/// use tidewire::workers::{WhenPoolFull, WorkerPool};
///
/// let pool = WorkerPool::new(2, 1024, WhenPoolFull::Refuse, |text: String| println!("{text}"))?;
/// if let Err(text) = pool.submit("hello".to_owned()) {
///     eprintln!("not printed: {text}");
/// }
/// let metrics = pool.shutdown();
/// assert_eq!(metrics.accepted, metrics.completed + metrics.panicked);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct WorkerPool<T> {
    queue: Option<Sender<Load<T>>>,
    threads: Vec<JoinHandle<()>>,
    when_full: WhenPoolFull,
    shared: Arc<PoolShared<T>>,
}

/// The policy for a task that finds the queue full. A choice of [`WorkerPool::new`]; [`WorkerPool`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenPoolFull {
    /// The task comes back. The default, and the only choice that suits a lane.
    #[default]
    Refuse,
    /// The caller waits for a place.
    Wait,
    /// The caller runs the task.
    CallerRuns,
}

/// The tasks of a pool, counted by outcome. Each accepted task is completed, panicked, running or still queued.
/// Given by [`WorkerPool::metrics`]; [`WorkerPool`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerMetrics {
    /// Tasks accepted, including those that the caller ran.
    pub accepted: u64,
    /// Tasks refused because the queue was full.
    pub refused: u64,
    /// Tasks with a handler that returned.
    pub completed: u64,
    /// Tasks with a handler that panicked.
    pub panicked: u64,
    /// Tasks that their caller ran because the queue was full.
    pub caller_ran: u64,
}

#[derive(Debug)]
enum Load<T> {
    One(T),
    Many(Vec<T>),
}

struct PoolShared<T> {
    handler: Box<dyn Fn(T) + Send + Sync>,
    accepted: AtomicU64,
    refused: AtomicU64,
    completed: AtomicU64,
    panicked: AtomicU64,
    caller_ran: AtomicU64,
}

impl<T: Send + 'static> WorkerPool<T> {
    /// Starts `threads` threads with a queue of `queue_max` places, at least one of each. `handler` runs on several
    /// threads at once.
    ///
    /// # Errors
    /// The system refused a thread. Threads that have started end again.
    pub fn new(
        threads: usize,
        queue_max: usize,
        when_full: WhenPoolFull,
        handler: impl Fn(T) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (queue, tasks) = bounded(queue_max.max(1));
        let shared = Arc::new(PoolShared {
            handler: Box::new(handler),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            caller_ran: AtomicU64::new(0),
        });
        let mut pool = Self {
            queue: Some(queue),
            threads: Vec::new(),
            when_full,
            shared,
        };
        for number in 0..threads.max(1) {
            let (tasks, shared) = (Receiver::clone(&tasks), Arc::clone(&pool.shared));
            let thread = std::thread::Builder::new()
                .name(format!("tidewire-worker-{number}"))
                .spawn(move || work(&tasks, &shared))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Enqueues one task.
    ///
    /// # Errors
    /// The task, if the queue is full and the pool refuses. Refuse its caller, or submit it again later.
    pub fn submit(&self, task: T) -> Result<(), T> {
        self.enqueue(Load::One(task), 1).map_err(|load| match load {
            Load::One(task) => task,
            Load::Many(_) => unreachable!("one task was offered"),
        })
    }

    /// Enqueues several tasks at once, in one place of the queue, a third cheaper than one by one.
    ///
    /// # Errors
    /// All tasks, if the queue is full and the pool refuses.
    pub fn submit_batch(&self, tasks: Vec<T>) -> Result<(), Vec<T>> {
        let count = tasks.len() as u64;
        self.enqueue(Load::Many(tasks), count)
            .map_err(|load| match load {
                Load::Many(tasks) => tasks,
                Load::One(_) => unreachable!("several tasks were offered"),
            })
    }

    /// The outcomes of the tasks so far.
    #[must_use]
    pub fn metrics(&self) -> WorkerMetrics {
        self.shared.metrics()
    }

    /// Runs the queued tasks, ends the threads, and waits for them.
    #[must_use]
    pub fn shutdown(mut self) -> WorkerMetrics {
        self.end();
        self.shared.metrics()
    }

    fn enqueue(&self, load: Load<T>, count: u64) -> Result<(), Load<T>> {
        let Some(queue) = &self.queue else {
            return Err(load);
        };
        // The task is counted first, so that no task is completed before it is accepted.
        self.shared.accepted.fetch_add(count, Ordering::Relaxed);
        let back = match (self.when_full, queue.try_send(load)) {
            (_, Ok(())) => return Ok(()),
            (WhenPoolFull::Wait, Err(TrySendError::Full(load))) => match queue.send(load) {
                Ok(()) => return Ok(()),
                Err(error) => error.0,
            },
            (WhenPoolFull::CallerRuns, Err(TrySendError::Full(load))) => {
                self.shared.caller_ran.fetch_add(count, Ordering::Relaxed);
                self.shared.run_all(load);
                return Ok(());
            }
            (_, Err(TrySendError::Full(load) | TrySendError::Disconnected(load))) => load,
        };
        self.shared.accepted.fetch_sub(count, Ordering::Relaxed);
        self.shared.refused.fetch_add(count, Ordering::Relaxed);
        Err(back)
    }
}

impl<T> WorkerPool<T> {
    fn end(&mut self) {
        // Without a sender the workers finish the queue and end.
        self.queue = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a worker ended by a panic outside a task");
            }
        }
    }
}

impl<T> Drop for WorkerPool<T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T> PoolShared<T> {
    fn run_all(&self, load: Load<T>) {
        match load {
            Load::One(task) => self.run(task),
            Load::Many(tasks) => tasks.into_iter().for_each(|task| self.run(task)),
        }
    }

    fn run(&self, task: T) {
        // A panic drops the task with its reply token, and the token answers the caller with an error. The worker and
        // the other tasks continue. The author of the handler keeps its shared state consistent.
        let result = catch_unwind(AssertUnwindSafe(|| (self.handler)(task)));
        let counter = if result.is_ok() {
            &self.completed
        } else {
            &self.panicked
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn metrics(&self) -> WorkerMetrics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WorkerMetrics {
            completed: read(&self.completed),
            panicked: read(&self.panicked),
            accepted: read(&self.accepted),
            refused: read(&self.refused),
            caller_ran: read(&self.caller_ran),
        }
    }
}

impl<T> std::fmt::Debug for PoolShared<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.metrics().fmt(formatter)
    }
}

fn work<T>(tasks: &Receiver<Load<T>>, shared: &PoolShared<T>) {
    while let Ok(load) = tasks.recv() {
        shared.run_all(load);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn every_accepted_task_is_completed_or_panicked() {
        let pool = WorkerPool::new(3, 16, WhenPoolFull::Wait, |number: u64| {
            assert!(number % 100 != 7, "a task that panics on purpose");
        })
        .unwrap();
        for number in 0..500 {
            pool.submit(number).unwrap();
        }
        pool.submit_batch((500..1000).collect()).unwrap();
        let metrics = pool.shutdown();
        assert_eq!((metrics.accepted, metrics.refused), (1000, 0));
        assert_eq!((metrics.completed, metrics.panicked), (990, 10));
    }

    /// A receiver without a sender: a task that ends at once.
    fn ended() -> mpsc::Receiver<()> {
        mpsc::channel().1
    }

    /// A pool of one worker with a full queue of one place. The worker is busy until the returned sender is dropped.
    fn full(when_full: WhenPoolFull) -> (WorkerPool<mpsc::Receiver<()>>, mpsc::Sender<()>) {
        let (release, wait) = mpsc::channel();
        let (started, is_started) = mpsc::channel();
        let pool = WorkerPool::new(1, 1, when_full, move |wait: mpsc::Receiver<()>| {
            let _ = started.send(());
            let _ = wait.recv();
        })
        .unwrap();
        pool.submit(wait).unwrap();
        is_started.recv().unwrap();
        pool.submit(ended()).unwrap();
        (pool, release)
    }

    #[test]
    fn a_full_queue_refuses_and_gives_the_task_back() {
        let (pool, release) = full(WhenPoolFull::Refuse);
        assert!(pool.submit(ended()).is_err());
        assert_eq!(pool.submit_batch(vec![ended()]).unwrap_err().len(), 1);
        drop(release);
        let metrics = pool.shutdown();
        assert_eq!(
            (metrics.accepted, metrics.completed, metrics.refused),
            (2, 2, 2)
        );
    }

    #[test]
    fn a_full_queue_lets_the_caller_run() {
        let (pool, release) = full(WhenPoolFull::CallerRuns);
        pool.submit(ended()).unwrap();
        assert_eq!(pool.metrics().caller_ran, 1);
        drop(release);
        assert_eq!(pool.shutdown().completed, 3);
    }
}
