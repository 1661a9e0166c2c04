//! Packets on their way to the engine: whether they can go out, how long they may be, and the sequences of what was
//! sent.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use tidewire_io::clock::now_ns;
use tidewire_proto::backplane::entry::encode_here;
use tidewire_proto::backplane::sequence::{EntryCounts, SentSequences};
use tidewire_proto::backplane::{
    NodeLife, PACKET_OVERHEAD_BYTES_MAX, SequenceKind, SequencePoint, encode_sequence,
};

use super::{BackplaneError, PACKET_BYTES_MIN, Subject, Wire};
use crate::observe::{LaneCounters, QuietLog};

/// The engine as the node sees it, and what the node has sent. See the module.
pub(super) struct ToEngine {
    me: NodeLife<Arc<str>>,
    counters: Arc<CachePadded<LaneCounters>>,
    packet_bytes_max: usize,
    /// Whether the engine carries only packets that are too short for a node, which is then cut off.
    is_too_narrow: bool,
    cut_off: Option<CutOff>,
    sequences: SentSequences,
    /// The use of sequences at the last heartbeat.
    marked: u64,
    /// Points to tell, the next one last.
    due_points: Vec<(SequenceKind, Box<str>, SequencePoint)>,
    /// Limits the log lines of an engine that comes and goes.
    cut_off_log: QuietLog,
    /// Whether the log has the present loss of the engine.
    is_cut_off_logged: bool,
    /// Limits the log lines of an engine that refuses something.
    refusals: QuietLog,
}

/// The loss of the engine.
#[derive(Debug)]
struct CutOff {
    since: Instant,
    /// Whether the members have been told.
    is_told: bool,
}

impl ToEngine {
    pub(super) fn new(
        me: NodeLife<Arc<str>>,
        packet_bytes_max: usize,
        counters: Arc<CachePadded<LaneCounters>>,
    ) -> Self {
        Self {
            me,
            counters,
            packet_bytes_max,
            is_too_narrow: false,
            cut_off: None,
            sequences: SentSequences::default(),
            marked: 0,
            due_points: Vec::new(),
            cut_off_log: QuietLog::default(),
            is_cut_off_logged: false,
            refusals: QuietLog::default(),
        }
    }

    /// This run of the node.
    pub(super) fn me(&self) -> NodeLife<&str> {
        self.me.borrow()
    }

    pub(super) fn is_cut_off(&self) -> bool {
        self.cut_off.is_some()
    }

    /// Whether the members were told that the node is cut off.
    pub(super) fn is_cut_off_told(&self) -> bool {
        self.cut_off.as_ref().is_some_and(|it| it.is_told)
    }

    pub(super) fn is_too_narrow(&self) -> bool {
        self.is_too_narrow
    }

    /// Notes that the engine is reachable again. Returns whether the members were told that it was not; `None` if it
    /// was.
    pub(super) fn connect(&mut self) -> Option<bool> {
        let cut_off = self.cut_off.take()?;
        self.counters.backplane_reconnects.add_shared(1);
        if std::mem::take(&mut self.is_cut_off_logged) {
            tracing::info!(
                node = &*self.me.node,
                "the node reaches its backplane again"
            );
        }
        Some(cut_off.is_told)
    }

    /// Notes that the engine cannot be reached. Returns whether it could be until now.
    pub(super) fn disconnect(&mut self, now: Instant) -> bool {
        if self.is_cut_off() {
            return false;
        }
        if let Some(unlogged) = self.cut_off_log.may_log(now_ns()) {
            tracing::warn!(
                node = &*self.me.node,
                unlogged,
                "the node is cut off from its backplane"
            );
            self.is_cut_off_logged = true;
        }
        self.cut_off = Some(CutOff {
            since: now,
            is_told: false,
        });
        true
    }

    /// Whether the members must be told now that the node is cut off, because this has lasted for `patience`.
    pub(super) fn begins_to_tell_cut_off(&mut self, patience: Duration, now: Instant) -> bool {
        let lasts =
            |it: &&mut CutOff| !it.is_told && now.saturating_duration_since(it.since) >= patience;
        let cut_off = self.cut_off.as_mut().filter(lasts);
        cut_off.map(|it| it.is_told = true).is_some()
    }

    /// Notes the largest packet that the engine carries from now on. Returns whether it is shorter than before, and a
    /// node can use it.
    pub(super) fn limit(&mut self, bytes: usize) -> bool {
        self.is_too_narrow = bytes < PACKET_BYTES_MIN;
        if self.is_too_narrow {
            let error = BackplaneError::PacketLimit { bytes };
            tracing::error!(node = &*self.me.node, %error, "the node is cut off from its backplane");
            return false;
        }
        if bytes >= self.packet_bytes_max {
            return false;
        }
        tracing::error!(
            node = &*self.me.node,
            bytes,
            "the backplane carries shorter packets than before, so longer messages of rooms and topics are refused; \
             raise its limit, and start the server again"
        );
        self.packet_bytes_max = bytes;
        true
    }

