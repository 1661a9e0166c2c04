//! Counting allocations: how many each thread makes, and how many bytes the process holds.
//!
//! Problem: "allocates nothing per message" must be asserted by tests and shown in reports, not hoped for. Approach: an
//! allocator that forwards to another one and counts on the way. Each thread counts for itself, in two numbers that only
//! it writes, so that counting costs a few additions and no locked instruction; a lane publishes its own among its
//! metrics. Besides, threads can be marked by code that runs on them ([`mark_this_thread`]), which for a lane means its
//! service, and what marked threads allocate can be read by any other: neither a test's own threads nor the test runner
//! then disturb the count. The bytes that the process holds are one number for all threads, since memory is freed by other
//! threads than those that took it; each adds to it what has gathered when that exceeds 4 KiB.
//!
//! Rejected: counting by thread name (finding the name inside an allocator may allocate); one count for the whole
//! process (peers and coordinators allocate); locked additions for every allocation (20 ns on top of the 6 of a good
//! allocator, even to a cache line of one's own); and a list of all threads' counts, which would have to be taken apart
//! while threads end.
//!
//! Where no [`CountingAllocator`] is the global one, nothing is counted, and [`thread_allocations`] says so.

#![expect(
    unsafe_code,
    reason = "implementing the allocator trait is unsafe by definition"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// An allocator that counts and leaves the work to another one, by default the system's. Install it with
/// `#[global_allocator]`, at most one in a program: the counts are the program's.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator<A = System>(A);

impl CountingAllocator {
    /// Counts what the system's allocator does.
    #[must_use]
    pub const fn new() -> Self {
        Self(System)
    }
}

impl<A> CountingAllocator<A> {
    /// Counts what `allocator` does.
    pub const fn over(allocator: A) -> Self {
        Self(allocator)
    }
}

// SAFETY: every call is forwarded unchanged to the allocator within, which keeps the contract; counting touches only
// atomics and thread-locals without destructors, so it neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        hold(layout.size() as i64);
        // SAFETY: the caller's promises are the ones the allocator within asks for.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        hold(layout.size() as i64);
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(-(layout.size() as i64));
        // SAFETY: as above; the pointer came from the allocator within, since every allocation here does.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size.saturating_sub(layout.size()));
        hold(new_size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }
}

/// What one thread has allocated since it started. Freeing is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// How often. Growing or shrinking a buffer counts as once.
    pub count: u64,
    /// Bytes asked for; of a buffer that grew, those that were added.
    pub bytes: u64,
}

/// What the calling thread has allocated since it started; nothing where the program does not count.
#[must_use]
pub fn thread_allocations() -> Option<Allocations> {
    is_counting().then(|| Allocations {
        count: COUNT.get(),
        bytes: BYTES.get(),
    })
}

/// Whether the program's allocator counts.
#[must_use]
pub fn is_counting() -> bool {
    IS_COUNTING.load(Ordering::Relaxed)
}

/// Counts the allocations of this thread among those of marked threads from now on.
pub fn mark_this_thread() {
    MARKED.set(true);
}

/// Allocations made by marked threads so far.
#[must_use]
pub fn marked_allocations() -> u64 {
    MARKED_COUNT.load(Ordering::SeqCst)
}

/// Bytes the process has allocated and not freed, within 4 KiB for each thread it has had.
#[must_use]
pub fn bytes_held() -> i64 {
    HELD.load(Ordering::SeqCst)
}

fn count(bytes: usize) {
    // These have no destructors, so they can be reached until the thread has ended.
    let before = COUNT.replace(COUNT.get().wrapping_add(1));
    if before == 0 {
        IS_COUNTING.store(true, Ordering::Relaxed);
    }
    BYTES.set(BYTES.get().wrapping_add(bytes as u64));
    if MARKED.get() {
        MARKED_COUNT.fetch_add(1, Ordering::SeqCst);
    }
}

/// Notes that the process holds this many bytes more. What one thread takes another may free, so what a thread keeps to
/// itself can be below zero.
fn hold(bytes: i64) {
    let unpublished = UNPUBLISHED.get() + bytes;
    if unpublished.unsigned_abs() < UNPUBLISHED_MAX {
        UNPUBLISHED.set(unpublished);
    } else {
        UNPUBLISHED.set(0);
        HELD.fetch_add(unpublished, Ordering::SeqCst);
    }
}

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static HELD: AtomicI64 = AtomicI64::new(0);
static MARKED_COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static MARKED: Cell<bool> = const { Cell::new(false) };
    static UNPUBLISHED: Cell<i64> = const { Cell::new(0) };
}

/// How far a thread's bytes may stray before it tells the process: much more than a message, so that nothing in a steady
/// state touches the shared number, and little beside what a process holds.
const UNPUBLISHED_MAX: u64 = 4_096;
