//! The sessions of a lane, with everything that writing, timing and ending them needs.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_io::memory::release_unused;
use tidewire_io::poller::{Poller, Token};
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::connection::{Connection, Farewell, Introduction, Rules};
use tidewire_proto::room::Deliveries;

use super::answer::{SpareAnswers, SpareFrames};
use super::relief::Relief;
use super::slab::SessionSlab;
use super::write::Way;
use super::{CloseReason, LaneSessions, Logs, Outputs, Session, SessionId, Timers};
use crate::config::Config;
use crate::memory::LaneMemory;
use crate::observe::LaneCounters;
use crate::transport::Transport;
use crate::transport::datagram::Packing;

impl LaneSessions {
    pub(crate) fn new(
        config: Arc<Config>,
        counters: Arc<CachePadded<LaneCounters>>,
        poller: Box<dyn Poller>,
        spare_frames: Arc<SpareFrames>,
        memory: LaneMemory,
    ) -> Self {
        Self {
            outputs: Outputs::new(Arc::clone(&config), Arc::clone(&counters)),
            logs: Logs::default(),
            spare_answers: SpareAnswers::new(spare_frames),
            way: Way::of(&config.codec),
            deliveries: Deliveries::default(),
            config,
            counters,
            poller,
            timers: Timers::new(),
            relief: Relief::new(memory),
            slab: SessionSlab::default(),
            closed: Vec::new(),
            resumed: Vec::new(),
            awake: Vec::new(),
            port_waiters: Vec::new(),
            connect_failures: Vec::new(),
            generation: 0,
        }
    }

    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        self.timers.now_ns()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: usize) -> Option<&mut Session> {
        self.slab.get_mut(slot)
    }

    #[inline]
    pub(crate) fn get(&self, slot: usize) -> Option<&Session> {
        self.slab.get(slot)
    }

    pub(crate) fn iter(&self) -> slab::Iter<'_, Session> {
        self.slab.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    pub(crate) fn slots(&self) -> Vec<usize> {
        self.slab.iter().map(|(slot, _)| slot).collect()
    }

    /// The slot of a session that is not closed.
    #[inline]
    pub(crate) fn slot_of(&self, id: SessionId) -> Option<usize> {
        let slot = id.slot();
        self.slab
            .get(slot)
            .filter(|session| session.id == id && !session.connection.is_closed())
            .map(|_| slot)
    }

    #[inline]
    pub(crate) fn find(&self, id: SessionId) -> Option<&Session> {
        self.slab.get(id.slot()).filter(|session| session.id == id)
    }

    /// How many sessions of this lane are newer.
    pub(crate) fn age_of(&self, id: SessionId) -> u32 {
        id.age(self.generation)
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.slab
            .get_mut(id.slot())
            .filter(|session| session.id == id)
    }

    /// The codec of a session's input. The server's one codec frames all output.
    #[inline]
    pub(crate) fn input_codec(&self, slot: usize) -> &AnyCodec {
        let terms = self.slab[slot].profile.listener.as_ref();
        terms.map_or(&self.config.codec, |terms| terms.codec())
    }

    /// Returns a number for the next session, in the free slot that the slab will use.
    pub(crate) fn next_id(&mut self, lane: usize) -> SessionId {
        self.generation = self.generation.wrapping_add(1);
        if self.generation == u32::MAX {
            // The highest generation is reserved: in a batch such a session number would look like a room.
            self.generation = 0;
        }
        SessionId::new(lane, self.slab.vacant_key(), self.generation)
    }

    /// Adds a session in the slot of its number.
    pub(crate) fn insert(&mut self, session: Session) {
        let (slot, places) = (session.id.slot(), self.slab.capacity());
        let has_layers = session.stream.has_layers();
        let packing = session.stream.preserves_boundaries().then(|| {
            let bytes_max = self.config.limits.connections.datagram_bytes_max();
            Box::new(Packing::new(&self.config.codec, bytes_max))
        });
        self.outputs.open(slot, packing);
        self.slab.insert(session);
        // All sessions may be awake at once. The reserve keeps that from allocating later.
        self.awake.reserve(self.slab.len());
        self.arm_timer(slot);
        self.relief.charge_session(slot);
        if has_layers {
            self.charge_buffers(slot);
        }
        let has_grown = self.slab.capacity() > places;
        if has_grown && places * size_of::<Session>() >= RELEASED_BYTES_MIN {
            // The tables of sessions were copied to larger ones. The allocator would keep the former ones resident.
            release_unused();
        }
    }

    /// Removes a session, and what the lane keeps for it.
    pub(crate) fn remove(&mut self, slot: usize) -> Option<Session> {
        let mut session = self.slab.try_remove(slot)?;
        if let Some(timer) = session.timer.take() {
            self.timers.cancel(timer);
        }
        if let Err(error) = session.stream.remove(&mut *self.poller) {
            tracing::error!(session = %session.id, %error, "cannot stop watching a connection");
        }
        self.timers.end_service(session.id);
        self.relief.release_session(slot);
        self.outputs.close(slot);
        self.outputs
            .put_buffer(session.connection.input_mut().take().0);
        Some(session)
    }

    /// Changes a connection. If that closes it, the session is removed at the end of this turn.
    #[inline]
    pub(crate) fn change<T>(
        &mut self,
        slot: usize,
        change: impl FnOnce(&mut Connection, &Rules) -> T,
    ) -> T {
        let connection = &mut self.slab[slot].connection;
        let was_closed = connection.is_closed();
        let result = change(connection, &self.config.rules);
        if connection.is_closed() && !was_closed {
            self.closed.push(slot);
        }
        result
    }

    /// Ends a session at the end of this turn. Its unsent output is dropped and counted.
    pub(crate) fn close(&mut self, slot: usize, reason: CloseReason) {
        self.change(slot, |connection, _| connection.close(reason));
    }

    /// Ends a session after its output has been written. It is not read any more.
    pub(crate) fn finish(&mut self, slot: usize, reason: CloseReason) {
        self.change(slot, |connection, rules| {
            connection.finish(rules, reason, None);
        });
        self.update_interest(slot);
        self.outputs.list(slot);
    }

    /// Ends a session on behalf of the service, after the answers given so far. Sends the peer the farewell, if there is
    /// one.
    pub(crate) fn end_by_service(&mut self, slot: usize, farewell: Option<Box<Farewell>>) {
        self.keep_answered(slot);
        let farewell = farewell.map(|farewell| *farewell);
        self.change(slot, |connection, rules| {
            connection.finish(rules, CloseReason::Service, farewell);
        });
        self.update_interest(slot);
        self.outputs.list(slot);
    }

    /// Appends the connection's own control frames to the session's output, and lists the session for a flush.
    pub(crate) fn transmit(&mut self, slot: usize) {
        self.append_control(slot);
        self.outputs.list(slot);
    }

    /// Appends the connection's own control frames. The caller writes the output.
    pub(super) fn append_control(&mut self, slot: usize) {
        let Self {
            slab,
            config,
            outputs,
            timers,
            ..
        } = self;
        let session = &mut slab[slot];
        let Config { rules, codec, .. } = &**config;
        let attached = session.profile.attached.as_ref();
        let credentials = attached.and_then(|attached| attached.credentials.as_ref());
        let own = Introduction {
            agent: &config.agent,
            session: session.id.number(),
            credentials: credentials.map_or(&[], |token| token.secret().as_bytes()),
            follows_moves: config.follows_moves,
            moved_to: config.successor.get().map_or("", String::as_str),
            now_ns: timers.now_ns(),
        };
        while session.connection.has_transmit() {
            let connection = &mut session.connection;
            let sent = outputs.with_buffer(slot).append(codec, |codec, out| {
                let sent = connection.poll_transmit(rules, &own, codec, out);
                sent.unwrap_or(Ok(()))
            });
            if let Err(error) = sent {
                tracing::debug!(session = %session.id, %error, "cannot encode a control frame");
            }
        }
    }

    /// Updates the poller if the session waits for other events than before.
    pub(crate) fn update_interest(&mut self, slot: usize) {
        let session = &mut self.slab[slot];
        let wanted = session.wanted_interest();
        if wanted == session.interest || session.connection.is_closed() {
            return;
        }
        session.interest = wanted;
        let result = session.stream.watch(&mut *self.poller, Token(slot), wanted);
        if let Err(error) = result {
            tracing::error!(session = %session.id, %error, "cannot change the poller's interest in a session");
            self.close(slot, CloseReason::Io(std::io::ErrorKind::Other));
        }
    }
}

#[cfg(test)]
impl LaneSessions {
    /// Lets this time pass.
    pub(crate) fn pass_time(&mut self, time_ns: u64) {
        let now_ns = self.now_ns();
        self.timers.set_time(now_ns + time_ns);
    }

    /// Appends bytes that need not be frames.
    pub(crate) fn append_bytes(&mut self, slot: usize, bytes: &[u8]) {
        self.outputs.append_frames(slot, bytes);
    }

    pub(crate) fn replace_output(&mut self, slot: usize, output: super::Output) {
        *self.outputs.of_mut(slot) = output;
    }

    /// Whether a session is listed for the flush at the end of the turn.
    pub(crate) fn is_listed(&self, slot: usize) -> bool {
        self.outputs.is_listed(slot)
    }
}

/// The size of a former table of sessions from which its memory goes back to the system. Each table is twice as large as the one
/// before, so this happens a few times in the life of a lane.
const RELEASED_BYTES_MIN: usize = 256 << 10;

impl Index<usize> for LaneSessions {
    type Output = Session;

    #[inline]
    fn index(&self, slot: usize) -> &Session {
        &self.slab[slot]
    }
}

impl IndexMut<usize> for LaneSessions {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut Session {
        &mut self.slab[slot]
    }
}
