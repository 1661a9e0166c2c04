//! The upstreams of a lane, their requests, and the answers to these.

use tidewire_proto::body::ErrorCode;
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};

use super::link::{Callback, Then, UpstreamLink};
use super::nodes::{NodesLink, outcome};
use super::{Upstream, UpstreamError, UpstreamRequest};
use crate::broker::NodeAnswer;
use crate::dial::{LookupResult, Target};
use crate::engine::Core;
use crate::limits::nanoseconds;
use crate::service::{Context, HandlerError, HandlerResult, Service, refusal};
use crate::session::{CloseReason, SessionId};
use crate::transport::ConnectError;

/// The upstreams of a lane; see the module. The lane's core keeps this value.
#[derive(Debug, Default)]
struct Upstreams {
    /// The connections. There are few, so a search is a few comparisons of numbers.
    links: Vec<UpstreamLink>,
    nodes: Vec<NodesLink>,
    /// Requests to other nodes so far.
    asked_nodes: u64,
    answers: Answers,
}

/// The answers for callbacks. They wait until no message of another session is being handled.
#[derive(Debug, Default)]
pub(super) struct Answers(Vec<Answer>);

/// An answer for a callback.
struct Answer {
    asker: SessionId,
    call: Callback,
    result: Result<Vec<u8>, UpstreamError>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Answer({})", self.asker)
    }
}

/// Sends a request of `asker`, or queues it until a connection is open.
pub(super) fn submit(
    core: &mut Core,
    upstream: &Upstream,
    asker: SessionId,
    call: &Message<'_>,
    then: Then,
) -> Result<(), (UpstreamError, Then)> {
    let mut upstreams: Box<Upstreams> = core.upstreams.take().unwrap_or_default();
    let timeout_ns = nanoseconds(upstream.0.terms.timeout);
    let asked = UpstreamRequest {
        asker,
        channel: call.channel,
        deadline_ns: core.sessions.timers.now_ns().saturating_add(timeout_ns),
        then,
    };
    let result = match &upstream.0.target {
        Some(target) => {
            let link = upstreams.link(core, upstream, target);
            link.submit(core, call, asked)
        }
        None => upstreams.ask_nodes(core, upstream, call, asked),
    };
    core.upstreams.put(upstreams);
    let counter = match result {
        Ok(()) => &core.counters.upstream_requests,
        Err(_) => &core.counters.upstream_refused,
    };
    counter.add(1);
    result
}

/// Runs `work` on the upstreams and the lane, if the lane has upstreams.
fn with(core: &mut Core, work: impl FnOnce(&mut Upstreams, &mut Core)) {
    if let Some(mut upstreams) = core.upstreams.take::<Upstreams>() {
        work(&mut upstreams, core);
        core.upstreams.put(upstreams);
    }
}

impl Upstreams {
    fn link(&mut self, core: &mut Core, upstream: &Upstream, target: &Target) -> &mut UpstreamLink {
        let found = self.position(|link| link.is_of(upstream.0.number));
        let index = found.unwrap_or_else(|| {
            self.forget_unused(core);
            let link = UpstreamLink::new(upstream, target, &core.config);
            self.links.push(link);
            self.links.len() - 1
        });
        &mut self.links[index]
    }

    fn ask_nodes(
        &mut self,
        core: &mut Core,
        upstream: &Upstream,
        call: &Message<'_>,
        asked: UpstreamRequest,
    ) -> Result<(), (UpstreamError, Then)> {
        let is_it = |link: &NodesLink| link.is_of(upstream.0.number);
        let index = self.nodes.iter().position(is_it).unwrap_or_else(|| {
            self.forget_unused(core);
            self.nodes.push(NodesLink::new(upstream));
            self.nodes.len() - 1
        });
        self.asked_nodes += 1;
        self.nodes[index].submit(core, self.asked_nodes, call, asked)
    }

    fn position(&self, is_it: impl Fn(&UpstreamLink) -> bool) -> Option<usize> {
        self.links.iter().position(is_it)
    }

    /// Returns the link of a session, and the list of answers that the link adds to.
    fn of_session(&mut self, id: SessionId) -> Option<(&mut UpstreamLink, &mut Answers)> {
        let index = self.position(|link| link.dialer().has(id))?;
        Some((&mut self.links[index], &mut self.answers))
    }

