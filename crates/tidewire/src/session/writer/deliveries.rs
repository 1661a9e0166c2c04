//! Rooms and topics of a codec whose deliveries have a header for each subscriber.
//!
//! The logs hold the part that all subscribers share. [`Deliveries`] copies it after the headers for each write. Only
//! lanes with such a codec write this way.

use std::io::{ErrorKind, IoSlice};

use tidewire_proto::codec::{AnyCodec, Codec, Subscription};
use tidewire_proto::error::EncodeError;
use tidewire_proto::room::Deliveries;

use super::Writer;
use super::gather::{WriteOutcome, account_own, attempt};
use crate::session::{Logs, Membership, Outputs, Session};
use crate::transport::Transport;

impl Membership {
    /// Describes the membership to a codec.
    pub(crate) fn subscription(&self) -> Subscription {
        Subscription {
            number: self.number,
            channel: self.room,
        }
    }
}

/// Appends a frame for one subscriber that is in no log, after its header if the codec has one.
#[cold]
pub(crate) fn append_with_header(
    codec: &AnyCodec,
    subscription: Subscription,
    out: &mut Vec<u8>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    if codec.format().delivery_header_bytes_max == 0 {
        return encode(out);
    }
    let mut shared = Vec::new();
    encode(&mut shared)?;
    codec.delivery_header(subscription, &shared, out);
    out.extend_from_slice(&shared);
    Ok(())
}

impl Writer {
    /// Writes a session's output, and the messages of its rooms after its headers. Returns whether everything was
    /// written.
    // Out of line, to keep the write of all other codecs short.
    #[cold]
    #[inline(never)]
    pub(super) fn write_with_headers(
        &mut self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
    ) -> Result<bool, ErrorKind> {
        loop {
            self.announce_gaps(session, outputs, logs);
            let codec = self.config.codecs.get(session.codec_number());
            gather(&mut self.deliveries, session, logs, codec);
            let own = outputs.of(session.id.slot()).unsent();
            let others = self.deliveries.bytes();
            let stream = &mut session.stream;
            let wrote = match (own, others) {
                ([], []) => return session.flush_layers(),
                ([], whole) | (whole, []) => {
                    attempt(stream, &self.counters, |stream| stream.write(whole))
                }
                _ => {
                    let pieces = [own, others].map(IoSlice::new);
                    attempt(stream, &self.counters, |stream| {
                        stream.write_vectored(&pieces)
                    })
                }
            };
            let offered = own.len() + others.len();
            match wrote {
                WriteOutcome::Bytes(count) | WriteOutcome::Held(count) => {
                    self.account_deliveries(session, outputs, logs, count);
                    if count < offered || matches!(wrote, WriteOutcome::Held(_)) {
                        return Ok(false);
                    }
                }
                WriteOutcome::Blocked => return Ok(false),
                WriteOutcome::Failed(kind) => return Err(kind),
            }
        }
    }

    /// Accounts for `written` bytes: first of the session's own output, then of the gathered deliveries. A torn
    /// delivery moves to the output, and counts when its rest is written.
    fn account_deliveries(
        &mut self,
        session: &mut Session,
        outputs: &mut Outputs,
        logs: &mut Logs,
        written: usize,
    ) {
        let output = outputs.with_buffer(session.id.slot());
        let (rest, mut delivered) = account_own(session, output, &self.counters, written);
        let mut taken = self.deliveries.taken(rest);
        for membership in &mut session.memberships {
            if let Some(log) = logs.get_mut(membership.log()) {
                let subscriber = &mut membership.subscriber;
                delivered += output.take_torn(|out| taken.advance(subscriber, log, out));
            }
        }
        self.counters.room_delivered.add(delivered);
    }
}

