//! The sessions of a lane, with everything that writing, timing and ending them needs.

use std::net::IpAddr;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_io::poller::{Poller, Token};
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::connection::{Connection, Farewell, Introduction, Rules};

use super::answer::SpareFrames;
use super::outbox::Outbox;
use super::reactor::Reactor;
use super::relief::Relief;
use super::slab::SessionSlab;
use super::{CloseReason, Session, SessionId};
use crate::config::Config;
use crate::memory::LaneMemory;
use crate::observe::LaneCounters;
use crate::transport::{ConnectFailure, Transport};

#[derive(Debug)]
pub(crate) struct LaneSessions {
    pub(crate) config: Arc<Config>,
    pub(crate) counters: Arc<CachePadded<LaneCounters>>,
    pub(crate) reactor: Reactor,
    pub(crate) outbox: Outbox,
    /// The memory account of the lane, and its relief.
    pub(crate) relief: Relief,
    pub(crate) slab: SessionSlab,
    /// Sessions to remove at the end of the turn.
    pub(crate) closed: Vec<usize>,
    /// Sessions that resume reading, because a reason for the pause has gone.
    pub(crate) resumed: Vec<usize>,
    /// In-process sessions that the lane reads without poller events. It checks them at the end of each turn.
    pub(crate) awake: Vec<usize>,
    /// Sessions that wait for room in a UDP socket that they share, with the number of its port.
    pub(crate) port_waiters: Vec<(usize, usize)>,
    pub(crate) connect_failures: Vec<(SessionId, ConnectFailure)>,
    /// The part of session numbers that distinguishes sessions of the same slot.
    pub(super) generation: u32,
}

impl LaneSessions {
    pub(crate) fn new(
        config: Arc<Config>,
        counters: Arc<CachePadded<LaneCounters>>,
        poller: Box<dyn Poller>,
        spare_frames: Arc<SpareFrames>,
        memory: LaneMemory,
    ) -> Self {
        let queue_bytes_max = config.limits.queue_bytes_max;
        Self {
            outbox: Outbox::new(&config.codec, spare_frames, queue_bytes_max),
            config,
            counters,
            reactor: Reactor::new(poller),
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
        self.reactor.now_ns
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

    /// The address that entries of this session in shared tables count for.
    pub(crate) fn owner_of(&self, id: SessionId) -> Option<IpAddr> {
        self.find(id)?.owner()
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

    #[inline]
    pub(crate) fn mark_dirty(&mut self, slot: usize) {
        let session = &mut self.slab[slot];
        if !session.dirty {
            session.dirty = true;
            self.outbox.dirty.push(slot);
        }
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
        self.mark_dirty(slot);
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
        self.mark_dirty(slot);
    }

    /// Appends the connection's own control frames to the session's output, and lists the session for a flush.
    pub(crate) fn transmit(&mut self, slot: usize) {
        self.append_control(slot);
        self.mark_dirty(slot);
    }

    /// Appends the connection's own control frames. The caller writes the output.
    pub(super) fn append_control(&mut self, slot: usize) {
        let Self {
            slab,
            config,
            outbox,
            reactor,
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
            now_ns: reactor.now_ns,
        };
        let (output, buffers) = outbox.of(slot, &mut session.output);
        while session.connection.has_transmit() {
            output.ensure_buffer(buffers);
            let sent = session
                .connection
                .poll_transmit(rules, &own, codec, &mut output.bytes);
            match sent {
                Some(Ok(())) => output.handle_appended(codec),
                Some(Err(error)) => {
                    tracing::debug!(session = %session.id, %error, "cannot encode a control frame");
                }
                None => {}
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
        let result = session
            .stream
            .watch(&mut *self.reactor.poller, Token(slot), wanted);
        if let Err(error) = result {
            tracing::error!(session = %session.id, %error, "cannot change the poller's interest in a session");
            self.close(slot, CloseReason::Io(std::io::ErrorKind::Other));
        }
    }
}

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
