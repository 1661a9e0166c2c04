//! The overview as server-sent events: one snapshot a second, made once for all listeners, and only while there is one.
//!
//! Each listener reads the newest snapshot when its connection takes more bytes. A slow listener so skips snapshots, and the
//! connection is cut when it takes nothing for too long. Nothing is queued for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::watch::{Receiver, Sender};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::http::{Answer, Body, EventFrames, failure};
use crate::sampler::Sampler;

/// The snapshots and those who listen to them.
#[derive(Debug)]
pub(crate) struct Events {
    newest: Sender<Bytes>,
    came: Notify,
    places: Arc<Semaphore>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            newest: Sender::new(Bytes::new()),
            came: Notify::new(),
            places: Arc::new(Semaphore::new(LISTENERS_MAX)),
        }
    }

    /// Makes snapshots for ever.
    pub(crate) async fn run(&self, sampler: Arc<Sampler>, every: Duration) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.newest.receiver_count() == 0 {
                self.came.notified().await;
                continue;
            }
            ticks.tick().await;
            let sampler = Arc::clone(&sampler);
            let made = spawn_blocking(move || snapshot(&sampler)).await;
            if let Ok(Some(snapshot)) = made {
                self.newest.send_replace(snapshot);
            }
        }
    }

    /// Answers a listener.
    pub(crate) fn listen(&self) -> Answer {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return failure(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many listeners; close other dashboards",
            );
        };
        let listener = self.newest.subscribe();
        self.came.notify_one();
        let body = Body::Events(next(listener, place, Instant::now() + STREAM_AGE_MAX));
        crate::http::answer(StatusCode::OK, "text/event-stream", body)
    }
}

/// The next snapshot for a listener, and how to go on.
#[expect(
    clippy::only_used_in_recursion,
    reason = "a listener keeps its place until it goes"
)]
fn next(mut listener: Receiver<Bytes>, place: OwnedSemaphorePermit, until: Instant) -> EventFrames {
    EventFrames(Box::pin(async move {
        listener.changed().await.ok()?;
        if Instant::now() >= until {
            return None;
        }
        let snapshot = listener.borrow_and_update().clone();
        Some((snapshot, next(listener, place, until)))
    }))
}

fn snapshot(sampler: &Sampler) -> Option<Bytes> {
    sampler.walk();
    let json = serde_json::to_string(&*sampler.overview()).ok()?;
    // JSON has no line end outside of strings, and within strings it is escaped.
    Some(format!("event: overview\ndata: {json}\n\n").into())
}

/// The age at which a stream ends. Dashboards listen again by themselves, and show then that they still may.
const STREAM_AGE_MAX: Duration = Duration::from_secs(300);

/// Dashboards that listen at a time.
const LISTENERS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use hyper::body::Body as _;

    use super::*;

    /// Whoever lost the right to listen is cut with the end of a stream.
    #[test]
    fn a_stream_ends_at_its_maximum_age_and_gives_its_place_back() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let newest = Sender::new(Bytes::new());
        let places = Arc::new(Semaphore::new(1));
        for (until, gets_more) in [
            (Instant::now() + STREAM_AGE_MAX, true),
            (Instant::now(), false),
        ] {
            let place = Arc::clone(&places).try_acquire_owned().unwrap();
            let listener = newest.subscribe();
            newest.send_replace(Bytes::from_static(b"data: 1\n\n"));
            let mut body = Box::pin(Body::Events(next(listener, place, until)));
            assert_eq!(places.available_permits(), 0);
            let frame = std::future::poll_fn(|cx| body.as_mut().poll_frame(cx));
            let frame = runtime.block_on(frame);
            assert_eq!(frame.is_some(), gets_more);
            if !gets_more {
                assert_eq!(places.available_permits(), 1, "the stream has ended");
            }
            drop(frame);
            drop(body);
            assert_eq!(places.available_permits(), 1);
        }
    }
}
