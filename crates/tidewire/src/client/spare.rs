//! Memory of replies and of payloads being made, to be used again.
//!
//! It goes round: the lane fills it with a reply, the application drops the reply, and the next request that the same thread
//! makes brings it along for its own reply. In between it waits with the thread, because a lock for it alone would be a
//! third of all that a request costs the application. Memory is as good for one client as for another, so that it need not
//! know whose it is.

use std::cell::RefCell;

/// Emptied memory, or none.
pub(crate) fn take() -> Vec<u8> {
    let taken = RETURNED.try_with(|returned| returned.borrow_mut().pop());
    // A thread that ends has nothing any more.
    taken.ok().flatten().unwrap_or_default()
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

thread_local! {
    static RETURNED: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Pieces that wait with a thread: more than most windows of requests. A thread that only drops replies holds no more.
const RETURNED_MAX: usize = 256;

/// Largest piece that is kept, in bytes: 1 MiB for a thread, and 16 MiB with all requests that a client may have under way.
const SPARE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

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
