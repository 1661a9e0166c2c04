//! Memory of replies and of payloads being made, to be used again.
//!
//! It goes round: a thread fetches a reply into it, the application drops the reply, and the next one that the same thread
//! fetches is in it again. In between it waits with the thread, because a lock for it alone would be a
//! third of all that a request costs the application. Memory is as good for one client as for another, so that it need not
//! know whose it is.
//!
//! References to a client's link go round in the same way, between the requests that hold them: counting one more and one
//! less is two atomic operations, each of which costs as much as everything that is done for a request without them.

use std::cell::RefCell;
use std::sync::Arc;

use super::link::Link;

/// Emptied memory, or none.
// Into its callers: returned by way of memory it would be read in larger pieces than it was just written in.
#[inline(always)]
pub(crate) fn take() -> Vec<u8> {
    let mut taken = Vec::new();
    // A thread that ends has nothing any more.
    let _ = RETURNED.try_with(|returned| {
        if let Some(memory) = returned.borrow_mut().pop() {
            taken = memory;
        }
    });
    taken
}

/// Takes memory back that is not needed any more.
pub(crate) fn give_back(mut memory: Vec<u8>) {
    if !(1..=SPARE_BYTES_MAX).contains(&memory.capacity()) {
        return;
    }
    memory.clear();
    let _ = RETURNED.try_with(|returned| {
        let mut returned = returned.borrow_mut();
        if returned.len() < RETURNED_MAX {
            returned.push(memory);
        }
    });
}

/// A reference to this link: one that was given back, or one more.
#[inline]
pub(super) fn share(link: &Arc<Link>) -> Arc<Link> {
    let shared = LINKS.try_with(|links| links.borrow_mut().pop());
    match shared.ok().flatten() {
        Some(shared) if Arc::ptr_eq(&shared, link) => shared,
        _ => Arc::clone(link),
    }
}

/// Takes a reference back that is not needed any more. Only those to one link are kept, the last one.
#[inline]
pub(super) fn give_back_share(link: Arc<Link>) {
    let _ = LINKS.try_with(|links| {
        // What falls with the last reference to another link may run code of an executor, and come here again.
        while let Some(other) = pop_other(links, &link) {
            drop(other);
        }
        let mut links = links.borrow_mut();
        if links.len() < RETURNED_MAX {
            links.push(link);
        }
    });
}

fn pop_other(links: &RefCell<Vec<Arc<Link>>>, link: &Arc<Link>) -> Option<Arc<Link>> {
    links.borrow_mut().pop_if(|last| !Arc::ptr_eq(last, link))
}

thread_local! {
    static LINKS: RefCell<Vec<Arc<Link>>> = const { RefCell::new(Vec::new()) };
    static RETURNED: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Pieces that wait with a thread: more than most windows of requests. A thread that only drops replies holds no more.
const RETURNED_MAX: usize = 256;

/// Largest piece that is kept, in bytes: 1 MiB for a thread, and 16 MiB with all requests that a client may have under way.
const SPARE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::exchange::Exchange;

    #[test]
    fn references_go_round_and_only_those_to_the_last_link_are_kept() {
        let [first, second] = [(); 2].map(|()| Arc::new(Link::new(Exchange::new(1_000, false))));
        let held = [(); 3].map(|()| share(&first));
        assert_eq!(Arc::strong_count(&first), 4);
        held.into_iter().for_each(give_back_share);
        let again = [(); 4].map(|()| share(&first));
        assert_eq!(Arc::strong_count(&first), 5, "three of them were spare");
        again.into_iter().for_each(give_back_share);
        let other = share(&second);
        assert_eq!(
            (Arc::strong_count(&first), Arc::strong_count(&second)),
            (4, 2),
            "one was not what was needed"
        );
        give_back_share(other);
        let counts = [&first, &second].map(Arc::strong_count);
        assert_eq!(counts, [1, 2]);
    }

    /// What waits with the last reference to a link may come back here when it falls.
    #[test]
    fn a_link_that_falls_may_give_back_another() {
        struct Task(std::sync::Mutex<Option<Arc<Link>>>);
        impl std::task::Wake for Task {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Task {
            fn drop(&mut self) {
                give_back_share(self.0.lock().unwrap().take().unwrap());
            }
        }
        let [first, second, third] =
            [(); 3].map(|()| Arc::new(Link::new(Exchange::new(1_000, false))));
        let ticket = crate::client::queue::Ticket::due_at(1);
        let slot = first.push_call(ticket, "", b"").unwrap();
        let task = Arc::new(Task(std::sync::Mutex::new(Some(Arc::clone(&third)))));
        let outcome = first.fetch_or_wait(slot, Some(&task.into()));
        assert!(outcome.is_none());
        let weak = Arc::downgrade(&first);
        give_back_share(first);
        give_back_share(second);
        assert!(weak.upgrade().is_none());
        assert_eq!(Arc::strong_count(&third), 1, "it fell, too");
    }

    #[test]
    fn memory_waits_with_its_thread_unless_it_is_large() {
        give_back(vec![1, 2]);
        give_back(vec![0; SPARE_BYTES_MAX + 1]);
        give_back(Vec::new());
        std::thread::spawn(|| assert_eq!(take().capacity(), 0))
            .join()
            .unwrap();
        let memory = take();
        assert!(memory.is_empty() && memory.capacity() >= 2);
        assert_eq!(take().capacity(), 0);
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        for _ in 0..RETURNED_MAX + 1 {
            give_back(vec![1]);
        }
        let kept = std::iter::repeat_with(take).take_while(|memory| memory.capacity() > 0);
        assert_eq!(kept.count(), RETURNED_MAX);
    }
}
