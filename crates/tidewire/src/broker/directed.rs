//! Work of a server for one other node: messages for its sessions, requests to services, and their answers.
//!
//! A request has a number that its node never uses again. Its lane remembers it until its deadline, so every request
//! ends there, whatever is lost on the way.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidewire_proto::backplane::NodeLife;
use tidewire_proto::body::ErrorCode;
use tidewire_proto::error::EncodeError;

use super::BackplaneLink;

/// Work for the node that concerns one other node.
#[derive(Debug)]
pub(crate) enum Directed {
    /// A packet for a session of another node.
    Message {
        /// The run of that node in which the session was open.
        to: NodeLife<Arc<str>>,
        packet: Vec<u8>,
    },
    /// A step of a request.
    Request(RequestWork),
}

/// A step of a request between two nodes.
#[derive(Debug)]
pub(crate) enum RequestWork {
    /// A request to a service.
    Ask {
        request: u64,
        timeout_ms: u32,
        service: Box<str>,
        payload: Vec<u8>,
    },
    /// A request is given up: no caller waits for its answer.
    GiveUp { request: u64 },
    /// The answer to a request of another node.
    Answer { to: Asker, outcome: Outcome },
}

impl Directed {
    /// Bytes that count against the limit of the queue. Ends of requests and refusals count nothing, because each takes
    /// the place that its request had.
    pub(super) fn charged_bytes(&self) -> usize {
        match self {
            Self::Message { packet, .. } => size_of::<Self>() + packet.len(),
            Self::Request(RequestWork::Ask { payload, .. }) => size_of::<Self>() + payload.len(),
            Self::Request(RequestWork::Answer { outcome, .. }) => {
                outcome.as_ref().map_or(0, Vec::len)
            }
            Self::Request(RequestWork::GiveUp { .. }) => 0,
        }
    }
}

impl From<RequestWork> for Directed {
    fn from(work: RequestWork) -> Self {
        Self::Request(work)
    }
}

/// The reply to a request, or why the handler refused it.
pub(crate) type Outcome = Result<Vec<u8>, (ErrorCode, String)>;

/// A request of another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Asker {
    from: NodeLife<Arc<str>>,
    request: u64,
}

impl Asker {
    pub(crate) fn new(from: NodeLife<Arc<str>>, request: u64) -> Self {
        Self { from, request }
    }

    /// The run of the node that asks.
    pub(crate) fn from(&self) -> &NodeLife<Arc<str>> {
        &self.from
    }

    /// The number of the request at that node.
    pub(crate) fn request(&self) -> u64 {
        self.request
    }
}

/// A request of another node, for a lane.
#[derive(Debug)]
pub(crate) struct RemoteCall {
    pub(crate) service: Box<str>,
    pub(crate) payload: Vec<u8>,
    pub(crate) ticket: RemoteTicket,
}

/// The answer to a request of a lane.
#[derive(Debug)]
pub(crate) struct NodeAnswer {
    pub(crate) request: u64,
    pub(crate) outcome: Result<Vec<u8>, RequestFailure>,
}

/// The reason why no reply came.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// No other node has the service.
    Unserved,
    /// The node that worked on the request has died.
    NodeGone,
    /// The node could not send the request.
    CutOff,
    /// The handler refused.
    Refused(ErrorCode, String),
}

/// The duty to answer a request of another node. Dropping it answers with an error.
pub(crate) struct RemoteTicket {
    link: Arc<BackplaneLink>,
    asker: Option<Asker>,
    is_cancelled: Arc<AtomicBool>,
}

impl RemoteTicket {
    pub(crate) fn new(
        link: Arc<BackplaneLink>,
        asker: Asker,
        is_cancelled: Arc<AtomicBool>,
    ) -> Self {
        Self {
            link,
            asker: Some(asker),
            is_cancelled,
        }
    }

    /// Whether nobody waits for the answer any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Answers the request. A reply that fits no packet is an error for the caller, too.
    pub(crate) fn reply(self, payload: &[u8]) -> Result<(), EncodeError> {
        let limit = self.link.payload_bytes_max();
        if payload.len() > limit {
            let error = EncodeError::PayloadTooLarge {
                bytes: payload.len() as u64,
                limit: limit as u64,
            };
            self.refuse(ErrorCode::Internal, &error.to_string());
            return Err(error);
        }
        self.answer(Ok(payload.to_vec()));
        Ok(())
    }

