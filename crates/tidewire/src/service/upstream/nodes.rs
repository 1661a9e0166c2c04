//! Requests of a lane to services of other nodes.
//!
//! The lane keeps every request until its answer or its deadline; the node only carries it. So no loss between nodes
//! keeps a caller waiting for longer than the timeout.

use std::collections::HashMap;

use tidewire_io::timer::TimerId;
use tidewire_proto::message::Message;

use super::link::Then;
use super::{Upstream, UpstreamError, UpstreamRequest};
use crate::backplane::request_number;
use crate::broker::{NodeAnswer, RequestFailure, RequestWork};
use crate::engine::Core;
use crate::session::TimerKey;

/// The pending requests of one [`Upstream::nodes`].
#[derive(Debug)]
pub(super) struct NodesLink {
    upstream: Upstream,
    pending: HashMap<u64, UpstreamRequest>,
    timer: Option<TimerId>,
}

impl NodesLink {
    pub(super) fn new(upstream: &Upstream) -> Self {
        Self {
            upstream: upstream.clone(),
            pending: HashMap::new(),
            timer: None,
        }
    }

    pub(super) fn is_of(&self, upstream: u64) -> bool {
        self.upstream.0.number == upstream
    }

    /// Whether this is the last reference to the upstream and no request is pending.
    pub(super) fn is_forgotten(&self) -> bool {
        std::sync::Arc::strong_count(&self.upstream.0) == 1 && self.pending.is_empty()
    }

    /// Gives a request to the node. `count` is the number of requests of this lane before it.
    pub(super) fn submit(
        &mut self,
        core: &mut Core,
        count: u64,
        call: &Message<'_>,
        asked: UpstreamRequest,
    ) -> Result<(), (UpstreamError, Then)> {
        let Some(link) = core.exchange.lanes.link() else {
            return Err((UpstreamError::NoNode, asked.then));
        };
        if call.name.is_empty() || call.name.len() > usize::from(u8::MAX) {
            return Err((UpstreamError::NoNode, asked.then));
        }
        if core.ending.is_of_server() {
            return Err((UpstreamError::ShuttingDown, asked.then));
        }
        if self.pending.len() >= self.upstream.0.terms.in_flight_max {
            return Err((UpstreamError::TooMany, asked.then));
        }
        let (bytes, limit) = (call.payload.len(), link.payload_bytes_max());
        if bytes > limit {
            let (bytes, limit) = (bytes as u64, limit as u64);
            let error = tidewire_proto::error::EncodeError::PayloadTooLarge { bytes, limit };
            return Err((error.into(), asked.then));
        }
        let request = request_number(core.exchange.lane(), count);
        let timeout = self.upstream.0.terms.timeout.as_millis();
        let directed = RequestWork::Ask {
            request,
            timeout_ms: u32::try_from(timeout).unwrap_or(u32::MAX),
            service: call.name.into(),
            payload: call.payload.to_vec(),
        };
        if link.direct(directed).is_err() {
            return Err((UpstreamError::TooMany, asked.then));
        }
        core.counters.backplane_asked.add(1);
        let deadline_ns = asked.deadline_ns;
        self.pending.insert(request, asked);
        self.arm_timer(core, deadline_ns);
        Ok(())
    }

    /// Takes the request that an answer is for.
    pub(super) fn take(&mut self, request: u64) -> Option<UpstreamRequest> {
        self.pending.remove(&request)
    }

    /// Removes the requests for which `is_over` is true. The node forgets them, and the one that works on them is told.
    pub(super) fn give_up(
        &mut self,
        core: &Core,
        is_over: impl Fn(&UpstreamRequest) -> bool,
    ) -> Vec<UpstreamRequest> {
        let over = self.pending.iter().filter(|(_, asked)| is_over(asked));
        let over: Vec<u64> = over.map(|(request, _)| *request).collect();
        let give_up = |request: u64| {
            if let Some(link) = core.exchange.lanes.link() {
                // A node that has ended has forgotten it.
                let _ = link.direct(RequestWork::GiveUp { request });
            }
            self.pending.remove(&request)
        };
        over.into_iter().filter_map(give_up).collect()
    }

    /// All requests have the same timeout, so no new one has an earlier deadline.
    fn arm_timer(&mut self, core: &mut Core, deadline_ns: u64) {
        if self.timer.is_none() {
            let key = TimerKey::Upstream(self.upstream.0.number);
            self.timer = Some(core.sessions.timers.set(deadline_ns, key));
        }
    }

    /// Handles the timer and arms it for the earliest deadline.
    pub(super) fn handle_timer(&mut self, core: &mut Core) {
        self.timer = None;
        if let Some(next) = self.pending.values().map(|it| it.deadline_ns).min() {
            self.arm_timer(core, next);
        }
    }

    pub(super) fn stop_timer(&mut self, core: &mut Core) {
        if let Some(timer) = self.timer.take() {
            core.sessions.timers.cancel(timer);
        }
    }
}

/// Counts an answer by its outcome, and returns it as the upstream's.
pub(super) fn outcome(core: &Core, answer: NodeAnswer) -> Result<Vec<u8>, UpstreamError> {
    let counters = &core.counters;
    let (counter, outcome) = match answer.outcome {
        Ok(payload) => (&counters.backplane_answered, Ok(payload)),
        Err(RequestFailure::Refused(code, text)) => {
            let refused = UpstreamError::Refused { code, text };
            (&counters.backplane_answered, Err(refused))
        }
        Err(RequestFailure::Unserved) => (&counters.backplane_unserved, Err(UpstreamError::NoNode)),
        Err(RequestFailure::NodeGone) => {
            (&counters.backplane_orphaned, Err(UpstreamError::NodeGone))
        }
        Err(RequestFailure::CutOff) => (&counters.backplane_unasked, Err(UpstreamError::CutOff)),
    };
    counter.add(1);
    let by_upstream = match &outcome {
        Ok(_) | Err(UpstreamError::Refused { .. }) => &counters.upstream_answered,
        Err(_) => &counters.upstream_failed,
    };
    by_upstream.add(1);
    outcome
}
