//! Topics on a lane: subscribe, unsubscribe, publish.
//!
//! Subscribers of the same pattern share a log on each lane. That log is one of [`OpenRooms`], so sweeps, cursors,
//! policies, gap notices and messages to other lanes use the same code. The difference is where a message goes. A
//! room's message is appended to the one log of that room. A topic's message is appended once to the log of every
//! pattern that matches, never once per subscriber, and its publisher need not be a subscriber.
//!
//! A session that is subscribed to two matching patterns gets the message once for each. Rejected: one delivery in
//! total. The two subscriptions have their own policies, positions and gaps. So a search for sessions that get a
//! message twice would visit every subscriber for every message.

mod cache;
mod groups;
mod publishing;
mod routes;

use std::collections::HashSet;
use std::sync::Arc;

use tidewire_proto::body::validate_name;
use tidewire_proto::codec::Codec;
use tidewire_proto::room::Policy;
use tidewire_proto::topic::{Pattern, Shape};

pub(super) use groups::Group;
pub(crate) use publishing::{PUBLISHED_OVERHEAD_BYTES, RECORDED_OVERHEAD_BYTES};
pub(crate) use routes::Routes;
pub(super) use routes::Topics;

use super::deliveries::{LaneDeliveries, OpenRooms};
use super::refusal::{ReachedLimit, RoomError};
use crate::history::TopicHistory;
use crate::mailbox::Exchange;
use crate::observe::{DropReason, QuietLog};
use crate::room::SharedRoom;
use crate::session::{LaneSessions, Session, SessionId, SessionLimiter};
use cache::TopicCache;
use groups::group_name;

/// The routes of a lane from topics to subscriptions, and the limit of registrations.
#[derive(Debug)]
pub(super) struct TopicTable {
    /// The subscriptions that match a topic.
    routes: Routes,
    /// The latest topics, and their subscriptions.
    cache: TopicCache,
    /// The history of the last message's topic. Only this one is held, so that another topic's history can give way to
    /// a new one.
    history: Option<TopicHistory>,
    /// Counts the registrations of the whole server.
    limiter: Arc<SessionLimiter>,
    /// Limits the log lines about refused registrations.
    registration_log: QuietLog,
}

/// The topics of a lane, with the parts of the lane that they use.
#[derive(Debug)]
pub(crate) struct LaneTopics<'a> {
    topics: &'a mut TopicTable,
    open: &'a mut OpenRooms,
    sessions: &'a mut LaneSessions,
    exchange: &'a mut Exchange,
}

impl TopicTable {
    pub(super) fn new(limiter: Arc<SessionLimiter>) -> Self {
        Self {
            routes: Routes::default(),
            cache: TopicCache::default(),
            history: None,
            limiter,
            registration_log: QuietLog::default(),
        }
    }
}

impl<'a> LaneTopics<'a> {
    #[inline(always)]
    pub(super) fn new(
        topics: &'a mut TopicTable,
        open: &'a mut OpenRooms,
        sessions: &'a mut LaneSessions,
        exchange: &'a mut Exchange,
    ) -> Self {
        Self {
            topics,
            open,
            sessions,
            exchange,
        }
    }

