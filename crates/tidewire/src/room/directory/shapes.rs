//! The shapes of patterns with inner wildcards, and how many of them a session, an address and the server may have.
//!
//! Problem: a publication looks for one pattern of each shape, and each may match. So unknown peers could make every
//! publication dear with patterns of many shapes. Approach: the limits count shapes. Ten thousand devices with the
//! pattern `dev.NAME.*.set` have one. A shape counts for the address that was the first to use it, as long as it has a
//! pattern, whoever subscribes to that. A session may use a number of shapes, whoever was the first. The 32 shapes
//! whose only wildcard is at the end have no limit: each topic fits at most 17 of them.

use std::collections::HashMap;
use std::net::IpAddr;

use tidewire_proto::topic::{Pattern, Shape};

use super::aliases::Quota;
use crate::limits::TopicLimits;
use crate::room::RoomError;

/// The shapes with inner wildcards that patterns have.
#[derive(Debug)]
pub(super) struct Shapes {
    used: HashMap<Shape, UsedShape>,
    quota: Quota,
}

#[derive(Debug)]
struct UsedShape {
    patterns: usize,
    owner: Option<IpAddr>,
}

impl Shapes {
    pub(super) fn new(limits: &TopicLimits) -> Self {
        Self {
            used: HashMap::new(),
            quota: Quota::new(limits.shapes_per_address_max(), limits.shapes_max()),
        }
    }

    /// Checks whether a session of this address may open a pattern.
    pub(super) fn check(
        &self,
        pattern: &Pattern<'_>,
        owner: Option<IpAddr>,
    ) -> Result<(), RoomError> {
        let shape = pattern.shape().filter(Shape::has_inner_wildcard);
        if shape.is_none_or(|shape| self.used.contains_key(&shape)) {
            return Ok(());
        }
        let checked = self.quota.check(owner, self.used.len());
        checked.map_err(|full| RoomError::TooManyShapes(full.into()))
    }

    /// Counts a pattern that was opened.
    pub(super) fn add(&mut self, pattern: &Pattern<'_>, owner: Option<IpAddr>) {
        let Some(shape) = pattern.shape().filter(Shape::has_inner_wildcard) else {
            return;
        };
        let quota = &mut self.quota;
        let used = self.used.entry(shape).or_insert_with(|| {
            quota.add(owner);
            UsedShape { patterns: 0, owner }
        });
        used.patterns += 1;
    }

    /// Counts a pattern of this shape that was closed.
    pub(super) fn remove(&mut self, shape: Option<Shape>) {
        let Some(shape) = shape else {
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
