//! The shapes of patterns with inner wildcards, and how many of them a session, an address and the server may have.
//!
//! Problem: a publication looks for one pattern of each shape, and each may match. So unknown peers could make every
//! publication dear with patterns of many shapes. Approach: the limits count shapes. Ten thousand devices with the
//! pattern `dev.NAME.*.set` have one. A shape counts for the address that used it first. It does so as long as the
//! shape has a pattern, also if only other addresses subscribe to that. A session has a limit for the shapes of its own
//! patterns. The 32 shapes whose only wildcard is at the end have no limit: each topic fits at most 17 of them.

use std::collections::HashMap;
use std::net::IpAddr;

use tidewire_proto::topic::Shape;

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

    /// Checks whether a session of this address may open a pattern of this shape, if the limits count it.
    pub(super) fn check(
        &self,
        shape: Option<Shape>,
        owner: Option<IpAddr>,
    ) -> Result<(), RoomError> {
        if shape.is_none_or(|shape| self.used.contains_key(&shape)) {
            return Ok(());
        }
        let checked = self.quota.check(owner, self.used.len());
        checked.map_err(|full| RoomError::TooManyShapes(full.into()))
    }

    /// Counts a pattern of this shape that was opened.
    pub(super) fn add(&mut self, shape: Option<Shape>, owner: Option<IpAddr>) {
        let Some(shape) = shape else {
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
