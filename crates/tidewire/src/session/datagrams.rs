//! Sending output and room logs as datagrams.
//!
//! Frames are packed into datagrams as they are appended ([`Packing`](crate::transport::datagram)). So sending passes
//! segment runs of equal datagrams to the kernel, with one call each. The frames of rooms and topics are copied into
//! the output first, because a run must be contiguous.

use std::io::ErrorKind;

use tidewire_io::datagram::Datagram;
use tidewire_io::socket::SocketError;
use tidewire_proto::codec::{Codec, RequestIds};
use tidewire_proto::connection::{Inbound, Phase};
use tidewire_proto::correlate::Arrival;

use super::output::DatagramsSent;
use super::{CloseReason, LaneSessions, Logs, Membership, Outputs, Session};
use crate::config::Config;
use crate::observe::{DatagramDrop, LaneCounters};
use crate::transport::{AnyTransport, Transport};

impl Session {
    /// The reason to drop a datagram of the peer now, if there is one.
    pub(crate) fn drop_reason(&self, datagram: &Datagram<'_>) -> Option<DatagramDrop> {
        let connection = &self.connection;
        match connection.input().state() {
            _ if connection.is_closed() => Some(DatagramDrop::Closing),
            Inbound::Ended => Some(DatagramDrop::Closing),
            Inbound::Paused(_) if !datagram.bytes.is_empty() => Some(DatagramDrop::Paused),
            Inbound::Paused(_) | Inbound::Reading => None,
        }
    }

    /// Counts requests of a peer that are missing or late. Returns whether a request is a copy, which the network made:
    /// then the copy is dropped.
    #[inline(never)]
    pub(crate) fn is_repeated(
        &mut self,
        ids: RequestIds,
        id: u32,
        counters: &LaneCounters,
    ) -> bool {
        if self.connection.handshake().is_outgoing() {
            return false;
        }
        let unanswered = self.unanswered.as_deref();
        let is_pending = unanswered.is_some_and(|unanswered| unanswered.has(id));
        let Some(peer) = self.stream.datagram_mut() else {
            return false;
        };
        // A session that is never asked anything keeps no ids.
        let is_recent = ids == RequestIds::Bits32 && peer.recent.get_or_insert_default().note(id);
        if is_pending || is_recent {
            counters.requests_repeated.add(1);
            return true;
        }
        match peer.arrivals.note(ids, id) {
            Arrival::InTurn | Arrival::Again => {}
            Arrival::After { missing } => counters.requests_missing.add(u64::from(missing)),
            Arrival::Late => counters.requests_late.add(1),
        }
        false
    }
}

impl LaneSessions {
    /// Sends a session's output and room messages until all are sent or the socket is full.
    pub(crate) fn flush_datagrams(&mut self, slot: usize) {
        loop {
            self.announce_gaps(slot);
            self.pull_frames(slot);
            if self.outputs.of(slot).is_empty() {
                return self.handle_flushed(slot);
            }
            match self.send_output(slot) {
                DatagramsSent::All => self.count_delivered(slot),
                DatagramsSent::Blocked => {
                    self.block(slot);
                    return self.await_room(slot);
                }
                DatagramsSent::Failed(error) => return self.handle_send_failure(slot, error),
            }
        }
    }

    /// Copies room messages of a session into its output, up to [`PULL_BYTES`].
    pub(super) fn pull_frames(&mut self, slot: usize) {
        let Self {
            slab,
            outputs,
            logs,
            config,
            ..
        } = self;
        for membership in &mut slab[slot].memberships {
            pull_from(membership, slot, outputs, logs, config, PULL_BYTES);
        }
    }

    /// Sends the output of a session over UDP.
    fn send_output(&mut self, slot: usize) -> DatagramsSent {
        let session = &mut self.slab[slot];
        let AnyTransport::Datagram(peer) = &mut session.stream else {
            return DatagramsSent::All;
        };
        let output = self.outputs.of_mut(slot);
        let sent = output.send_to(peer, &self.counters);
        output.release_outside(session.profile.shared.as_deref());
        sent
    }

    /// Counts the room messages of an output that was sent.
    fn count_delivered(&mut self, slot: usize) {
        let delivered = self.outputs.of_mut(slot).take_room_messages();
        self.counters.room_delivered.add(delivered);
    }

    fn handle_send_failure(&mut self, slot: usize, error: std::io::Error) {
        self.drop_datagram(DatagramDrop::Unsendable);
        tracing::debug!(session = %self.slab[slot].id, %error, "a datagram cannot be sent");
        match self.slab[slot].stream.datagram() {
            Some(peer) if peer.port.is_none() => self.handle_unreachable(slot, error),
            _ => self.close(slot, CloseReason::Io(error.kind())),
        }
    }

    /// Lists the session as waiting for room in its shared socket.
    fn await_room(&mut self, slot: usize) {
        let peer = self.slab[slot].stream.datagram();
        let Some(port) = peer.and_then(|peer| peer.port) else {
            return;
        };
        self.port_waiters.push((port, slot));
    }