    pub(super) fn log_refusal(&mut self, text: &str) {
        if let Some(unlogged) = self.refusals.may_log(now_ns()) {
            tracing::error!(
                node = &*self.me.node,
                text,
                unlogged,
                "the backplane refuses the node"
            );
        }
    }

    /// The largest packet that the engine carries.
    pub(super) fn packet_bytes_max(&self) -> usize {
        self.packet_bytes_max
    }

    /// Most bytes of entries in a packet.
    pub(super) fn entry_bytes_max(&self) -> usize {
        self.packet_bytes_max
            .saturating_sub(PACKET_OVERHEAD_BYTES_MAX)
    }

    pub(super) fn publish(&self, to: Subject<'_>, packet: &[u8], wire: &mut dyn Wire) -> bool {
        !self.is_cut_off() && wire.publish(to, packet)
    }

    /// Counts messages that went out, or could not.
    pub(super) fn count(&self, messages: u64, is_sent: bool) {
        match is_sent {
            true => self.counters.backplane_sent.add_shared(messages),
            false => self.counters.backplane_unsent.add_shared(messages),
        }
    }

    /// Sends entries of a room or topic. The sequence counts them even if they cannot go out, so that the others find
    /// them missing. Returns whether they went out.
    pub(super) fn send_entries(
        &mut self,
        (kind, name): (SequenceKind, &str),
        counts: EntryCounts,
        entries: &[u8],
        wire: &mut dyn Wire,
    ) -> bool {
        let point = self.sequences.next(kind, name, counts, SEQUENCES_MAX);
        let mut packet = Vec::with_capacity(entries.len() + name.len() + HEADER_BYTES);
        encode_sequence(self.me(), (kind, name), point, &mut packet);
        packet.extend_from_slice(entries);
        let is_sent = packet.len() <= self.packet_bytes_max
            && self.publish(subject(kind, name), &packet, wire);
        self.count(counts.messages, is_sent);
        is_sent
    }

    /// Collects the points of sequences that are silent since the last heartbeat, so that a loss of their last message
    /// is found. Those of the last time go out first.
    pub(super) fn mark_silent(&mut self) {
        if self.is_cut_off() || !self.due_points.is_empty() {
            return;
        }
        let due = &mut self.due_points;
        self.marked = self.sequences.mark(self.marked, |kind, name, point| {
            due.push((kind, name.into(), point));
            true
        });
    }

    /// Lets the next heartbeat collect all points.
    pub(super) fn unmark_all(&mut self) {
        self.sequences.unmark_all();
    }

    /// Tells at most `count` points. `has_room` tells whether a room has members here.
    pub(super) fn tell_points(
        &mut self,
        count: usize,
        has_room: impl Fn(&str) -> bool,
        wire: &mut dyn Wire,
    ) {
        for _ in 0..count {
            let Some((kind, name, point)) = self.due_points.pop() else {
                return;
            };
            let is_empty = kind == SequenceKind::Room && !has_room(&name);
            if !self.send_point((kind, &name), point, is_empty, wire) {
                return self.due_points.push((kind, name, point));
            }
        }
    }

    pub(super) fn has_due_points(&self) -> bool {
        !self.due_points.is_empty()
    }

    /// Tells the point of a sequence, and whether a room has no members here, because nothing else would tell that the
    /// last change was lost. Returns whether it was sent.
    fn send_point(
        &self,
        (kind, name): (SequenceKind, &str),
        point: SequencePoint,
        is_empty: bool,
        wire: &mut dyn Wire,
    ) -> bool {
        let mut packet = Vec::new();
        encode_sequence(self.me(), (kind, name), point, &mut packet);
        if is_empty {
            encode_here(false, 0, std::iter::empty(), &mut packet);
        }
        // If the packet is lost on its way, the next message or question tells the point.
        self.publish(subject(kind, name), &packet, wire)
    }
}

impl fmt::Debug for ToEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = formatter.debug_struct("ToEngine");
        fields.field("me", &self.me).field("cut_off", &self.cut_off);
        fields.finish_non_exhaustive()
    }
}

fn subject(kind: SequenceKind, name: &str) -> Subject<'_> {
    match kind {
        SequenceKind::Room => Subject::Room(name),
        SequenceKind::Topic => Subject::Topic(name),
    }
}

/// Sequences that a node remembers. One takes some 150 bytes here, and as many at each node that receives it.
const SEQUENCES_MAX: usize = 131_072;

/// Room for the fixed fields of a packet's header.
const HEADER_BYTES: usize = 96;
