//! Messages of a lane for the other lanes of its server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tidewire_proto::backplane::Entry;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::error::EncodeError;

use super::{BatchEntry, LaneMessage, Mailbox, MessageQueue, SpareBatches};
use crate::broker::{Addressee, BackplaneLink, Item, News, StoreQuestion};
use crate::session::{LaneSessions, OpenSessions, SendError, SessionId, encode_within};

/// The lanes of a server, as each of them sees the others.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// The mailboxes of all lanes of the server, in the order of their numbers.
    mailboxes: OnceLock<Vec<Arc<Mailbox>>>,
    /// Emptied batches of lanes that received them, for lanes that send.
    spare_batches: SpareBatches,
    /// The way to the node, if the server has a backplane.
    backplane: Option<Arc<BackplaneLink>>,
    /// The lanes that will post no more messages, one bit each.
    silent: AtomicU64,
}

/// The mailbox of one lane, and a batch for each other lane.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) lane: usize,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) lanes: Arc<Lanes>,
    /// The open sessions of all lanes.
    open: Arc<OpenSessions>,
    /// Messages that were taken from the mailbox and are not handled yet.
    inbox: MessageQueue,
    /// Messages of this turn for each other lane, see [`BatchEntry`].
    pub(crate) batches: Vec<Vec<u8>>,
    /// Items of this turn for the node.
    node_batch: NodeBatch,
    batch_bytes: usize,
}

/// The items of a turn for the node.
#[derive(Debug, Default)]
struct NodeBatch {
    items: Vec<u8>,
    /// The questions among them.
    questions: Vec<StoreQuestion>,
}

impl Lanes {
    /// Emptied batches, for those who send.
    pub(crate) fn spare_batches(&self) -> &SpareBatches {
        &self.spare_batches
    }

    pub(crate) fn new(backplane: Option<Arc<BackplaneLink>>) -> Self {
        Self {
            backplane,
            ..Self::default()
        }
    }

    /// The way to the node, if the server has a backplane.
    pub(crate) fn link(&self) -> Option<&Arc<BackplaneLink>> {
        self.backplane.as_ref()
    }

    /// Makes the lanes known. Only the first call has an effect.
    pub(crate) fn set(&self, mailboxes: Vec<Arc<Mailbox>>) {
        // The cell is new, so this cannot find it set.
        let _ = self.mailboxes.set(mailboxes);
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&Vec<Arc<Mailbox>>> {
        self.mailboxes.get()
    }

    /// The number of lanes, at least one.
    pub(crate) fn count(&self) -> usize {
        self.all().len().max(1)
    }

    /// Notes that a lane has posted its last batch, or that no lane must wait for it.
    pub(crate) fn note_silent(&self, lane: usize) {
        self.silent.fetch_or(1 << lane, Ordering::SeqCst);
    }

    /// Whether no lane will post a message any more.
    pub(crate) fn are_silent(&self) -> bool {
        let silent = self.silent.load(Ordering::SeqCst).count_ones() as usize;
        silent >= self.all().len()
    }

    /// Asks the lane of a session to find out whether the session gives way to another one.
    pub(crate) fn ask_to_give_way(&self, id: SessionId, replaces_oldest: bool, asker: SessionId) {
        let asked = LaneMessage::GiveWay {
            id,
            replaces_oldest,
            asker,
        };
        if let Some(mailbox) = self.all().get(id.lane()) {
            // A full mailbox takes no question. Then the session does not give way.
            let _ = mailbox.post(asked);
        }
    }

    /// Tells a session that waits that one which was asked to give way is still in use.
    pub(crate) fn tell_still_there(&self, asker: SessionId) {
        if let Some(mailbox) = self.all().get(asker.lane()) {
            // A full mailbox takes no answer. Then the asker waits for its whole time.
            let _ = mailbox.post(LaneMessage::StillThere { id: asker });
        }
    }

    /// Every lane of the server.
    pub(crate) fn all(&self) -> &[Arc<Mailbox>] {
        self.mailboxes.get().map_or(&[][..], Vec::as_slice)
    }
}

impl Exchange {
    #[inline]
    pub(crate) fn lane(&self) -> usize {
        self.lane
    }

    pub(crate) fn new(
        lane: usize,
        mailbox: Arc<Mailbox>,
        lanes: Arc<Lanes>,
        open: Arc<OpenSessions>,
    ) -> Self {
        Self {
            lane,
            mailbox,
            lanes,
            open,
            inbox: MessageQueue::default(),
            batches: Vec::new(),
            node_batch: NodeBatch::default(),
            batch_bytes: 0,
        }
    }

    /// Takes what other threads have posted. If an urgent message is known already, more messages would only pile up
    /// here, and their senders would not learn that they are too fast.
    pub(crate) fn take_mail(&mut self) {
        if !self.has_urgent() {
            self.mailbox.take_all(&mut self.inbox);
        }
    }

    /// Whether a message of the server or of another lane was taken and is not handled yet.
    pub(crate) fn has_urgent(&self) -> bool {
        self.inbox.has_unreserved()
    }

    /// Returns the next message that another thread posted.
    #[inline]
    pub(crate) fn next_message(&mut self) -> Option<LaneMessage> {
        if self.inbox.is_empty() {
            self.mailbox.take_all(&mut self.inbox);
        }
        self.inbox.pop()
    }

    #[inline]
    pub(crate) fn has_messages(&self) -> bool {
        !self.inbox.is_empty() || !self.mailbox.is_empty()
    }

