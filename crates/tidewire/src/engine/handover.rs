//! The handover of a lane that ends while its server goes on: its service panicked or stopped it, or its poller failed.
//!
//! One lane accepts connections for all. If it ended without a handover, the whole server would accept no more,
//! without an error. The next running lane takes over its listeners, its in-process names, and the connections that
//! were on their way to it. Its own sessions end, and their peers can connect again at once.

use std::sync::Arc;

use super::Core;
use crate::mailbox::{LaneMessage, Mailbox};
use crate::transport::StreamListener;
use crate::transport::inproc;

impl Core {
    /// Passes everything on that another lane can use. The lane's mailbox is already retired, and its sessions still
    /// exist.
    pub(crate) fn hand_over(&mut self) {
        for listener in self.acceptor.end(&mut self.sessions, &self.admission) {
            self.give_listener(Box::new(listener));
        }
        if let Some(successor) = self.successor() {
            inproc::hand_over(&*self.exchange.mailbox, &successor.party());
        }
    }

    /// Posts a listener to the successor and waits for room in its mailbox. A lane that has ended may wait, because
    /// no other lane waits for it.
    fn give_listener(&self, listener: Box<StreamListener>) {
        let mut message = LaneMessage::Listen(listener);
        while let Some(successor) = self.successor() {
            match successor.post(message) {
                Ok(()) => return,
                Err(back) => message = back,
            }
            std::thread::yield_now();
        }
    }

    /// Passes on the connections that other lanes posted, and counts undelivered messages.
    pub(crate) fn discard_messages(&mut self) {
        let successor = self.successor();
        while let Some(message) = self.exchange.next_message() {
            self.pass_on(message, successor.as_deref());
        }
        self.exchange.discard_batches();
    }

    /// Passes on, or counts, messages that were already taken from the mailbox.
    pub(crate) fn pass_on_all(&self, messages: Vec<LaneMessage>) {
        let successor = self.successor();
        for message in messages {
            self.pass_on(message, successor.as_deref());
        }
    }

    /// Returns the next running lane, unless the whole server ends.
    fn successor(&self) -> Option<Arc<Mailbox>> {
        let lanes = self
            .exchange
            .lanes
            .get()
            .filter(|_| !self.ending.is_of_server())?;
        lanes.iter().find(|lane| !lane.is_retired()).cloned()
    }

    fn pass_on(&self, message: LaneMessage, successor: Option<&Mailbox>) {
        match (message, successor) {
            (LaneMessage::Adopt(arrival), Some(successor)) => {
                let passed_on = successor.post(LaneMessage::Adopt(arrival));
                if let Err(LaneMessage::Adopt(arrival)) = passed_on {
                    self.shared.limiter.release_arrival(&arrival);
                }
            }
            (LaneMessage::Adopt(arrival), None) => self.shared.limiter.release_arrival(&arrival),
            (LaneMessage::Arrive { stream }, Some(successor)) => {
                let passed_on = successor.post(LaneMessage::Arrive { stream });
                if passed_on.is_err() {
                    // The connection ends, as on any server that is too busy.
                    tracing::warn!(
                        "a connection to a lane that ended was closed: the mailbox of the next lane is full"
                    );
                }
            }
            (LaneMessage::Listen(listener), Some(_)) => self.give_listener(listener),
            (message, _) => self.exchange.mailbox.count_undelivered(&message),
        }
    }

    /// Takes over a listener of a lane that has ended.
    pub(crate) fn take_over(&mut self, listener: StreamListener) {
        if self.ending.is_of_server() {
            return;
        }
        let address = listener.socket.local_address().to_string();
        match self.acceptor.add(&mut self.sessions, listener) {
            Ok(()) => tracing::warn!(
                address,
                lane = self.exchange.lane(),
                "a lane took a listener over"
            ),
            Err(error) => tracing::error!(%error, address, "a listener could not be taken over"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidewire_io::socket::Stream;

    use super::*;
    use crate::lane::lanes;
    use crate::mailbox::BatchEntry;
    use crate::server::Server;
    use crate::session::{Answer, Content};
    use crate::transport::Arrival;

    /// Returns one message of each kind that may be in a mailbox when its lane fails.
    #[test]
    fn what_waits_for_a_lane_that_failed_goes_to_a_successor_or_is_counted() {
        let mut lanes = lanes(&Server::builder(), 2);
        let (mut successor, mut failed) = (lanes.pop().unwrap(), lanes.pop().unwrap());
        let (slot, _peer) = failed.open_session();
        let id = failed.core.sessions[slot].id;
        let session = failed.core.sessions[slot].profile.shared.clone().unwrap();
        let (near, _far) = Stream::pair().unwrap();
        assert!(failed.core.shared.limiter.enter(None));
        let mut batch = Vec::new();
        for frame in [b"one", b"two"] {
            BatchEntry::Session { id, frame }.encode(&mut batch);
        }
        let answer = Answer::new(id, 0, Arc::default(), Content::Nothing);
        let arrival = Arrival::unlisted(near.into());
        let frame = b"three".to_vec();
        for message in [
            LaneMessage::Answer(answer),
            LaneMessage::Batch(batch),
            LaneMessage::Adopt(Box::new(arrival)),
            LaneMessage::Send { session, frame },
            LaneMessage::Close { id, farewell: None },
        ] {
            assert!(failed.core.exchange.mailbox.post(message).is_ok());
        }
        failed.core.exchange.mailbox.retire();
        failed.core.discard_messages();
        successor.take_messages();

        assert_eq!(successor.core.sessions.table.len(), 1);
        let counters = &failed.core.counters;
        assert_eq!(counters.deferred_undelivered.read(), 1);
        assert_eq!(counters.mail_undelivered.read(), 2);
        assert_eq!(counters.sends_undelivered.read(), 1);
        assert!(!failed.core.exchange.has_messages());
    }
}
