//! Requests to services, between this node and one other.
//!
//! ```text
//!   lane ── ask ──▶ node ── packet to the service ──▶ engine chooses ──▶ node ── call ──▶ lane
//!   lane ◀─ answer ─ node ◀────── packet to the node ──────────────────── node ◀─ ticket ──┘
//! ```
//!
//! The lane that asks has the deadline of the request, so nothing that is lost here keeps a caller waiting. This file
//! adds what ends a request earlier: no node has the service, the node is cut off, or the node that works on the
//! request has died. To know the last, each node tells the others at every heartbeat which of their requests it works
//! on. A request that is answered before costs two packets.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use tidewire_proto::backplane::{
    NodeLife, ServiceAnswer, ServiceRequest, Working, encode_answered, encode_asked,
    encode_given_up, encode_working,
};
use tidewire_proto::body::ErrorCode;

use super::to_engine::ToEngine;
use super::{Subject, Wire};
use crate::broker::{
    Asker, BackplaneLink, NodeAnswer, Outcome, RemoteCall, RemoteTicket, RequestFailure,
    RequestWork,
};
use crate::mailbox::{LaneMessage, Lanes};
use crate::observe::LaneCounters;

/// The requests of a node. See the module.
#[derive(Debug)]
pub(super) struct Requests {
    link: Arc<BackplaneLink>,
    lanes: Arc<Lanes>,
    counters: Arc<CachePadded<LaneCounters>>,
    /// The services that other nodes may call here.
    services: Vec<String>,
    /// Whether the node has subscribed to its services.
    is_offering: bool,
    /// Requests of this node, each with the node that works on it, once that has said so.
    asked: HashMap<u64, Option<Arc<str>>>,
    /// Requests of other nodes that a lane of this one works on.
    served: HashMap<Asker, ServedRequest>,
    served_bytes: usize,
    /// Refusals that go out in the next turn.
    refused: Vec<(Asker, ErrorCode, &'static str)>,
    next_lane: usize,
}

/// A request of another node.
#[derive(Debug)]
struct ServedRequest {
    is_cancelled: Arc<AtomicBool>,
    deadline: Instant,
    bytes: usize,
}

impl Requests {
    pub(super) fn new(
        services: Vec<String>,
        link: Arc<BackplaneLink>,
        lanes: Arc<Lanes>,
        counters: Arc<CachePadded<LaneCounters>>,
    ) -> Self {
        Self {
            link,
            lanes,
            counters,
            services,
            is_offering: false,
            asked: HashMap::new(),
            served: HashMap::new(),
            served_bytes: 0,
            refused: Vec::new(),
            next_lane: 0,
        }
    }

    /// Becomes one of the nodes that answer requests to the services of this one.
    pub(super) fn offer(&mut self, wire: &mut dyn Wire) {
        if !std::mem::replace(&mut self.is_offering, true) {
            for service in &self.services {
                wire.subscribe(Subject::Service(service));
            }
        }
    }

    /// Leaves requests to other nodes, because this one ends.
    pub(super) fn withdraw(&mut self, wire: &mut dyn Wire) {
        for service in std::mem::take(&mut self.services) {
            wire.unsubscribe(Subject::Service(&service));
        }
    }

    /// Sends a request, the end of one, or an answer.
    pub(super) fn send(&mut self, work: RequestWork, engine: &ToEngine, wire: &mut dyn Wire) {
        match work {
            RequestWork::Ask {
                request,
                timeout_ms,
                service,
                payload,
            } => {
                let asked = ServiceRequest {
                    request,
                    left_ms: timeout_ms,
                    service: &service,
                    payload: &payload,
                };
                let mut packet = Vec::with_capacity(payload.len() + 128);
                encode_asked(engine.me(), &asked, &mut packet);
                if !engine.is_cut_off() && wire.ask(&service, request, &packet) {
                    self.asked.insert(request, None);
                } else {
                    self.end(request, Err(RequestFailure::CutOff));
                }
            }
            RequestWork::GiveUp { request } => {
                if let Some(Some(node)) = self.asked.remove(&request) {
                    let mut packet = Vec::new();
                    encode_given_up(engine.me(), request, &mut packet);
                    // If it is lost, the other node gives the request up at its deadline.
                    let _ = engine.publish(Subject::Node(&node), &packet, wire);
                }
            }
            RequestWork::Answer { to, outcome } => {
                if self.release(&to) {
                    self.send_answer(&to, &outcome, engine, wire);
                }
            }
        }
    }

    /// Answers the requests that came since the last turn and were refused.
    pub(super) fn send_refusals(&mut self, engine: &ToEngine, wire: &mut dyn Wire) {
        for (to, code, text) in std::mem::take(&mut self.refused) {
            self.send_answer(&to, &Err((code, text.to_owned())), engine, wire);
        }
    }

    fn send_answer(&self, to: &Asker, outcome: &Outcome, engine: &ToEngine, wire: &mut dyn Wire) {
        let outcome = match outcome {
            Ok(payload) => Ok(&payload[..]),
            Err((code, text)) => Err((*code, &text[..])),
        };
        let answered = ServiceAnswer {
            epoch: to.from().epoch,
            request: to.request(),
            outcome,
        };
        let mut packet = Vec::new();
        encode_answered(engine.me(), &answered, &mut packet);
        let is_sent = engine.publish(Subject::Node(&to.from().node), &packet, wire);
        self.count_served(1, is_sent);
    }

    fn count_served(&self, requests: u64, is_sent: bool) {
        match is_sent {
            true => self.counters.backplane_served.add_shared(requests),
            false => self.counters.backplane_unserving.add_shared(requests),
        }
    }

