//! The latest topics of a lane, each with the subscriptions that match it.
//!
//! Problem: to find the subscriptions of a topic takes a look-up for each shape of patterns, and to frame their
//! deliveries anew costs three times a copy. Most publishers repeat a topic, or go through a set of topics. Approach: a
//! table with one place for each hash of a topic. A topic that needs a place takes that of another topic, so that
//! topics that never repeat cost no more than their look-up. Every change of a subscription empties the table before
//! the next look-up. So it keeps no pattern that has ended, and no history of one.

use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::Arc;

use tidewire_proto::topic::validate_topic;

use super::groups::Group;
use super::routes::Routes;
use crate::room::{RoomError, SharedRoom};
use crate::session::RepeatedFrame;

/// The latest topics of a lane.
#[derive(Debug)]
pub(super) struct TopicCache {
    /// The topic of the last message. Its place is empty meanwhile: a message that repeats the topic reads no place.
    recent: CachedTopic,
    recent_place: usize,
    places: Box<[CachedTopic]>,
    /// The version of the routes that the table is for.
    version: u64,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct CachedTopic {
    /// Empty if the place is free.
    topic: String,
    matches: Vec<Match>,
    groups: Vec<Arc<Group>>,
}

/// A subscription that matches the topic.
#[derive(Debug)]
pub(super) struct Match {
    shared: Arc<SharedRoom>,
    /// The frame of the topic's last delivery.
    delivery: RepeatedFrame,
}

impl Default for TopicCache {
    fn default() -> Self {
        Self {
            recent: CachedTopic::default(),
            recent_place: 0,
            places: (0..PLACES).map(|_| CachedTopic::default()).collect(),
            version: 0,
            hasher: RandomState::new(),
        }
    }
}

impl TopicCache {
    /// Whether this is the topic of the last message and no route has changed since. A topic is never empty.
    #[inline]
    pub(super) fn is_recent(&self, topic: &str, routes: &Routes) -> bool {
        self.version == routes.version() && !topic.is_empty() && self.recent.topic == topic
    }

    /// The subscriptions that match the topic of the last message.
    #[inline]
    pub(super) fn matches(&self) -> &[Match] {
        &self.recent.matches
    }

    #[inline]
    pub(super) fn matches_mut(&mut self) -> &mut [Match] {
        &mut self.recent.matches
    }

    /// Whether queue groups match the topic of the last message.
    #[inline]
    pub(super) fn has_groups(&self) -> bool {
        !self.recent.groups.is_empty()
    }

    /// Takes the queue groups that match the topic of the last message, while messages are given to them.
    pub(super) fn take_groups(&mut self) -> Vec<Arc<Group>> {
        mem::take(&mut self.recent.groups)
    }

    pub(super) fn put_groups(&mut self, groups: Vec<Arc<Group>>) {
        self.recent.groups = groups;
    }

    /// Makes a topic the recent one.
    pub(super) fn look_up(&mut self, topic: &str, routes: &Routes) -> Result<(), RoomError> {
        if self.version != routes.version() {
            self.places.iter_mut().for_each(CachedTopic::clear);
            self.recent.clear();
            self.version = routes.version();
        }
        if self.recent.matches.len() + self.recent.groups.len() > MATCHES_MAX {
            self.recent.clear();
        }
        mem::swap(&mut self.recent, &mut self.places[self.recent_place]);
        self.recent_place = (self.hasher.hash_one(topic) % PLACES as u64) as usize;
        mem::swap(&mut self.recent, &mut self.places[self.recent_place]);
        if topic.is_empty() || self.recent.topic != topic {
            // After an error no topic is the recent one.
            self.recent.topic.clear();
            validate_topic(topic).map_err(RoomError::Topic)?;
            self.recent.fill(topic, routes);
        }
        Ok(())
    }
}

impl Match {
    #[inline]
    pub(super) fn shared(&self) -> &Arc<SharedRoom> {
        &self.shared
    }

    /// The subscription, and the frame of the topic's last delivery.
    #[inline]
    pub(super) fn parts(&mut self) -> (&SharedRoom, &mut RepeatedFrame) {
        (&self.shared, &mut self.delivery)
    }
}

impl CachedTopic {
    fn fill(&mut self, topic: &str, routes: &Routes) {
        self.topic.push_str(topic);
        self.matches.clear();
        self.groups.clear();
        routes.each_group(topic, |group| self.groups.push(Arc::clone(group)));
        routes.each_match(topic, |shared| {
            self.matches.push(Match {
                shared: Arc::clone(shared),
                delivery: RepeatedFrame::default(),
            });
        });
    }

    fn clear(&mut self) {
        self.topic.clear();
        self.matches = Vec::new();
        self.groups = Vec::new();
    }
}

/// The places of a lane, 72 bytes each. With 16 matches a topic has less than 8 KB.
const PLACES: usize = 256;

/// Most matches of a topic that stays in the table after another one.
const MATCHES_MAX: usize = 16;