fn gather(deliveries: &mut Deliveries, session: &Session, logs: &Logs, codec: &AnyCodec) {
    deliveries.clear();
    for membership in &session.memberships {
        if let Some(log) = logs.get(membership.log()) {
            let subscription = membership.subscription();
            deliveries.gather(&membership.subscriber, log, |shared, out| {
                codec.delivery_header(subscription, shared, out);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use tidewire_proto::codec::{Decoded, Format};
    use tidewire_proto::error::DecodeError;
    use tidewire_proto::message::{Kind, Message};

    use super::*;
    use crate::lane::lane;
    use crate::server::Server;
    use crate::session::LaneSessions;

    /// A codec that sends bare payloads. Its deliveries begin with the number of the subscription.
    struct Numbered;

    impl Codec for Numbered {
        fn format(&self) -> &'static Format {
            const FORMAT: Format = Format {
                delivery_header_bytes_max: 4,
                ..Format::new("numbered")
            };
            &FORMAT
        }

        fn decode<'a>(&self, _: &'a [u8], _: usize) -> Result<Decoded<'a>, DecodeError> {
            Err(DecodeError::MalformedFrame)
        }

        fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
            out.extend_from_slice(message.payload);
            Ok(())
        }

        fn delivery_header(&self, subscription: Subscription, _: &[u8], out: &mut Vec<u8>) {
            out.extend_from_slice(&subscription.number.to_le_bytes());
        }
    }

    #[test]
    fn a_write_of_deliveries_may_end_after_every_byte() {
        let codec = AnyCodec::custom(Numbered);
        let topics = ["a", "b"];
        let mut expected = b"own".to_vec();
        for (topic, number) in topics.iter().zip([7_u32, 8]) {
            for text in ["one ", "two"] {
                expected.extend_from_slice(&number.to_le_bytes());
                expected.extend_from_slice(text.as_bytes());
                expected.extend_from_slice(topic.as_bytes());
            }
        }
        for cut in 0..=expected.len() {
            let mut lane = lane(&Server::builder().codec(codec.clone()));
            let (slot, mut peer) = lane.open_session();
            let core = &mut lane.core;
            let id = core.sessions[slot].id;
            for (topic, number) in topics.into_iter().zip([7, 8]) {
                let mut cx = core.context(id);
                cx.call
                    .begin(&Message::with_id(Kind::Request, 0, number, &[]));
                cx.topics().subscribe(topic).unwrap();
            }
            for text in ["one ", "two"] {
                for topic in topics {
                    core.rooms()
                        .topics()
                        .publish(id, topic, &[text.as_bytes(), topic.as_bytes()].concat())
                        .unwrap();
                }
            }
            core.sessions.outputs.append_frames(slot, b"own");
            let mut deliveries = Deliveries::default();
            let session = &core.sessions[slot];
            gather(&mut deliveries, session, &core.sessions.logs, &codec);
            let mut stream = [b"own", deliveries.bytes()].concat();
            assert_eq!(stream, expected);
            // The socket accepts only the first `cut` bytes.
            stream.truncate(cut);
            let LaneSessions {
                writer,
                table,
                outputs,
                logs,
                ..
            } = &mut core.sessions;
            writer.deliveries = deliveries;
            writer.account_deliveries(&mut table[slot], outputs, logs, cut);
            core.sessions.flush(slot);
            let mut rest = vec![0; expected.len() - cut];
            let mut arrived = 0;
            while arrived < rest.len() {
                arrived += peer.read(&mut rest[arrived..]).unwrap();
            }
            stream.append(&mut rest);
            assert_eq!(stream, expected, "cut {cut}");
            assert_eq!(core.counters.room_delivered.read(), 4, "cut {cut}");
            assert_eq!(core.counters.bytes_out.read(), expected.len() as u64);
            assert!(core.sessions.outputs.of(slot).is_empty());
        }
    }

    #[test]
    fn deliveries_wait_for_what_layers_hold() {
        const MESSAGES: usize = 200;
        let mut lane = lane(&Server::builder().codec(AnyCodec::custom(Numbered)));
        let (slot, mut far) = lane.open_layered_session();
        let core = &mut lane.core;
        let id = core.sessions[slot].id;
        core.rooms().topics().subscribe(id, "a", None).unwrap();
        for _ in 0..MESSAGES {
            core.rooms().topics().publish(id, "a", &[7; 1_000]).unwrap();
        }
        core.sessions.flush(slot);
        let (mut received, mut buffer) = (0, vec![0; 1 << 16]);
        while received < MESSAGES * 1_004 {
            let sessions = &mut lane.core.sessions;
            let is_blocked = sessions[slot].connection.output().state().is_blocked();
            let holds = sessions[slot].stream.pending_bytes() > 0;
            assert!(is_blocked || !holds, "what layers hold is output");
            match far.read(&mut buffer) {
                Ok(count) => received += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    assert!(is_blocked, "nothing is left, and not all came");
                    sessions[slot].connection.handle_writable(0);
                    sessions.flush(slot);
                }
            }
        }
        assert_eq!(received, MESSAGES * 1_004);
        assert_eq!(lane.core.counters.room_delivered.read(), MESSAGES as u64);
    }

    #[test]
    fn a_message_leaves_room_for_its_headers() {
        let builder = Server::builder().codec(AnyCodec::custom(Numbered));
        let mut lane = lane(&builder);
        let (slot, _peer) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        lane.core.rooms().topics().subscribe(id, "a", None).unwrap();
        let limit = lane.core.config.limits.connections.frame_bytes_max();
        assert_eq!(
            lane.core
                .config
                .shared_frame_bytes_max
                .load(std::sync::atomic::Ordering::Relaxed),
            limit - 4
        );
        let refused = lane
            .core
            .rooms()
            .topics()
            .publish(id, "a", &vec![0; limit - 4]);
        assert!(refused.is_err(), "with its own header it is too long");
        let payload = vec![0; limit - 64];
        assert_eq!(
            lane.core.rooms().topics().publish(id, "a", &payload),
            Ok(false)
        );
    }
}
