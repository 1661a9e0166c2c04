//! The queue from the lanes to their node.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, OnceLock, PoisonError};

use tidewire_proto::backplane::NodeLife;

use super::{Directed, Item, RequestWork, RoomOrTopic, StoreQuestion};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The lanes' side of a node. See the module.
pub(crate) struct BackplaneLink {
    /// This run of the node.
    life: NodeLife<Arc<str>>,
    /// The longest payload that a packet carries.
    payload_bytes_max: usize,
    queued: Mutex<QueuedWork>,
    /// Whether the node has ended and takes nothing any more.
    is_closed: AtomicBool,
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
    keeps_histories: bool,
    /// Whether so many messages wait for their histories that no more are taken.
    is_full: AtomicBool,
    /// Whether the node cannot reach the others.
    is_cut_off: AtomicBool,
}

#[derive(Debug, Default)]
struct QueuedWork {
    work: Work,
    batch_bytes: usize,
    directed_bytes: usize,
    answer_bytes: usize,
}

/// Work that waits for the node.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Encoded [items](super::Item), a batch for each turn of a lane.
    pub(crate) batches: VecDeque<Vec<u8>>,
    /// The questions of the batches, in the order of their items.
    pub(crate) questions: VecDeque<StoreQuestion>,
    /// Rooms that got their first member or lost their last one.
    pub(crate) rooms: HashSet<Box<str>>,
    /// Patterns that got their first subscriber or lost their last one.
    pub(crate) patterns: HashSet<Box<str>>,
    /// Rooms and patterns whose subscription lanes wait for.
    pub(crate) openings: HashSet<RoomOrTopic>,
    /// Rooms and topics whose history lanes wait for.
    pub(crate) histories: HashSet<RoomOrTopic>,
    /// Messages, requests and answers for one node each.
    pub(crate) directed: VecDeque<Directed>,
    /// The server drains, and takes no more requests of other nodes.
    pub(crate) withdraw: bool,
    /// The server has ended. Nothing comes after this.
    pub(crate) stop: bool,
}

impl BackplaneLink {
    pub(crate) fn new(
        life: NodeLife<Arc<str>>,
        payload_bytes_max: usize,
        keeps_histories: bool,
    ) -> Self {
        Self {
            life,
            payload_bytes_max,
            queued: Mutex::default(),
            is_closed: AtomicBool::new(false),
            waker: OnceLock::new(),
            keeps_histories,
            is_full: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
        }
    }

    /// This run of the node.
    pub(crate) fn life(&self) -> &NodeLife<Arc<str>> {
        &self.life
    }

    /// The longest payload that a packet carries.
    pub(crate) fn payload_bytes_max(&self) -> usize {
        self.payload_bytes_max
    }

    pub(crate) fn keeps_histories(&self) -> bool {
        self.keeps_histories
    }

    /// Sets whether messages of rooms and topics with a history are refused, because too many wait for them.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Sets whether the members were told that the node is cut off from the others.
    pub(crate) fn set_cut_off(&self, is_cut_off: bool) {
        self.is_cut_off.store(is_cut_off, Ordering::Relaxed);
    }