    /// Passes the outcome of a request to its lane.
    fn end(&self, request: u64, outcome: Result<Vec<u8>, RequestFailure>) {
        if let Some(lane) = self.lanes.all().get(lane_of(request)) {
            let answer = Box::new(NodeAnswer { request, outcome });
            // A lane that has ended has no caller.
            let _ = lane.post(LaneMessage::NodeAnswer(answer));
        }
    }

    /// Notes that no node has subscribed to the service of a request.
    pub(super) fn handle_unserved(&mut self, request: u64) {
        if self.asked.remove(&request).is_some() {
            self.end(request, Err(RequestFailure::Unserved));
        }
    }

    pub(super) fn handle_asked(
        &mut self,
        from: NodeLife<Arc<str>>,
        asked: &ServiceRequest<'_>,
        now: Instant,
    ) {
        let request = asked.request;
        let asker = Asker::new(from, request);
        if self.served.contains_key(&asker) {
            return;
        }
        self.counters.backplane_taken.add_shared(1);
        let bytes = asked.payload.len();
        let has_room =
            self.served.len() < SERVED_MAX && self.served_bytes + bytes <= SERVED_BYTES_MAX;
        let refusal = match self.services.iter().any(|it| it == asked.service) {
            false => Some((ErrorCode::Draining, "the node no longer has this service")),
            true if !has_room => Some((ErrorCode::LimitReached, "the node has too many requests")),
            true => None,
        };
        if let Some((code, text)) = refusal {
            return self.refused.push((asker, code, text));
        }
        let is_cancelled = Arc::new(AtomicBool::new(false));
        self.served_bytes += bytes;
        let served = ServedRequest {
            is_cancelled: Arc::clone(&is_cancelled),
            deadline: now + Duration::from_millis(asked.left_ms.into()),
            bytes,
        };
        self.served.insert(asker.clone(), served);
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
        let lanes = self.lanes.all();
        for _ in 0..lanes.len() {
            self.next_lane = (self.next_lane + 1) % lanes.len();
            match lanes[self.next_lane].post(message) {
                Ok(()) => return,
                Err(back) => message = back,
            }
        }
        if let LaneMessage::RemoteCall(call) = message {
            call.ticket
                .refuse(ErrorCode::Draining, "the node is ending");
        }
    }

    pub(super) fn handle_answered(&mut self, answered: &ServiceAnswer<'_>) {
        if answered.epoch != self.link.life().epoch
            || self.asked.remove(&answered.request).is_none()
        {
            // The caller has given up, or an earlier run has asked.
            return;
        }
        let outcome = match answered.outcome {
            Ok(payload) => Ok(payload.to_vec()),
            Err((code, text)) => Err(RequestFailure::Refused(code, text.to_owned())),
        };
        self.end(answered.request, outcome);
    }

    pub(super) fn handle_working(&mut self, node: &Arc<str>, working: &Working<'_>) {
        if working.epoch == self.link.life().epoch {
            for request in working.requests() {
                if let Some(worker) = self.asked.get_mut(&request) {
                    *worker = Some(Arc::clone(node));
                }
            }
        }
    }

    pub(super) fn handle_given_up(&mut self, from: NodeLife<Arc<str>>, request: u64) {
        if self.release(&Asker::new(from, request)) {
            self.count_served(1, false);
        }
    }

    /// Ends all that this node and a dead one do for each other.
    pub(super) fn forget_node(&mut self, dead: &Arc<str>) {
        let asked = self.asked.iter();
        let lost = asked.filter(|(_, worker)| worker.as_ref() == Some(dead));
        let lost: Vec<u64> = lost.map(|(request, _)| *request).collect();
        for request in lost {
            self.asked.remove(&request);
            self.end(request, Err(RequestFailure::NodeGone));
        }
        self.release_where(|asker, _| asker.from().node == *dead);
    }

    fn release_where(&mut self, is_over: impl Fn(&Asker, &ServedRequest) -> bool) {
        let served = self.served.iter();
        let over = served.filter(|(asker, served)| is_over(asker, served));
        let over: Vec<Asker> = over.map(|(asker, _)| asker.clone()).collect();
        for asker in &over {
            self.release(asker);
        }
        self.count_served(over.len() as u64, false);
    }

    /// Ends the work on a request of another node. Returns whether it was not over.
    fn release(&mut self, asker: &Asker) -> bool {
        let Some(served) = self.served.remove(asker) else {
            return false;
        };
        served.is_cancelled.store(true, Ordering::Relaxed);
        self.served_bytes -= served.bytes;
        true
    }

    /// Gives up requests of other nodes whose deadlines have passed, and tells which ones are worked on. Called at a
    /// heartbeat.
    pub(super) fn tell(&mut self, now: Instant, engine: &ToEngine, wire: &mut dyn Wire) {
        self.release_where(|_, served| served.deadline <= now);
        let mut of: HashMap<&NodeLife<Arc<str>>, Vec<u64>> = HashMap::new();
        for asker in self.served.keys() {
            of.entry(asker.from()).or_default().push(asker.request());
        }
        let requests_max = (engine.entry_bytes_max() / size_of::<u64>()).max(1);
        for (asker, requests) in of {
            for part in requests.chunks(requests_max) {
                let mut packet = Vec::new();
                let numbers = part.iter().copied();
                encode_working(engine.me(), asker.epoch, numbers, &mut packet);
                // The next heartbeat tells it again.
                let _ = engine.publish(Subject::Node(&asker.node), &packet, wire);
            }
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
const SERVED_MAX: usize = 16_384;

const SERVED_BYTES_MAX: usize = 32 << 20;
