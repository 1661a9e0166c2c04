//! Delivers the newest message of each topic to a slow subscriber with the policy `conflate_by_topic`.
//!
//! Messages are copied to the output one part at a time, so newer messages can still replace the rest. Each part begins with
//! a notice of the messages that were lost in it.

use tidewire_proto::codec::Codec;
use tidewire_proto::room::LatestPiece;

use super::deliveries::{append_with_header, push_delivery};
use super::outbox::Outbox;
use super::{Membership, Output};
use crate::config::Config;
use crate::observe::{DropReason, LaneCounters};

/// Brings a subscriber that does not get its messages from the log to the log's head. A conflated one gets the next part of
/// its messages if the output has room. Returns whether one that is replayed to wants the next piece of its history.
// Out of line, to keep writes to all other subscribers short.
#[cold]
#[inline(never)]
pub(super) fn tell_off_log(
    membership: &mut Membership,
    output: &mut Output,
    outbox: &mut Outbox,
    config: &Config,
    counters: &LaneCounters,
) -> bool {
    let (alias, subscription) = (membership.room, membership.subscription());
    let Outbox { logs, buffers, .. } = outbox;
    let Some(log) = logs.get_mut(alias) else {
        return false;
    };
    let (subscriber, codec) = (&mut membership.subscriber, &config.codec);
    if subscriber.next_of_history().is_some() {
        let passed = subscriber.pass_log(log);
        counters.room_dropped[DropReason::Replayed as usize].add(passed);
        return output.is_empty();
    }
    subscriber.conflate(log, |frame| codec.delivery_topic(frame));
    if output.len() >= PART_BYTES {
        return false;
    }
    output.ensure_buffer(buffers);
    let told = subscriber.tell_latest(log, PART_BYTES, |piece| match piece {
        LatestPiece::Gap(lost) => {
            let encoded = append_with_header(codec, subscription, &mut output.bytes, |out| {
                codec.encode_gap(alias, lost, out)
            });
            if encoded.is_ok() {
                output.handle_appended(codec);
                counters.gaps_announced.add(1);
            }
        }
        LatestPiece::Frame(frame) => push_delivery(codec, subscription, frame, output),
    });
    output.room_messages += told.messages;
    counters.room_dropped[DropReason::Replaced as usize].add(told.lost);
    false
}

/// Bytes that are copied to the output at once: as many as most sockets accept in one write, and few enough to be fresh.
const PART_BYTES: usize = 64 * 1024;
