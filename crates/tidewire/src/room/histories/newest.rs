//! The newest messages of all topics that a pattern matches, for a new subscriber of a wildcard.
//!
//! Such a subscriber has no position: each topic has offsets of its own. So it gets the newest messages of each topic
//! at once, after the reply, and then the live ones from the log of its pattern. None is missing: a message that is not
//! in a history when this lane reads it is recorded later, by a publisher that then finds the new pattern
//! ([`LaneTopics::publish`](crate::room::LaneTopics::publish)). A message that is on its way between lanes at this
//! moment comes once more, after the newest one.
//!
//! Rejected: pieces, as for one topic. The live messages of all topics would have to wait in the log meanwhile, because
//! the histories of some topics do not have them.

use tidewire_proto::body::Since;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};
use tidewire_proto::topic::Pattern;

use super::LaneHistories;
use crate::room::RoomError;
use crate::session::{SessionId, append_with_header};

impl LaneHistories<'_> {
    /// Frames the newest messages of each topic that a subscription matches, in the order of the topics. None if its
    /// pattern has no wildcard, or if it does not ask for them.
    pub(crate) fn newest_of_each(
        &mut self,
        id: SessionId,
        alias: u16,
        since: Option<Since>,
    ) -> Result<Vec<u8>, RoomError> {
        let shared = self.open.shared(alias).ok_or(RoomError::NotSubscribed)?;
        let histories = self.open.directory().histories();
        let count = since.map_or(0, |since| histories.newest_count(since));
        if count == 0 || !shared.is_wildcard() {
            return Ok(Vec::new());
        }
        let slot = self.sessions.table.slot_of(id).ok_or(RoomError::NotOpen)?;
        let session = &self.sessions[slot];
        let index = session
            .subscription(alias)
            .ok_or(RoomError::NotSubscribed)?;
        let subscription = session.memberships[index].subscription();
        let codec = self.sessions.config.codecs.get(session.codec_number());
        let pattern = Pattern::parse(shared.name()).map_err(RoomError::Topic)?;
        let bytes_max = self.sessions.config.limits.connections.queue_bytes_max();
        let now_ns = self.sessions.timers.now_ns();
        let (mut out, mut scratch, mut replayed) = (Vec::new(), Vec::new(), 0);
        for (topic, history) in histories.topics_of(&pattern) {
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
                append_with_header(codec, subscription, &mut out, |out| {
                    codec.encode(&message, out)
                })?;
                replayed += 1;
                if out.len() > bytes_max {
                    return Err(RoomError::TooManyMessages);
                }
            }
        }
        self.sessions.counters.history_replayed.add(replayed);
        Ok(out)
    }
}
