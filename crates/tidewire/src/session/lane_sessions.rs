//! The sessions of a lane, with everything that writing, timing and ending them needs.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_io::poller::{Poller, Token};
use tidewire_proto::connection::{Farewell, Introduction, PauseReason};

use super::answer::{SpareAnswers, SpareFrames};
use super::relief::{Relief, ReliefPass};
use super::writer::Writer;
use super::{
    CloseReason, ConnectFailures, LaneSessions, Logs, Outputs, Session, SessionTable, Timers,
};
use crate::config::Config;
use crate::memory::{LaneMemory, Pressure};
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
            table: SessionTable::default(),
            outputs: Outputs::new(Arc::clone(&config), Arc::clone(&counters)),
            logs: Logs::new(&config, Arc::clone(&counters)),
            writer: Writer::new(Arc::clone(&config), Arc::clone(&counters)),
            timers: Timers::new(),
            relief: Relief::new(memory),
            spare_answers: SpareAnswers::new(spare_frames),
            connect_failures: ConnectFailures::default(),
            config,
            counters,
            poller,
        }
    }

    /// Adds a session in the slot of its number.
    pub(crate) fn insert(&mut self, session: Session) {
        let slot = session.id.slot();
        let has_layers = session.stream.has_layers();
        let packing = session.stream.preserves_boundaries().then(|| {
            let bytes_max = self.config.limits.connections.datagram_bytes_max();
            Box::new(Packing::new(
                self.config.codecs.get(session.codec_number()),
                bytes_max,
            ))
        });
        self.outputs.open(slot, session.codec_number(), packing);
        self.table.insert(session);
        self.arm_timer(slot);
        self.relief.charge_session(slot);
        if has_layers {
            self.relief.charge_buffers(&self.table[slot], &self.outputs);
        }
    }

    /// Removes a session, and what the lane keeps for it.
    pub(crate) fn remove(&mut self, slot: usize) -> Option<Session> {
        let mut session = self.table.remove(slot)?;
        session.cancel_requests();
        self.timers.disarm(&mut session);
        if let Err(error) = session.stream.remove(&mut *self.poller) {
            tracing::error!(session = %session.id, %error, "cannot stop watching a connection");
        }
        self.relief.release_session(slot);
        self.outputs.close(slot);
        let (input, _) = session.connection.input_mut().take();
        self.outputs.put_buffer(input);
        Some(session)
    }

    /// Ends a session after its output has been written, and on behalf of the service after the answers given so far.
    /// It is not read any more. Sends the peer the farewell, if there is one.
    pub(crate) fn finish(
        &mut self,
        slot: usize,
        reason: CloseReason,
        farewell: Option<Box<Farewell>>,
    ) {
        if reason == CloseReason::Service {
            self.table[slot].keep_answered();
        }
        let farewell = farewell.map(|farewell| *farewell);
        let rules = self.config.codecs.rules(self.table[slot].codec_number());
        self.table.change(slot, |connection| {
            connection.finish(rules, reason, farewell);
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
        let session = &mut self.table[slot];
        let (codec, rules) = (
            self.config.codecs.get(session.codec_number()),
            self.config.codecs.rules(session.codec_number()),
        );
        let attached = session.profile.attached.as_ref();
        let credentials = attached.and_then(|attached| attached.credentials());
        let own = Introduction {
            agent: &self.config.agent,
            session: session.id.number(),
            credentials: credentials.map_or(&[], |token| token.secret().as_bytes()),
            follows_moves: self.config.follows_moves,
            moved_to: self.config.successor.get().map_or("", String::as_str),
            now_ns: self.timers.now_ns(),
        };
        while session.connection.has_transmit() {
            let connection = &mut session.connection;
            let output = self.outputs.with_buffer(slot);
            let sent = output.append(codec, |codec, out| {
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
        let session = &mut self.table[slot];
        let wanted = session.wanted_interest();
        if wanted == session.interest || session.connection.is_closed() {
            return;
        }
        session.interest = wanted;
        let result = session.stream.watch(&mut *self.poller, Token(slot), wanted);
        if let Err(error) = result {
            tracing::error!(session = %session.id, %error, "cannot change the poller's interest in a session");
            self.table
                .close(slot, CloseReason::Io(std::io::ErrorKind::Other));
        }
    }

    /// Stops reading from a session until this reason is gone.
    pub(crate) fn pause_reading(&mut self, slot: usize, reason: PauseReason) {
        if self.table[slot].connection.input_mut().pause(reason) {
            self.update_interest(slot);
        }
    }

    /// Removes a reason not to read, if it is set. Bytes that were read before are handled in this turn or the next.
    pub(crate) fn resume_reading(&mut self, slot: usize, reason: PauseReason) {
        let connection = &mut self.table[slot].connection;
        if connection.input().is_paused_by(reason) {
            // The time of silence starts now.
            connection.timing_mut().note_input(self.timers.now_ns());
        }
        self.table.resume(slot, reason);
    }

    /// Charges the bytes that a session keeps, and starts relief if the limit is reached.
    pub(crate) fn charge_kept(&mut self, slot: usize) {
        self.relief.charge_buffers(&self.table[slot], &self.outputs);
        if self.relief.is_full() {
            self.relief_pass().relieve();
        }
    }

    /// Charges the changes since the last turn, with messages to and from other lanes, and relieves the server if
    /// necessary. Returns the remaining pressure.
    #[inline]
    pub(crate) fn settle_memory(&mut self, mail_bytes: usize) -> Pressure {
        self.relief.charge_common(&self.outputs, mail_bytes);
        match self.relief.is_calm() {
            true => Pressure::Normal,
            false => self.relief_pass().settle(),
        }
    }

    /// The account of memory, with the parts of the lane that hold memory.
    pub(crate) fn relief_pass(&mut self) -> ReliefPass<'_> {
        ReliefPass::of(self)
    }
}

#[cfg(test)]
impl LaneSessions {
    /// Lets this time pass.
    pub(crate) fn pass_time(&mut self, time_ns: u64) {
        let now_ns = self.timers.now_ns();
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

impl Index<usize> for LaneSessions {
    type Output = Session;

    #[inline]
    fn index(&self, slot: usize) -> &Session {
        &self.table[slot]
    }
}

impl IndexMut<usize> for LaneSessions {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut Session {
        &mut self.table[slot]
    }
}
