//! Messages for one session, and requests to services, between this node and one other.
//!
//! ```text
//!   lane ── ask ──▶ node ── packet to the service ──▶ engine chooses ──▶ node ── call ──▶ lane
//!   lane ◀─ answer ─ node ◀────── packet to the node ──────────────────── node ◀─ ticket ──┘
//! ```
//!
//! The lane that asks has the deadline of the request, so nothing that is lost here keeps a caller waiting. This file adds what
//! ends a request earlier: no node has the service, the node is cut off, or the node that works on the request has died. To know
//! the last, each node tells the others at every heartbeat which of their requests it works on. A request that is answered
//! before costs two packets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidewire_proto::backplane::{
    Answered, Asked, Directed as DirectedPacket, NodeLife, Working, encode_answered, encode_asked,
    encode_given_up, encode_working,
};
use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;

use super::opening::question_of;
use super::{Node, Subject, Wire};
use crate::broker::{
    Asker, Directed, NodeAnswer, Outcome, RemoteCall, RemoteTicket, RequestFailure,
};
use crate::mailbox::LaneMessage;
use crate::session::SessionId;

/// The requests of a node. See the module.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Requests of this node, each with the node that works on it, once that has said so.
    asked: HashMap<u64, Option<Arc<str>>>,
    /// Requests of other nodes that a lane of this one works on.
    taken: HashMap<Asker, Taken>,
    taken_bytes: usize,
    /// Refusals that go out in the next turn.
    refused: Vec<(Asker, ErrorCode, &'static str)>,
    /// The lane that gets the next request.
    next_lane: usize,
    /// Whether requests of other nodes are taken.
    is_offering: bool,
}

/// A request of another node.
#[derive(Debug)]
struct Taken {
    is_cancelled: Arc<AtomicBool>,
    deadline: Instant,
    bytes: usize,
}

impl Requests {
    /// Ends the work on a request of another node. Returns whether it was not over.
    fn release(&mut self, asker: &Asker) -> bool {
        let Some(taken) = self.taken.remove(asker) else {
            return false;
        };
        taken.is_cancelled.store(true, Ordering::Relaxed);
        self.taken_bytes -= taken.bytes;
        true
    }
}

impl Node {
    /// Becomes one of the nodes that answer requests to the services of this one.
    pub(super) fn offer_services(&mut self, wire: &mut dyn Wire) {
        if !std::mem::replace(&mut self.requests.is_offering, true) {
            for service in &self.settings.services {
                wire.subscribe(Subject::Service(service));
            }
        }
    }

    /// Leaves requests to other nodes, because this one ends.
    pub(super) fn withdraw_services(&mut self, wire: &mut dyn Wire) {
        for service in std::mem::take(&mut self.settings.services) {
            wire.unsubscribe(Subject::Service(&service));
        }
    }

    pub(super) fn send_directed(&mut self, directed: Directed, wire: &mut dyn Wire) {
        match directed {
            Directed::Message { to, packet } => {
                let peer = self.peers.all.get(&*to.node);
                let is_there = peer.is_some_and(|peer| peer.is_alive && peer.epoch == to.epoch);
                let is_sent = is_there && self.publish(Subject::Node(&to.node), &packet, wire);
                self.count(1, is_sent);
            }
            Directed::Ask {
                request,
                timeout_ms,
                service,
                payload,
            } => {
                let asked = Asked {
                    request,
                    left_ms: timeout_ms,
                    service: &service,
                    payload: &payload,
                };
                let mut packet = Vec::with_capacity(payload.len() + 128);
                encode_asked(self.me.borrow(), &asked, &mut packet);
                if !self.is_cut_off() && wire.ask(&service, request, &packet) {
                    self.requests.asked.insert(request, None);
                } else {
                    self.end_request(request, Err(RequestFailure::CutOff));
                }
            }
            Directed::GiveUp { request } => {
                if let Some(Some(node)) = self.requests.asked.remove(&request) {
                    let mut packet = Vec::new();
                    encode_given_up(self.me.borrow(), request, &mut packet);
                    // If it is lost, the other node gives the request up at its deadline.
                    let _ = self.publish(Subject::Node(&node), &packet, wire);
                }
            }
            Directed::Answer { to, outcome } => {
                if self.requests.release(&to) {
                    let is_sent = self.send_answer(&to, &outcome, wire);
                    self.count_served(1, is_sent);
                }
            }
        }
    }

