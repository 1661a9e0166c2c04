//! A window that several threads keep: when what they send counts, and what they found.

use std::error::Error;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::numbers::Place;
use tidewire::{Context, Endpoint};
use tidewire_io::clock::now_ns;
use tidewire_load::format::describe;

use crate::contract::{Measured, Work};
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

    /// Leads so many threads through it, and returns what they found.
    fn run<T>(
        &self,
        threads: usize,
        work: &Work,
        news: &Receiver<News<T>>,
        stage: &mut Stage,
    ) -> Result<Vec<T>, RoleError> {
        for _ in 0..threads {
            hear_connected(news)?;
        }
        thread::sleep(Duration::from_millis(work.warm_up_ms));
        stage.started()?;
        let from_ns = now_ns();
        self.lay_down(from_ns, from_ns + work.measure_ms * 1_000_000);
        thread::sleep(Duration::from_millis(work.measure_ms));
        stage.stopped()?;
        (0..threads).map(|_| hear_found(news)).collect()
    }
}

/// The part of a thread or a lane in a course.
#[derive(Debug)]
pub(super) struct Part<T> {
    course: Arc<Course>,
    news: Sender<News<T>>,
}

impl<T> Part<T> {
    /// All connections are made, and the work goes on.
    pub(super) fn connected(&self) {
        tell(&self.news, News::Connected);
    }

    /// It cannot go on.
    pub(super) fn fail(&self, why: String) {
        tell(&self.news, News::Failed(why));
    }

    /// The same for an error.
    pub(super) fn fail_by(&self, error: &dyn Error) {
        self.fail(describe(error));
    }

    /// Connects so many sessions of a lane, which have their numbers as [`Place`].
    pub(super) fn connect(&self, cx: &mut Context<'_>, endpoint: &Endpoint, sessions: usize) {
        for number in 0..sessions {
            match cx.connections().connect(endpoint) {
                Ok(session) => drop(cx.connections().set_state(session, Place(number))),
                Err(error) => self.fail_by(&error),
            }
        }
    }

    /// It is done, and found this.
    pub(super) fn done(&self, found: T) {
        tell(&self.news, News::Done(found));
    }
}

impl<T: Send + 'static> Part<T> {
    /// Starts a thread that tells what it found, or why it found nothing.
    pub(super) fn start(&self, work: impl FnOnce(&Self) -> io::Result<T> + Send + 'static) {
        let part = self.clone();
        thread::spawn(move || match work(&part) {
            Ok(found) => part.done(found),
            Err(error) => part.fail(error.to_string()),
        });
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        let (course, news) = (Arc::clone(&self.course), self.news.clone());
        Self { course, news }
    }
}

impl<T> Deref for Part<T> {
    type Target = Course;

    fn deref(&self) -> &Course {
        &self.course
    }
}

/// Waits until a thread works.
pub(super) fn hear_connected<T>(news: &Receiver<News<T>>) -> Result<(), RoleError> {
    match hear(news)? {
        News::Connected => Ok(()),
        _ => Err(RoleError::failed(WORK, "a thread is done before it began")),
    }
}

/// Waits for what a thread found.
pub(super) fn hear_found<T>(news: &Receiver<News<T>>) -> Result<T, RoleError> {
    match hear(news)? {
        News::Done(found) => Ok(found),
        _ => Err(RoleError::failed(WORK, "a thread begins again")),
    }
}

fn hear<T>(news: &Receiver<News<T>>) -> Result<News<T>, RoleError> {
    let failure = match news.recv_timeout(TIMEOUT) {
        Ok(News::Failed(text)) => text,
        Ok(news) => return Ok(news),
        Err(RecvTimeoutError::Timeout) => {
            format!("a thread says nothing for {} s", TIMEOUT.as_secs())
        }
        Err(RecvTimeoutError::Disconnected) => "a thread has ended".to_owned(),
    };
    Err(RoleError::failed(WORK, failure))
}

/// Plays the driver of so many threads or lanes, which `start` starts. They stay until the kernel's account of them has
/// been read.
pub(super) fn drive<T, P>(
    threads: usize,
    work: &Work,
    stage: &mut Stage,
    start: impl FnOnce(&Part<T>) -> Result<P, RoleError>,
    measured: impl FnOnce(&[T]) -> Measured,
) -> Result<(), RoleError> {
    let course = Arc::new(Course::new());
    let (sender, news) = channel();
    let part = Part {
        course: Arc::clone(&course),
        news: sender,
    };
    let _players = start(&part)?;
    // Only the players hold the other end, so that their end is noticed.
    drop(part);
    let found = course.run(threads, work, &news, stage)?;
    stage.measured(measured(&found))
}

/// Tells the driver's thread, which may have given up.
pub(super) fn tell<T>(sender: &Sender<News<T>>, news: News<T>) {
    let _ = sender.send(news);
}

const WORK: &str = "do the work";

/// Longest wait for a thread: to connect, or to finish behind the window. Longer than the thread waits for what is
/// lost, and shorter than the runner waits for the driver, so that the reason is told.
const TIMEOUT: Duration = Duration::from_secs(28);
