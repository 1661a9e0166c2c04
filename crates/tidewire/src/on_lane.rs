//! Whether this thread runs a lane. A wait on a lane stops all its sessions, and a wait for its own work never ends, so
//! every wait of this library asks here first.

use std::cell::Cell;

thread_local! {
    /// The identity of the lane that this thread runs; 0 if it runs none.
    static LANE: Cell<usize> = const { Cell::new(0) };
    /// The lane that visits `LANE`; 0 if none. Visits do not nest.
    static VISITOR: Cell<usize> = const { Cell::new(0) };
}

/// Says that this thread is a lane's own from now on. The thread ends with the lane.
pub(crate) fn begin(lane: usize) {
    LANE.set(lane);
}

/// Says that this thread runs a lane until the value is dropped.
pub(crate) fn enter(lane: usize) -> Entered {
    let visitor = LANE.replace(lane);
    Entered {
        before: [visitor, VISITOR.replace(visitor)],
    }
}

/// A thread that runs a lane for a while.
pub(crate) struct Entered {
    before: [usize; 2],
}

impl Drop for Entered {
    fn drop(&mut self) {
        let [lane, visitor] = self.before;
        LANE.set(lane);
        VISITOR.set(visitor);
    }
}

/// Whether this thread runs a lane.
#[inline]
pub(crate) fn is_lane() -> bool {
    !is_on(0)
}

/// Whether this thread runs the lane with this identity.
#[inline]
pub(crate) fn is_on(lane: usize) -> bool {
    // While a thread ends it has no thread-local variables, and no sessions.
    LANE.try_with(Cell::get).unwrap_or_default() == lane
}

/// Whether this thread runs the lane with this identity, or a lane that this lane visits.
pub(crate) fn is_within(lane: usize) -> bool {
    is_on(lane) || VISITOR.try_with(Cell::get).unwrap_or_default() == lane
}

/// Refuses a wait on a lane by a panic, because the result has no place for an error.
///
/// # Panics
/// This thread is a lane. The panic ends the session whose handler waits, and the log has the text.
#[track_caller]
pub(crate) fn refuse_to_wait() {
    assert!(!is_lane(), "{NO_WAIT_ON_A_LANE}");
}

/// The reason why a wait on a lane fails, and the remedy.
pub(crate) const NO_WAIT_ON_A_LANE: &str = "this thread is a lane of a server or client, and waiting here would stop \
    all its sessions; ask other servers with `Upstream`, answer later with `Context::defer`, or wait on another thread";