    #[inline(always)]
    fn deliveries(&mut self) -> LaneDeliveries<'_> {
        LaneDeliveries::new(self.open, self.sessions, self.exchange)
    }

    /// Attaches a session to the log of a pattern, or to one of its own in a queue group. Returns the alias of the
    /// subscription.
    pub(crate) fn subscribe<'p>(
        &mut self,
        id: SessionId,
        wanted: impl Into<Wanted<'p>>,
        policy: Option<Policy>,
    ) -> Result<u16, RoomError> {
        let subscribed = self.try_subscribe(id, wanted.into(), policy);
        if let Err(
            RoomError::TooManyPatterns(_) | RoomError::TooManyShapes(_) | RoomError::OutOfMemory,
        ) = subscribed
        {
            self.sessions.counters.rooms_refused.add(1);
        }
        let session = self.sessions.table.find(id);
        let is_registration = session.is_some_and(|it| self.registers(it));
        if let Err(
            error @ (RoomError::TooManyPatterns(_)
            | RoomError::OutOfMemory
            | RoomError::TooManyRegistrations(_)
            | RoomError::Unproven),
        ) = subscribed
            && is_registration
        {
            self.note_registration_refused(id, error);
        }
        subscribed
    }

    /// Counts a refused registration, and logs it at a limited rate, because a flood of them must not flood the log.
    /// The subscriber gets no error, so the log tells the operator.
    fn note_registration_refused(&mut self, id: SessionId, error: RoomError) {
        if let Some(unlogged) = self
            .topics
            .registration_log
            .may_log(self.sessions.timers.now_ns())
        {
            let peer = self
                .sessions
                .table
                .find(id)
                .and_then(|session| session.profile.peer.as_deref());
            let peer = peer.map(tracing::field::display);
            tracing::warn!(
                session = %id,
                peer,
                unlogged,
                %error,
                "a registration is refused; further refusals are counted and not logged for 10 s"
            );
        }
        // The counter changes last, so that a test that sees the count finds the line in the log.
        self.sessions.counters.registrations_refused.add(1);
    }

    /// Whether a session may subscribe, but for the limits that all sessions share. Returns its slot and the pattern.
    pub(crate) fn check_subscribe<'p>(
        &self,
        id: SessionId,
        wanted: Wanted<'p>,
        policy: Option<Policy>,
    ) -> Result<(usize, Pattern<'p>), RoomError> {
        let pattern = Pattern::parse(wanted.pattern).map_err(RoomError::Topic)?;
        if let Some(group) = wanted.group {
            validate_name(group).map_err(RoomError::GroupName)?;
            if self.open.directory().link().is_some() {
                return Err(RoomError::GroupOnNode);
            }
        }
        let slot = self.sessions.table.slot_of(id).ok_or(RoomError::NotOpen)?;
        if let Some(policy) = policy {
            let codec = self.sessions[slot].codec_number();
            self.sessions.config.codecs.policies(codec).check(policy)?;
        }
        if self.sessions[slot].stream.is_unproven() {
            return Err(RoomError::Unproven);
        }
        if self.sessions[slot].connection.handshake().frame_bytes_max()
            < self.sessions.config.limits.connections.frame_bytes_max()
        {
            // As in rooms, a message is framed once for all subscribers.
            return Err(RoomError::FrameLimit);
        }
        let session = &self.sessions[slot];
        let is_subscribed = match wanted.group {
            None => (self.open.directory().pattern(pattern.text()))
                .is_some_and(|shared| session.subscription(shared.alias()).is_some()),
            Some(group) => self.is_in_group(session, &group_name(pattern.text(), group)),
        };
        if is_subscribed {
            return Err(RoomError::AlreadySubscribed);
        }
        let identity = session.profile.admitted.as_ref();
        let own_max = identity.and_then(|it| it.identity().own_limits().subscriptions_max);
        let count_max = self.sessions.config.limits.topics.per_session_max();
        if session.has_memberships(true, own_max.unwrap_or(count_max).min(count_max)) {
            return Err(RoomError::TooManyPatterns(ReachedLimit::Session));
        }
        if !self.may_use_shape(session, &pattern) {
            return Err(RoomError::TooManyShapes(ReachedLimit::Session));
        }
        if self.sessions.relief.is_at_its_share(Some(session)) {
            return Err(RoomError::OutOfMemory);
        }
        Ok((slot, pattern))
    }

    /// Whether a session may have a pattern with its shape beside the patterns that it has.
    fn may_use_shape(&self, session: &Session, pattern: &Pattern<'_>) -> bool {
        let Some(wanted) = pattern.shape().filter(Shape::has_inner_wildcard) else {
            return true;
        };
        let topics = session.memberships.iter().filter(|it| it.is_topic());
        let shared = topics.filter_map(|it| self.open.shared(it.room()));
        let mut shapes: HashSet<Shape> = shared.filter_map(|it| it.limited_shape()).collect();
        shapes.insert(wanted);
        shapes.len() <= self.sessions.config.limits.topics.shapes_per_session_max()
    }

    /// Whether a session subscribes to every topic at once, because its codec has no patterns.
    fn registers(&self, session: &Session) -> bool {
        let codec = self.sessions.config.codecs.get(session.codec_number());
        codec.format().registers_subscribers
    }

    /// Whether a session has a subscription in a queue group.
    fn is_in_group(&self, session: &Session, name: &str) -> bool {
        let mut in_groups = session.memberships.iter().filter(|it| it.is_in_group());
        in_groups.any(|membership| {
            let shared = self.open.shared(membership.room());
            shared.is_some_and(|shared| **shared.name() == *name)
        })
    }

    fn try_subscribe(
        &mut self,
        id: SessionId,
        wanted: Wanted<'_>,
        policy: Option<Policy>,
    ) -> Result<u16, RoomError> {
        let (slot, pattern) = self.check_subscribe(id, wanted, policy)?;
        let owner = self.sessions[slot].owner();
        let limiter = Arc::clone(&self.topics.limiter);
        let registers = self.registers(&self.sessions[slot]);
        if registers {
            let registered = limiter.register(owner);
            registered.map_err(|full| RoomError::TooManyRegistrations(full.into()))?;
        }
        let group = wanted.group.map(|group| group_name(pattern.text(), group));
        let directory = self.open.directory();
        let topic = match directory.subscribe(&pattern, group.as_deref(), id, owner) {
            Ok(topic) => topic,
            Err(refusal) => {
                if registers {
                    limiter.unregister(owner);
                }
                return Err(refusal);
            }
        };
        if registers {
            self.sessions.counters.registrations.add(1);
        }
        self.deliveries().attach(slot, &topic, policy);
        Ok(topic.alias())
    }

    /// Ends a subscription.
    pub(crate) fn unsubscribe(&mut self, id: SessionId, alias: u16) -> Result<(), RoomError> {
        let slot = self
            .sessions
            .table
            .slot_of(id)
            .ok_or(RoomError::NotSubscribed)?;
        let index = self.sessions[slot]
            .subscription(alias)
            .ok_or(RoomError::NotSubscribed)?;
        self.detach(slot, index, DropReason::Left);
        Ok(())
    }

    /// Ends a subscription. The unsent messages of one in a queue group go to the other members.
    pub(super) fn detach(&mut self, slot: usize, subscription: usize, reason: DropReason) {
        let unsent = match self.sessions[slot].memberships[subscription].is_in_group() {
            true => self.unsent_of(slot, subscription),
            false => Vec::new(),
        };
        if let Some((shared, Some(group))) = self.end(slot, subscription, reason, unsent.len()) {
            let unsent = if group.is_empty() { Vec::new() } else { unsent };
            self.pass_on(shared.alias(), &group, unsent);
        }
    }

    /// Ends a subscription whose lane ends. The other members of a queue group end, too, so nothing goes to them.
    pub(super) fn close(&mut self, slot: usize, subscription: usize) {
        self.end(slot, subscription, DropReason::Closed, 0);
    }

    /// Ends a subscription, of which so many unsent messages go to other members of its queue group, if it has some.
    /// Returns the group without it.
    fn end(
        &mut self,
        slot: usize,
        subscription: usize,
        reason: DropReason,
        unsent: usize,
    ) -> Option<(Arc<SharedRoom>, Option<Arc<Group>>)> {
        let alias = self.sessions[slot].memberships[subscription].room();
        let shared = Arc::clone(self.open.shared(alias)?);
        let directory = self.open.directory();
        let group = directory.unsubscribe(&shared, self.exchange.lane());
        let reassigned = match &group {
            Some(group) if !group.is_empty() => unsent as u64,
            _ => 0,
        };
        self.deliveries()
            .detach(slot, subscription, (reason, reassigned))?;
        if self.registers(&self.sessions[slot]) {
            let owner = self.sessions[slot].owner();
            self.topics.limiter.unregister(owner);
        }
        self.deliveries().close_unused(&shared);
        Some((shared, group))
    }
}

