//! The open sessions of a server, where any thread finds them.
//!
//! A lane enters a session when it opens and removes it when it ends, so the lock of the lane's part of the table is
//! taken twice in a session's life and never for a message. What a finder gets is a [`SessionShared`]: the facts that
//! do not change, and a few atomics for those that do.
//!
//! Rejected: asking the lane, which would make every look-up a wait that a handler may not do, and a concurrent map,
//! which costs a dependency where a slot's index is all the key there is.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_io::socket::PeerCredentials;

use super::{Session, SessionId};
use crate::address::Endpoint;
use crate::transport::TransportKind;

/// The open sessions of all lanes.
#[derive(Debug)]
pub(crate) struct SessionTable {
    /// By lane, and then by the session's slot there.
    lanes: Box<[Mutex<Slots>]>,
}

type Slots = Vec<Option<Arc<SessionShared>>>;

/// What every thread may know of one session.
#[derive(Debug)]
pub(crate) struct SessionShared {
    pub(crate) id: SessionId,
    pub(crate) peer: Option<Endpoint>,
    pub(crate) credentials: Option<PeerCredentials>,
    pub(crate) transport: TransportKind,
    pub(crate) outgoing: bool,
    pub(crate) opened_ns: u64,
    /// Largest frame that both sides take.
    pub(crate) frame_bytes_max: usize,
    is_open: AtomicBool,
    is_closing: AtomicBool,
    /// Whether other threads wish the session to be read, and whether its lane is to look.
    reading: AtomicU8,
    tag: AtomicU64,
    /// Bytes from other threads that have not left the session's output yet.
    waiting_bytes: AtomicUsize,
}

impl SessionTable {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
        }
    }

    pub(crate) fn enter(&self, session: Arc<SessionShared>) {
        let slot = session.id.slot();
        let Some(mut slots) = self.slots(session.id) else {
            return;
        };
        if slots.len() <= slot {
            slots.resize_with(slot + 1, || None);
        }
        slots[slot] = Some(session);
    }

    pub(crate) fn remove(&self, session: &SessionShared) {
        session.set_closed();
        if let Some(mut slots) = self.slots(session.id)
            && let Some(place) = slots.get_mut(session.id.slot())
            && place.as_ref().is_some_and(|found| found.id == session.id)
        {
            *place = None;
        }
    }

    pub(crate) fn find(&self, id: SessionId) -> Option<Arc<SessionShared>> {
        let slots = self.slots(id)?;
        let session = slots.get(id.slot())?.as_ref()?;
        (session.id == id).then(|| Arc::clone(session))
    }

    /// All open sessions, lane by lane.
    pub(crate) fn list(&self) -> Vec<Arc<SessionShared>> {
        let mut sessions = Vec::new();
        for lane in &self.lanes {
            sessions.extend(lock(lane).iter().flatten().map(Arc::clone));
        }
        sessions
    }

    fn slots(&self, id: SessionId) -> Option<MutexGuard<'_, Slots>> {
        self.lanes.get(id.lane()).map(lock)
    }
}

impl SessionShared {
    pub(crate) fn new(session: &Session, now_ns: u64) -> Self {
        Self {
            id: session.id,
            peer: session.profile.peer.as_deref().cloned(),
            credentials: session.stream.peer_credentials(),
            transport: session.stream.kind(),
            outgoing: session.connection.is_outgoing(),
            opened_ns: now_ns,
            frame_bytes_max: session.connection.frame_bytes_max(),
            is_open: AtomicBool::new(true),
            is_closing: AtomicBool::new(false),
            reading: AtomicU8::new(0),
            tag: AtomicU64::new(session.profile.tag),
            waiting_bytes: AtomicUsize::new(0),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Nothing more can be sent.
    pub(crate) fn set_closed(&self) {
        self.is_open.store(false, Ordering::Release);
    }

    /// Whether the caller is the first to ask for the session's end.
    pub(crate) fn begin_close(&self) -> bool {
        !self.is_closing.swap(true, Ordering::AcqRel)
    }

    /// Keeps a wish for the lane. Returns whether the lane must be told of it: not if it has not looked since the last time.
    pub(crate) fn wish_reading(&self, reads: bool) -> bool {
        let wish = READING_TOLD | if reads { READING_WISHED } else { 0 };
        self.reading.swap(wish, Ordering::AcqRel) & READING_TOLD == 0
    }

    /// The last wish: whether the session is to be read.
    pub(crate) fn take_reading_wish(&self) -> bool {
        self.reading.swap(0, Ordering::AcqRel) & READING_WISHED != 0
    }

    pub(crate) fn tag(&self) -> u64 {
        self.tag.load(Ordering::Relaxed)
    }

    pub(crate) fn set_tag(&self, tag: u64) {
        self.tag.store(tag, Ordering::Relaxed);
    }

    /// Takes room for `bytes` among what waits for the session, unless more than `limit` waits already. Like the
    /// output itself it lets one message above its limit in, or one of the limit's size would never find room.
    pub(crate) fn reserve(&self, bytes: usize, limit: usize) -> bool {
        let held = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = held <= limit;
        if !has_room {
            self.release(bytes);
        }
        has_room
    }

    /// Gives room back.
    pub(crate) fn release(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The bit of [`SessionShared::reading`] for a wish that the session is read.
const READING_WISHED: u8 = 1 << 0;

/// The bit for a message on its way to the lane.
const READING_TOLD: u8 = 1 << 1;

fn lock(lane: &Mutex<Slots>) -> MutexGuard<'_, Slots> {
    // Every change is a single store, so a panic elsewhere leaves nothing half done.
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewire_io::socket::Stream;

    fn session(lane: usize, slot: usize, generation: u32) -> Arc<SessionShared> {
        let (near, _far) = Stream::pair().unwrap();
        let id = SessionId::new(lane, slot, generation);
        let session = Session::new(near.into(), id, crate::session::open_connection());
        Arc::new(SessionShared::new(&session, 7))
    }

    #[test]
    fn a_session_is_found_until_it_is_removed_and_never_by_a_former_number() {
        let table = SessionTable::new(2);
        let (old, new) = (session(1, 5, 1), session(1, 5, 2));
        table.enter(Arc::clone(&old));
        assert_eq!(table.find(old.id).map(|found| found.opened_ns), Some(7));
        table.enter(Arc::clone(&new));
        assert!(table.find(old.id).is_none());
        // The former holder of the place goes late.
        table.remove(&old);
        assert_eq!(table.list().len(), 1);
        table.remove(&new);
        assert!(table.find(new.id).is_none() && !new.is_open());
        assert!(table.find(SessionId::NONE).is_none(), "no such lane");
    }

    #[test]
    fn room_is_taken_up_to_the_limit_and_given_back() {
        let session = session(0, 0, 1);
        assert!(session.reserve(60, 100) && session.reserve(60, 100));
        assert!(!session.reserve(1, 100), "120 bytes wait");
        session.release(60);
        assert!(session.reserve(60, 100));
        assert!(session.begin_close() && !session.begin_close());
    }

    /// Threads that pause and resume a session without an end would fill the mailbox of a busy lane.
    #[test]
    fn one_message_tells_the_last_of_many_wishes() {
        let session = session(0, 0, 1);
        assert!(session.wish_reading(false));
        for reads in [true, false, true] {
            assert!(!session.wish_reading(reads));
        }
        assert!(session.take_reading_wish());
        assert!(session.wish_reading(false));
        assert!(!session.take_reading_wish());
    }
}