    pub(crate) fn refuse(self, code: ErrorCode, text: &str) {
        self.answer(Err((code, clipped(text).to_owned())));
    }

    fn answer(mut self, outcome: Outcome) {
        self.post(outcome);
    }

    fn post(&mut self, outcome: Outcome) {
        if let Some(to) = self.asker.take() {
            let answer = RequestWork::Answer { to, outcome };
            if let Err(Directed::Request(RequestWork::Answer { to, .. })) = self.link.direct(answer)
            {
                let outcome = Err((ErrorCode::LimitReached, TOO_MANY.to_owned()));
                // A node that has ended cannot answer. The asking node knows that it is gone.
                let _ = self.link.direct(RequestWork::Answer { to, outcome });
            }
        }
    }
}

impl Drop for RemoteTicket {
    fn drop(&mut self) {
        if self.asker.is_some() {
            self.post(Err((ErrorCode::Internal, DROPPED.to_owned())));
        }
    }
}

impl fmt::Debug for RemoteTicket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asker.fmt(formatter)
    }
}

/// Returns as much of a text as fits every packet.
fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

/// Most bytes of the text of a refusal.
const TEXT_BYTES_MAX: usize = 512;

/// The text of the error that the caller gets when the handler neither replied nor refused.
const DROPPED: &str = "the request was given up without an answer";

/// The text of the error that the caller gets when the reply finds no room in front of the node.
const TOO_MANY: &str = "the node has too many replies to send; try again later";

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(link: &Arc<BackplaneLink>, request: u64) -> RemoteTicket {
        let asker = Asker {
            from: NodeLife::new("two", 7),
            request,
        };
        RemoteTicket::new(Arc::clone(link), asker, Arc::default())
    }

    #[test]
    fn a_ticket_answers_once_and_when_it_is_dropped() {
        let link = Arc::new(BackplaneLink::new(NodeLife::new("one", 1), 100, false));
        ticket(&link, 1).reply(b"yes").unwrap();
        ticket(&link, 2).refuse(ErrorCode::NotFound, &"ä".repeat(1_000));
        assert!(ticket(&link, 3).reply(&[0; 101]).is_err());
        drop(ticket(&link, 4));
        let mut codes = Vec::new();
        for (index, directed) in link.take().directed.into_iter().enumerate() {
            let Directed::Request(RequestWork::Answer { to, outcome }) = directed else {
                panic!("no answer");
            };
            assert_eq!(to.request, index as u64 + 1);
            codes.push(outcome.map_err(|(code, text)| {
                assert!(text.len() <= TEXT_BYTES_MAX);
                code
            }));
        }
        let internal = Err(ErrorCode::Internal);
        assert_eq!(
            codes,
            [
                Ok(b"yes".to_vec()),
                Err(ErrorCode::NotFound),
                internal.clone(),
                internal
            ]
        );
    }

    /// Regression: 16,384 small requests could leave as many replies of a megabyte in front of a slow node.
    #[test]
    fn replies_that_wait_for_the_node_are_bounded_and_the_others_are_refused() {
        const BYTES: usize = 1 << 20;
        const REPLIES: usize = 100;
        let link = Arc::new(BackplaneLink::new(NodeLife::new("one", 1), BYTES, false));
        for request in 0..REPLIES {
            ticket(&link, request as u64).reply(&[0; BYTES]).unwrap();
        }
        let directed = link.take().directed;
        assert_eq!(directed.len(), REPLIES, "each has one answer");
        let bytes: usize = directed.iter().map(Directed::charged_bytes).sum();
        assert_eq!(bytes, 33 * BYTES);
        let refusal = directed.iter().filter(|it| match it {
            Directed::Request(RequestWork::Answer { outcome, .. }) => outcome
                .as_ref()
                .is_err_and(|(code, _)| *code == ErrorCode::LimitReached),
            _ => false,
        });
        assert_eq!(refusal.count(), REPLIES - 33);
        ticket(&link, 0).reply(&[0; BYTES]).unwrap();
        assert_eq!(link.take().directed[0].charged_bytes(), BYTES);
    }
}
