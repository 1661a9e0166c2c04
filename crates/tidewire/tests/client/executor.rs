//! A small executor: one thread, any number of tasks, each polled only after a wake.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Wake, Waker};

/// The queue of tasks to poll.
#[derive(Default)]
struct Ready {
    tasks: Mutex<VecDeque<usize>>,
    is_there: Condvar,
}

struct Task {
    number: usize,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.ready.tasks.lock().unwrap().push_back(self.number);
        self.ready.is_there.notify_one();
    }
}

/// Runs all tasks on this thread until each is done. Returns the number of polls.
pub(crate) fn run<'a>(
    tasks: impl IntoIterator<Item = Pin<Box<dyn Future<Output = ()> + 'a>>>,
) -> usize {
    let ready = Arc::new(Ready::default());
    let mut tasks: Vec<_> = tasks.into_iter().map(Some).collect();
    ready.tasks.lock().unwrap().extend(0..tasks.len());
    let mut polls = 0;
    while tasks.iter().any(Option::is_some) {
        let mut woken = ready.tasks.lock().unwrap();
        let number = loop {
            match woken.pop_front() {
                Some(number) => break number,
                None => woken = ready.is_there.wait(woken).unwrap(),
            }
        };
        drop(woken);
        let Some(task) = &mut tasks[number] else {
            continue;
        };
        let waker = Waker::from(Arc::new(Task {
            number,
            ready: Arc::clone(&ready),
        }));
        polls += 1;
        if task
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            tasks[number] = None;
        }
    }
    polls
}

/// Runs one task on this thread.
pub(crate) fn run_one<T>(task: impl Future<Output = T>) -> T {
    let mut output = None;
    run([Box::pin(async { output = Some(task.await) }) as Pin<Box<dyn Future<Output = ()>>>]);
    output.unwrap()
}