/// The topics that a session wants to subscribe to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'p> {
    pattern: &'p str,
    /// The name of a queue group, in which one member gets each message.
    group: Option<&'p str>,
}

impl<'p> Wanted<'p> {
    pub(crate) fn in_group(pattern: &'p str, group: Option<&'p str>) -> Self {
        Self { pattern, group }
    }
}

impl<'p, P: AsRef<str> + ?Sized> From<&'p P> for Wanted<'p> {
    fn from(pattern: &'p P) -> Self {
        Self::in_group(pattern.as_ref(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::lane;
    use crate::observe::{QUIET_NS, logged};
    use crate::server::Server;

    /// Regression: each refusal was a line in the log, so any sender of datagrams could fill it.
    #[test]
    fn a_flood_of_refused_registrations_is_counted_and_not_logged() {
        const FLOOD: u64 = 1_000;
        let mut core = lane(&Server::builder()).core;
        let mut refuse = |count: u64| {
            logged(|| {
                for _ in 0..count {
                    core.rooms()
                        .topics()
                        .note_registration_refused(SessionId::NONE, RoomError::Unproven);
                }
                core.sessions.pass_time(QUIET_NS);
            })
        };
        for text in [refuse(FLOOD), refuse(FLOOD)] {
            assert_eq!(
                text.matches("a registration is refused").count(),
                1,
                "{text}"
            );
        }
        assert_eq!(core.counters.registrations_refused.read(), 2 * FLOOD);
    }

    /// A session finds its place in a room or pattern by a binary search, whatever came and went before.
    #[test]
    fn memberships_stay_in_order_when_subscriptions_end_and_others_take_their_aliases() {
        const COUNT: usize = 200;
        let mut lane = lane(&Server::builder());
        let (slot, _end) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let name = |number: usize| format!("topic.{number}");
        let mut aliases = Vec::new();
        for number in 0..COUNT {
            let subscribed = lane
                .core
                .rooms()
                .topics()
                .subscribe(id, &name(number), None);
            aliases.push(subscribed.unwrap());
        }
        let subscribed_again = lane.core.rooms().topics().subscribe(id, &name(7), None);
        assert!(matches!(
            subscribed_again,
            Err(RoomError::AlreadySubscribed)
        ));
        for alias in aliases.iter().step_by(3) {
            lane.core.rooms().topics().unsubscribe(id, *alias).unwrap();
        }
        for number in (0..COUNT).step_by(3) {
            let subscribed = lane
                .core
                .rooms()
                .topics()
                .subscribe(id, &name(number), None);
            aliases[number] = subscribed.unwrap();
        }
        let session = &lane.core.sessions[slot];
        assert!(session.memberships.is_sorted_by_key(|it| it.room()));
        for alias in &aliases {
            let index = session.subscription(*alias).unwrap();
            assert_eq!(session.memberships[index].room(), *alias);
        }
        for alias in aliases {
            lane.core.rooms().topics().unsubscribe(id, alias).unwrap();
        }
        assert!(lane.core.sessions[slot].memberships.is_empty());
    }
}