    /// Counts a datagram that is dropped, or the rest of one.
    #[cold]
    pub(crate) fn drop_datagram(&self, reason: DatagramDrop) {
        self.counters.datagrams_dropped[reason as usize].add(1);
    }

    /// Ends a session because its server is unreachable.
    pub(crate) fn handle_unreachable(&mut self, slot: usize, error: std::io::Error) {
        let session = &self.slab[slot];
        let (id, phase) = (session.id, session.connection.phase());
        let Some(peer) = session.stream.datagram() else {
            return;
        };
        let reason = match error.kind() {
            ErrorKind::ConnectionRefused => CloseReason::PeerReset,
            other => CloseReason::Io(other),
        };
        if matches!(phase, Phase::Connecting | Phase::AwaitWelcome) {
            let failure = SocketError::exchanging(peer.address, error);
            self.connect_failures.push((id, failure.into()));
        }
        self.close(slot, reason);
    }

    /// Sends a session's last frames over UDP, and an empty datagram as the end. It sends nothing if the peer is
    /// unreachable.
    pub(crate) fn say_end(&mut self, slot: usize, reason: CloseReason) {
        let session = &self.slab[slot];
        let is_gone = matches!(reason, CloseReason::PeerReset | CloseReason::Io(_));
        // An unvalidated address either sent no request, or continues without noticing.
        let is_untold = matches!(reason, CloseReason::Unvalidated | CloseReason::Evicted);
        let is_blocked = session.connection.output().state().is_blocked();
        if session.stream.datagram().is_none() || is_blocked || is_gone || is_untold {
            return;
        }
        if let DatagramsSent::All = self.send_output(slot) {
            // If this fails, the peer ends the session after a silence.
            let _ = self.slab[slot].stream.shutdown_write();
        }
    }
}

/// Copies messages of one room or topic to the output of a member, until it holds `bytes_max` bytes.
pub(super) fn pull_from(
    membership: &mut Membership,
    slot: usize,
    outputs: &mut Outputs,
    logs: &mut Logs,
    config: &Config,
    bytes_max: usize,
) {
    let Some(log) = logs.get_mut(membership.room) else {
        return;
    };
    if outputs.of(slot).len() >= bytes_max {
        return;
    }
    let output = outputs.with_buffer(slot);
    let mut pulled = 0;
    if config.codec.format().delivery_header_bytes_max > 0 {
        let subscription = membership.subscription();
        membership.subscriber.gather_frames(log, |frame| {
            output.push_delivery(&config.codec, subscription, frame);
            pulled += frame.len();
            output.len() < bytes_max
        });
    } else {
        let subscriber = &membership.subscriber;
        subscriber.gather_whole_frames(log, output.datagram_room(), |frames| {
            output.push_frame(frames);
            pulled += frames.len();
            (output.len() < bytes_max).then(|| output.datagram_room())
        });
    }
    // Only whole frames were copied, so no part of a frame is left over.
    let advance = membership.subscriber.advance(log, pulled, &mut Vec::new());
    output.add_room_messages(advance.messages);
}

/// Bytes that are copied from rooms into an output at once: the largest piece that the kernel takes.
const PULL_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use tidewire_proto::codec::AnyCodec;
    use tidewire_proto::message::{Kind, Message};

    use super::*;
    use crate::lane::{lane, received};
    use crate::server::Server;

    #[test]
    fn as_many_of_a_run_go_as_an_unproven_address_may_be_sent() {
        let codec = AnyCodec::by_name("raw").unwrap();
        let lengths = [10, 10, 10, 10, 3, 3, 7];
        for (budget, expected) in [
            (0, &[][..]),
            (9, &[3, 3]),
            (25, &[10, 10, 3]),
            (29, &[10, 10, 3, 3]),
            (40, &[10; 4]),
            (53, &lengths),
        ] {
            let mut lane = lane(&Server::builder().codec(codec.clone()));
            let (slot, far) = lane.open_datagram_session();
            let session = &mut lane.core.sessions[slot];
            session.stream.datagram_mut().unwrap().budget = Some(budget);
            let id = session.id;
            let mut cx = lane.core.context(id);
            for length in lengths {
                cx.send(Message::new(Kind::OneWay, 0, &[7; 10][..length]))
                    .unwrap();
            }
            drop(cx);
            lane.core.sessions.flush_dirty();
            let arrived = received(&far, |all| all.len() >= expected.len());
            let arrived: Vec<usize> = arrived.iter().map(Vec::len).collect();
            assert_eq!(arrived, expected, "{budget}");
            let peer = lane.core.sessions[slot].stream.datagram().unwrap();
            let sent: usize = expected.iter().sum();
            assert_eq!(peer.budget, Some(budget - sent as u64));
            let counters = &lane.core.counters;
            let dropped = counters.datagrams_dropped[DatagramDrop::OverBudget as usize].read();
            assert_eq!(
                counters.datagrams_out.read() + dropped,
                lengths.len() as u64
            );
        }
    }
}
