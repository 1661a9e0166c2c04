//! Spans of a lane's work. They show the way of one connection through a busy server.
//!
//! Five spans with the target `tidewire::span`, behind the cargo feature `trace`:
//!
//! | span | level | from | to | fields |
//! |---|---|---|---|---|
//! | `connect` | debug | accepted, or requested | open, or failed | session, peer, codec, outgoing, opened |
//! | `receive` | trace | the first read | the last, of one turn | session, peer, codec, bytes |
//! | `handle` | trace | decoded | the service returned | session, peer, codec, kind, bytes |
//! | `send` | trace | the first write | the last, of one flush | session, peer, codec, bytes |
//! | `close` | debug | before the service is told | taken apart | session, peer, codec, reason |
//!
//! A span `handle` is inside a span `receive`. A client has a lane too, so it has all five.
//!
//! Approach: the lane makes a guard and ends it, with the same calls whether the feature is on or off. If it is off,
//! the guards have no size and the calls have no code; `.ci/count-instructions` checks that. Rejected: the features
//! `max_level_off` of `tracing`, because an application sets them for all its crates. Rejected: a span as long as its
//! session, because it costs memory for every idle session and shows no more than `connect` and `close`.

#[cfg(not(feature = "trace"))]
mod absent;
#[cfg(feature = "trace")]
mod present;

use std::fmt;

#[cfg(not(feature = "trace"))]
pub(crate) use absent::{Connecting, Moving, SpanGuard};
#[cfg(feature = "trace")]
pub(crate) use present::{Connecting, Moving, SpanGuard};

/// A session, as its spans name it.
#[cfg_attr(
    not(feature = "trace"),
    expect(
        dead_code,
        reason = "only spans ask for these, and without the feature there are none"
    )
)]
pub(crate) trait Traced {
    fn id(&self) -> impl fmt::Display;

    fn peer(&self) -> Option<impl fmt::Display>;

    fn is_outgoing(&self) -> bool;
}

#[cfg(all(test, not(feature = "trace")))]
mod tests {
    use super::*;

    #[test]
    fn without_the_feature_a_guard_is_nothing() {
        assert_eq!(size_of::<Connecting>(), 0);
        assert_eq!(size_of::<SpanGuard>(), 0);
        assert_eq!(size_of::<Moving>(), 0);
        assert!(!std::mem::needs_drop::<(Connecting, SpanGuard, Moving)>());
    }
}