    /// Answers the requests that came since the last turn and were not taken.
    pub(super) fn refuse_requests(&mut self, wire: &mut dyn Wire) {
        for (to, code, text) in std::mem::take(&mut self.requests.refused) {
            let is_sent = self.send_answer(&to, &Err((code, text.to_owned())), wire);
            self.count_served(1, is_sent);
        }
    }

    fn send_answer(&self, to: &Asker, outcome: &Outcome, wire: &mut dyn Wire) -> bool {
        let outcome = match outcome {
            Ok(payload) => Ok(&payload[..]),
            Err((code, text)) => Err((*code, &text[..])),
        };
        let answered = Answered {
            epoch: to.from.epoch,
            request: to.request,
            outcome,
        };
        let mut packet = Vec::new();
        encode_answered(self.me.borrow(), &answered, &mut packet);
        self.publish(Subject::Node(&to.from.node), &packet, wire)
    }

    fn count_served(&self, requests: u64, is_sent: bool) {
        match is_sent {
            true => self.counters.backplane_served.add_shared(requests),
            false => self.counters.backplane_unserving.add_shared(requests),
        }
    }

    /// Passes the outcome of a request to its lane.
    fn end_request(&self, request: u64, outcome: Result<Vec<u8>, RequestFailure>) {
        if let Some(lane) = self.to_lanes.lanes().get(lane_of(request)) {
            let answer = Box::new(NodeAnswer { request, outcome });
            // A lane that has ended has no caller.
            let _ = lane.post(LaneMessage::NodeAnswer(answer));
        }
    }

    /// Notes that no node has subscribed to the service of a request that [`Wire::ask`] got.
    pub fn handle_unserved(&mut self, request: u64) {
        if let Some(question) = question_of(request) {
            return self.handle_answered_question(question);
        }
        if self.requests.asked.remove(&request).is_some() {
            self.end_request(request, Err(RequestFailure::Unserved));
        }
    }

    pub(super) fn handle_asked(
        &mut self,
        from: NodeLife<Arc<str>>,
        asked: &Asked<'_>,
        now: Instant,
    ) {
        let asker = Asker {
            from,
            request: asked.request,
        };
        if self.requests.taken.contains_key(&asker) {
            return;
        }
        self.counters.backplane_taken.add_shared(1);
        let requests = &mut self.requests;
        let has_room = requests.taken.len() < TAKEN_MAX
            && requests.taken_bytes + asked.payload.len() <= TAKEN_BYTES_MAX;
        let refusal = match self.settings.services.iter().any(|it| it == asked.service) {
            false => Some((ErrorCode::Draining, "the node no longer has this service")),
            true if !has_room => Some((ErrorCode::LimitReached, "the node has too many requests")),
            true => None,
        };
        if let Some((code, text)) = refusal {
            return requests.refused.push((asker, code, text));
        }
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let bytes = asked.payload.len();
        requests.taken_bytes += bytes;
        let taken = Taken {
            is_cancelled: Arc::clone(&is_cancelled),
            deadline: now + Duration::from_millis(asked.left_ms.into()),
            bytes,
        };
        requests.taken.insert(asker.clone(), taken);
        let ticket = RemoteTicket::new(Arc::clone(&self.link), asker, is_cancelled);
        self.call_lane(RemoteCall {
            service: asked.service.into(),
            payload: asked.payload.to_vec(),
            ticket,
        });
    }

    /// Gives a request to the next lane that runs. Without one it is dropped, and so answered.
    fn call_lane(&mut self, call: RemoteCall) {
        let mut message = LaneMessage::RemoteCall(Box::new(call));
        let lanes = self.to_lanes.lanes();
        for _ in 0..lanes.len() {
            self.requests.next_lane = (self.requests.next_lane + 1) % lanes.len();
            match lanes[self.requests.next_lane].post(message) {
                Ok(()) => return,
                Err(back) => message = back,
            }
        }
        if let LaneMessage::RemoteCall(call) = message {
            call.ticket
                .refuse(ErrorCode::Draining, "the node is ending");
        }
    }

