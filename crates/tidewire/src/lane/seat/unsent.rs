//! The lanes at rest that have requests of this thread.
//!
//! A request does not call a lane at rest, because the thread that made the request soon waits for the reply and then
//! leads the lane. A thread with several clients makes requests of all, and then waits for one of them. It must not
//! leave the others at rest meanwhile. So a thread notes the lanes, and before it waits it leads each of them once,
//! without blocking. The requests of four clients then travel at the same time.

use std::cell::RefCell;
use std::sync::Weak;

use super::Lead;
use crate::sync::thread_local;

thread_local! {
    /// A lane is added with the first request after its last turn. Only a wait of the thread empties the list.
    static UNSENT: RefCell<Vec<Weak<dyn Lead>>> = RefCell::default();
}

/// Notes a lane at rest that has a request of this thread.
pub(crate) fn note(seat: &Weak<dyn Lead>) {
    // A thread that ends has no such list, and does not wait. The lane's own thread sends the request.
    let _ = UNSENT.try_with(|unsent| {
        let mut unsent = unsent.borrow_mut();
        if unsent.last().is_some_and(|last| last.ptr_eq(seat)) {
            return;
        }
        if unsent.len() == unsent.capacity() {
            // Each living lane stays in the list once.
            unsent.retain(|it| it.strong_count() > 0);
            unsent.sort_by_key(|it| it.as_ptr().addr());
            unsent.dedup_by(|one, other| one.ptr_eq(other));
            // Without spare room, each further note would clean up again.
            let lanes = unsent.len();
            unsent.reserve(lanes);
        }
        unsent.push(Weak::clone(seat));
    });
}

/// Whether a lane other than the one with this identity is noted.
pub(super) fn is_elsewhere(own: usize) -> bool {
    let is_other = |seat: &Weak<dyn Lead>| seat.as_ptr().addr() != own;
    let any = UNSENT.try_with(|unsent| unsent.borrow().iter().any(is_other));
    any.unwrap_or_default()
}

/// Runs the noted lanes except for the lane with this identity, which the caller leads next.
pub(super) fn send_elsewhere(own: usize) {
    while let Some(seat) = UNSENT.try_with(|it| it.borrow_mut().pop()).ok().flatten() {
        if let Some(seat) = seat.upgrade()
            && seat.id() != own
        {
            seat.lead(Some(0), &mut || false);
        }
    }
}

#[cfg(test)]
pub(super) fn noted() -> usize {
    UNSENT.with(|unsent| unsent.borrow().len())
}
