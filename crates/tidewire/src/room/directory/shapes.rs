//! The shapes of patterns with inner wildcards, and how many of them a session, an address and the server may have.
//!
//! Problem: a publication looks for one pattern of each shape, and each may match. So unknown peers could make every
//! publication dear with patterns of many shapes. Approach: the limits count shapes. Ten thousand devices with the
//! pattern `dev.NAME.*.set` have one. A shape counts for the session that was the first to use it, and for the address
//! of that session, as long as it has a pattern. The 31 shapes whose only wildcard is at the end have no limit: each
//! topic fits at most 17 of them.

use std::collections::HashMap;
use std::net::IpAddr;

use tidewire_proto::topic::{Pattern, Shape};

use super::aliases::Quota;
use crate::limits::TopicLimits;
use crate::room::{ReachedLimit, RoomError};
use crate::session::SessionId;

/// The shapes with inner wildcards that patterns have.
#[derive(Debug)]
pub(super) struct Shapes {
    used: HashMap<Shape, UsedShape>,
    quota: Quota,
    per_session_max: usize,
}

#[derive(Debug)]
struct UsedShape {
    patterns: usize,
    first: SessionId,
    owner: Option<IpAddr>,
}

impl Shapes {
    pub(super) fn new(limits: &TopicLimits) -> Self {
        Self {
            used: HashMap::new(),
            quota: Quota::new(limits.shapes_per_address_max(), limits.shapes_max()),
            per_session_max: limits.shapes_per_session_max(),
        }
    }

    /// Checks whether a session may open a pattern.
    pub(super) fn check(
        &self,
        pattern: &Pattern<'_>,
        id: SessionId,
        owner: Option<IpAddr>,
    ) -> Result<(), RoomError> {
        let new = limited(pattern).filter(|shape| !self.used.contains_key(shape));
        if new.is_none() {
            return Ok(());
        }
        let own = self.used.values().filter(|it| it.first == id).count();
        if own >= self.per_session_max {
            return Err(RoomError::TooManyShapes(ReachedLimit::Session));
        }
        let checked = self.quota.check(owner, self.used.len());
        checked.map_err(|full| RoomError::TooManyShapes(full.into()))
    }

    /// Counts a pattern that was opened.
    pub(super) fn add(&mut self, pattern: &Pattern<'_>, id: SessionId, owner: Option<IpAddr>) {
        let Some(shape) = limited(pattern) else {
            return;
        };
        let quota = &mut self.quota;
        let used = self.used.entry(shape).or_insert_with(|| {
            quota.add(owner);
            UsedShape {
                patterns: 0,
                first: id,
                owner,
            }
        });
        used.patterns += 1;
    }

    /// Counts a pattern that was closed.
    pub(super) fn remove(&mut self, pattern: &str) {
        let pattern = Pattern::parse(pattern).ok();
        let Some(shape) = pattern.as_ref().and_then(limited) else {
            return;
        };
        if let Some(used) = self.used.get_mut(&shape) {
            used.patterns -= 1;
            if used.patterns == 0 {
                self.quota.remove(used.owner);
                self.used.remove(&shape);
            }
        }
    }
}

/// The shape of a pattern, if the limits count it.
fn limited(pattern: &Pattern<'_>) -> Option<Shape> {
    let shape = pattern.is_wildcard().then(|| pattern.shape())?;
    shape.has_inner_wildcard().then_some(shape)
}
