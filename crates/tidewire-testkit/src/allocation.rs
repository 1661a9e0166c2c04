//! Counting allocations: how many a thread made, and how many bytes the process holds.
//!
//! Problem: "allocates nothing per message" must be asserted, not hoped for. Approach: an allocator that forwards
//! to the system's and counts, for the whole process the bytes held, and for marked threads the calls. A thread is
//! marked by running code on it ([`mark_this_thread`]), which for a lane means its service, so that neither the
//! test's own threads nor the test runner disturb the count. Rejected: counting by thread name (finding the name
//! inside an allocator may allocate) and counting everything (the test's peers allocate).

#![expect(
    unsafe_code,
    reason = "implementing the allocator trait is unsafe by definition"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The system's allocator with counters. Install it in a test binary with `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator;

/// Counts the allocations of this thread from now on.
pub fn mark_this_thread() {
    MARKED.set(true);
}

/// Allocations made by marked threads so far; growing a buffer counts, freeing does not.
#[must_use]
pub fn marked_allocations() -> u64 {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// Bytes the process has allocated and not freed.
#[must_use]
pub fn bytes_held() -> i64 {
    BYTES_HELD.load(Ordering::SeqCst)
}

fn count(grown_bytes: i64) {
    BYTES_HELD.fetch_add(grown_bytes, Ordering::SeqCst);
    // A thread that ends has no thread-locals any more, and is not a lane in its steady state.
    if MARKED.try_with(Cell::get).unwrap_or(false) {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator, which keeps the contract; counting touches
// only atomics and a thread-local without a destructor, so it neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are the ones `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES_HELD.fetch_sub(layout.size() as i64, Ordering::SeqCst);
        // SAFETY: as above; the pointer came from `System`, since every allocation here does.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES_HELD: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static MARKED: Cell<bool> = const { Cell::new(false) };
}
