//! Delivers the newest message of each topic to a slow subscriber with the policy `conflate_by_topic`.
//!
//! Messages are copied to the output one part at a time, so newer messages can still replace the rest. Each part begins
//! with a notice of the messages that were lost in it.

use tidewire_proto::codec::Codec;
use tidewire_proto::room::LatestPiece;

use super::{Writer, append_with_header};
use crate::observe::DropReason;
use crate::session::{Logs, Membership, Outputs, SessionId};

impl Writer {
    /// Brings a subscriber that does not get its messages from the log to the log's head. A conflated subscriber gets
    /// the next part of its messages if the output has room.
    // Out of line, to keep writes to all other subscribers short.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_off_log(
        &self,
        membership: &mut Membership,
        id: SessionId,
        outputs: &mut Outputs,
        logs: &mut Logs,
    ) {
        let (alias, subscription) = (membership.room, membership.subscription());
        let Some(log) = logs.get_mut(membership.log()) else {
            return;
        };
        let (subscriber, counters) = (&mut membership.subscriber, &self.counters);
        let codec = self.config.codecs.get(outputs.of(id.slot()).codec_number());
        if subscriber.next_of_history().is_some() {
            let passed = subscriber.pass_log(log);
            return counters.room_dropped[DropReason::Replayed as usize].add(passed);
        }
        subscriber.conflate(log, |frame| codec.delivery_topic(frame));
        if outputs.of(id.slot()).len() >= PART_BYTES {
            return;
        }
        let output = outputs.with_buffer(id.slot());
        let told = subscriber.tell_latest(log, PART_BYTES, |piece| match piece {
            LatestPiece::Gap(lost) => {
                let encoded = output.append(codec, |codec, out| {
                    append_with_header(codec, subscription, out, |out| {
                        codec.encode_gap(alias, lost, out)
                    })
                });
                counters.gaps_announced.add(u64::from(encoded.is_ok()));
            }
            LatestPiece::Frame(frame) => output.push_delivery(codec, subscription, frame),
        });
        output.add_room_messages(told.messages);
        counters.room_dropped[DropReason::Replaced as usize].add(told.lost);
    }
}

/// Bytes that are copied to the output at once: as many as most sockets accept in one write, and few enough to be
/// fresh.
const PART_BYTES: usize = 64 * 1024;