    pub(super) fn handle_answered(&mut self, answered: &Answered<'_>) {
        if answered.epoch != self.me.epoch
            || self.requests.asked.remove(&answered.request).is_none()
        {
            // The caller has given up, or an earlier run has asked.
            return;
        }
        let outcome = match answered.outcome {
            Ok(payload) => Ok(payload.to_vec()),
            Err((code, text)) => Err(RequestFailure::Refused(code, text.to_owned())),
        };
        self.end_request(answered.request, outcome);
    }

    pub(super) fn handle_working(&mut self, node: &Arc<str>, working: &Working<'_>) {
        if working.epoch == self.me.epoch {
            for request in working.requests() {
                if let Some(worker) = self.requests.asked.get_mut(&request) {
                    *worker = Some(Arc::clone(node));
                }
            }
        }
    }

    pub(super) fn handle_given_up(&mut self, from: NodeLife<Arc<str>>, request: u64) {
        let asker = Asker { from, request };
        if self.requests.release(&asker) {
            self.count_served(1, false);
        }
    }

    /// Ends all that this node and a dead one do for each other.
    pub(super) fn forget_requests_of(&mut self, dead: &Arc<str>) {
        let asked = self.requests.asked.iter();
        let lost = asked.filter(|(_, worker)| worker.as_ref() == Some(dead));
        let lost: Vec<u64> = lost.map(|(request, _)| *request).collect();
        for request in lost {
            self.requests.asked.remove(&request);
            self.end_request(request, Err(RequestFailure::NodeGone));
        }
        self.release_where(|asker, _| asker.from.node == *dead);
    }

    fn release_where(&mut self, is_over: impl Fn(&Asker, &Taken) -> bool) {
        let taken = self.requests.taken.iter();
        let over = taken.filter(|(asker, taken)| is_over(asker, taken));
        let over: Vec<Asker> = over.map(|(asker, _)| asker.clone()).collect();
        for asker in &over {
            self.requests.release(asker);
        }
        self.count_served(over.len() as u64, false);
    }

    /// Gives up requests of other nodes whose deadlines have passed, and tells which ones are worked on. Called at a heartbeat.
    pub(super) fn tell_requests(&mut self, now: Instant, wire: &mut dyn Wire) {
        self.release_where(|_, taken| taken.deadline <= now);
        let mut of: HashMap<&NodeLife<Arc<str>>, Vec<u64>> = HashMap::new();
        for asker in self.requests.taken.keys() {
            let requests = of.entry(&asker.from).or_default();
            requests.push(asker.request);
        }
        let requests_max = (self.entry_bytes_max() / size_of::<u64>()).max(1);
        for (asker, requests) in of {
            for part in requests.chunks(requests_max) {
                let mut packet = Vec::new();
                let me = self.me.borrow();
                encode_working(me, asker.epoch, part.iter().copied(), &mut packet);
                // The next heartbeat tells it again.
                let _ = self.publish(Subject::Node(&asker.node), &packet, wire);
            }
        }
    }

    /// Delivers a message of another node to its session.
    pub(super) fn handle_directed(&mut self, directed: &DirectedPacket<'_>) {
        let mut frame = Vec::new();
        let codec = &self.config.codec;
        let is_for_this_run = directed.epoch == self.me.epoch;
        let id = SessionId::from_number(directed.session);
        let is_delivered = is_for_this_run
            && codec.encode(&directed.message, &mut frame).is_ok()
            && self.to_lanes.send_to(id, &frame);
        match is_delivered {
            true => self.counters.backplane_received.add_shared(1),
            false => self.counters.backplane_dropped.add_shared(1),
        }
    }
}

/// Returns the number of a request of this lane.
pub(crate) fn request_number(lane: usize, count: u64) -> u64 {
    (lane as u64) << LANE_SHIFT | count
}

fn lane_of(request: u64) -> usize {
    (request >> LANE_SHIFT) as usize
}

/// The bits above it are the lane of a request. Below it a lane can count for longer than a machine lives.
const LANE_SHIFT: u32 = 56;

/// Requests of other nodes that lanes work on at once.
const TAKEN_MAX: usize = 16_384;

/// Bytes of these requests.
const TAKEN_BYTES_MAX: usize = 32 << 20;
