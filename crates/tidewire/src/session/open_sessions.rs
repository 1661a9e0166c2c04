//! The open sessions of a server, in a table that every thread can read.
//!
//! A lane adds a session when it opens and removes it when it ends. So the lock of the lane's part of the table is
//! taken twice in a session's life, and never for a message. A look-up returns a [`SessionShared`]: the constant facts
//! about a session, and a few atomics for the changing ones.
//!
//! Rejected: asking the lane, because then every look-up waits, which a handler must not do. Rejected too: a concurrent
//! map, which is a dependency; an index by slot is enough.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_io::process::Process;
use tidewire_io::socket::PeerCredentials;
use tidewire_proto::codec::AnyCodec;

use super::{Session, SessionId};
use crate::address::Endpoint;
use crate::config::{CodecNumber, Codecs};
use crate::transport::TransportKind;

/// The open sessions of all lanes.
#[derive(Debug)]
pub(crate) struct OpenSessions {
    /// Indexed by lane, then by the session's slot.
    lanes: Box<[Mutex<Slots>]>,
    /// The process with the lanes. A child by `fork` finds no session.
    process: Process,
}

type Slots = Vec<Option<Arc<SessionShared>>>;

/// The part of a session that every thread may see.
#[derive(Debug)]
pub(crate) struct SessionShared {
    pub(crate) id: SessionId,
    codec: CodecNumber,
    pub(crate) peer: Option<Arc<Endpoint>>,
    pub(crate) credentials: Option<PeerCredentials>,
    pub(crate) transport: TransportKind,
    pub(crate) outgoing: bool,
    pub(crate) opened_ns: u64,
    /// Largest frame that both sides accept.
    pub(crate) frame_bytes_max: usize,
    is_open: AtomicBool,
    is_closing: AtomicBool,
    /// The last request of other threads to read or to pause: [`READING_WISHED`] and [`READING_TOLD`].
    reading: AtomicU8,
    /// Bytes from other threads that have not left the session's output yet.
    waiting_bytes: AtomicUsize,
}

impl OpenSessions {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
            process: Process::this(),
        }
    }

    pub(crate) fn enter(&self, shared: Arc<SessionShared>) {
        let slot = shared.id.slot();
        let Some(mut slots) = self.slots(shared.id) else {
            return;
        };
        if slots.len() <= slot {
            slots.resize_with(slot + 1, || None);
        }
        slots[slot] = Some(shared);
    }

    pub(crate) fn remove(&self, shared: &SessionShared) {
        shared.set_closed();
        if let Some(mut slots) = self.slots(shared.id)
            && let Some(entry) = slots.get_mut(shared.id.slot())
            && entry.as_ref().is_some_and(|found| found.id == shared.id)
        {
            *entry = None;
        }
    }

    pub(crate) fn find(&self, id: SessionId) -> Option<Arc<SessionShared>> {
        let slots = self.slots(id)?;
        let shared = slots.get(id.slot())?.as_ref()?;
        (shared.id == id).then(|| Arc::clone(shared))
    }

    /// The codec of a session of any lane.
    pub(crate) fn codec_of<'c>(&self, id: SessionId, codecs: &'c Codecs) -> &'c AnyCodec {
        if codecs.is_one() {
            return codecs.main();
        }
        let session = self.find(id);
        session.map_or(codecs.main(), |session| codecs.get(session.codec))
    }

    /// Lists all open sessions, lane by lane.
    pub(crate) fn list(&self) -> Vec<Arc<SessionShared>> {
        let mut sessions = Vec::new();
        for lane in self.lanes() {
            sessions.extend(lock(lane).iter().flatten().map(Arc::clone));
        }
        sessions
    }

    fn slots(&self, id: SessionId) -> Option<MutexGuard<'_, Slots>> {
        self.lanes().get(id.lane()).map(lock)
    }

    fn lanes(&self) -> &[Mutex<Slots>] {
        match self.process.is_this() {
            true => &self.lanes,
            false => &[],
        }
    }
}

impl SessionShared {
    /// The number of the session's codec.
    pub(crate) fn codec_number(&self) -> CodecNumber {
        self.codec
    }

