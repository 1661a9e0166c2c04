//! A window that several threads keep: when what they send counts, and what they found.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use tidewire_io::clock::now_ns;

use crate::contract::Work;
use crate::plan::RoleError;
use crate::stage::Stage;

/// When the window begins and ends, which the driver's thread lays down while the others work.
#[derive(Debug)]
pub(super) struct Course {
    from_ns: AtomicU64,
    until_ns: AtomicU64,
}

/// An event of a thread.
#[derive(Debug)]
pub(super) enum News<T> {
    /// All its connections are made, and it works.
    Connected,
    /// It cannot go on.
    Failed(String),
    /// It is done, and found this.
    Done(T),
}

impl Course {
    pub(super) fn new() -> Self {
        Self {
            from_ns: AtomicU64::new(u64::MAX),
            until_ns: AtomicU64::new(u64::MAX),
        }
    }

    /// Whether what is sent, or comes, at this time counts.
    pub(super) fn counts(&self, now_ns: u64) -> bool {
        now_ns >= self.from_ns.load(Ordering::Relaxed) && !self.is_over(now_ns)
    }

    /// Whether nothing more is to be sent.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns.load(Ordering::Relaxed)
    }

    pub(super) fn lay_down(&self, from_ns: u64, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
        self.from_ns.store(from_ns, Ordering::Relaxed);
    }

    /// Starts a thread that works while it lasts, and tells what it found, or why it found nothing.
    pub(super) fn start<T: Send + 'static>(
        self: &Arc<Self>,
        sender: &Sender<News<T>>,
        work: impl FnOnce(&Self, &Sender<News<T>>) -> io::Result<T> + Send + 'static,
    ) {
        let (course, sender) = (Arc::clone(self), sender.clone());
        thread::spawn(move || {
            let news = match work(&course, &sender) {
                Ok(found) => News::Done(found),
                Err(error) => News::Failed(error.to_string()),
            };
            tell(&sender, news);
        });
    }

    /// Leads so many threads through it, and returns what they found.
    pub(super) fn run<T>(
        &self,
        threads: usize,
        work: &Work,
        news: &Receiver<News<T>>,
        stage: &mut Stage,
    ) -> Result<Vec<T>, RoleError> {
        let failed = |text: &str| RoleError::failed("do the work")(text);
        for _ in 0..threads {
            let News::Connected = hear(news)? else {
                return Err(failed("a thread is done before it began"));
            };
        }
        thread::sleep(Duration::from_millis(work.warm_up_ms));
        stage.started()?;
        let from_ns = now_ns();
        self.lay_down(from_ns, from_ns + work.measure_ms * 1_000_000);
        thread::sleep(Duration::from_millis(work.measure_ms));
        stage.stopped()?;
        (0..threads)
            .map(|_| match hear(news)? {
                News::Done(found) => Ok(found),
                _ => Err(failed("a thread begins again")),
            })
            .collect()
    }
}

fn hear<T>(news: &Receiver<News<T>>) -> Result<News<T>, RoleError> {
    let failed = RoleError::failed("do the work");
    match news.recv_timeout(TIMEOUT) {
        Ok(News::Failed(text)) => Err(failed(text)),
        Ok(news) => Ok(news),
        Err(RecvTimeoutError::Timeout) => Err(failed(format!(
            "a thread says nothing for {} s",
            TIMEOUT.as_secs()
        ))),
        Err(RecvTimeoutError::Disconnected) => Err(failed("a thread has ended".to_owned())),
    }
}

/// Tells the driver's thread, which may have given up.
pub(super) fn tell<T>(sender: &Sender<News<T>>, news: News<T>) {
    let _ = sender.send(news);
}

/// Longest wait for a thread: to connect, or to finish behind the window.
const TIMEOUT: Duration = Duration::from_secs(50);
