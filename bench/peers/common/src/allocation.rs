//! Counting the bytes that a rival asks its allocator for.
//!
//! The allocator beneath is that of Tidewire's own binary, so that no side has a better one. Threads count in separate
//! slots, because all allocations would contend for the cache line of a single counter. Rejected: Tidewire's own
//! counting allocator, which counts for each thread and has no sum over all threads. Allocations by libraries in C are
//! not counted.

#![expect(
    unsafe_code,
    reason = "implementing the allocator trait is unsafe by definition"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use mimalloc::MiMalloc;

struct Counting;

// SAFETY: every call is forwarded unchanged to the allocator within, which keeps the contract; counting touches only
// atomics and a thread-local without a destructor, so it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are the ones the allocator within asks for.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the allocator within, since every allocation here does.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size.saturating_sub(layout.size()));
        // SAFETY: as above.
        unsafe { MiMalloc.realloc(pointer, layout, new_size) }
    }
}

/// Bytes that the process has allocated so far. Freeing does not reduce the count.
#[must_use]
pub fn allocated_bytes() -> u64 {
    COUNTS
        .iter()
        .map(|count| count.0.load(Ordering::Relaxed))
        .sum()
}

fn count(bytes: usize) {
    let mut place = PLACE.get();
    if place == NO_PLACE {
        place = PLACES_TAKEN.fetch_add(1, Ordering::Relaxed) % PLACES;
        PLACE.set(place);
    }
    COUNTS[place].0.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// A number alone on two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Count(AtomicU64);

#[global_allocator]
static ALLOCATOR: Counting = Counting;
static COUNTS: [Count; PLACES] = [const { Count(AtomicU64::new(0)) }; PLACES];
static PLACES_TAKEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(NO_PLACE) };
}

/// Number of slots. Threads take them in turn, so that each of a few threads has its own.
const PLACES: usize = 16;

/// The thread has no slot yet.
const NO_PLACE: usize = usize::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_threads_ask_for_is_counted() {
        let before = allocated_bytes();
        std::thread::spawn(|| drop(std::hint::black_box(vec![1_u8; 1_000_000])))
            .join()
            .unwrap();
        assert!(allocated_bytes() - before >= 1_000_000);
    }
}