    /// Removes upstreams that no service refers to any more, and ends their connections.
    fn forget_unused(&mut self, core: &mut Core) {
        self.nodes.retain_mut(|link| {
            let is_forgotten = link.is_forgotten();
            if is_forgotten {
                link.stop_timer(core);
            }
            !is_forgotten
        });
        self.links.retain_mut(|link| {
            if !link.is_forgotten() {
                return true;
            }
            link.stop_timer(core);
            for id in link.dialer().sessions() {
                if let Some(slot) = core.sessions.table.slot_of(id) {
                    core.sessions.finish(slot, CloseReason::Service, None);
                }
            }
            false
        });
    }
}

impl Answers {
    /// Tells the asker of a request that it has failed.
    pub(super) fn fail(&mut self, core: &Core, error: UpstreamError, asked: UpstreamRequest) {
        core.counters.upstream_failed.add(1);
        self.give(asked, Err(error));
    }

    /// Passes the result to the deferred answer, or queues it for [`run_answers`].
    fn give(&mut self, asked: UpstreamRequest, result: Result<&[u8], UpstreamError>) {
        match (asked.then, result) {
            (Then::Reply(deferred), Ok(payload)) => {
                if let Err(error) = deferred.reply(payload) {
                    tracing::debug!(session = %asked.asker, %error, "an answer cannot be passed on");
                }
            }
            (Then::Reply(deferred), Err(error)) => {
                error.with_words(|code, text| deferred.refuse(code, text));
            }
            (Then::Call(call), result) => self.0.push(Answer {
                asker: asked.asker,
                call,
                result: result.map(<[u8]>::to_vec),
            }),
        }
    }
}

/// The service of the sessions with upstreams.
#[derive(Debug)]
pub(crate) struct UpstreamSessions;

impl Service for UpstreamSessions {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        let id = cx.id();
        let mut is_taken = false;
        with(cx.core, |upstreams, core| {
            if let Some((link, answers)) = upstreams.of_session(id)
                && link.handle_open(core, id)
            {
                is_taken = true;
                core.counters.upstream_connections.add(1);
                link.send_waiting(core, answers);
            }
        });
        if !is_taken {
            cx.close();
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        let has_ids = cx.codec().format().has_ids();
        let is_answer = match message.kind {
            Kind::Reply => true,
            Kind::Error => !has_ids || message.id != 0,
            Kind::Request if has_ids => {
                let text = "requests are taken from clients only";
                return Err(HandlerError::new(ErrorCode::Unsupported, text));
            }
            _ => !has_ids,
        };
        if !is_answer {
            return Ok(());
        }
        let refusal = (message.kind == Kind::Error).then(|| {
            let (code, text) = refusal(cx.codec(), &message);
            UpstreamError::Refused { code, text }
        });
        let id = cx.id();
        with(cx.core, |upstreams, core| {
            let Some((link, answers)) = upstreams.of_session(id) else {
                return;
            };
            if !link.awaits_answer() && !has_ids {
                return;
            }
            let asked = link.take_answered(message.id);
            // The slot of the request is free, also if it was given up.
            link.send_waiting(core, answers);
            match asked {
                Some(asked) => {
                    core.counters.upstream_answered.add(1);
                    answers.give(asked, refusal.map_or(Ok(message.payload), Err));
                }
                None => core.counters.replies_unmatched.add(1),
            }
        });
        end_idle_upstreams(cx.core);
        Ok(())
    }
}

/// Ends the idle connections of a lane that drains, because the upstream would not end them.
pub(crate) fn end_idle_upstreams(core: &mut Core) {
    if !core.ending.is_of_server() {
        return;
    }
    with(core, |upstreams, core| {
        let idle = upstreams.links.iter().filter(|link| link.is_idle());
        for id in idle.flat_map(|link| link.dialer().sessions()) {
            core.sessions.table.close_by_id(id, CloseReason::Shutdown);
        }
    });
}

/// Handles the end of a session with an upstream. `failure` is that of a session that was not open.
pub(crate) fn handle_upstream_end(
    core: &mut Core,
    id: SessionId,
    reason: CloseReason,
    failure: ConnectError,
) {
    with(core, |upstreams, core| {
        if let Some((link, answers)) = upstreams.of_session(id) {
            link.handle_end(core, answers, id, reason, failure);
        }
    });
}

