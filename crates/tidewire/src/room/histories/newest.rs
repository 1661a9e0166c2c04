//! The newest messages of all topics that a pattern matches, for a new subscriber of a wildcard.
//!
//! Such a subscriber has no position: each topic has offsets of its own. So it gets the newest messages of each topic
//! at once, after the reply, and then the live ones from the log of its pattern. None is missing: a message that is not
//! in a history when this lane reads it is recorded later, by a publisher that then finds the new pattern
//! ([`LaneTopics::publish`](crate::room::LaneTopics::publish)). Messages that are on their way between lanes at this
//! moment come after the newest one, although they are as old or older, because frames for wildcards have no offsets.
//!
//! If the newest messages of all topics exceed the output of a session, the subscriber gets live messages only, and
//! learns that messages may be missing. Rejected: pieces, as for one topic. The live messages of all topics would have
//! to wait in the log meanwhile, because the histories of some topics do not have them.

use tidewire_proto::body::Since;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::topic::Pattern;

use super::LaneHistories;
use crate::session::{SessionId, append_with_header};

impl LaneHistories<'_> {
    /// Frames the newest messages of each topic that a subscription matches, in the order of the topics. `None` if the
    /// subscription does not ask for them, or has no wildcard, or if they do not fit the session's output.
    pub(crate) fn newest_of_each(
        &self,
        id: SessionId,
        alias: u16,
        since: Option<Since>,
    ) -> Option<Vec<u8>> {
        let shared = self.open.shared(alias)?;
        let histories = self.open.directory().histories();
        let count = histories.newest_count(since?);
        if count == 0 || !shared.is_wildcard() || shared.is_in_group() {
            return None;
        }
        let slot = self.sessions.table.slot_of(id)?;
        let session = &self.sessions[slot];
        let subscription = session.memberships[session.subscription(alias)?].subscription();
        let codec = self.sessions.config.codecs.get(session.codec_number());
        let limits = &self.sessions.config.limits.connections;
        let output = self.sessions.outputs.of(slot).len();
        let bytes_max = limits.queue_bytes_max().saturating_sub(output);
        let now_ns = self.sessions.timers.now_ns();
        let (mut out, mut scratch, mut replayed, mut lost) = (Vec::new(), Vec::new(), 0, 0);
        for topic in histories.topics_of(&Pattern::parse(shared.name()).ok()?) {
            let Some(history) = histories.of_topic(&topic) else {
                continue;
            };
            let mut records = history.lock();
            history.evict(&mut records, now_ns);
            let last = records.last().offset;
            let first = (last + 1).saturating_sub(count).max(records.first());
            for offset in first..=last {
                // A message that was too large to keep is not here.
                let Some(record) = records.get(offset, &mut scratch) else {
                    continue;
                };
                let message =
                    Message::new(Kind::Deliver, alias, record.payload()).with_name(&topic);
                let frame_at = out.len();
                let appended = append_with_header(codec, subscription, &mut out, |out| {
                    codec.encode(&message, out)
                });
                if appended.is_err() {
                    // The codec cannot express the message.
                    out.truncate(frame_at);
                    lost += 1;
                }
                replayed += u64::from(appended.is_ok());
                if out.len() > bytes_max {
                    return None;
                }
            }
        }
        if lost > 0 {
            // A codec without such notices only counts.
            let _ = append_with_header(codec, subscription, &mut out, |out| {
                codec.encode_gap(alias, lost, out)
            });
        }
        self.sessions.counters.history_replayed.add(replayed);
        Some(out)
    }
}
