//! The newest message of each topic, on its way to a subscriber by `conflate_by_topic` that was behind.
//!
//! What it is told is copied to its output, a part at a time, so that what has not been copied is still replaced by newer
//! messages. One notice before each part tells what was lost in it.

use tidewire_proto::codec::Codec;
use tidewire_proto::room::LatestPiece;

use super::deliveries::{append_with_header, push_delivery};
use super::outbox::Outbox;
use super::{Membership, Output};
use crate::config::Config;
use crate::observe::{DropReason, LaneCounters};

/// Brings a conflated subscriber up to the head of the log, and the next part of what it is told to the output if that has
/// room.
// Out of line, so that writes to everybody else stay as short as they were.
#[cold]
#[inline(never)]
pub(super) fn tell_latest(
    membership: &mut Membership,
    output: &mut Output,
    outbox: &mut Outbox,
    config: &Config,
    counters: &LaneCounters,
) {
    let (alias, subscription) = (membership.room, membership.subscription());
    let Outbox { logs, buffers, .. } = outbox;
    let Some(log) = logs.get_mut(alias) else {
        return;
    };
    let (subscriber, codec) = (&mut membership.subscriber, &config.codec);
    subscriber.conflate(log, |frame| codec.delivery_topic(frame));
    if output.len() >= PART_BYTES {
        return;
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
}

/// How much is brought to the output at once: what most sockets take in one write, and little enough to be new.
const PART_BYTES: usize = 64 * 1024;
