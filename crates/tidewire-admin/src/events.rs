//! The overview as server-sent events: one snapshot a second for all listeners, and none without a listener.
//!
//! Each listener reads the newest snapshot when its connection takes more bytes. A slow listener so skips snapshots,
//! and the connection is cut when it takes nothing for too long. Nothing is queued for it.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::Notify;
use tokio::sync::watch::{Receiver, Sender};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::http::{Answer, Body, EventFrames, failure, network};
use crate::sampler::Sampler;

#[derive(Debug)]
pub(crate) struct Events {
    newest: Sender<Bytes>,
    came: Notify,
    listeners: Arc<Mutex<Listeners>>,
}

/// The listeners, the oldest first.
#[derive(Debug, Default)]
struct Listeners {
    next: u64,
    open: Vec<Listener>,
}

#[derive(Debug)]
struct Listener {
    id: u64,
    network: IpAddr,
    /// Another listener needs its place.
    ended: Arc<Notify>,
}

/// The place of a listener. Dropping it gives the place back.
#[derive(Debug)]
struct ListenerPlace {
    id: u64,
    ended: Arc<Notify>,
    listeners: Arc<Mutex<Listeners>>,
}

impl Events {
    pub(crate) fn new() -> Self {
        Self {
            newest: Sender::new(Bytes::new()),
            came: Notify::new(),
            listeners: Arc::default(),
        }
    }

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

    pub(crate) fn listen(&self, peer: IpAddr) -> Answer {
        let Some(place) = ListenerPlace::take(&self.listeners, network(peer)) else {
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

impl ListenerPlace {
    /// Takes a place. When all are taken, the address with the most listeners loses its oldest. `None` if this is the
    /// newcomer's own address, because its dashboards would only displace each other.
    fn take(listeners: &Arc<Mutex<Listeners>>, network: IpAddr) -> Option<Self> {
        let mut table = lock(listeners);
        if table.open.len() >= LISTENERS_MAX {
            let count = |of: IpAddr| table.open.iter().filter(|it| it.network == of).count();
            let counts = table.open.iter().map(|it| (count(it.network), it.network));
            let (most, largest) = counts.max()?;
            if count(network) + 1 >= most {
                return None;
            }
            let oldest = table.open.iter().position(|it| it.network == largest)?;
            table.open.remove(oldest).ended.notify_one();
        }
        let id = table.next;
        table.next += 1;
        let ended = Arc::new(Notify::new());
        table.open.push(Listener {
            id,
            network,
            ended: Arc::clone(&ended),
        });
        drop(table);
        let listeners = Arc::clone(listeners);
        Some(Self {
            id,
            ended,
            listeners,
        })
    }
}

impl Drop for ListenerPlace {
    fn drop(&mut self) {
        lock(&self.listeners).open.retain(|it| it.id != self.id);
    }
}

fn lock(listeners: &Mutex<Listeners>) -> MutexGuard<'_, Listeners> {
    listeners.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next snapshot for a listener, and the future for the one after it.
fn next(mut listener: Receiver<Bytes>, place: ListenerPlace, until: Instant) -> EventFrames {
    EventFrames(Box::pin(async move {
        {
            let (mut ended, mut changed) = (pin!(place.ended.notified()), pin!(listener.changed()));
            poll_fn(|cx| match ended.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => changed.as_mut().poll(cx).map(Result::ok),
            })
            .await?;
        }
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

    fn address(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    /// Whoever lost the right to listen is cut with the end of a stream.
    #[test]
    fn a_stream_ends_at_its_maximum_age_and_gives_its_place_back() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let newest = Sender::new(Bytes::new());
        let listeners = Arc::default();
        for (until, gets_more) in [
            (Instant::now() + STREAM_AGE_MAX, true),
            (Instant::now(), false),
        ] {
            let place = ListenerPlace::take(&listeners, address(1)).unwrap();
            let listener = newest.subscribe();
            newest.send_replace(Bytes::from_static(b"data: 1\n\n"));
            let mut body = Box::pin(Body::Events(next(listener, place, until)));
            assert_eq!(lock(&listeners).open.len(), 1);
            let frame = poll_fn(|cx| body.as_mut().poll_frame(cx));
            let frame = runtime.block_on(frame);
            assert_eq!(frame.is_some(), gets_more);
            if !gets_more {
                assert_eq!(lock(&listeners).open.len(), 0, "the stream has ended");
            }
            drop(frame);
            drop(body);
            assert_eq!(lock(&listeners).open.len(), 0);
        }
    }

    /// Regression: one address took all places, and dashboards of others were refused.
    #[test]
    fn the_address_with_the_most_listeners_gives_way_to_others_and_not_to_itself() {
        let listeners = Arc::default();
        let many: Vec<_> = (0..LISTENERS_MAX)
            .map(|_| ListenerPlace::take(&listeners, address(1)).unwrap())
            .collect();
        assert!(ListenerPlace::take(&listeners, address(1)).is_none());
        let other = ListenerPlace::take(&listeners, address(2)).unwrap();
        let is_open =
            |place: &ListenerPlace| lock(&listeners).open.iter().any(|it| it.id == place.id);
        assert!(!is_open(&many[0]) && is_open(&many[1]) && is_open(&other));
        assert_eq!(lock(&listeners).open.len(), LISTENERS_MAX);
    }
}
