//! Sending output and room logs as datagrams.
//!
//! Frames are packed into datagrams as they are appended ([`Packing`](crate::transport::datagram)). So sending passes
//! segment runs of equal datagrams to the kernel, with one call each. The frames of rooms and topics are copied into
//! the output first, because a run must be contiguous.

use tidewire_proto::codec::Codec;

use super::Writer;
use crate::session::output::SendOutcome;
use crate::session::{Logs, Membership, Outputs, Session, SessionId};
use crate::transport::AnyTransport;

impl Writer {
    /// Sends a session's output and room messages until all are sent or the socket is full.
    pub(in crate::session) fn send_datagrams(
        &self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
    ) -> SendOutcome {
        let slot = session.id.slot();
        loop {
            self.announce_gaps(session, outputs, logs);
            self.pull_frames(session, outputs, logs);
            if outputs.of(slot).is_empty() {
                return SendOutcome::All;
            }
            match self.send_output(session, outputs) {
                SendOutcome::All => {
                    let delivered = outputs.of_mut(slot).take_room_messages();
                    self.counters.room_delivered.add(delivered);
                }
                other => return other,
            }
        }
    }

    /// Copies room messages of a session into its output, up to [`PULL_BYTES`].
    pub(super) fn pull_frames(
        &self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
    ) {
        for membership in &mut session.memberships {
            self.pull_from(membership, session.id, outputs, logs, PULL_BYTES);
        }
    }

    /// Sends the output of a session over UDP.
    pub(in crate::session) fn send_output(
        &self,
        session: &mut Session,
        outputs: &mut Outputs,
    ) -> SendOutcome {
        let AnyTransport::Datagram(peer) = &mut session.stream else {
            return SendOutcome::All;
        };
        let output = outputs.of_mut(session.id.slot());
        let sent = output.send_to(peer, &self.counters);
        output.release_outside(session.profile.shared.as_deref());
        sent
    }

    /// Copies messages of one room or topic to the output of a member, until it holds `bytes_max` bytes.
    pub(super) fn pull_from(
        &self,
        membership: &mut Membership,
        id: SessionId,
        outputs: &mut Outputs,
        logs: &mut Logs,
        bytes_max: usize,
    ) {
        let Some(log) = logs.get_mut(membership.log()) else {
            return;
        };
        if outputs.of(id.slot()).len() >= bytes_max {
            return;
        }
        let output = outputs.with_buffer(id.slot());
        let codec = self.config.codecs.get(output.codec_number());
        let mut pulled = 0;
        if codec.format().delivery_header_bytes_max > 0 {
            let subscription = membership.subscription();
            membership.subscriber.gather_frames(log, |frame| {
                output.push_delivery(codec, subscription, frame);
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
}

/// Bytes that are copied from rooms into an output at once: the largest piece that the kernel takes.
const PULL_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use tidewire_proto::codec::AnyCodec;
    use tidewire_proto::message::{Kind, Message};

    use crate::lane::{lane, received};
    use crate::observe::DatagramDrop;
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
            let peer = session.stream.datagram_mut().unwrap();
            peer.begin_unproven();
            peer.allow(budget);
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
            assert_eq!(peer.allowed(1, usize::MAX), budget - sent);
            let counters = &lane.core.counters;
            let dropped = counters.datagrams_dropped[DatagramDrop::OverBudget as usize].read();
            assert_eq!(
                counters.datagrams_out.read() + dropped,
                lengths.len() as u64
            );
        }
    }
}
