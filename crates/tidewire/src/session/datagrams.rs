//! A session over UDP drops datagrams that come while it is not read, and copies of requests.

use tidewire_io::datagram::Datagram;
use tidewire_proto::codec::RequestIds;
use tidewire_proto::connection::Inbound;
use tidewire_proto::correlate::Arrival;

use super::Session;
use crate::observe::{DatagramDrop, LaneCounters};

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
        let arrival = peer.note_request(ids, id, is_pending);
        match arrival {
            None => counters.requests_repeated.add(1),
            Some(Arrival::InTurn | Arrival::Again) => {}
            Some(Arrival::After { missing }) => counters.requests_missing.add(u64::from(missing)),
            Some(Arrival::Late) => counters.requests_late.add(1),
        }
        arrival.is_none()
    }
}