    /// Whether the members were told that the node is cut off from the others, or the node has ended.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Ordering::Relaxed) || self.is_closed()
    }

    /// Whether the node has ended, so that nobody answers any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Whether messages of rooms and topics with a history are refused.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Sets the function that wakes the node's thread. Only the first call has an effect.
    pub(crate) fn set_waker(&self, waker: Box<dyn Fn() + Send + Sync>) {
        // A second waker would be that of the same thread.
        let _ = self.waker.set(waker);
    }

    /// Posts the items of a turn, and takes their questions. Gives the items back if too many wait, so that the lane
    /// stops reading until the node has caught up. A node that has ended takes none: they are dropped. Returns the
    /// number of dropped messages.
    pub(crate) fn post(
        &self,
        batch: Vec<u8>,
        questions: &mut Vec<StoreQuestion>,
    ) -> Result<u64, Vec<u8>> {
        let Some(mut queued) = self.lock_open() else {
            questions.clear();
            return Ok(Item::messages_of(&batch));
        };
        if queued.batch_bytes > 0 && queued.batch_bytes + batch.len() > BATCH_BYTES_MAX {
            return Err(batch);
        }
        queued.batch_bytes += batch.len();
        queued.work.batches.push_back(batch);
        queued.work.questions.extend(questions.drain(..));
        drop(queued);
        self.wake();
        Ok(0)
    }

    /// Notes that a room got its first member or lost its last one.
    pub(crate) fn note_room(&self, name: &str) {
        self.note(|work| work.rooms.insert(name.into()));
    }

    /// Notes that a pattern got its first subscriber or lost its last one.
    pub(crate) fn note_pattern(&self, pattern: &str) {
        self.note(|work| work.patterns.insert(pattern.into()));
    }

    /// Notes that lanes wait until the node has subscribed to a room or pattern.
    pub(crate) fn note_opening(&self, name: RoomOrTopic) {
        self.note(|work| work.openings.insert(name));
    }

    /// Notes that lanes wait for the history of a room or topic.
    pub(crate) fn note_history(&self, name: &RoomOrTopic) {
        self.note(|work| work.histories.insert(name.clone()));
    }

    fn note(&self, insert: impl FnOnce(&mut Work) -> bool) {
        if let Some(mut queued) = self.lock_open() {
            insert(&mut queued.work);
            drop(queued);
            self.wake();
        }
    }

    /// Posts work for one other node. Gives it back if too much waits, or if the node has ended.
    pub(crate) fn direct(&self, directed: impl Into<Directed>) -> Result<(), Directed> {
        let directed = directed.into();
        let bytes = directed.charged_bytes();
        let Some(mut queued) = self.lock_open() else {
            return Err(directed);
        };
        // The requests of this node take no room from its answers.
        let (waits, bytes_max) = match directed {
            Directed::Request(RequestWork::Answer { .. }) => {
                (&mut queued.answer_bytes, ANSWER_BYTES_MAX)
            }
            _ => (&mut queued.directed_bytes, DIRECTED_BYTES_MAX),
        };
        if bytes > 0 && *waits > bytes_max {
            return Err(directed);
        }
        *waits += bytes;
        queued.work.directed.push_back(directed);
        drop(queued);
        self.wake();
        Ok(())
    }

    /// Tells the node that the server drains.
    pub(crate) fn withdraw(&self) {
        self.lock().work.withdraw = true;
        self.wake();
    }

    /// Tells the node that the server has ended.
    pub(crate) fn stop(&self) {
        self.lock().work.stop = true;
        self.wake();
    }

    /// Takes all work. Only the node calls it.
    pub(crate) fn take(&self) -> Work {
        std::mem::take(&mut *self.lock()).work
    }

    /// Drops all work from now on, because the node has ended. Returns the number of messages that waited.
    pub(crate) fn close(&self) -> u64 {
        let batches = self.end().batches;
        batches.iter().map(|batch| Item::messages_of(batch)).sum()
    }

    /// Takes all work, and notes under the same lock that nothing more is taken.
    fn end(&self) -> Work {
        let mut queued = self.lock();
        self.is_closed.store(true, Ordering::SeqCst);
        std::mem::take(&mut *queued).work
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker();
        }
    }

    /// Locks the work of a node that has not ended. The end is noted under the same lock. Work that came after the
    /// node's last look would never be done, and its questions would never be answered.
    fn lock_open(&self) -> Option<MutexGuard<'_, QueuedWork>> {
        let queued = self.lock();
        (!self.is_closed()).then_some(queued)
    }

    fn lock(&self) -> MutexGuard<'_, QueuedWork> {
        // No code under the lock panics.
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

opaque!(BackplaneLink);

/// Bytes of batches that wait for the node. 4 MiB are the work of many turns.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Bytes of messages and requests for one node each that wait for the node.
const DIRECTED_BYTES_MAX: usize = 4 << 20;

/// Bytes of replies to other nodes that wait for the node: as many as those of the requests that it takes.
const ANSWER_BYTES_MAX: usize = 32 << 20;

#[cfg(all(test, tidewire_model))]
mod model;
#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_link_is_bounded_and_gives_back_what_does_not_fit() {
        let link = BackplaneLink::new(NodeLife::new("one", 1), 100, false);
        let post = |bytes| link.post(bytes, &mut Vec::new());
        assert!(post(vec![0; 2 * BATCH_BYTES_MAX]).is_ok(), "alone");
        assert_eq!(post(vec![1]), Err(vec![1]));
        link.note_room("lobby");
        let work = link.take();
        assert_eq!(
            (work.batches.len(), work.rooms.len(), work.stop),
            (1, 1, false)
        );
        assert!(post(vec![1]).is_ok());
        link.close();
        assert!(
            post(vec![0; 2 * BATCH_BYTES_MAX]).is_ok(),
            "a node that ended keeps no lane waiting"
        );
        assert!(link.take().batches.is_empty());
    }

    #[test]
    fn requests_are_bounded_and_answers_have_their_places() {
        let link = BackplaneLink::new(NodeLife::new("one", 1), 100, false);
        let ask = |request| RequestWork::Ask {
            request,
            timeout_ms: 1,
            service: "s".into(),
            payload: vec![0; 1 << 20],
        };
        let accepted = (0..100).take_while(|it| link.direct(ask(*it)).is_ok());
        assert_eq!(accepted.count(), 4);
        assert!(link.direct(RequestWork::GiveUp { request: 0 }).is_ok());
        assert_eq!(link.take().directed.len(), 5);
        assert!(link.direct(ask(5)).is_ok());
        link.close();
        assert!(link.direct(ask(6)).is_err());
    }

    /// The end was looked at before the lock. A request that came between was taken, and nobody answered it.
    #[test]
    fn a_request_that_races_with_the_end_of_the_node_is_taken_by_it_or_given_back() {
        const EACH: u64 = 2_000;
        let link = BackplaneLink::new(NodeLife::new("one", 1), 100, false);
        let (taken, given_back) = thread::scope(|scope| {
            let callers = [(); 2].map(|()| {
                scope.spawn(|| {
                    let refused = |request| link.direct(RequestWork::GiveUp { request }).is_err();
                    (0..EACH).filter(|request| refused(*request)).count()
                })
            });
            let mut taken = 0;
            while taken < 100 {
                taken += link.take().directed.len();
            }
            taken += link.end().directed.len();
            let given_back: usize = callers.into_iter().map(|it| it.join().unwrap()).sum();
            (taken, given_back)
        });
        assert_eq!(taken + given_back, 2 * EACH as usize);
        assert!(
            link.take().directed.is_empty(),
            "nothing came after the end"
        );
    }
}