    pub(crate) fn new(session: &Session, now_ns: u64) -> Self {
        Self {
            id: session.id,
            codec: session.codec_number(),
            peer: session.profile.peer.clone(),
            credentials: session.stream.peer_credentials(),
            transport: session.stream.kind(),
            outgoing: session.connection.handshake().is_outgoing(),
            opened_ns: now_ns,
            frame_bytes_max: session.connection.handshake().frame_bytes_max(),
            is_open: AtomicBool::new(true),
            is_closing: AtomicBool::new(false),
            reading: AtomicU8::new(0),
            waiting_bytes: AtomicUsize::new(0),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Marks the session as closed to new messages.
    pub(crate) fn set_closed(&self) {
        self.is_open.store(false, Ordering::Release);
    }

    /// Starts to close the session. Returns whether this is the first call.
    pub(crate) fn begin_close(&self) -> bool {
        !self.is_closing.swap(true, Ordering::AcqRel)
    }

    /// Stores the request of another thread to read or to pause. Returns whether the lane needs a message. It does not
    /// if it has not read an earlier one yet.
    pub(crate) fn wish_reading(&self, reads: bool) -> bool {
        let wish = READING_TOLD | if reads { READING_WISHED } else { 0 };
        self.reading.swap(wish, Ordering::AcqRel) & READING_TOLD == 0
    }

    /// Takes the last request: whether the session is to be read.
    pub(crate) fn take_reading_wish(&self) -> bool {
        self.reading.swap(0, Ordering::AcqRel) & READING_WISHED != 0
    }

    /// Reserves `bytes` of the session's queue, unless more than `limit` bytes wait already. Like the output itself it
    /// accepts one message beyond the limit, because otherwise a message as large as the limit would never fit.
    pub(crate) fn reserve(&self, bytes: usize, limit: usize) -> bool {
        let held = self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = held <= limit;
        if !has_room {
            self.release(bytes);
        }
        has_room
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The bit for a request to read the session.
const READING_WISHED: u8 = 1 << 0;

/// The bit for a message to the lane that is still unread.
const READING_TOLD: u8 = 1 << 1;

fn lock(lane: &Mutex<Slots>) -> MutexGuard<'_, Slots> {
    // Every change is a single store, so a panic leaves nothing half done.
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidewire_io::socket::Stream;

    fn shared(lane: usize, slot: usize, generation: u32) -> Arc<SessionShared> {
        let (near, _far) = Stream::pair().unwrap();
        let id = SessionId::new(lane, slot, generation);
        let session = Session::new(
            near.into(),
            id,
            CodecNumber::MAIN,
            crate::session::open_connection(),
        );
        Arc::new(SessionShared::new(&session, 7))
    }

    #[test]
    fn a_session_is_found_until_it_is_removed_and_never_by_a_former_number() {
        let table = OpenSessions::new(2);
        let (old, new) = (shared(1, 5, 1), shared(1, 5, 2));
        table.enter(Arc::clone(&old));
        assert_eq!(table.find(old.id).map(|found| found.opened_ns), Some(7));
        table.enter(Arc::clone(&new));
        assert!(table.find(old.id).is_none());
        // The older session is removed after the newer one was added.
        table.remove(&old);
        assert_eq!(table.list().len(), 1);
        table.remove(&new);
        assert!(table.find(new.id).is_none() && !new.is_open());
        assert!(table.find(SessionId::NONE).is_none(), "no such lane");
    }

    #[test]
    fn room_is_taken_up_to_the_limit_and_given_back() {
        let shared = shared(0, 0, 1);
        assert!(shared.reserve(60, 100) && shared.reserve(60, 100));
        assert!(!shared.reserve(1, 100), "120 bytes wait");
        shared.release(60);
        assert!(shared.reserve(60, 100));
        assert!(shared.begin_close() && !shared.begin_close());
    }

    /// Without this, threads that pause and resume a session endlessly would fill the mailbox of a busy lane.
    #[test]
    fn one_message_tells_the_last_of_many_wishes() {
        let shared = shared(0, 0, 1);
        assert!(shared.wish_reading(false));
        for reads in [true, false, true] {
            assert!(!shared.wish_reading(reads));
        }
        assert!(shared.take_reading_wish());
        assert!(shared.wish_reading(false));
        assert!(!shared.take_reading_wish());
    }
}
