//! The way of a session's output and room messages to its transport.
//!
//! A [`Writer`] moves bytes and counts them. It knows one session at a time. What follows from a write (a full socket,
//! an empty output, an end) is decided in `write.rs`, with the other parts of the lane.

mod adapt;
mod datagrams;
mod deliveries;
mod gather;
mod latest;
mod ordering;

use std::io::ErrorKind;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::room::Deliveries;

pub(super) use self::adapt::CodecAdapter;
pub(crate) use self::deliveries::append_with_header;
use self::gather::WriteOutcome;
use super::{CloseReason, Logs, Membership, Outputs, Session, SessionId};
use crate::config::Config;
use crate::observe::{DropReason, LaneCounters};
use crate::transport::Transport;

/// Writes the outputs of sessions, and their messages in logs.
#[derive(Debug)]
pub(super) struct Writer {
    /// The way of sessions with the main codec.
    main_way: Way,
    /// Deliveries with their headers, gathered for one write.
    deliveries: Deliveries,
    config: Arc<Config>,
    counters: Arc<CachePadded<LaneCounters>>,
}

/// The bytes of a session that one write offered to the socket.
#[derive(Default)]
struct Offer {
    bytes: usize,
    /// Whether the rooms have more bytes than one write takes.
    has_more: bool,
}

/// The way from output to the transport of a stream. The codec decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Unchanged, gathered from output and logs.
    Plain,
    /// Log frames are copied after the header of the subscriber.
    WithHeaders,
    /// Everything is copied to the output and adapted to the connection.
    Adapted,
}

impl Way {
    fn of(codec: &AnyCodec) -> Self {
        match (
            codec.format().keeps_state(),
            codec.format().delivery_header_bytes_max,
        ) {
            (true, _) => Self::Adapted,
            (false, 0) => Self::Plain,
            (false, _) => Self::WithHeaders,
        }
    }
}

impl Writer {
    pub(super) fn new(config: Arc<Config>, counters: Arc<CachePadded<LaneCounters>>) -> Self {
        Self {
            main_way: Way::of(config.codecs.main()),
            deliveries: Deliveries::default(),
            config,
            counters,
        }
    }

    #[inline]
    fn way(&self, session: &Session) -> Way {
        match session.codec_number().is_main() {
            true => self.main_way,
            false => Way::of(self.config.codecs.get(session.codec_number())),
        }
    }

    /// Writes everything that waits for a session over a stream. Returns false if the socket is full.
    #[inline]
    pub(super) fn write(
        &mut self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
    ) -> Result<bool, ErrorKind> {
        match self.way(session) {
            Way::Plain if session.memberships.is_empty() => self.write_own(session, outputs),
            Way::Plain => self.write_all(session, outputs, logs),
            Way::Adapted => self.write_adapted(session, outputs, logs),
            Way::WithHeaders => self.write_with_headers(session, outputs, logs),
        }
    }

    fn write_all(
        &mut self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
    ) -> Result<bool, ErrorKind> {
        loop {
            let is_off_log = self.announce_gaps(session, outputs, logs);
            let (offer, wrote) = self.write_gathered(session, outputs, logs);
            if offer.bytes == 0 {
                return session.flush_layers();
            }
            match wrote {
                WriteOutcome::Bytes(count) | WriteOutcome::Held(count) => {
                    self.account(session, outputs, logs, count);
                    if count < offer.bytes || matches!(wrote, WriteOutcome::Held(_)) {
                        return Ok(false);
                    }
                    if !offer.has_more && !is_off_log {
                        return Ok(true);
                    }
                }
                WriteOutcome::Blocked => return Ok(false),
                WriteOutcome::Failed(kind) => return Err(kind),
            }
        }
    }

    /// Ends a stream that is about to be closed. Writes the output once before, if that holds the reason.
    pub(super) fn write_end(
        &self,
        session: &mut Session,
        outputs: &mut Outputs,
        is_told: bool,
        reason: CloseReason,
    ) {
        if is_told {
            if self.way(session) == Way::Adapted {
                self.adapt_output(session, outputs);
            }
            // A failed write means that the peer has gone already.
            let _ = session.stream.write(outputs.of(session.id.slot()).unsent());
        }
        // Layers need an explicit end for every reason. Without it the peer must treat the end as a truncation.
        if is_told || session.stream.has_layers() {
            let _ = session.stream.end_output(reason.ending());
        }
    }

    /// Drops and counts everything that waits for a peer that takes no more bytes, so that no room log keeps it.
    pub(super) fn discard(&self, session: &mut Session, outputs: &mut Outputs, logs: &mut Logs) {
        let slot = session.id.slot();
        let mut dropped = 0;
        // The messages of a subscription in a queue group go to other members when the session leaves it.
        let kept = |membership: &Membership| membership.is_in_group();
        for membership in session.memberships.iter_mut().filter(|it| !kept(it)) {
            let Some(log) = logs.get_mut(membership.log()) else {
                continue;
            };
            let subscriber = &mut membership.subscriber;
            if subscriber.is_off_log() {
                dropped += subscriber.drop_all(log);
            }
            let behind = usize::try_from(subscriber.bytes_behind(log)).unwrap_or(usize::MAX);
            dropped += subscriber.advance(log, behind, &mut Vec::new()).messages;
        }
        self.counters.room_dropped[DropReason::Closed as usize].add(dropped);
        outputs.drop_room_messages(slot);
        outputs.clear(slot);
        let shared = session.profile.shared.as_deref();
        outputs.of_mut(slot).release_outside(shared);
    }

    /// Appends notices of lost messages before the messages that follow, and the messages of subscribers that do not
    /// get them from the log. Returns whether there are such subscribers, who may get more once the output is empty.
    fn announce_gaps(&self, session: &mut Session, outputs: &mut Outputs, logs: &mut Logs) -> bool {
        let id = session.id;
        let mut has_off_log = false;
        for membership in &mut session.memberships {
            if membership.subscriber.is_off_log() {
                has_off_log = true;
                self.tell_off_log(membership, id, outputs, logs);
            } else {
                self.announce_gap(membership, id, outputs);
            }
        }
        has_off_log
    }

    /// Appends the notice of lost messages to a member's output, if some were lost since the last notice.
    #[inline]
    fn announce_gap(&self, membership: &mut Membership, id: SessionId, outputs: &mut Outputs) {
        let lost = membership.subscriber.take_gap();
        if lost == 0 {
            return;
        }
        let (alias, subscription) = (membership.room, membership.subscription());
        let output = outputs.with_buffer(id.slot());
        let codec = self.config.codecs.get(output.codec_number());
        let encoded = output.append(codec, |codec, out| {
            append_with_header(codec, subscription, out, |out| {
                codec.encode_gap(alias, lost, out)
            })
        });
        match encoded {
            Ok(()) => self.counters.gaps_announced.add(1),
            Err(error) => tracing::trace!(session = %id, lost, %error, "gap not announced"),
        }
    }
}

/// Slices of gathered writes, for tests of the lane.
#[cfg(test)]
pub(super) use self::gather::{SLICES_MAX, SLICES_USUAL};
