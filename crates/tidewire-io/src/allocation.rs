//! Counts allocations: how many each thread makes, and how many bytes the process holds.
//!
//! Problem: tests must assert "allocates nothing per message", and reports must show it. Approach: an allocator that
//! forwards to another one and counts. Each thread counts in two numbers that no other thread writes, so counting costs
//! a few additions and no locked instruction. A lane publishes its numbers among its metrics. Code can also mark the
//! thread it runs on ([`mark_this_thread`]), which for a lane means its service. Any thread can read the allocations of
//! marked threads. The threads of a test and of the test runner do not disturb that count. The bytes that the process
//! holds are one number for all threads, because one thread frees what another allocated. Each thread adds its share to
//! that number when the share exceeds 4 KiB.
//!
//! Rejected: counting by thread name, because finding the name may allocate within the allocator. Rejected: one count
//! for the process, because peers and coordinators allocate. Rejected: locked additions for every allocation. They cost
//! 20 ns, even on a separate cache line, and a good allocator takes 6 ns. Rejected: a list of all threads' counts,
//! because a thread would have to remove itself while it ends.
//!
//! A program without a global [`CountingAllocator`] counts nothing, and [`thread_allocations`] returns `None`.

#![expect(
    unsafe_code,
    reason = "implementing the allocator trait is unsafe by definition"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// An allocator that counts and forwards to another one, by default the system's. Install it with
/// `#[global_allocator]`, once per program: the counts belong to the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct CountingAllocator<A = System>(A);

impl CountingAllocator {
    /// Counts the allocations of the system's allocator.
    #[must_use]
    pub const fn new() -> Self {
        Self(System)
    }
}

impl<A> CountingAllocator<A> {
    /// Counts the allocations of `allocator`.
    pub const fn over(allocator: A) -> Self {
        Self(allocator)
    }
}

// SAFETY: every call is forwarded unchanged to the inner allocator, which keeps the contract. Counting touches only
// atomics and thread-locals without destructors, so it neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the inner allocator requires.
        let pointer = unsafe { self.0.alloc(layout) };
        note(pointer, layout.size(), layout.size() as i64);
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let pointer = unsafe { self.0.alloc_zeroed(layout) };
        note(pointer, layout.size(), layout.size() as i64);
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(-(layout.size() as i64));
        // SAFETY: as above; the pointer came from the inner allocator, because every allocation here does.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as above.
        let moved = unsafe { self.0.realloc(pointer, layout, new_size) };
        let added = new_size.saturating_sub(layout.size());
        note(moved, added, new_size as i64 - layout.size() as i64);
        moved
    }
}

/// Counts an allocation, unless the inner allocator has refused it: a refused allocation holds nothing.
#[inline]
fn note(pointer: *mut u8, bytes_added: usize, bytes_held: i64) {
    if !pointer.is_null() {
        count(bytes_added);
        hold(bytes_held);
    }
}

/// The allocations of one thread since it started. Freeing is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allocations {
    /// The number of allocations. A buffer that grows or shrinks counts once.
    pub count: u64,
    /// The bytes requested; for a buffer that grew, the bytes added.
    pub bytes: u64,
}

/// Returns the allocations of the calling thread since it started, or `None` when the program does not count.
#[inline]
#[must_use]
pub fn thread_allocations() -> Option<Allocations> {
    is_counting().then(|| Allocations {
        count: COUNT.get(),
        bytes: BYTES.get(),
    })
}

/// Returns whether the program's allocator counts.
#[inline]
#[must_use]
pub fn is_counting() -> bool {
    IS_COUNTING.load(Ordering::Relaxed)
}

/// Counts the allocations of this thread among those of marked threads from now on.
pub fn mark_this_thread() {
    MARKED.set(true);
}

/// Returns the allocations that marked threads made so far.
#[must_use]
pub fn marked_allocations() -> u64 {
    MARKED_COUNT.load(Ordering::SeqCst)
}

/// Returns the bytes that the process has allocated and not freed, within 4 KiB for each thread it has had.
#[must_use]
pub fn bytes_held() -> i64 {
    HELD.load(Ordering::SeqCst)
}

fn count(bytes: usize) {
    // Thread-locals without destructors stay reachable until the thread has ended.
    let before = COUNT.replace(COUNT.get().wrapping_add(1));
    if before == 0 {
        IS_COUNTING.store(true, Ordering::Relaxed);
    }
    BYTES.set(BYTES.get().wrapping_add(bytes as u64));
    if MARKED.get() {
        MARKED_COUNT.fetch_add(1, Ordering::SeqCst);
    }
}

/// Notes that the process holds this many bytes more. One thread may free what another allocated, so a thread's own
/// share can be below zero.
fn hold(bytes: i64) {
    // An allocator must not unwind, so this addition must not check for overflow.
    let unpublished = UNPUBLISHED.get().wrapping_add(bytes);
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

/// The share that a thread keeps before it adds the share to the process's number. The share is much larger than a
/// message, so a steady state does not touch the process's number, and much smaller than the bytes of a process.
const UNPUBLISHED_MAX: u64 = 4_096;
