//! Whether this thread is a lane. A wait on a lane stops all its sessions, and a wait for its own work never ends, so
//! every wait of this library asks here first.

use std::cell::Cell;

thread_local! {
    static IS_LANE: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread is a lane from now on. The thread ends with the lane.
pub(crate) fn begin() {
    IS_LANE.set(true);
}

/// Whether this thread is a lane.
#[inline]
pub(crate) fn is_lane() -> bool {
    // While a thread ends it has no thread-local variables, and no sessions.
    IS_LANE.try_with(Cell::get).unwrap_or(false)
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
