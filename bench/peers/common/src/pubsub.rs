//! Publishers and subscribers of one topic, all in the driver, with a server between them.
//!
//! As in the benchmark's own rows, a publisher is at most [`WINDOW`] messages ahead of the slowest subscriber, so that
//! the rows measure speed and not the length of queues. Payload: bytes 0 to 5 the number within the publisher, 6 and 7
//! the publisher, 8 to 15 the send time, all little-endian; the rest is filled with 0x5a.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::Notify;
use tokio::task::{JoinSet, LocalSet};

use crate::pipe::Pipe;
use crate::publication::{HEAD_BYTES, blank_payload};
use crate::window::PATIENCE;
use crate::{Measured, Meter, Window, Work, now_ns};

/// The messages in flight between publishers and subscribers.
#[derive(Debug)]
pub struct Flow {
    payload: Vec<u8>,
    /// The next number of each publisher.
    next: Vec<u64>,
    /// The number that each subscriber expects of each publisher.
    expected: Vec<Vec<u64>>,
    meter: Meter,
}

impl Flow {
    /// Creates the state before the first message. The warm-up begins now.
    ///
    /// # Errors
    /// The messages of `work` have no room for number, publisher and time.
    pub fn begin(work: &Work) -> Result<Self> {
        Ok(Self {
            payload: blank_payload(work)?,
            next: vec![0; work.publishers],
            expected: vec![vec![0; work.publishers]; work.subscribers],
            meter: Meter::new(Window::begin(work)),
        })
    }

    /// The number of messages that a publisher may send now.
    #[must_use]
    pub fn room(&self, publisher: usize) -> u64 {
        let sent = self.next[publisher];
        let slowest = self.expected.iter().map(|expected| expected[publisher]);
        WINDOW.saturating_sub(sent - slowest.min().unwrap_or(sent))
    }

    /// The next message of a publisher. It counts as sent.
    pub fn message(&mut self, publisher: usize, now_ns: u64) -> &[u8] {
        let number = self.next[publisher] | (publisher as u64) << PUBLISHER_SHIFT;
        self.next[publisher] += 1;
        self.payload[..8].copy_from_slice(&number.to_le_bytes());
        self.payload[8..HEAD_BYTES].copy_from_slice(&now_ns.to_le_bytes());
        &self.payload
    }

    /// Handles a payload of a subscriber. Missing messages before it are lost, and an unexpected message counts as
    /// lost.
    pub fn take(&mut self, subscriber: usize, payload: &[u8], now_ns: u64) {
        // A payload with both words has a complete head.
        let (Some(number), Some(sent_ns)) = (word(payload, 0), word(payload, 8)) else {
            return self.meter.count_lost(1);
        };
        let publisher = (number >> PUBLISHER_SHIFT) as usize;
        let number = number & ((1 << PUBLISHER_SHIFT) - 1);
        let expected = self.expected[subscriber].get_mut(publisher);
        let sent = self.next.get(publisher).copied().unwrap_or_default();
        match expected.filter(|expected| (**expected..sent).contains(&number)) {
            // The filling never changes, so it is that of the last sent message.
            Some(expected) if payload[HEAD_BYTES..] == self.payload[HEAD_BYTES..] => {
                self.meter.count_lost(number - *expected);
                *expected = number + 1;
                self.meter.count(sent_ns, now_ns);
            }
            _ => self.meter.count_lost(1),
        }
    }

    /// Whether all messages have arrived.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.expected.iter().all(|expected| *expected == self.next)
    }

    /// The window.
    #[must_use]
    pub fn window(&self) -> &Window {
        self.meter.window()
    }

    /// The figures. Messages that have not arrived are lost.
    #[must_use]
    pub fn measured(&self) -> Measured {
        let mut measured = self.meter.measured();
        for expected in &self.expected {
            let missing = self.next.iter().zip(expected);
            measured.lost += missing.map(|(next, expected)| next - expected).sum::<u64>();
        }
        measured
    }
}

/// Publishes and subscribes over these connections until the window ends, and waits for messages in flight.
///
/// # Errors
/// A connection fails.
pub async fn drive<P, S>(publishers: Vec<P>, subscribers: Vec<S>, work: &Work) -> Result<Measured>
where
    P: Pipe + 'static,
    S: Pipe + 'static,
{
    let course = Rc::new(Course {
        flow: RefCell::new(Flow::begin(work)?),
        heard: Notify::new(),
    });
    let window = course.flow.borrow().window().clone();
    let local = LocalSet::new();
    let until_end = Duration::from_nanos(window.until_ns().saturating_sub(now_ns()));
    let all = local.run_until(async {
        let mut listening = JoinSet::new();
        for (number, pipe) in subscribers.into_iter().enumerate() {
            listening.spawn_local(listen(pipe, number, Rc::clone(&course)));
        }
        let mut publishing = JoinSet::new();
        for (number, pipe) in publishers.into_iter().enumerate() {
            publishing.spawn_local(publish(pipe, number, Rc::clone(&course)));
        }
        loop {
            tokio::select! {
                Some(ended) = publishing.join_next() => ended.context("a publisher")??,
                Some(ended) = listening.join_next() => ended.context("a subscriber")??,
                () = course.heard.notified() => {}
            }
            if publishing.is_empty() && course.flow.borrow().is_settled() {
                return anyhow::Ok(());
            }
        }
    });
    // The wait has an end. Messages that have not arrived by then are lost.
    if let Ok(ended) = tokio::time::timeout(until_end + PATIENCE, all).await {
        ended?;
    }
    Ok(course.flow.borrow().measured())
}