    /// Appends frames to the output of any session of the server.
    #[inline(always)]
    pub(crate) fn send_to(
        &mut self,
        sessions: &mut LaneSessions,
        id: SessionId,
        encode: impl FnOnce(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), SendError> {
        if id.lane() != self.lane {
            let mut frame = sessions.outputs.take_buffer();
            let codec = self.open.codec_of(id, &sessions.config.codecs);
            let result = encode(codec, &mut frame);
            if result.is_ok() {
                self.batch(id.lane(), &BatchEntry::Session { id, frame: &frame });
            }
            sessions.outputs.put_buffer(frame);
            return Ok(result?);
        }
        sessions.append_to(
            id,
            #[inline(always)]
            |limit, codec, out| {
                encode_within(
                    limit,
                    out,
                    #[inline(always)]
                    |out| encode(codec, out),
                )
            },
        )
    }

    /// Adds an entry to this turn's batch for another lane.
    pub(crate) fn batch(&mut self, lane: usize, entry: &BatchEntry<'_>) {
        if self.batches.len() <= lane {
            self.batches.resize_with(lane + 1, Vec::new);
        }
        let batch = &mut self.batches[lane];
        let before = batch.capacity();
        if before == 0 {
            *batch = self.lanes.spare_batches.take();
        }
        entry.encode(batch);
        self.batch_bytes += batch.capacity() - before;
    }

    /// Adds a message to this turn's batch for other nodes.
    #[cold]
    pub(crate) fn send_to_nodes(&mut self, to: Addressee<'_>, name: &str, entry: &Entry<'_>) {
        self.add_item(to, name, Some(entry));
    }

    /// Whether messages go to histories that the carrier numbers, so that they are stored later.
    pub(crate) fn stores_later(&self) -> bool {
        let link = self.lanes.link();
        link.is_some_and(|link| link.keeps_histories())
    }

    /// Asks the node to answer when all that this session has sent before is stored.
    #[cold]
    pub(crate) fn ask_stored(&mut self, session: SessionId, question: StoreQuestion) {
        self.node_batch.questions.push(question);
        let to = Addressee::Own(News::AsksStored, session.number());
        self.add_item(to, "", None);
    }

    /// Tells the node that a session has ended, so that it forgets what it knows of the session.
    pub(crate) fn tell_ended(&mut self, session: SessionId) {
        if self.stores_later() {
            self.add_item(Addressee::Own(News::Ended, session.number()), "", None);
        }
    }

    fn add_item(&mut self, to: Addressee<'_>, name: &str, entry: Option<&Entry<'_>>) {
        let items = &mut self.node_batch.items;
        let before = items.capacity();
        if before == 0 {
            *items = self.lanes.spare_batches.take();
        }
        Item::encode(to, name, entry, items);
        self.batch_bytes += items.capacity() - before;
    }

    /// Posts this turn's batch for the node.
    #[cold]
    fn post_to_node(&mut self) {
        let NodeBatch { items, questions } = &mut self.node_batch;
        let Some(link) = self.lanes.link() else {
            return;
        };
        self.batch_bytes -= items.capacity();
        match link.post(std::mem::take(items), questions) {
            Ok(dropped) => self.mailbox.counters.backplane_unsent.add_shared(dropped),
            Err(back) => *items = back,
        }
        self.batch_bytes += items.capacity();
    }

    /// Memory of the batches for other lanes, and of the frames that they have posted here.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.batch_bytes + self.mailbox.held_bytes()
    }

    /// Wakes the other lanes if they sleep.
    #[cold]
    pub(crate) fn wake_others(&self) {
        for (number, lane) in self.lanes.all().iter().enumerate() {
            if number != self.lane {
                lane.waker.wake();
            }
        }
    }

    /// Posts this turn's batches to other lanes. A batch that finds a full mailbox stays and grows.
    pub(crate) fn post_batches(&mut self) {
        let Some(lanes) = self.lanes.get() else {
            return;
        };
        for (lane, batch) in self.batches.iter_mut().enumerate() {
            if batch.is_empty() {
                continue;
            }
            let Some(target) = lanes.get(lane).filter(|target| !target.is_retired()) else {
                self.mailbox.count_batch_undelivered(batch);
                batch.clear();
                continue;
            };
            self.batch_bytes -= batch.capacity();
            let message = LaneMessage::Batch(std::mem::take(batch));
            if let Err(LaneMessage::Batch(back)) = target.post(message) {
                self.batch_bytes += back.capacity();
                *batch = back;
            }
        }
        if !self.node_batch.items.is_empty() {
            self.post_to_node();
        }
    }

    /// Whether a batch for another lane has not been posted.
    #[inline]
    pub(crate) fn has_batches(&self) -> bool {
        !self.node_batch.items.is_empty() || self.batches.iter().any(|batch| !batch.is_empty())
    }

    /// Whether a lane has so many unposted messages for another lane that it must not read.
    #[inline]
    pub(crate) fn is_backed_up(&self) -> bool {
        let is_long = |batch: &Vec<u8>| batch.len() > UNPOSTED_BYTES_MAX;
        is_long(&self.node_batch.items) || self.batches.iter().any(is_long)
    }

    /// Counts the messages for other lanes that can no longer be posted, and drops them.
    pub(crate) fn discard_batches(&mut self) {
        for batch in &mut self.batches {
            self.mailbox.count_batch_undelivered(batch);
            batch.clear();
        }
        self.node_batch.items.clear();
        self.node_batch.questions.clear();
    }
}

/// Bytes that wait for another lane, above which reading stops. 2 MiB are the work of many turns.
const UNPOSTED_BYTES_MAX: usize = 2 << 20;