/// Makes the connection that waited for this lookup.
pub(crate) fn handle_upstream_found(core: &mut Core, number: u64, found: LookupResult) {
    with(core, |upstreams, core| {
        let index = upstreams.position(|link| link.is_of(number));
        let Some(index) = index else { return };
        upstreams.links[index].handle_found(core, &mut upstreams.answers, found);
    });
    end_idle_upstreams(core);
}

/// Handles the answer of another node. It may come after its request was given up.
pub(crate) fn handle_node_answer(core: &mut Core, answer: NodeAnswer) {
    with(core, |upstreams, core| {
        let mut links = upstreams.nodes.iter_mut();
        if let Some(asked) = links.find_map(|link| link.take(answer.request)) {
            let outcome = outcome(core, answer);
            upstreams
                .answers
                .give(asked, outcome.as_deref().map_err(Clone::clone));
        }
    });
}

/// Fails the requests of an upstream whose deadlines have passed.
pub(crate) fn handle_upstream_timer(core: &mut Core, number: u64) {
    with(core, |upstreams, core| {
        let now_ns = core.sessions.timers.now_ns();
        let mut nodes = upstreams.nodes.iter_mut();
        if let Some(link) = nodes.find(|link| link.is_of(number)) {
            let over = link.give_up(core, |asked| asked.deadline_ns <= now_ns);
            link.handle_timer(core);
            let count = over.len() as u64;
            core.counters.upstream_timed_out.add(count);
            core.counters.backplane_timed_out.add(count);
            for asked in over {
                upstreams.answers.give(asked, Err(UpstreamError::TimedOut));
            }
            return;
        }
        let found = upstreams.position(|link| link.is_of(number));
        let Some(index) = found else { return };
        let (link, answers) = (&mut upstreams.links[index], &mut upstreams.answers);
        let over = link.give_up(core, |asked| asked.deadline_ns <= now_ns);
        link.handle_timer(core, answers);
        link.send_waiting(core, answers);
        for asked in over {
            core.counters.upstream_timed_out.add(1);
            answers.give(asked, Err(UpstreamError::TimedOut));
        }
    });
    end_idle_upstreams(core);
}

/// Cancels the requests of a session that has ended.
#[inline]
pub(crate) fn forget_asker(core: &mut Core, id: SessionId) {
    if core.upstreams.is_empty() {
        return;
    }
    with(core, |upstreams, core| {
        for link in &mut upstreams.nodes {
            let count = link.give_up(core, |asked| asked.asker == id).len() as u64;
            core.counters.upstream_cancelled.add(count);
            core.counters.backplane_abandoned.add(count);
        }
        for link in &mut upstreams.links {
            // The answers are dropped, because the session has ended.
            let over = link.give_up(core, |asked| asked.asker == id);
            core.counters.upstream_cancelled.add(over.len() as u64);
            if !over.is_empty() {
                link.send_waiting(core, &mut upstreams.answers);
            }
        }
    });
    end_idle_upstreams(core);
}

/// Calls the callbacks whose answers have come. Call it only while no message of a session is being handled.
#[inline]
pub(crate) fn run_answers(core: &mut Core) {
    if core.upstreams.is_empty() {
        return;
    }
    // A callback may make further answers, which are handled as well.
    loop {
        let mut answers = Vec::new();
        with(core, |upstreams, _| {
            answers = std::mem::take(&mut upstreams.answers.0);
        });
        if answers.is_empty() {
            return;
        }
        for answer in answers {
            let asker = answer.asker;
            // After a panic the asker is closed. The service has not been called, so it stays.
            let _ = core.contain(asker, |core| answer.run(core));
        }
    }
}

impl Answer {
    fn run(self, core: &mut Core) {
        let mut context = match core.sessions.table.find(self.asker) {
            Some(session) if !session.connection.is_closed() => core.context(self.asker),
            _ if self.asker == SessionId::NONE => core.context_without_session(),
            // The session ended in this turn.
            _ => return,
        };
        let result = self.result.as_deref().map_err(Clone::clone);
        (self.call)(&mut context, result);
    }
}