/// The common state of all connections.
struct Course {
    flow: RefCell<Flow>,
    /// Wakes publishers when a message arrives.
    heard: Notify,
}

/// Publishes until the window ends, and at least once.
async fn publish(mut pipe: impl Pipe, number: usize, course: Rc<Course>) -> Result<()> {
    let mut message = Vec::new();
    let window = course.flow.borrow().window().clone();
    loop {
        let heard = course.heard.notified();
        let room = course.flow.borrow().room(number);
        if room == 0 {
            heard.await;
        } else {
            let now = now_ns();
            for _ in 0..room {
                message.clear();
                // A copy, because an `await` must hold no borrow.
                message.extend_from_slice(course.flow.borrow_mut().message(number, now));
                pipe.send(&message).await?;
            }
            pipe.flush().await?;
        }
        if window.is_over(now_ns()) {
            return Ok(());
        }
    }
}

async fn listen(mut pipe: impl Pipe, number: usize, course: Rc<Course>) -> Result<()> {
    loop {
        let mut came_ns = None;
        pipe.receive(&mut |payload| {
            let now = *came_ns.get_or_insert_with(now_ns);
            course.flow.borrow_mut().take(number, payload, now);
        })
        .await?;
        course.heard.notify_waiters();
    }
}

fn word(payload: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*payload.get(at..)?.first_chunk()?))
}

/// Messages that a publisher may be ahead of the slowest subscriber.
const WINDOW: u64 = 512;

/// The position of the publisher's number in the first word.
const PUBLISHER_SHIFT: u32 = 48;

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast;

    use super::*;

    fn work() -> Work {
        Work {
            suite: "pubsub".to_owned(),
            message_bytes: 32,
            publishers: 2,
            subscribers: 3,
            measure_ms: 5,
            ..Work::default()
        }
    }

    #[test]
    fn offered_is_delivered_lost_or_on_its_way() {
        let mut flow = Flow::begin(&work()).unwrap();
        let sent: Vec<Vec<u8>> = [0, 0, 0, 1]
            .map(|publisher| flow.message(publisher, 1).to_vec())
            .into();
        assert_eq!((flow.room(0), flow.room(1)), (WINDOW - 3, WINDOW - 1));
        for payload in &sent {
            flow.take(0, payload, 2);
        }
        // The second subscriber misses one message, gets one twice and one changed. The third gets none.
        for index in [0, 0, 2, 3] {
            flow.take(1, &sent[index], 2);
        }
        flow.take(1, b"noise", 2);
        assert!(!flow.is_settled());
        assert_eq!(flow.room(0), WINDOW - 3);
        assert_eq!(flow.measured().lost, 3 + 4);
    }

    #[test]
    fn a_message_with_another_filling_or_length_is_lost() {
        let mut flow = Flow::begin(&work()).unwrap();
        let right = flow.message(0, 1).to_vec();
        for at in HEAD_BYTES..right.len() {
            let mut changed = right.clone();
            changed[at] ^= 1;
            flow.take(0, &changed, 2);
        }
        flow.take(0, &right[..HEAD_BYTES], 2);
        flow.take(0, &[right.clone(), vec![0x5a]].concat(), 2);
        let wrong = (right.len() - HEAD_BYTES) as u64 + 2;
        // One message was sent to three subscribers, and one of them got it unchanged.
        assert_eq!(flow.measured().lost, wrong + 3);
        flow.take(0, &right, 2);
        assert_eq!(flow.measured().lost, wrong + 2);
    }

    /// A topic without a server. A subscriber can lose the message with this number.
    struct Leaky {
        to: broadcast::Sender<Vec<u8>>,
        from: broadcast::Receiver<Vec<u8>>,
        loses: Option<u64>,
    }

    impl Pipe for Leaky {
        async fn send(&mut self, request: &[u8]) -> Result<()> {
            self.to.send(request.to_vec())?;
            Ok(())
        }

        async fn flush(&mut self) -> Result<()> {
            Ok(())
        }

        async fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> Result<()> {
            let payload = self.from.recv().await?;
            if self.loses.is_none() || word(&payload, 0) != self.loses {
                take(&payload);
            }
            Ok(())
        }
    }

    fn lost(loses: Option<u64>) -> u64 {
        let (to, _) = broadcast::channel(4 * WINDOW as usize);
        let leaky = |loses| Leaky {
            from: to.subscribe(),
            to: to.clone(),
            loses,
        };
        // Publishers also receive their own messages and ignore them, which is no loss.
        let publishers = vec![leaky(None), leaky(None)];
        let subscribers = vec![leaky(None), leaky(loses), leaky(None)];
        let runtime = crate::pipe::runtime().unwrap();
        let measured = runtime.block_on(drive(publishers, subscribers, &work()));
        measured.unwrap().lost
    }

    #[test]
    fn a_lost_message_is_missed() {
        assert_eq!(lost(None), 0);
        assert_eq!(lost(Some(1)), 1);
    }
}
